//! Installation, and the content of archives. `make test-dist` tests the rest with the program.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::{folder, program_that};
use crate::program::{Run, names, project};

/// A stand-in for flux, for the scripts.
const PROGRAM: &str = r#"case "$1" in
    --version) echo "flux 0.1.0" ;;
    man) echo page >"$2/flux.1"; echo page >"$2/flux-bench.1" ;;
    completions) echo "for $2" ;;
esac"#;

fn install(words: &[&Path]) -> Command {
    let mut command = Command::new(project("scripts/dist/install.sh"));
    command.args(words).env_remove("LICENSES");
    command
}

/// Returns all files below a folder, by their paths.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for name in names(folder) {
        let path = folder.join(&name);
        match path.is_dir() {
            true => found.extend(files(&path).into_iter().map(|file| format!("{name}/{file}"))),
            false => found.push(name),
        }
    }
    found
}

#[test]
fn what_is_installed_can_be_removed_and_nothing_else_is() {
    let folder = folder();
    let (program, to) = (program_that(&folder, PROGRAM), folder.join("a b/local"));
    Run::new(&mut install(&[&program, &to])).succeeds();
    let expected = [
        "bin/flux",
        "lib/systemd/system/flux.service",
        "lib/systemd/system/flux.socket",
        "share/bash-completion/completions/flux",
        "share/doc/flux/LICENSE",
        "share/doc/flux/README.md",
        "share/fish/vendor_completions.d/flux.fish",
        "share/man/man1/flux-bench.1",
        "share/man/man1/flux.1",
        "share/systemd/user/flux.service",
        "share/systemd/user/flux.socket",
        "share/zsh/site-functions/_flux",
    ];
    assert_eq!(files(&to), expected);
    let mode = |file: &str| fs::metadata(to.join(file)).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode("bin/flux"), mode("share/man/man1/flux.1")], [0o755, 0o644]);
    assert_eq!(fs::read_to_string(to.join("share/zsh/site-functions/_flux")).unwrap(), "for zsh\n");

    fs::write(to.join("share/man/man1/fluxbox.1"), "another").unwrap();
    fs::write(to.join("bin/other"), "another").unwrap();
    Run::new(&mut install(&[&program, &to])).succeeds(); // over existing files
    for _ in 0..2 {
        Run::new(&mut install(&[Path::new("--remove"), &to])).succeeds();
        assert_eq!(files(&to), ["bin/other", "share/man/man1/fluxbox.1"]);
    }
}

#[test]
fn units_are_installed_where_systemd_looks() {
    let folder = folder();
    let program = program_that(&folder, PROGRAM);
    for (to, has_system_units, has_note) in
        [("home/.local", false, false), ("usr/local", true, false), ("opt/flux", true, true)]
    {
        let to = folder.join(to);
        let run = Run::new(install(&[&program, &to]).env("HOME", folder.join("home"))).succeeds();
        assert!(to.join("share/systemd/user/flux.service").exists());
        assert_eq!(to.join("lib").exists(), has_system_units, "{}", to.display());
        assert_eq!(run.stderr.contains("systemctl --user link"), has_note, "{}", run.stderr);
    }
}

#[test]
fn a_program_that_does_not_run_is_not_installed() {
    let folder = folder();
    let (program, to) = (program_that(&folder, "exit 3"), folder.join("local"));
    assert_eq!(Run::new(&mut install(&[&program, &to])).code, Some(3));
    assert!(!to.exists());
    let usage = Run::new(&mut install(&[&to]));
    assert!(usage.code == Some(2) && usage.stderr.contains("--remove FOLDER"), "{}", usage.stderr);
    let usage = Run::new(Command::new(project("scripts/check_dist.sh")).arg(folder.join("none")));
    assert!(usage.code == Some(2) && usage.stderr.contains("make dist"), "{}", usage.stderr);
}

/// Every linked crate is listed, and every text belongs to a crate.
#[test]
fn the_licences_of_all_crates_are_gathered() {
    let Ok(python) = Command::new("python3").arg("--version").output() else {
        println!("skipped: no python3");
        return;
    };
    assert!(python.status.success());
    let text = Run::new(Command::new("python3").arg(project("scripts/dist/licences.py"))).succeeds().stdout;
    for name in ["clap ", "safetensors ", "tokenizers ", "cudarc ", "the built-in model", "the tokenizer of Qwen3"] {
        assert!(text.contains(name), "{name}");
    }
    assert!(!text.contains("\n  vt100 "), "tests alone use it");
    assert!(text.matches("Permission is hereby granted").count() > 10);
}

/// `make test-dist` runs all of the steps.
#[test]
fn the_containers_file_has_only_steps_of_one_line() {
    let text = fs::read_to_string(project("scripts/container/Containerfile")).unwrap();
    let known = ["ARG", "FROM", "ENV", "COPY", "RUN", "WORKDIR", "ENTRYPOINT", "#", ""];
    for line in text.lines() {
        assert!(known.contains(&line.split(' ').next().unwrap_or_default()), "{line}");
        assert!(!line.ends_with('\\'), "{line}");
    }
    assert!(text.lines().any(|line| line.starts_with("RUN dpkg --install ")), "{text}");
}
