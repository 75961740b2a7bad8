//! What the program does: one file for each subcommand, and one for none.

pub mod bench;
pub mod compare;
mod destination;
mod device;
pub mod generate;
mod images;
pub mod signals;
mod tensors;

use std::io::{self, Write};
use std::path::PathBuf;

use flux::files::ModelFiles;
use flux::{Error, Result};

use crate::cli::ModelArgs;

/// The model that the flags or the environment name, if they do.
fn model_dir(args: &ModelArgs) -> Result<Option<ModelFiles>> {
    let open = |folder: PathBuf| {
        ModelFiles::open(&folder).map_err(|e| e.at(if args.names_dir() { "--dir" } else { "FLUX_MODEL" }))
    };
    args.dir().map(open).transpose()
}

/// Writes a line to stdout.
fn print(line: &[u8]) -> Result<()> {
    print_bytes(&[line, b"\n"].concat())
}

/// Writes to stdout.
fn print_bytes(bytes: &[u8]) -> Result<()> {
    let mut stdout = io::stdout();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .map_err(|e| Error::new(format!("cannot write to standard output: {e}")))
        .map_err(|e| e.hint("is what reads it still there, and its disk not full?"))
}
