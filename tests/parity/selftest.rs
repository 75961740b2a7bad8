//! `flux selftest` and `flux devices` on a GPU.

use std::collections::BTreeSet;

use flux::backend::Memory;
use flux::backend::cpu::{Cpu, Precision};
use flux::engine::devices::survey;
use flux_bench::selftest::{Settings, run};

use crate::pipeline::default_model;

#[test]
fn every_test_of_the_machine_holds() {
    let Some(cuda) = crate::cuda() else { return };
    let (cpu, mut found) = (Cpu::new(Precision::F32), Vec::new());
    let settings = Settings::default();
    let tell = &mut |finding: flux_bench::selftest::Finding| {
        println!("{} {:.2} s: {}", finding.name, finding.seconds, finding.figures);
        found.push(finding);
        Ok(())
    };
    run(&cuda, &cpu, false, &settings, || Ok(default_model()), tell).unwrap();
    let wrong: Vec<_> = found.iter().filter_map(|finding| Some((&finding.name, finding.wrong.as_ref()?))).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(found.iter().any(|finding| finding.name.starts_with("image/") && finding.figures.contains("the CPU")));
    let names: BTreeSet<_> = found.iter().map(|finding| &finding.name).collect();
    assert_eq!(names.len(), found.len(), "each once");
}

#[test]
fn a_value_that_is_wrong_is_found_in_every_op() {
    let Some(cuda) = crate::cuda() else { return };
    let settings = Settings { names: vec!["ops/".to_string()], spoil: true };
    let mut right = Vec::new();
    let tell = &mut |finding: flux_bench::selftest::Finding| {
        right.extend(finding.wrong.is_none().then_some(finding.name));
        Ok(())
    };
    run(&cuda, &Cpu::new(Precision::F32), false, &settings, || Ok(default_model()), tell).unwrap();
    assert!(right.is_empty(), "{right:?}");
}

#[test]
fn the_gpu_that_is_used_is_told() {
    let Some(cuda) = crate::cuda() else { return };
    let found = survey().unwrap();
    println!("{found:#?}");
    let gpu = &found.gpus[0];
    assert!(cuda.describe().contains(&gpu.name), "{} is not {}", gpu.name, cuda.describe());
    assert!(cuda.describe().contains(&format!("compute capability {}", gpu.capability)));
    assert_eq!((gpu.number, &gpu.unusable), (0, &None));
    assert_eq!(gpu.computes_in, Some(if cuda.computes_in_bf16() { "bf16" } else { "fp16" }));
    assert!(gpu.uuid.as_ref().is_some_and(|uuid| uuid.len() == 36) && gpu.kernels != "none", "{gpu:?}");
    assert!(gpu.memory_bytes.is_some_and(|bytes| bytes > 1 << 30), "{gpu:?}");
    assert_eq!(gpu.without_fp8.is_none(), crate::cuda_fp8().is_some(), "{gpu:?}");
}
