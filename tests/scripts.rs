//! The scripts from outside.

mod compare_cpu_gpu;
mod dist;
mod download_model;
mod flags;
mod fuzz_signals;
mod generate_batch;
mod gpu_bundle;
mod gpu_check;
mod makefile;
mod soak_live;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::{Run, folder, names, project};

fn script(name: &str) -> Command {
    let mut command = Command::new(project("scripts").join(name));
    command
        .env("FLUX_BIN", env!("CARGO_BIN_EXE_flux"))
        .env_remove("FLUX_MODEL")
        .env("FLUX_CONFIG", "")
        .env_remove("HF_TOKEN")
        .env_remove("FLUX_MIRROR");
    command
}

fn write(path: PathBuf, text: &str) -> PathBuf {
    fs::write(&path, text).expect("a temporary folder is writable");
    path
}

/// A stand-in for flux, in shell.
fn program_that(folder: &Path, does: &str) -> PathBuf {
    let path = write(folder.join("program"), &format!("#!/bin/sh\n{does}\n"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("our file");
    path
}

#[test]
fn every_script_explains_itself_and_refuses_what_it_does_not_know() {
    for name in [
        "download_model.sh", "generate_batch.sh", "compare_cpu_gpu.sh", "fuzz_signals.sh", "test_server.sh",
        "test_page.sh",
    ] {
        let help = Run::new(script(name).arg("--help")).succeeds();
        assert!(help.stdout.starts_with(&format!("usage: scripts/{name}")), "{}", help.stdout);
    }
    Run::new(&mut script("download_model.sh")).fails(2, &["the model is missing"]);
    Run::new(script("download_model.sh").arg("5b")).fails(2, &["unknown model: `5b`"]);
    Run::new(script("download_model.sh").args(["4b", "a", "b"])).fails(2, &["unexpected argument: b"]);
    Run::new(&mut script("generate_batch.sh")).fails(2, &["prompts"]);
    Run::new(script("generate_batch.sh").args(["none.txt", "out"])).fails(1, &["none.txt"]);
    Run::new(script("compare_cpu_gpu.sh").args(["--bound", "high"])).fails(2, &["bound"]);
    Run::new(script("compare_cpu_gpu.sh").args(["-o", "x.png"])).fails(2, &["-o"]);
    Run::new(script("compare_cpu_gpu.sh").args(["-n", "2"])).fails(2, &["one image"]);
    Run::new(script("compare_cpu_gpu.sh").arg("-n2")).fails(2, &["one image"]);
}

#[test]
fn shellcheck_is_content() {
    let folders = ["scripts", "scripts/train_tiny"].map(project);
    let files = folders.iter().flat_map(|folder| names(folder).into_iter().map(move |name| folder.join(name)));
    let scripts = files.filter(|file| file.extension().is_some_and(|end| end == "sh")).chain([project(".ci/run")]);
    match Command::new("shellcheck").arg("-x").current_dir(project("")).args(scripts).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
        Err(_) => eprintln!("skipped: no shellcheck"),
    }
}
