//! Checks of one GPU, with stand-in programs.

use std::fs;
use std::path::Path;

use super::stand_in::Machine;
use crate::scripts::write;

#[test]
fn adapters_are_measured_in_fp8_where_the_gpu_has_it() {
    let machine = Machine::new("9.0");
    let row = r#"echo "{\"name\":\"adapters/1024x1024\",\"step_ms\":50.0,\"merged_step_ms\":50.1,\"beside_step_ms\":58.5,\"open_ms\":5.0,\"first_ms\":30.0,\"factors_ms\":12.0,\"merge_ms\":9.0,\"again_ms\":0.4,\"without_ms\":0.3}"; echo "$*" >>"$RAN""#;
    machine.program("bin/flux", row);
    let figures =
        "step 50.0, merged 50.1, beside 58.5; open 5.0, ready 30.0 (factors 12.0, merge 9.0), cached 0.4, none 0.3;";
    let checked = machine.check(&["adapters"], &[]).passes();
    assert_eq!(checked.result, format!("bf16, ms: {figures} fp8, ms: {figures}"));
    let precisions: Vec<_> = checked.ran.iter().map(|line| line.contains("--precision fp8")).collect();
    assert_eq!(precisions, [false, true], "{:?}", checked.ran);
    machine.gpus("8.0");
    let checked = machine.check(&["adapters"], &[]).passes();
    assert_eq!(checked.result, format!("bf16, ms: {figures}"));
    assert!(checked.ran.iter().all(|line| line.contains("bench adapters/")), "{:?}", checked.ran);
}

/// A stand-in for flux: generates nothing, and benches with these times of a step.
fn program_with_steps_of(name: &str, bf16_ms: f32, fp8_ms: f32) -> String {
    format!(
        r#"row() {{ echo "{{\"name\":\"stages/$1x$1\",\"size\":$1,\"step_ms\":$2,\"decode_ms\":17.5,\"total_ms\":234.0}}"; }}
        echo {name} >>"$RAN"
        case "$*" in
            *fp8*) row 1024 {fp8_ms} ;;
            bench*) row 512 15; row 1024 {bf16_ms} ;;
            compare*) echo "max 0 mean 0.0000 psnr inf dB" ;;
        esac"#
    )
}

#[test]
fn two_programs_are_compared_in_turn() {
    let machine = Machine::new("9.0");
    machine.program("base", &program_with_steps_of("base", 50.0, 40.0));
    machine.program("bin/flux", &program_with_steps_of("new", 45.0, 30.0));
    let base = machine.path("base");
    let environment = [("BASE", base.to_str().expect("UTF-8"))];
    let checked = machine.check(&["compare"], &environment).passes();
    let rows = checked.log.lines().skip_while(|line| !line.starts_with("median of 5")).skip(1);
    let rows = rows.take_while(|line| !line.starts_with("start to PNG"));
    let table: Vec<_> = rows.map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "step 512, bf16, ms 15 15 1.0000",
        "step 1024, bf16, ms 50 45 0.9000",
        "step 1024, fp8, ms 40 30 0.7500",
        "decode 1024, ms 17.5 17.5 1.0000",
        "image 1024, bf16, ms 234 234 1.0000",
        "image 1024, fp8, ms 234 234 1.0000",
    ];
    assert_eq!(table, expected, "{}", checked.log);
    let result = checked.result;
    assert!(result.starts_with("new / base: ") && result.ends_with("psnr inf dB"), "{result}");
    // One image to warm up and, at the end, the comparison; in between five calls each, interleaved.
    let mut ran = checked.ran;
    ran.dedup();
    let expected = ["new", "base"].into_iter().cycle().take(11).collect::<Vec<_>>();
    assert_eq!(ran, expected);

    machine.gpus("8.0");
    let log = machine.check(&["compare"], &environment).passes().log;
    assert!(!log.contains("fp8, ms") && log.contains("no fp8: "), "{log}");
    let result = machine.check(&["compare"], &[]).fails().result;
    assert!(result.contains("make gpu-bundle BASE="), "{result}");
}

#[test]
fn images_from_references_are_measured_in_fp8_where_the_gpu_has_it() {
    let machine = Machine::new("9.0");
    let edits = "512x512+1 step 11, image 21, read 51; 1024x1024+1 step 11, image 21, read 51; \
                 1024x1024+2 step 12, image 22, read 52;";
    let encodes = "vae_encode/1024x1024 8; vae_encode/2048x2048 8;";
    let checked = machine.check(&["edits"], &[]).passes();
    assert_eq!(checked.result, format!("ms, bf16: {edits} {encodes} fp8: {edits}"));
    let ran = checked.ran;
    assert!(ran.len() == 2 && ran[0].contains("--precision bf16") && ran[1].contains("--precision fp8"), "{ran:?}");
    assert!(ran[0].contains("vae_encode/2048x2048") && !ran[1].contains("vae_encode"), "{ran:?}");

    machine.gpus("8.9");
    let checked = machine.check(&["edits"], &[]).passes();
    assert_eq!((checked.result, checked.ran.len()), (format!("ms, bf16: {edits} {encodes}"), 1));
}

#[test]
fn the_model_of_9b_is_written_where_it_is_not_and_kept_where_that_is_asked_for() {
    let machine = Machine::new("9.0");
    let model = machine.path("models/klein-9b");
    let figures = "ms, step without references 10; with 1: step 11 (1.100 x), made in 41, prompts 21, 31; \
                   with 2: step 12 (1.200 x), made in 42, prompts 22, 32; \
                   with 4: step 14 (1.400 x), made in 44, prompts 24, 34;";
    // If the disk is too small, the model is in memory, and the bench gets its path.
    let used = |ran: &[String]| ran[0].split(" -d ").nth(1).unwrap().split(' ').next().unwrap().to_string();
    let checked = machine.check(&["kv"], &[]).passes();
    let (result, ran) = (checked.result, checked.ran);
    assert!(result.starts_with("written in ") && result.ends_with(&format!(" s; {figures}")), "{result}");
    assert!(ran.len() == 1 && ran[0].contains("--kv") && ran[0].contains("--references 1,2,4"), "{ran:?}");
    assert!(!Path::new(&used(&ran)).exists(), "it deletes what it wrote");

    fs::create_dir_all(&model).unwrap();
    write(model.join("model_index.json"), "{}");
    let checked = machine.check(&["kv"], &[]).passes();
    assert_eq!(
        (checked.result, used(&checked.ran)),
        (format!("{} was there; {figures}", model.display()), model.display().to_string())
    );
    assert!(model.exists(), "it deletes nothing else");

    fs::remove_dir_all(&model).unwrap();
    let kept = used(&machine.check(&["kv"], &[("KEEP", "1")]).passes().ran);
    assert!(Path::new(&kept).join("model_index.json").exists());
    fs::remove_dir_all(kept).unwrap();
}

/// A stopped section deletes its unfinished files.
#[test]
fn a_model_of_9b_that_is_stopped_half_written_is_deleted() {
    let machine = Machine::new("9.0");
    machine.program("tools/python", r#"mkdir -p "$3" && echo "$3" >"$RAN" && exec sleep 60"#);
    let checked = machine.check(&["nine"], &[("LIMIT_S", "5")]).fails();
    assert!(checked.run.stdout.contains("limit of 5 s"), "{}", checked.run.stdout);
    assert!(!checked.ran[0].is_empty() && !Path::new(&checked.ran[0]).exists(), "{:?}", checked.ran);
}

/// Answers every command of a section to flux.
const FLUX: &str = r#"case "$1" in
bench)
    case "$*" in
        *--json*) for size in 256 512 1024 2048; do
            name="\"name\":\"stages/${size}x$size\",\"size\":$size"
            echo "{$name,\"text_ms\":5.5,\"step_ms\":50.25,\"decode_ms\":16.5,\"total_ms\":$size.5,\"peak_gib\":2.42}"
        done ;;
        *) echo "ceiling/copy 512 MiB  0.2571 ms  [0.2550 .. 0.2587]  4176.03 GB/s   96% of ceiling"
            echo "ops/add 4608x3072  0.0246 ms" ;;
    esac ;;
compare) echo "max 0 mean 0.0000 psnr inf dB" ;;
*)
    while [ $# -gt 0 ]; do
        case "$1" in
            -o) out=$2 ;;
            --gpu-memory) [ "$2" != 1 ] || { echo "error: the image needs more" >&2; exit 1; } ;;
        esac
        shift
    done
    echo "the same" >"$out"
    echo "{\"device\":\"a GPU, ${FLUX_COMPUTE:-bf16}\",\"timings\":{\"total_s\":9,\"device\":{\"peak_memory_bytes\":1073741824}},\"total_s\":1.098}"
    ;;
esac"#;

/// Every section of one GPU, with its line of the summary.
#[test]
fn every_section_of_one_gpu_measures_and_says_what() {
    let machine = Machine::new("9.0");
    machine.program("bin/flux", FLUX);
    machine.program(
        "bin/gpu",
        r#"case "$*" in
            *--list*) echo "rms_norm::it_matches: test"; echo "add::it_matches: test"; exit ;;
            *few_bits*) echo "fp8: latents 0.015 from float32, steps 9.7 ms"
                echo "q8_0: latents 0.007 from float32, steps 9 ms" ;;
        esac
        for size in 512 1024; do echo "test a ... $size x $size: 0.006 from float32, the reference in bf16 0.065"; done
        echo "64x96.png 3 steps: 51.5 dB"; echo "1.png 2: 61.5 dB"; echo "2.png 2: 9.5 dB"
        echo "test result: ok. 57 passed; 0 failed; 0 ignored""#,
    );
    machine.program(
        "tools/compute-sanitizer",
        r#"while [ "$1" != --test-threads ]; do shift; done; echo "========= ERROR SUMMARY: 0 errors""#,
    );
    machine.program(
        "tools/nvidia-smi",
        r#"case "$*" in *-lms*) while :; do echo 1500; sleep 0.02; done ;; *used*) echo 100 ;; *) echo 9.0 ;; esac"#,
    );
    machine.program(
        "tools/python",
        r#"case "$*" in
            *--cold*) echo '{"size": 1024, "image_s": 2.5}' ;;
            *--editing*) for size in 512 1024 2048; do
                echo "{\"size\": $size, \"encode_ms\": 1.5, \"step_1_ms\": 2.5, \"step_2_ms\": 3.5}"; done ;;
            *bench_reference*) for size in 512 1024 2048; do
                echo "{\"size\": $size, \"step_ms\": 29.5, \"total_ms\": 175.25, \"image_ms\": null}"; done ;;
            *make_full_size*) mkdir -p "$3" && echo {} >"$3/model_index.json" ;;
        esac"#,
    );
    for name in ["bin/units", "bin/cpu_gemm"] {
        machine.program(name, "echo 'test result: ok. 5 passed; 0 failed'");
    }
    let stages = "total ms, 256: 256.5, 512: 512.5, 1024: 1024.5, 2048: 2048.5; step at 1024: 50.25";
    let tests = "test result: ok. 57 passed; 0 failed";
    let reference = "total ms, 512: 175.25, 1024: 175.25";
    let editing =
        "ms, encode at 1024: 1.5, 2048: 1.5; step with one reference at 512: 2.5, at 1024: 2.5, with two: 3.5";
    let streamed = "text 5.5, step 50.25, decode 16.5, image 256.5;";
    let within = "step 50.25, peak 2.42 GiB;";
    let under = "3 of 3 tests passed; 3 ERROR SUMMARY: 0 errors";
    for (section, begins, ends) in [
        ("parity", tests, tests),
        ("image", "256 x 256 in 1.10 s", ""),
        ("model", "", "klein-4b is there"),
        ("bench", "1 ops measured; ceiling/copy 4176.03 GB/s", ""),
        ("stages", stages, stages),
        ("fp8", stages, stages),
        (
            "half",
            &format!("{tests}; default model 9.5 dB from float32; 512: 1.10 s, in bf16 1.10 s, apart max 0"),
            "inf dB;",
        ),
        ("warm", "", " s"),
        ("streaming", &format!("ms at 1024 x 1024 within 4 GiB: {streamed}"), &format!("10.5 GiB: {streamed}")),
        (
            "formats",
            "ms, fp8: latents 0.015 from float32, steps 9.7 ms; q8_0: latents 0.007 from float32, steps 9 ms; ",
            &format!("q4_k within 2.8 GiB: {within} 1024 x 1024 all in Q4_K: 1400 MiB by the driver, tensors 1.00 GiB"),
        ),
        ("reference", reference, " s"),
        ("compile", reference, "step at 1024: 29.5"),
        ("editing", editing, editing),
        ("compile_editing", editing, editing),
        ("memcheck", under, under),
        ("racecheck", under, under),
        ("initcheck", under, under),
        ("nine", "written in ", " GiB; within 5 GiB in 1.10 s, 1400 MiB by the driver, the same bytes"),
        (
            "fidelity",
            "512 x 512: 0.006 from float32, the reference in bf16 0.065; 1024 x 1024: 0.006",
            "the reference in bf16 0.065",
        ),
        ("memory", "start to PNG within 12 GiB: 1.10 s, -10888 MiB beside;", "at most 376 MiB; refused within 1 GiB"),
    ] {
        let result = machine.check(&[section], &[]).passes().result;
        assert!(result.starts_with(begins) && result.ends_with(ends) && !result.is_empty(), "{section}: {result}");
    }
    let result = machine.check(&["cpu"], &[]).passes().result;
    let here = result.starts_with("f32 ")
        && result.ends_with(
            "from start to PNG 1.10 s, the reference from prompt to image 2.5 s; max 0 mean 0.0000 psnr inf dB",
        );
    assert!(here || result == "skipped: this processor has no AMX-BF16", "{result}");
    let result = machine.check(&["warm"], &[]).passes().result;
    assert_eq!(result.split(" s from start to PNG, median ").next().unwrap().split(' ').count(), 5, "{result}");
}

#[test]
fn what_is_wrong_is_the_line_of_the_section() {
    let machine = Machine::new("9.0");
    machine.program("bin/flux", &FLUX.replace("the same", "$$"));
    assert_eq!(machine.check(&["warm"], &[]).fails().result, "the same seed gave another image");
    let result = machine.check(&["cold"], &[]).fails().result;
    assert!(result.starts_with("no weights in ") && result.ends_with("klein-4b"), "{result}");
    machine.program("bin/flux", "exit 3");
    assert_eq!(machine.check(&["image"], &[]).fails().result, "no image");
    machine.program("bin/flux", "echo '{}'");
    assert_eq!(machine.check(&["image"], &[]).fails().result, "no number total_s in {}");
    machine.program("bin/gpu", "echo 'test result: FAILED. 56 passed; 1 failed; 0 ignored'; exit 101");
    let checked = machine.check(&["parity"], &[]).fails();
    assert!(checked.run.stdout.contains("parity     exit 101"), "{}", checked.run.stdout);
    assert_eq!(checked.result, "test result: FAILED. 56 passed; 1 failed");
    machine.gpus("");
    fs::remove_dir_all(machine.path("models/klein-4b")).unwrap();
    for section in ["stages", "memory", "compile"] {
        let result = machine.check(&[section], &[]).fails().result;
        assert!(result.starts_with("no model in ") && result.ends_with("run the section `model`"), "{result}");
    }
}

#[test]
fn the_machine_is_told_and_tested() {
    let machine = Machine::new("9.0");
    let program = |fp8: bool, ok: bool| {
        let gpu = format!(
            r#"{{\"device\":\"cuda:0\",\"name\":\"A GPU\",\"unusable\":null,\"computes_in\":\"bf16\",\"fp8\":{fp8},\"without_fp8\":null,\"free_bytes\":1,\"memory_bytes\":2,\"kernels\":\"kernels for 9.0a are built in\"}}"#
        );
        let row = format!(r#"{{\"name\":\"ops/add\",\"ok\":{ok}}}"#);
        let code = i32::from(!ok);
        format!(
            r#"case "$1" in
                devices) echo "{{\"gpus\":[{gpu}],\"no_gpu\":null}}" ;;
                *) echo "{{\"findings\":[{row}]}}"; exit {code} ;;
            esac"#
        )
    };
    machine.program("bin/flux", &program(true, true));
    let result = machine.check(&["machine"], &[]).passes().result;
    assert!(result.starts_with("A GPU, kernels for 9.0a are built in; 1 tests in "), "{result}");
    assert!(result.ends_with(" s, 0 failed"), "{result}");
    machine.program("bin/flux", &program(true, false));
    let result = machine.check(&["machine"], &[]).fails().result;
    assert!(result.ends_with("1 failed: ops/add"), "{result}");
    machine.program("bin/flux", &program(false, true));
    assert!(machine.check(&["machine"], &[]).fails().result.starts_with("fp8 is False"));
}

#[test]
fn frames_a_second_are_measured_and_too_few_are_told() {
    let machine = Machine::new("9.0");
    let bench = |rate: u32| {
        let row = format!(
            "{{\\\"name\\\":\\\"live\\\",\\\"frames_per_s\\\":{rate},\\\"p50_ms\\\":20,\\\"p95_ms\\\":25,\\\"computed\\\":0.6}}"
        );
        format!("echo \"{row}\"; echo \"$*\" >>\"$RAN\"")
    };
    machine.program("bin/flux", &bench(60));
    let checked = machine.check(&["live"], &[]).passes();
    assert!(
        checked.result.contains("1 step, fp8, small decoder: 60.00 a second, 20.0 ms (95%: 25.0);"),
        "{}",
        checked.log
    );
    let fp8 = checked.ran.iter().filter(|line| line.contains("--precision fp8")).count();
    assert_eq!((checked.ran.len(), fp8), (7, 6), "{:?}", checked.ran);
    assert!(checked.ran[0].starts_with("bench live live/reference-still/ "), "{:?}", checked.ran);
    let small = machine.path("models/small-decoder/vae").display().to_string();
    assert_eq!(checked.ran.iter().filter(|line| line.contains(&small)).count(), 2, "{:?}", checked.ran);
    assert!(checked.result.contains("half of the tokens reused: 60.00 a second, 20.0 ms (95%: 25.0), 60 % computed"));
    machine.program("bin/flux", &bench(20));
    let result = machine.check(&["live"], &[]).fails().result;
    assert!(
        result.contains("reference 512, 2 steps, fp8: frames a second") && !result.contains("bf16: frames"),
        "{result}"
    );
    machine.gpus("8.0");
    assert_eq!(machine.check(&["live"], &[]).passes().ran.len(), 1, "without fp8");
}
