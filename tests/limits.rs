//! The program within bounds: on few and many threads, in little memory, and after a panic.

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
            Run::of(command.args(["--threads", threads]).current_dir(&folder).args(size).arg(&name)).succeeds();
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
    Run::of(command.env_remove("FLUX_MODEL").env_remove("RUST_BACKTRACE").current_dir(folder).args(flags))
}

#[test]
fn too_little_memory_is_an_error_and_never_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("x.png");
    // The system ends by itself what it cannot even load.
    let program = fs::metadata(env!("CARGO_BIN_EXE_flux")).unwrap().len() / 1024;
    let enough = program + 920_000;
    for side in ["256", "512"] {
        let flags = ["-p", "x", "-S", "1", "-s", "1", "-W", side, "-H", side, "--device", "cpu", "-o", "x.png"];
        limited("true", folder.path(), &flags).succeeds();
        let expected = fs::read(&image).unwrap();
        for kib in [program + 2000, program + 40_000, program + 70_000, program + 120_000, program + 420_000, enough] {
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
        let run = Run::of(flux().current_dir(&folder).args(SMALL).args(["-p", "x"]).env("RAYON_NUM_THREADS", bad));
        run.fails(2, &["RAYON_NUM_THREADS", bad, "hint: "]);
    }
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn a_panic_of_a_worker_is_one_error_and_exit_code_70() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = flux();
    let flags = ["-q", "-p", "x", "-S", "1", "-o", "x.png", "--panic-for-test"];
    let run = Run::of(command.current_dir(&folder).args(SMALL).args(flags).env_remove("RUST_BACKTRACE"));
    if run.code == Some(2) && run.stderr.contains("unexpected argument") {
        println!("skipped: the program was built without debug assertions");
        return;
    }
    let run = run.fails(70, &["error: internal: `--panic-for-test` was given at src/commands/drawing.rs:", "hint: "]);
    assert_eq!(run.stderr.lines().count(), 2, "{}", run.stderr);
    assert_eq!(names(folder.path()), [""; 0]);
}
