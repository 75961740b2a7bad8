//! Checks that run on a machine with a GPU and without Rust.

mod one_gpu;
mod stand_in;
mod two_gpus;

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::program::{Run, names, project};
use crate::scripts::gpu_bundle::package;
use stand_in::{Machine, gpu_check};

/// The name of a removed test would leave out nothing, or run nothing.
#[test]
fn every_test_that_the_gpu_check_names_is_there() {
    let sources = package().into_iter().map(|file| fs::read_to_string(file).expect("a source"));
    let (script, mut named) = (sources.collect::<String>(), 0);
    for file in names(&project("tests/parity")) {
        let text = fs::read_to_string(project("tests/parity").join(&file)).expect("a parity test");
        let path = format!("{}::", file.trim_end_matches(".rs"));
        for (at, _) in script.match_indices(&path) {
            if script[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
                continue; // the end of another file's name
            }
            let rest = &script[at + path.len()..];
            let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            assert!(text.contains(&format!("fn {name}")), "scripts/gpu_check names {path}{name}");
            named += 1;
        }
    }
    assert!(named > 5, "{named}");
}

#[test]
fn it_explains_itself_and_refuses_what_it_does_not_know() {
    let package = project("scripts/gpu_check");
    let help = Run::new(gpu_check(&package).arg("--help")).succeeds().stdout;
    assert!(help.starts_with("usage: python3 scripts/gpu_check OUT"), "{help}");
    for section in ["parity", "racecheck", "compile_editing", "sanitize"] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(section)), "{section}: {help}");
    }
    Run::new(&mut gpu_check(&package)).fails(2, &["OUT"]);
    Run::new(gpu_check(&package).args(["out", "speed"])).fails(2, &["unknown section: speed"]);
    Run::new(gpu_check(&package).arg("out")).fails(2, &["no section"]);
    for (name, value) in [("TOTAL_S", "soon"), ("LIMIT_S", "0"), ("LIMIT_S", "-5"), ("TOTAL_S", "1e3")] {
        let mut command = gpu_check(&package);
        Run::new(command.args(["out", "image"]).env(name, value)).fails(2, &[name, value, "seconds"]);
    }
}

#[test]
fn a_bundle_that_lacks_what_its_tests_read_is_refused() {
    let machine = Machine::new("9.0");
    fs::remove_dir(machine.path("bundle/tests/formats")).expect("our folder");
    machine.check(&["image"], &[]).run.fails(1, &["tests/formats", "STANDALONE=1"]);
    fs::remove_file(machine.path("bundle/bin.tar.xz")).expect("our file");
    let mut command = gpu_check(&machine.path("bundle/scripts/gpu_check"));
    Run::new(command.arg(machine.path("out")).arg("image")).fails(1, &["no bundle in", "make gpu-bundle"]);
}

#[test]
fn a_section_is_stopped_at_its_limit_and_the_others_run() {
    let machine = Machine::new("9.0");
    // It ignores SIGTERM.
    machine.program("bin/flux", "trap '' TERM; echo $$ >\"$RAN\"; echo begun; while :; do sleep 0.1; done");
    let start = Instant::now();
    let checked = machine.check(&["image", "model", "cold"], &[("LIMIT_S", "5"), ("TOTAL_S", "10")]);
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
    let summary = fs::read_to_string(machine.path("out/summary.txt")).expect("a summary");
    assert_eq!(checked.run.code, Some(1));
    assert!(checked.run.stdout.ends_with(&summary), "{}\n{summary}", checked.run.stdout);
    let line = |name: &str| summary.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{summary}"));
    let limit = line("image");
    assert!(limit.starts_with("image      exit 1") && limit.ends_with("stopped at its limit of 5 s; begun"), "{limit}");
    // The stopped section may have taken all the time.
    assert!(line("model ").contains("klein-4b is there") || line("model ").contains("no time left"), "{summary}");
    assert!(line("cold").contains("no time left"), "{summary}");
    let process = fs::read_to_string(machine.path("ran")).expect("it ran");
    let stat = Path::new("/proc").join(process.trim()).join("stat");
    // An ended process remains as a zombie until it is waited for. Under load it takes a while to end.
    let runs = || fs::read_to_string(&stat).is_ok_and(|state| !state.contains(") Z "));
    let killed = Instant::now();
    while runs() {
        assert!(killed.elapsed() < Duration::from_secs(10), "the program still runs: {}", process.trim());
        sleep(Duration::from_millis(20));
    }
    for head in ["date ", "commit ", "gpu ", "cuda ", "cpu ", "command  python3 scripts/gpu_check OUT image model cold"]
    {
        line(head);
    }
}
