//! The texts of errors, hints, notes and log lines, in one file that can be read as a whole.
//!
//! Tests elsewhere assert on kinds, fields and values; the wording is compared here alone.

use std::fmt::Write;
use std::fs;

use crate::layering::paths::Sources;
use crate::process::{names, project};

const SNAPSHOT: &str = "tests/snapshots/messages.txt";
/// A literal with this many words is a message; shorter ones are names and labels.
const MIN_WORDS: usize = 4;
/// Words that the rules of writing exclude: people inside the program, archaic words, and a second spelling.
const EXCLUDED: [&str; 7] = ["anew", "nobody", "somebody", "thereby", "whoever", "whereupon", "quantise"];

fn is_message(text: &str) -> bool {
    let is_word = |word: &&str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase());
    let is_page = text.starts_with(['<', '{']) && text.contains('\n');
    let is_comment = text.starts_with(' '); // of a macro's item
    !is_page && !is_comment && text.split([' ', '\n', ',', '.', ':', ';']).filter(is_word).count() >= MIN_WORDS
}

/// Returns all messages under the name of their file.
fn messages() -> String {
    let crates = names(&project("crates")).into_iter().map(|name| format!("crates/{name}/src"));
    let mut all = String::new();
    for folder in std::iter::once("src".to_string()).chain(crates) {
        let mut files = Sources::read(&project(&folder)).files;
        files.sort_by(|a, b| a.name.cmp(&b.name));
        for file in files {
            let mut found: Vec<_> =
                file.literals.iter().map(|(_, text)| text).filter(|text| is_message(text)).collect();
            found.dedup();
            if !found.is_empty() {
                writeln!(all, "{folder}/{}", file.name).expect("a string takes all");
                for text in found {
                    writeln!(all, "    {}", text.escape_debug().to_string().replace("\\'", "'").replace("\\\"", "\""))
                        .expect("a string takes all");
                }
            }
        }
    }
    all
}

#[test]
fn messages_are_those_of_the_snapshot() {
    let found = messages();
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(project(SNAPSHOT), &found).expect("the project's own file");
    }
    let known = fs::read_to_string(project(SNAPSHOT)).unwrap_or_default();
    let differing: Vec<_> = found.lines().filter(|line| !known.lines().any(|known| known == *line)).take(20).collect();
    assert!(
        found == known,
        "if the change is meant: UPDATE_SNAPSHOTS=1 cargo test --profile quick -p flux --test sources messages::\n{}",
        differing.join("\n")
    );
}

#[test]
fn messages_avoid_excluded_words() {
    let messages = messages();
    let avoids = |line: &&str| line.split(|c: char| !c.is_ascii_alphabetic()).any(|word| EXCLUDED.contains(&word));
    let found: Vec<_> = messages.lines().filter(|line| line.starts_with(' ')).filter(avoids).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn sentences_are_messages_and_names_are_not() {
    assert!(is_message("tensor `{name}` has shape {:?}, expected a matrix"));
    for name in ["image/png", "--size", "a b", "<p>one two three four\n</p>", "transformer_blocks.{n}.attn"] {
        assert!(!is_message(name), "{name}");
    }
}
