//! Commands in the sentences and tables of the documents.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::models::lines_of_models;
use super::{DOCUMENTS, checkout, commands_of, run, text_of};
use crate::program::{Run, names, project};

/// Returns `true` if a command needs a hub; tests/download/pages.rs runs these.
pub fn is_of_hub(line: &str) -> bool {
    ["flux download", "flux list", "flux rm"].iter().any(|command| line.starts_with(command))
}

/// Returns the inline code of a document with more than one word, with its lines joined, without code blocks.
pub fn commands_in_text(document: &str) -> Vec<String> {
    let text: String = text_of(document).split("```").step_by(2).collect();
    let joined = |code: &str| code.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_command = |code: &String| {
        let first = code.split(' ').find(|word| !word.starts_with("FLUX_")).unwrap_or_default();
        let is_program = ["flux", "cargo", "make", "python3"].contains(&first) || first.ends_with(".sh");
        is_program && code.contains(' ')
    };
    text.split('`').skip(1).step_by(2).map(joined).filter(is_command).collect()
}

#[test]
fn every_command_in_the_text_is_run_or_leads_to_what_is_there() {
    let folder = checkout();
    let mut count = 0;
    let mut seen = BTreeSet::new();
    for document in DOCUMENTS {
        for line in commands_in_text(document) {
            count += 1;
            if !seen.insert(line.clone()) {
                continue;
            }
            let words: Vec<_> = line.split(' ').filter(|word| !word.starts_with("FLUX_")).collect();
            match words[..] {
                ["flux", ..] if is_of_hub(&line) => {} // run in tests/download/pages.rs
                ["flux", ..] if lines_of_models().contains(&line) => {} // run with the others of its table
                ["flux", ..] => run_flux(&line, &folder),
                ["make", ..] => {} // checked with all targets
                ["scripts/train_tiny/run.sh", ..] => assert!(project(words[0]).exists(), "{line}"),
                ["scripts/test_cluster.sh", section] => {
                    let usage = format!("\n  {section} ");
                    assert!(text_of("scripts/test_cluster.sh").contains(&usage), "no section: {line}");
                }
                ["python3", "scripts/gpu_check", ..] => has_sections(&line),
                ["python3", script, ..] => has_flags(script, &line),
                ["cargo", "build" | "check" | "clippy" | "test", ..] if line.contains(" -p ") => has_package(&line),
                ["cargo", "test", "--profile", "quick", ref rest @ ..] => has_tests(rest, &line),
                // tests/examples.rs runs them
                ["cargo", "run", "--profile", "quick", "--example", name] => {
                    assert!(project(&format!("examples/{name}.rs")).exists(), "{line}");
                }
                _ => panic!("{document}: nothing tests this command: {line}"),
            }
        }
    }
    assert!(count > 30, "{count}");
}

/// The quick form of `flux bench` in this test.
const BENCH: &str = "flux bench stages/64x64 ops/add --size 64 --device cpu --runs 1 --steps 1";

/// Runs a command of the text, with files instead of the words in capitals, and with less to do.
fn run_flux(line: &str, folder: &Path) {
    let filled = |word: &str| match word {
        "DIR" => ".".to_string(),
        "SHELL" => "bash".to_string(),
        "IN" | "MODEL" => "models/klein-4b".to_string(),
        "OUT" => "converted.gguf".to_string(),
        "FORMAT" => "q8_0".to_string(),
        "IMAGE" | "cat.png" => {
            run("flux cat -s 1 --size 128 --device cpu -o image.png", folder).succeeds();
            "image.png".to_string()
        }
        "FILE" => "prompts.txt".to_string(),
        "FOLDER" => "images".to_string(),
        word => word.to_string(),
    };
    let line = line.split(' ').map(filled).collect::<Vec<_>>().join(" ");
    if line.contains("--device cuda:0,1") {
        let ran = run(&line, folder);
        // Without two GPUs, the error must be about them.
        assert!(ran.code == Some(0) || ran.stderr.contains("in: --device cuda:0,1"), "{line}: {}", ran.stderr);
    } else if line.starts_with("flux selftest") {
        run("flux selftest 37x77 --device cpu", folder).succeeds(); // all of it takes longer
    } else if ["flux devices", "flux man", "flux completions", "flux --version"].iter().any(|own| line.starts_with(own))
    {
        run(&line, folder).succeeds();
    } else if line.split(' ').count() == 2 && run(&format!("{line} --help"), folder).code == Some(0) {
        // Only the name of a command: the text says that it exists.
        assert!(line != "flux bench" || run(BENCH, folder).code == Some(0));
    } else if line.starts_with("flux bench serve") {
        // It needs a server; tests/serve/life.rs runs it.
        run(&line, folder).fails(1, &["does not answer"]);
    } else if ["flux submit ", "flux worker ", "flux queue ", "flux serve "].iter().any(|own| line.starts_with(own)) {
        // They need a broker, which scripts/test_cluster.sh starts.
        let words = if line.starts_with("flux queue ") { 3 } else { 2 };
        let command: Vec<_> = line.split(' ').take(words).collect();
        run(&format!("{} --help", command.join(" ")), folder).succeeds();
    } else if line.starts_with("flux key ") {
        run(&line, folder).succeeds();
    } else if line.starts_with("flux bench ") {
        run(&format!("{line} --size 64 --device cpu --runs 1 --steps 1"), folder).succeeds();
    } else if ["flux convert ", "flux info", "flux strip", "flux verify"].iter().any(|own| line.starts_with(own)) {
        run(&line, folder).succeeds();
    } else if line.starts_with("flux grid ") || line.starts_with("flux chat ") {
        run(&format!("{line} --device cpu"), folder).succeeds();
    } else if line.starts_with("flux batch ") || line.starts_with("flux again ") {
        run(&format!("{line} --device cpu -s 1"), folder).succeeds();
    } else {
        run(&format!("{line} --device cpu -s 1 -o text.png"), folder).succeeds();
    }
}

/// Checks that `python3 scripts/gpu_check OUT SECTION...` names sections.
pub fn has_sections(line: &str) {
    let help =
        Run::new(std::process::Command::new("python3").arg("-B").arg(project("scripts/gpu_check")).arg("--help"));
    let help = help.succeeds().stdout;
    for section in line.split(' ').skip(3).filter(|section| *section != "all") {
        assert!(
            help.lines().any(|help| help.split_whitespace().next() == Some(section)),
            "no section {section}: {line}"
        );
    }
}

/// Checks that a script exists and knows the flags.
fn has_flags(script: &str, line: &str) {
    let source = fs::read_to_string(project(script)).unwrap_or_else(|error| panic!("{line}: {error}"));
    for flag in line.split(' ').filter(|word| word.starts_with("--")) {
        assert!(source.contains(&format!("\"{flag}\"")), "{script} has no {flag}: {line}");
    }
}

/// Checks that tests of the library or of a file have such a name, and that some are ignored if the text says so.
fn has_tests(words: &[&str], line: &str) {
    let (sources, filter) = match words {
        ["--lib", filter, ..] => (sources_below(&project("src")) + &sources_below(&project("crates")), *filter),
        ["--test", file, rest @ ..] => {
            let manifests = text_of("Cargo.toml") + &text_of("crates/flux-cli/Cargo.toml");
            let is_program = manifests.contains(&format!("[[test]]\nname = \"{file}\"\n"));
            assert!(is_program, "there is no test program `{file}`: {line}");
            let source = |file: &str| fs::read_to_string(project("tests").join(format!("{file}.rs")));
            let filter = rest.first().filter(|word| **word != "--").copied().unwrap_or_default();
            let all = source(file).unwrap_or_else(|error| panic!("{line}: {error}"));
            // The named modules count, too.
            let names: Vec<&str> = filter.split("::").collect();
            let modules = (1..=names.len()).map(|count| source(&names[..count].join("/")).unwrap_or_default());
            (all + &modules.collect::<String>(), filter)
        }
        _ => panic!("nothing tests this command: {line}"),
    };
    for part in filter.split("::") {
        let is_there = sources.lines().any(|source| {
            let name = source.trim_start().strip_prefix("fn ").or(source.strip_prefix("mod "));
            name.is_some_and(|name| name.contains(part))
        });
        assert!(is_there, "no test has `{part}` in its name: {line}");
    }
    assert!(!words.contains(&"--ignored") || sources.contains("#[ignore"), "{line}");
}

/// Returns the text of a file, or of all files below a folder.
pub fn sources_below(path: &Path) -> String {
    if !path.is_dir() {
        // An image among them has no text.
        return String::from_utf8(fs::read(path).expect("a source")).unwrap_or_default();
    }
    names(path).into_iter().map(|name| sources_below(&path.join(name))).collect()
}

/// Tests run the first commands and those of these pages. No test would run a command of another page.
#[test]
fn every_command_of_flux_in_a_block_is_one_that_a_test_runs() {
    let pages = ["docs/editing.md", "docs/sampling.md", "docs/looking.md", "docs/upscaling.md"];
    let mut tested: Vec<String> = pages.into_iter().flat_map(commands_of).chain(lines_of_models()).collect();
    tested.extend(super::commands());
    let pages = [
        "quick-start", "installing", "recipes", "batch", "config", "chat", "prompts", "privacy", "serving", "deploying",
    ];
    tested.extend(pages.into_iter().flat_map(|page| super::commands_in(&format!("docs/{page}.md"))));
    for document in DOCUMENTS {
        for line in super::commands_in(document).into_iter().filter(|line| line.starts_with("flux ")) {
            assert!(tested.contains(&line) || is_of_hub(&line), "{document}: {line}");
        }
    }
}

#[test]
fn every_document_is_looked_at() {
    let mut found = Vec::new();
    add_documents(&project(""), "", &mut found);
    found.sort();
    let mut listed = DOCUMENTS.map(str::to_string).to_vec();
    listed.sort();
    assert_eq!(found, listed);
}

/// Adds the documents of the project. Runs of benches describe past commands, and built or downloaded files are not
/// the project's.
fn add_documents(folder: &Path, path: &str, into: &mut Vec<String>) {
    for name in names(folder) {
        let (entry, path) = (folder.join(&name), format!("{path}{name}"));
        let is_ours = !name.starts_with('.') && !["target", "gpu-bundle"].contains(&path.as_str());
        let is_model = path.starts_with("models/") && path != "models/README.md";
        if entry.is_dir() && is_ours && !is_model && !path.starts_with("tests/bench/runs/") {
            add_documents(&entry, &format!("{path}/"), into);
        } else if path.ends_with(".md") {
            into.push(path);
        }
    }
}

/// Checks that a command names a crate of the workspace behind `-p`, and a test program of it behind `--test`.
pub fn has_package(line: &str) {
    let named = |flag: &str| line.split(flag).nth(1).and_then(|rest| rest.split(' ').next());
    let package = named(" -p ").unwrap_or_else(|| panic!("the command names no crate: {line}"));
    let folder = if package == "flux" { String::new() } else { format!("crates/{package}/") };
    let manifest = text_of(&format!("{folder}Cargo.toml"));
    assert!(manifest.contains(&format!("\nname = \"{package}\"\n")), "there is no crate `{package}`: {line}");
    if let Some(test) = named(" --test ") {
        assert!(manifest.contains(&format!("[[test]]\nname = \"{test}\"\n")), "`{package}` has no test {test}: {line}");
    }
}
