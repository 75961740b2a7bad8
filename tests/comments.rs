//! Comments fit the width that rustfmt holds code to.

use std::fs;
use std::path::Path;

use crate::process::{names, project};

/// The places of sources, and their extensions.
const PLACES: [&str; 5] = ["src", "crates", "cuda", "tests", "build.rs"];
const ENDINGS: [&str; 3] = ["rs", "cu", "cuh"];
/// `max_width` in rustfmt.toml.
const COLUMNS: usize = 120;

/// Returns the line numbers of comments that are too long, each with its columns. A row of a table cannot be wrapped.
fn too_long(source: &str) -> Vec<(usize, usize)> {
    let is_text = |line: &str| {
        let comment = line.trim_start().strip_prefix("//");
        comment.is_some_and(|comment| !comment.trim_start_matches(['/', '!', ' ']).starts_with('|'))
    };
    let lines = source.lines().enumerate().filter(|(_, line)| is_text(line));
    let counted = lines.map(|(index, line)| (index + 1, line.chars().count()));
    counted.filter(|(_, columns)| *columns > COLUMNS).collect()
}

/// Adds the complaints about a file, or about all sources below a folder.
fn look_at(path: &Path, name: &str, complaints: &mut Vec<String>) {
    if path.is_dir() {
        names(path).iter().for_each(|entry| look_at(&path.join(entry), &format!("{name}/{entry}"), complaints));
    } else if path.extension().is_some_and(|ending| ENDINGS.iter().any(|known| ending == *known)) {
        let source = fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let lines = too_long(&source).into_iter();
        complaints.extend(lines.map(|(line, columns)| format!("{name}:{line}: {columns} columns")));
    }
}

#[test]
fn no_comment_is_wider_than_code() {
    let rustfmt = fs::read_to_string(project("rustfmt.toml")).expect("the settings of rustfmt");
    assert!(rustfmt.contains(&format!("max_width = {COLUMNS}\n")));
    let mut complaints = Vec::new();
    PLACES.iter().for_each(|place| look_at(&project(place), place, &mut complaints));
    assert!(complaints.is_empty(), "expected at most {COLUMNS}:\n{}", complaints.join("\n"));
}

#[test]
fn comments_of_every_kind_are_looked_at_and_tables_are_not() {
    let wide = "x ".repeat(COLUMNS / 2);
    for start in ["//", "///", "//!", "    // ", "\t/// - "] {
        assert_eq!(too_long(&format!("let a = 1;\n{start}{wide}\n")).len(), 1, "{start}");
    }
    // Columns are characters.
    for letter in ["x", "é"] {
        assert!(too_long(&format!("// {}\n", letter.repeat(COLUMNS - 3))).is_empty(), "{letter}");
    }
    for start in ["//! | a | ", "    /// | ", "let a = \""] {
        assert!(too_long(&format!("{start}{wide}\n")).is_empty(), "{start}");
    }
}
