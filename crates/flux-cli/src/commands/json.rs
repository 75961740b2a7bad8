//! The output of `--json`: one object per line for each image, and for an error.

use std::borrow::Cow;

use flux::engine::ImageRecipe;
use flux::error::escaped;
use flux::{Error, Result};
use serde::Serialize;

use super::print;
use crate::cli::{arguments, flag};

/// An image that was written.
#[derive(Serialize)]
pub struct ImageLine<'a> {
    /// The path of its file.
    pub output: &'a str,
    pub seed: u64,
    pub width: usize,
    pub height: usize,
    /// Time from the program's start until the file was written.
    pub seconds: f64,
    /// The recipe that reproduces the image.
    pub made: Option<ImageRecipe>,
}

/// Escapes terminal control sequences in JSON, in addition to JSON's own escapes.
pub fn escaped_json(json: &str) -> String {
    let escape = |c: char| match is_obeyed(c) {
        true => c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
        false => c.to_string(),
    };
    json.chars().map(escape).collect()
}

/// Returns `true` if a terminal interprets a character instead of showing it. Line breaks count as shown.
pub fn is_obeyed(c: char) -> bool {
    c != '\n' && matches!(escaped(c.encode_utf8(&mut [0; 4])), Cow::Owned(_))
}

/// Prints an object as one line.
///
/// Errors when standard output cannot be written.
pub fn print_object(object: &impl Serialize) -> Result<()> {
    print(json_line(object)?.as_bytes())
}

/// Returns an object as one line. Errors if JSON cannot represent it.
pub fn json_line(object: &impl Serialize) -> Result<String> {
    serde_json::to_string(object).map_err(cannot_write)
}

/// Returns an object as indented lines. Errors if JSON cannot represent it.
pub fn json_lines(object: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(object).map_err(cannot_write)
}

fn cannot_write(e: serde_json::Error) -> Error {
    Error::new(format!("cannot write JSON: {e}"))
}

/// Prints an error as JSON if the command line contains `--json`. Failures are ignored: the error is also printed to
/// stderr.
pub fn print_error(error: &Error) {
    if arguments().iter().skip(1).take_while(|word| *word != "--").any(|word| word == "--json") {
        let _ = print_object(&serde_json::json!({ "error": error.json(flag) }));
    }
}
