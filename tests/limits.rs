//! The program with limited resources: few and many threads, little memory; and after a panic.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::program::{Run, SMALL, draw, flux, names};

#[test]
fn an_image_is_the_same_on_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    for side in ["64", "256"] {
        let image = |threads: &str| {
            let name = format!("{side}-{threads}.png");
            let size = ["-W", side, "-H", side, "-s", "2", "-S", "7", "--device", "cpu", "-p", "a red apple", "-o"];
            let mut command = flux();
            Run::new(command.args(["--threads", threads]).current_dir(&folder).args(size).arg(&name)).succeeds();
            fs::read(folder.path().join(name)).unwrap()
        };
        let one = image("1");
        for threads in ["2", "3", "8"] {
            assert!(image(threads) == one, "{side} x {side} on {threads} threads");
        }
    }
}

/// Runs the program with `flags` in a shell, after `limit`.
fn limited(limit: &str, folder: &Path, flags: &[&str]) -> Run {
    let mut command = Command::new("bash");
    command.args(["-c", &format!("{limit} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_flux")]);
    Run::new(command.env_remove("FLUX_MODEL").env_remove("RUST_BACKTRACE").current_dir(folder).args(flags))
}

#[test]
fn too_little_memory_is_an_error_and_never_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("x.png");
    // With less than a few MiB more, the system cannot load the program, or extend its stack.
    let program = fs::metadata(env!("CARGO_BIN_EXE_flux")).unwrap().len() / 1024;
    let enough = program + 933_000;
    for side in ["256", "512"] {
        let flags = ["-p", "x", "-S", "1", "-s", "1", "-W", side, "-H", side, "--device", "cpu", "-o", "x.png"];
        limited("true", folder.path(), &flags).succeeds();
        let expected = fs::read(&image).unwrap();
        for kib in [program + 12_000, program + 40_000, program + 70_000, program + 120_000, program + 420_000, enough]
        {
            fs::remove_file(&image).ok();
            let run = limited(&format!("ulimit -v {kib}"), folder.path(), &flags);
            if run.code == Some(0) {
                assert!(fs::read(&image).unwrap() == expected, "{side} x {side} in {kib} KiB");
            } else {
                assert!(side != "256" || kib != enough, "this is enough: {}", run.stderr);
                assert_eq!(run.stderr.matches("error: ").count(), 1, "{}", run.stderr);
                run.fails(1, &["memory", "hint: "]);
                assert_eq!(names(folder.path()), [""; 0], "{side} x {side} in {kib} KiB");
            }
        }
    }
}

#[test]
fn threads_that_cannot_be_made_are_left_out_with_a_note() {
    let folder = tempfile::tempdir().unwrap();
    let flags = [&SMALL[..], &["-p", "x", "-o", "x.png", "--threads", "600"]].concat();
    let run = limited("ulimit -v 1000000", folder.path(), &flags).succeeds();
    assert!(run.stderr.contains("of 600 threads"), "{}", run.stderr);
}

#[test]
fn a_number_of_threads_that_is_none_is_a_usage_error() {
    let folder = tempfile::tempdir().unwrap();
    for bad in ["0", "1025", "abc"] {
        draw(folder.path(), &["-p", "x", "--threads", bad]).fails(2, &["--threads"]);
    }
    for bad in ["100000", "abc", "-1"] {
        let run = Run::new(flux().current_dir(&folder).args(SMALL).args(["-p", "x"]).env("RAYON_NUM_THREADS", bad));
        run.fails(2, &["RAYON_NUM_THREADS", bad, "hint: "]);
    }
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn a_panic_of_a_worker_is_one_error_and_exit_code_70() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = flux();
    let flags = ["-q", "-p", "x", "-S", "1", "-o", "x.png", "--panic-for-test"];
    let run = Run::new(command.current_dir(&folder).args(SMALL).args(flags).env_remove("RUST_BACKTRACE"));
    if run.code == Some(2) && run.stderr.contains("unknown flag") {
        println!("skipped: the program was built without debug assertions");
        return;
    }
    let run = run.fails(
        70,
        &["error: internal: `--panic-for-test` was given at crates/flux-cli/src/commands/drawing.rs:", "hint: "],
    );
    assert_eq!(run.stderr.lines().count(), 2, "{}", run.stderr);
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn a_small_stack_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let flags = [&SMALL[..], &["-p", "x", "-S", "1", "-o", "x.png"]].concat();
    limited("true", folder.path(), &flags).succeeds();
    let expected = fs::read(folder.path().join("x.png")).unwrap();
    for kib in [32, 64, 100, 128, 256] {
        let limit = format!("ulimit -s {kib}");
        limited(&limit, folder.path(), &["--version"]).succeeds();
        limited(&limit, folder.path(), &["info", "x.png"]).succeeds();
        limited(&limit, folder.path(), &["info", "none"]).fails(1, &["none", "hint: "]);
        limited(&limit, folder.path(), &flags).succeeds();
        assert!(fs::read(folder.path().join("x.png")).unwrap() == expected, "{kib}");
    }
}

#[test]
fn a_recipe_with_a_long_list_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.json");
    let inputs = vec!["a"; 3_000_000];
    let adapters = vec![serde_json::json!({"file": "a", "strength": 1}); 300_000];
    for recipe in [serde_json::json!({"inputs": inputs}), serde_json::json!({"adapters": adapters})] {
        fs::write(&path, recipe.to_string()).unwrap();
        let start = std::time::Instant::now();
        draw(folder.path(), &["--recipe", "long.json", "-o", "x.png"]).fails(2, &["256 entries"]);
        fs::write(folder.path().join("list.jsonl"), format!("{recipe}\n")).unwrap();
        let run = Run::new(flux().current_dir(&folder).args(["batch", "list.jsonl", "--dry-run"]));
        assert!(run.code == Some(1) || run.code == Some(2), "{}", run.stderr);
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "{:?}", start.elapsed());
    }
}
