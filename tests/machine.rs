//! Reports on the machine and the program: `flux devices`, `flux selftest`, `flux --version --verbose`.

use std::process::Command;

use crate::program::{Run, flux, project};

fn json(run: Run) -> serde_json::Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {}", run.stdout))
}

#[test]
fn devices_tells_the_cpu_and_why_there_is_no_gpu() {
    let text = Run::new(flux().arg("devices")).succeeds().stdout;
    for part in ["cpu\n", "  cores ", "  instructions ", "  memory ", " GiB"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let found = json(Run::new(flux().args(["devices", "--json"])).succeeds());
    assert!(found["cpu"]["threads"].as_u64().is_some_and(|threads| threads > 0), "{found}");
    assert!(found["cpu"]["memory_bytes"].as_u64() >= found["cpu"]["available_bytes"].as_u64(), "{found}");
    let gpus = found["gpus"].as_array().expect("a list");
    // Either there are GPUs, or a reason.
    assert_eq!(gpus.is_empty(), found["no_gpu"].is_string(), "{found}");
    assert_eq!(gpus.is_empty(), text.contains("no GPU: "), "{text}");
    for (number, gpu) in gpus.iter().enumerate() {
        assert_eq!(gpu["device"], format!("cuda:{number}"));
        assert!(gpu["name"].is_string() && gpu["kernels"].is_string(), "{gpu}");
        assert_eq!(gpu["computes_in"].is_null(), gpu["unusable"].is_string(), "{gpu}");
    }
    Run::new(flux().args(["devices", "cuda"])).fails(2, &["cuda"]);
}

/// Small cases, which are quick in every profile.
const QUICK: [&str; 4] = ["37x77", "129x40x24", "65 tokens", "17x13"];

#[test]
fn selftest_holds_on_the_cpu_and_says_what_it_tested() {
    let test = |flags: &[&str]| Run::new(flux().args(["selftest", "--device", "cpu"]).args(QUICK).args(flags));
    let text = test(&[]).succeeds().stdout;
    let head: Vec<_> = text.lines().take_while(|line| !line.starts_with("ok")).collect();
    let version = concat!("flux ", env!("CARGO_PKG_VERSION"));
    assert!(head[0].starts_with(version) && head.iter().any(|line| line.starts_with("tested: CPU, ")), "{text}");
    let ops = ["adaln", "rms_norm", "swiglu", "gated_add", "linear", "linear_add", "low_rank", "attention", "conv2d"];
    for op in ops {
        assert!(text.lines().any(|line| line.starts_with(&format!("ok     ops/{op} "))), "{op}: {text}");
    }
    assert!(text.lines().last().is_some_and(|line| line.starts_with("all ") && line.ends_with(" passed")), "{text}");
    let found = json(test(&["--json"]).succeeds());
    assert_eq!((&found["ok"], &found["version"]), (&true.into(), &env!("CARGO_PKG_VERSION").into()));
    let rows = found["findings"].as_array().expect("a list");
    assert_eq!(rows.len(), text.lines().filter(|line| line.starts_with("ok ")).count());
    assert!(rows.iter().all(|row| row["ok"] == true && row["seconds"].is_number()), "{found}");
}

#[test]
fn selftest_refuses_what_it_cannot_test() {
    let test = |flags: &[&str]| Run::new(flux().arg("selftest").args(flags));
    test(&["--device", "cuda:0,1"]).fails(2, &["one device", "--device"]);
    test(&["--device", "cuda:all"]).fails(2, &["one device"]);
    test(&["--device", "tpu"]).fails(2, &["--device", "cuda:N"]);
    let unknown = test(&["--device", "cpu", "swigloo"]);
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.stderr.contains("`swigloo`") && unknown.stderr.contains("ops/linear"), "{}", unknown.stderr);
}

/// The flag that spoils values is for this test.
#[cfg(debug_assertions)]
#[test]
fn selftest_fails_where_an_op_gives_something_else() {
    let run = Run::new(flux().args(["selftest", "--device", "cpu", "37x77", "--fail-for-test"]));
    assert_eq!(run.code, Some(1), "{}", run.stdout);
    assert!(run.stderr.contains("tests of this machine failed") && run.stderr.contains("hint: "), "{}", run.stderr);
    assert!(run.stdout.contains("FAILED ops/add 37x77") && run.stdout.contains("[0] is "), "{}", run.stdout);
    assert!(run.stdout.lines().last().is_some_and(|line| line.ends_with(" FAILED")), "{}", run.stdout);
}

/// In the release profile it also generates an image.
#[cfg(not(debug_assertions))]
#[test]
fn selftest_draws_the_image_that_the_reference_draws() {
    let words = ["selftest", "--device", "cpu", "memory", "image/", "stages/", "rates/", "linear 256"];
    let text = Run::new(flux().args(words)).succeeds().stdout;
    for part in [" dB from the reference", "MiB, 3 times", "step ", " GB/s", " TFLOP/s"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_version_is_a_line_and_with_verbose_all_of_the_build() {
    let version = concat!("flux ", env!("CARGO_PKG_VERSION"), "\n");
    for flags in [&["--version"][..], &["-V"]] {
        assert_eq!(Run::new(flux().args(flags)).succeeds().stdout, version);
    }
    let long = Run::new(flux().args(["--version", "--verbose"])).succeeds().stdout;
    assert!(long.starts_with(version) && long.contains("\ntarget: ") && long.contains("\nGPU kernels: "), "{long}");
    for flags in [&["-vV"][..], &["-Vv"], &["-V", "-v"]] {
        assert_eq!(Run::new(flux().args(flags)).succeeds().stdout, long, "{flags:?}");
    }
    let commit = long.lines().find_map(|line| line.strip_prefix("commit: ")).expect("a line");
    let head = Command::new("git").current_dir(project("")).args(["rev-parse", "--is-inside-work-tree"]).output();
    // A checkout has a commit, an archive of the sources has none.
    assert_eq!(commit == "-", !head.is_ok_and(|output| output.status.success()), "{long}");
}
