//! What `--json` prints: one object in a line for each image, and for an error.

use std::env;

use flux::engine::ImageRecipe;
use flux::{Error, Result};
use serde::Serialize;

use super::print;
use crate::cli::flag;

/// An image that was written.
#[derive(Serialize)]
pub struct ImageLine<'a> {
    /// Its file.
    pub output: &'a str,
    pub seed: u64,
    pub width: usize,
    pub height: usize,
    /// From the start of the program to the written file.
    pub seconds: f64,
    /// How it is made again.
    pub made: Option<ImageRecipe>,
}

impl ImageLine<'_> {
    /// Errors when standard output cannot be written.
    pub fn print(&self) -> Result<()> {
        print_object(self)
    }
}

/// Prints an object in a line.
///
/// Errors when standard output cannot be written.
pub fn print_object(object: &impl Serialize) -> Result<()> {
    print(&serde_json::to_vec(object).map_err(|e| Error::new(format!("cannot write JSON: {e}")))?)
}

/// Prints an error, where the command line asks for JSON. What cannot be printed is told on stderr anyhow.
pub fn print_error(error: &Error) {
    if env::args_os().skip(1).take_while(|word| word != "--").any(|word| word == "--json") {
        let _ = print_object(&serde_json::json!({ "error": error.json(flag) }));
    }
}
