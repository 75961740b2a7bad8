//! How long the stages of a picture take on the GPU once a model is loaded: `cargo bench --bench pipeline -- MODEL [SIZE...]`.
//! `FLUX_PRECISION=fp8` measures the transformer's products in fp8; `bf16` is what it is without.
//!
//! Medians of 5 pictures after 2 that are not counted, 4 steps, timed by device events; sizes are squares in pixels. One JSON line for each.

use std::path::Path;

use flux::backend::Backend;
use flux::backend::cuda::{Cuda, Precision};
use flux::model_dir::ModelDir;
use flux::pipeline::{Pipeline, Request, Timings};

const PROMPT: &str = "A cat holding a sign that says hello world";
const WARM_UP: usize = 2;
const RUNS: usize = 5;

fn main() -> flux::Result<()> {
    // Cargo adds `--bench`.
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let Some((model, sizes)) = args.split_first() else {
        eprintln!("usage: cargo bench --bench pipeline -- MODEL [SIZE...]");
        return Ok(());
    };
    let sizes: Vec<usize> =
        if sizes.is_empty() { vec![512, 1024, 2048] } else { sizes.iter().map(|s| s.parse().expect("a size in pixels")).collect() };
    let precision = match std::env::var("FLUX_PRECISION").as_deref() {
        Ok("fp8") => Precision::Fp8,
        Err(_) | Ok("" | "bf16") => Precision::Bf16,
        Ok(other) => return Err(flux::Error::usage(format!("`{other}` is no precision")).at("FLUX_PRECISION").hint("`bf16` and `fp8` are")),
    };
    let cuda = Cuda::with_precision(0, None, precision)?;
    eprintln!("{}", cuda.describe());
    let mut pipeline = Pipeline::load(cuda, &ModelDir::open(Path::new(model))?)?;
    for size in sizes {
        let request = Request { width: Some(size), height: Some(size), steps: Some(4), ..Request::new(PROMPT, 42) };
        let mut runs = Vec::new();
        for run in 0..WARM_UP + RUNS {
            let timings = pipeline.generate(&request, &mut ())?.timings;
            if run >= WARM_UP {
                runs.push(timings);
            }
        }
        let median_ms = |of: fn(&Timings) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            (values[RUNS / 2] * 1e5).round() / 100.0
        };
        let step = |t: &Timings| t.steps_s.iter().sum::<f64>() / t.steps_s.len() as f64;
        let line = serde_json::json!({
            "size": size,
            "text_ms": median_ms(|t| t.text_s),
            "prepare_ms": median_ms(|t| t.prepare_s),
            "step_ms": median_ms(step),
            "decode_ms": median_ms(|t| t.decode_s),
            "total_ms": median_ms(|t| t.total_s),
            "peak_gib": (runs[0].device.peak_memory_bytes as f64 / f64::from(1 << 30) * 100.0).round() / 100.0,
        });
        println!("{line}");
    }
    Ok(())
}
