//! The bundle of `make gpu-bundle`, for machines without Rust and without the project.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::{Run, names, project};

/// The tests of the bundle in addition to those of the library.
const TESTS: [&str; 2] = ["tests/parity/main.rs", "tests/cpu_gemm.rs"];

/// The sources of the package that runs there.
pub fn package() -> Vec<PathBuf> {
    let package = project("scripts/gpu_check");
    let folders = [package.clone(), package.join("sections")];
    let files = folders.iter().flat_map(|folder| names(folder).into_iter().map(move |name| folder.join(name)));
    files.filter(|file| file.extension().is_some_and(|end| end == "py")).collect()
}

/// The folders of a standalone bundle.
pub fn folders() -> Vec<String> {
    let list = fs::read_to_string(project("scripts/gpu_check/folders.txt")).expect("the list");
    list.lines().map(str::to_string).collect()
}

/// Adds a file and its modules. With `has_own_folder`, modules are in a folder of the file's name, not next to it.
fn add_modules(file: &Path, has_own_folder: bool, into: &mut BTreeSet<PathBuf>) {
    if !into.insert(file.to_path_buf()) {
        return;
    }
    let text = fs::read_to_string(file).expect("a source");
    let beside = file.parent().expect("a folder");
    let modules = if has_own_folder { file.with_extension("") } else { beside.to_path_buf() };
    let mut path = None;
    for line in text.lines() {
        let item = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub ")).unwrap_or(line);
        if let Some(named) = line.strip_prefix("#[path = \"") {
            path = Some(beside.join(named.trim_end_matches("\"]")));
        } else if let Some(name) = item.strip_prefix("mod ").and_then(|item| item.strip_suffix(';')) {
            let (alone, folder) = (modules.join(format!("{name}.rs")), modules.join(name).join("mod.rs"));
            match path.take() {
                Some(file) => add_modules(&file, false, into),
                None if alone.exists() => add_modules(&alone, true, into),
                None => add_modules(&folder, false, into),
            }
        }
    }
}

/// Returns the part of a library file that is only built for tests.
fn tests_of(text: &str) -> &str {
    text.find("#[cfg(test)]").map_or("", |at| &text[at..])
}

/// Returns the string literals of Rust that may be paths of the project, without those that the compiler reads.
fn literals(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//") && !line.contains("include_"))
        .flat_map(|line| line.split('"').skip(1).step_by(2))
}

/// Returns the existing paths of the project that the bundle's tests name, with the naming file.
fn named_paths() -> Vec<(String, PathBuf)> {
    let (mut tests, mut library) = (BTreeSet::new(), BTreeSet::new());
    for test in TESTS {
        add_modules(&project(test), false, &mut tests);
    }
    add_modules(&project("src/lib.rs"), false, &mut library);
    let of_file = |file: PathBuf, is_test: bool| -> Vec<(String, PathBuf)> {
        let text = fs::read_to_string(&file).expect("a source");
        let text = if is_test { &text } else { tests_of(&text) };
        literals(text)
            .map(|literal| literal.trim_start_matches('/'))
            .filter(|literal| literal.contains('/') && !literal.starts_with("..") && project(literal).exists())
            .map(|literal| (literal.to_string(), file.clone()))
            .collect()
    };
    let tests = tests.into_iter().flat_map(|file| of_file(file, true));
    tests.chain(library.into_iter().flat_map(|file| of_file(file, false))).collect()
}

#[test]
fn the_bundle_has_every_folder_that_its_tests_read() {
    let (folders, paths) = (folders(), named_paths());
    for (path, file) in &paths {
        assert!(folders.iter().any(|folder| Path::new(path).starts_with(folder)), "{path}, of {}", file.display());
    }
    for folder in &folders {
        assert!(paths.iter().any(|(path, _)| Path::new(path).starts_with(folder)), "no test reads {folder}");
    }
}

/// The build folder is on another machine.
#[test]
fn the_tests_of_the_bundle_find_their_files_from_the_root_that_is_named() {
    let mut files = BTreeSet::new();
    for test in TESTS {
        add_modules(&project(test), false, &mut files);
    }
    assert!(files.len() > 50, "{files:?}");
    for file in files {
        let text = fs::read_to_string(&file).expect("a source");
        let uses = text.matches("CARGO_MANIFEST_DIR").count();
        assert_eq!(uses, usize::from(file.ends_with("support/mod.rs")), "{}", file.display());
    }
}

#[test]
fn a_standalone_bundle_is_made_of_the_folders_of_the_list_and_the_scripts_that_run_there() {
    let mut command = Command::new("make");
    command.args(["--no-print-directory", "-n", "gpu-bundle", "STANDALONE=1"]).current_dir(project(""));
    for name in ["MAKEFLAGS", "MAKELEVEL", "CARGO_TARGET_DIR"] {
        command.env_remove(name);
    }
    let recipe = Run::new(&mut command).succeeds().stdout;
    assert!(recipe.contains(&format!("tar -cf - {} |", folders().join(" "))), "{recipe}");
    let mut scripts = 0;
    for file in package() {
        let text = fs::read_to_string(file).expect("a source");
        for script in text.split('"').skip(1).step_by(2).filter(|word| word.ends_with(".py")) {
            assert!(recipe.contains(&format!("scripts/{script} ")), "{script}: {recipe}");
            scripts += 1;
        }
    }
    assert!(scripts >= 3, "{scripts}");
}
