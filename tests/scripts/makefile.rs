//! The targets of make, without running them.

use std::fs;
use std::process::Command;

use super::{folder, program_that, script};
use crate::program::{Run, project};

/// Returns the commands that make would run. `gpu-setup` calls make even then, and does nothing if a toolkit is set.
fn recipe(target: &str, target_folder: Option<&str>) -> String {
    let mut command = Command::new("make");
    command.args(["--no-print-directory", "-n", target]).current_dir(project("")).env("CUDA_HOME", "/usr/local/cuda");
    for name in ["MAKEFLAGS", "MAKELEVEL", "CARGO_TARGET_DIR"] {
        command.env_remove(name);
    }
    Run::new(command.envs(target_folder.map(|folder| ("CARGO_TARGET_DIR", folder)))).succeeds().stdout
}

#[test]
fn make_runs_what_cargo_built_where_cargo_builds_it() {
    assert!(recipe("image", None).contains("\"target/quick/flux\" -p"));
    assert!(recipe("image", Some("/elsewhere")).contains("\"/elsewhere/quick/flux\" -p"));
    for target in ["bench", "bench-reference", "gallery", "gpu-bundle", "test-training"] {
        let recipe = recipe(target, Some("/elsewhere"));
        assert!(recipe.contains("\"/elsewhere/release/flux\""), "{target}: {recipe}");
    }
    let makefile = fs::read_to_string(project("Makefile")).expect("a Makefile");
    let targets: Vec<_> = makefile.lines().filter_map(|line| line.strip_prefix(".PHONY: ")).collect();
    assert!(targets.len() > 15, "{targets:?}");
    for target in targets {
        let recipe = recipe(target, Some("/elsewhere"));
        assert!(!recipe.contains("target/"), "{target}: {recipe}");
    }
}

#[test]
fn the_scripts_run_what_cargo_built_where_cargo_builds_it() {
    let folder = folder();
    for profile in ["release", "quick"] {
        let built = folder.join(profile);
        fs::create_dir(&built).expect("a temporary folder is writable");
        let program = program_that(&folder, &format!("echo {profile} \"$1\""));
        fs::rename(program, built.join("flux")).expect("a temporary folder is writable");
        let mut command = script("compare_cpu_gpu.sh");
        command.env("CARGO_TARGET_DIR", &folder).env_remove("FLUX_BIN");
        let expected = format!("{profile} -v\n{profile} -v\n{profile} compare\n");
        assert_eq!(Run::new(command.arg("-v")).succeeds().stdout, expected);
    }
}
