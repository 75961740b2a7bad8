//! Completions and man pages, as shells and `man` read them.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::program::{Run, flux, folder, names};

const SHELLS: [&str; 5] = ["bash", "zsh", "fish", "elvish", "powershell"];

fn script(shell: &str) -> String {
    Run::new(flux().args(["completions", shell])).succeeds().stdout
}

fn is_installed(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let installed = found.is_ok_and(|output| output.status.success());
    if !installed {
        println!("skipped: no {program}");
    }
    installed
}

#[test]
fn every_shell_has_a_script_that_knows_commands_and_flags() {
    for shell in SHELLS {
        let script = script(shell);
        for word in ["selftest", "convert", "no-clobber", "lora"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    Run::new(flux().args(["completions", "tcsh"])).fails(2, &["tcsh", "bash, zsh, fish, elvish, powershell"]);
}

/// Returns bash's completions of the last of `words`.
fn offered(folder: &Path, words: &[&str]) -> Vec<String> {
    let line = format!(
        "source ./flux.bash; COMP_WORDS=({}); COMP_CWORD={}; {}; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.join(" "),
        words.len() - 1,
        format_args!("_flux flux \"{}\" \"{}\"", words[words.len() - 1], words[words.len() - 2])
    );
    let run = Run::new(Command::new("bash").current_dir(folder).args(["--norc", "-c", &line])).succeeds();
    assert_eq!(run.stderr, "");
    run.stdout.lines().filter(|line| !line.is_empty()).map(String::from).collect()
}

#[test]
fn bash_completes_commands_flags_values_and_files() {
    if !is_installed("bash") {
        return;
    }
    let folder = folder();
    fs::write(folder.join("flux.bash"), script("bash")).unwrap();
    fs::write(folder.join("model.safetensors"), "").unwrap();
    assert_eq!(offered(&folder, &["flux", "selft"]), ["selftest"]);
    assert_eq!(offered(&folder, &["flux", "--no-cl"]), ["--no-clobber"]);
    assert_eq!(offered(&folder, &["flux", "bench", "--in-a"]), ["--in-a-row"]);
    assert_eq!(offered(&folder, &["flux", "--precision", "f"]), ["fast", "f32", "fp8"]);
    for words in [["flux", "-d", "mod"], ["flux", "--vae", "mod"], ["flux", "--lora", "mod"], ["flux", "-o", "mod"]] {
        assert_eq!(offered(&folder, &words), ["model.safetensors"], "{words:?}");
    }
}

/// Completions of values with names: `list` prints them, as the installed function calls it.
#[test]
fn bash_completes_devices_and_models_that_can_be_downloaded() {
    if !is_installed("bash") {
        return;
    }
    let folder = folder();
    fs::write(folder.join("flux.bash"), script("bash")).unwrap();
    let offered = |words: &[&str]| {
        let last = words.len() - 1;
        let line = format!(
            "source ./flux.bash; COMP_WORDS=({}); COMP_CWORD={last}; _flux_with_names {} '{}' '{}'; printf '%s\\n' \
             \"${{COMPREPLY[@]}}\"",
            words.join(" "),
            flux().get_program().display(),
            words[last],
            words[last - 1]
        );
        Run::new(Command::new("bash").current_dir(&folder).args(["--norc", "-c", &line])).succeeds().stdout
    };
    let has = |text: String, word: &str| assert!(text.lines().any(|line| line == word), "{word}: {text}");
    has(offered(&["flux", "--device", "c"]), "cpu");
    has(offered(&["flux", "download", "4"]), "4b");
}

/// Each installed shell reads its script without output.
#[test]
fn shells_read_their_scripts() {
    let folder = folder();
    for (shell, flag) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        if is_installed(shell) {
            let path = folder.join(shell);
            fs::write(&path, script(shell)).unwrap();
            let run = Run::new(Command::new(shell).arg(flag).arg(&path)).succeeds();
            assert_eq!(run.stderr, "", "{shell}");
        }
    }
}

#[test]
fn there_is_a_page_of_each_command_which_is_the_same_every_time() {
    let (folder, again) = (folder(), folder());
    for folder in [&folder, &again] {
        Run::new(flux().arg("man").arg(folder)).succeeds();
    }
    let pages = names(&folder);
    for page in ["flux.1", "flux-bench.1", "flux-convert.1", "flux-devices.1", "flux-info.1", "flux-selftest.1"] {
        assert!(pages.iter().any(|name| name == page), "{page}: {pages:?}");
    }
    assert!(
        !pages.iter().any(|name| ["completions", "man"].iter().any(|hidden| name.contains(hidden))),
        "what is hidden has no page"
    );
    for page in &pages {
        let read = |folder: &Path| fs::read(folder.join(page)).unwrap();
        assert_eq!(read(&folder), read(&again), "{page}");
        if is_installed("groff") {
            let path = folder.join(page);
            let run = Run::new(Command::new("groff").args(["-man", "-ww", "-Tutf8", "-Kutf8", "-P-cbou"]).arg(&path))
                .succeeds();
            assert_eq!(run.stderr, "", "{page}");
            assert!(run.stdout.contains("SYNOPSIS") && run.stdout.contains("--log <FILE>"), "{page}: {}", run.stdout);
            let words = run.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words.contains("--log <FILE> Append all messages to a file"), "{page}: {words}");
        }
        if is_installed("mandoc") {
            Run::new(Command::new("mandoc").args(["-T", "lint", "-W", "error"]).arg(folder.join(page))).succeeds();
        }
    }
    Run::new(flux().arg("man").arg(folder.join("none"))).fails(1, &["none/flux.1", "hint: check that"]);
}
