//! `--log`, and disabled colours.

use std::fs;
use std::path::Path;

use crate::program::{Run, flux, folder};
use crate::pty::watch;

/// Runs a command that ends before an image is generated.
fn info(folder: &Path, flags: &[&str]) -> Run {
    Run::new(flux().current_dir(folder).args(["convert", "none", "out.gguf", "--format", "q8_0"]).args(flags))
}

#[test]
fn a_log_gets_what_is_said_line_by_line_with_times_at_its_end() {
    let folder = folder();
    let log = || fs::read_to_string(folder.join("run.log")).unwrap();
    let first = info(&folder, &["--log", "run.log"]);
    assert_eq!(first.code, Some(1));
    let said: Vec<_> = first.stderr.lines().map(String::from).collect();
    let logged = log();
    let lines: Vec<_> = logged.lines().map(|line| line.split_once("Z ").expect("a time")).collect();
    assert_eq!(lines.iter().map(|(_, line)| line.to_string()).collect::<Vec<_>>(), said);
    for (time, _) in lines {
        let digits: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(digits, "0000-00-00T00:00:00.000", "{time}");
    }
    info(&folder, &["--log", "run.log"]);
    assert!(log().starts_with(&logged) && log().lines().count() == 2 * said.len(), "{}", log());
}

#[test]
fn a_log_that_cannot_be_written_is_an_error_before_any_work() {
    let folder = folder();
    info(&folder, &["--log", "none/run.log"]).fails(1, &["cannot write the log", "--log", "mkdir -p none"]);
    info(&folder, &["--log", "."]).fails(1, &["cannot write the log", "--log"]);
    info(&folder, &["--log", "-"]).fails(2, &["--log"]);
}

#[test]
fn what_is_there_and_is_no_log_is_left_as_it_is() {
    let folder = folder();
    crate::program::draw(&folder, &["-p", "a cat", "-S", "1", "-o", "a.png"]).succeeds();
    fs::write(folder.join("config.json"), "{}").unwrap();
    fs::write(folder.join("list.txt"), "a cat\na dog\n").unwrap();
    for name in ["a.png", "config.json", "list.txt"] {
        let before = fs::read(folder.join(name)).unwrap();
        info(&folder, &["--log", name]).fails(1, &["cannot write the log", "is not a log", "--log"]);
        assert!(fs::read(folder.join(name)).unwrap() == before, "{name}");
    }
    rustix::fs::mkfifoat(rustix::fs::CWD, folder.join("pipe"), 0o600.into()).unwrap();
    for name in ["pipe", "/dev/null"] {
        info(&folder, &["--log", name]).fails(1, &["cannot write the log", "not a regular file"]);
    }
}

#[test]
fn a_log_is_no_other_file_of_the_run() {
    let folder = folder();
    let draw = |flags: &[&str]| crate::program::draw(&folder, &[&["-p", "a cat", "-S", "1"], flags].concat());
    draw(&["-o", "y.png", "--log", "y.png", "-v"]).fails(2, &["written twice: by `--output` and by `--log`"]);
    assert!(!folder.join("y.png").exists(), "nothing is left");
    draw(&["-o", "y.png", "--log", "./y.png", "--force"]).fails(2, &["written twice"]);
    let model = crate::program::project("models/tiny");
    let convert = |flags: &[&str]| {
        Run::new(
            flux()
                .current_dir(&folder)
                .args(["convert", model.to_str().unwrap(), "o.gguf", "--format", "q8_0"])
                .args(flags),
        )
    };
    convert(&["--log", "o.gguf"]).fails(2, &["by `OUT` and by `--log`"]);
    assert!(!folder.join("o.gguf").exists());
}

/// Returns the output on a terminal with this environment and number of columns.
fn on_a_terminal(columns: u16, environment: &[(&str, &str)], flags: &[&str]) -> String {
    let mut command = flux();
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "CI"] {
        command.env_remove(name);
    }
    watch(command.args(flags).env("TERM", "xterm").envs(environment.iter().copied()), columns).shown
}

#[test]
fn colours_are_left_out_where_they_are_not_wanted() {
    let without =
        [&[("NO_COLOR", "1")][..], &[("CLICOLOR", "0")], &[("TERM", "dumb")], &[("TERM", "dumb"), ("CI", "true")]];
    for columns in [40, 80, 200] {
        // Help, errors of clap, and ours.
        for flags in ["-h", "-p x --precision f16", "-p x --fp8-cache", "selftest --device tpu"] {
            let flags: Vec<&str> = flags.split(' ').collect();
            let shown = on_a_terminal(columns, &[], &flags);
            assert!(shown.contains("\u{1b}[") || flags != ["-h"], "colours are there otherwise: {shown:?}");
            for environment in without {
                let shown = on_a_terminal(columns, environment, &flags);
                assert!(!shown.contains('\u{1b}') && shown.len() > 40, "{environment:?} {flags:?}: {shown:?}");
                let long = shown.lines().find(|line| line.trim_end().chars().count() > usize::from(columns));
                assert_eq!(long, None, "{environment:?} {flags:?}");
            }
        }
    }
}

/// A terminal that cannot move its cursor gets lines instead of bars.
#[test]
fn a_dumb_terminal_gets_no_bars() {
    let folder = folder();
    let (tiny, out) = (crate::program::project("models/tiny"), folder.join("out.gguf"));
    let (from, to) = (tiny.to_str().expect("a text"), out.to_str().expect("a text"));
    let flags = ["convert", from, to, "--format", "q8_0", "--progress", "bar"];
    let bars = on_a_terminal(80, &[], &flags);
    assert!(bars.contains('\u{1b}') && bars.contains("quantize ["), "{bars:?}");
    fs::remove_file(&out).unwrap();
    let lines = on_a_terminal(80, &[("TERM", "dumb")], &flags);
    assert!(!lines.contains('\u{1b}') && lines.contains("quantize, "), "{lines:?}");
    assert!(lines.contains("not a terminal that supports bars"), "{lines:?}");
}
