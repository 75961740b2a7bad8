//! `flux completions` and `flux man`.

use std::path::Path;

use flux::files::atomic;
use flux::{Error, Result};

use super::print_bytes;
use crate::cli::{Completions, Man, completions, man_pages};

/// Prints the completion script for a shell.
pub fn complete(args: &Completions) -> Result<()> {
    print_bytes(&completions(args.shell))
}

/// Writes the man pages into a folder.
///
/// Errors when the folder does not exist or cannot be written.
pub fn write_man(args: &Man) -> Result<()> {
    man_pages()?.iter().try_for_each(|(name, page)| write(&args.folder.join(name), page))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    atomic::write(path, bytes).map_err(|e| {
        Error::new(format!("cannot write the page: {e}"))
            .at_path(path)
            .hint("check that the folder exists and that you can write to it")
    })
}
