//! Frames through `flux live` for a while, and programs with leaks.

use std::path::Path;
use std::process::Command;

use super::{folder, program_that};
use crate::program::{Run, project};

/// Runs the script for a second, with a program.
fn soak(program: &Path) -> Run {
    let mut command = Command::new("python3");
    command
        .arg("-B")
        .arg(project("scripts/soak_live.py"))
        .arg("1")
        .arg(program)
        .env("FLUX_CONFIG", "")
        .env_remove("FLUX_MODEL");
    Run::new(command.args(["--side", "64", "--device", "cpu", "-s", "1"]))
}

#[test]
fn every_frame_has_its_image_in_its_place_for_a_second() {
    let run = soak(Path::new(env!("CARGO_BIN_EXE_flux"))).succeeds();
    assert!(run.stdout.starts_with("soak: ") && run.stdout.contains(" after a fifth, "), "{}", run.stdout);
    assert!(run.stderr.starts_with("minute 0: "), "{}", run.stderr);
}

#[test]
fn a_program_that_loses_a_frame_or_ends_or_keeps_files_is_found() {
    let folder = folder();
    let frame = "head -c 12288";
    let finds = |does: &str, what: &str| {
        let run = soak(&program_that(&folder, does));
        assert!(run.code == Some(1) && run.stderr.contains("failed: ") && run.stderr.contains(what), "{}", run.stderr);
    };
    finds(&format!("{frame}; exit 3"), "ended early with code 3");
    finds(&format!("{frame}; {frame} >/dev/null; exec cat"), "image 7 differs");
    finds("exec head -c 9999999", "ended early");
    // One more for each image.
    let keeps = format!(
        "exec bash -c 'for number in $(seq 100 140); do {frame}; eval \"exec $number</dev/null\"; sleep 0.05; done; exec cat'"
    );
    finds(&keeps, "more files");
}
