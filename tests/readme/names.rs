//! Checks that the messages and variables in the pages are those of the program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{DOCUMENTS, text, text_of};
use crate::program::project;

/// Messages in the tables of docs/troubleshooting.md: the parts between their placeholders are in the sources.
#[test]
fn every_message_that_is_explained_is_one_of_the_program() {
    const GAP: char = '…';
    let sources = text::sources_below(&project("src")) + &text::sources_below(&project("crates"));
    // Texts of several lines are joined.
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
                // Shorter pieces would match anything.
                assert!(piece.len() < 4 || joined.contains(piece), "`{piece}` of: {cell}");
            }
        }
    }
    assert!(count > 40, "{count}");
}

/// Returns the names that begin with `FLUX_`.
fn variables(text: &str) -> BTreeSet<String> {
    const PREFIX: &str = "FLUX_";
    let name = |rest: &str| {
        rest.chars().take_while(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || *c == '_').collect::<String>()
    };
    text.split(PREFIX).skip(1).map(name).filter(|name| !name.is_empty()).map(|name| format!("{PREFIX}{name}")).collect()
}

/// Returns the variables in a file, or in the files below a folder. Output of benches is no source.
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
    let sources = ["src", "crates", "tests", "scripts", "build.rs", "Makefile"];
    let read: BTreeSet<_> = sources.iter().flat_map(|name| variables_below(&project(name))).collect();
    assert_eq!(listed, read);
    // Texts mention only existing variables.
    let told: BTreeSet<_> = DOCUMENTS.iter().flat_map(|document| variables(&text_of(document))).collect();
    assert!(told.is_subset(&listed), "{told:?}");
}
