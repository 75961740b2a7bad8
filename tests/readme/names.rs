//! Messages and variables that the pages explain are those of the program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{DOCUMENTS, text, text_of};
use crate::program::project;

/// Messages in the tables of docs/troubleshooting.md: what stands between their gaps is in the sources.
#[test]
fn every_message_that_is_explained_is_one_of_the_program() {
    const GAP: char = '…';
    let sources = text::sources_below(&project("src"));
    // Texts of several lines are one.
    let mut joined = String::with_capacity(sources.len());
    for part in sources.split("\\\n") {
        joined.push_str(if joined.is_empty() { part } else { part.trim_start() });
    }
    let text = text_of("docs/troubleshooting.md");
    let mut count = 0;
    let mut is_message = false;
    for line in text.lines() {
        let cell = line.strip_prefix("| ").and_then(|row| row.split(" | ").next());
        let Some(cell) = cell else {
            is_message &= line.starts_with('|');
            continue;
        };
        if ["message", "note"].contains(&cell) {
            is_message = true;
        } else if is_message {
            count += 1;
            for piece in cell.split(GAP).map(|piece| piece.trim_matches([' ', ','])) {
                // What is shorter says nothing.
                assert!(piece.len() < 4 || joined.contains(piece), "`{piece}` of: {cell}");
            }
        }
    }
    assert!(count > 40, "{count}");
}

/// The names that begin with `FLUX_`.
fn variables(text: &str) -> BTreeSet<String> {
    const PREFIX: &str = "FLUX_";
    let name = |rest: &str| {
        rest.chars().take_while(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || *c == '_').collect::<String>()
    };
    text.split(PREFIX).skip(1).map(name).filter(|name| !name.is_empty()).map(|name| format!("{PREFIX}{name}")).collect()
}

/// Those in a file, or in the files of a folder and of the folders in it. What benches have printed is no source.
fn variables_below(path: &Path) -> BTreeSet<String> {
    if !path.is_dir() {
        return fs::read_to_string(path).map(|text| variables(&text)).unwrap_or_default();
    }
    let entries = fs::read_dir(path).expect("a readable folder").map(|entry| entry.expect("a readable folder").path());
    entries.filter(|path| !path.ends_with("bench/runs")).flat_map(|path| variables_below(&path)).collect()
}

#[test]
fn every_environment_variable_is_in_the_list_and_none_that_nothing_reads() {
    let text = fs::read_to_string(project("docs/environment.md")).unwrap();
    let listed: BTreeSet<_> =
        text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).flat_map(variables).collect();
    let sources = ["src", "tests", "scripts", "build.rs", "Makefile"];
    let read: BTreeSet<_> = sources.iter().flat_map(|name| variables_below(&project(name))).collect();
    assert_eq!(listed, read);
    // What a text says of one is said of one that exists.
    let told: BTreeSet<_> = DOCUMENTS.iter().flat_map(|document| variables(&text_of(document))).collect();
    assert!(told.is_subset(&listed), "{told:?}");
}
