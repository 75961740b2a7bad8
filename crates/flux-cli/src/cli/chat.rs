//! Flags of `flux chat`.

use std::path::PathBuf;

use clap::Args;
use flux::{Error, Result};

use super::values::path;
use super::{DrawArgs, OUTPUT, ShowArgs};

/// `flux chat`
#[derive(Args)]
pub struct Chat {
    /// Folder for the images [default: the current folder]
    #[arg(help_heading = OUTPUT, short, long, value_name = "FOLDER", value_parser = path())]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub show: ShowArgs,
    #[command(flatten)]
    pub draw: DrawArgs,
}

impl Chat {
    /// Errors if flags do not apply to this command.
    pub fn check(&self) -> Result<()> {
        let tensors = &self.draw.recipe.tensors;
        let flags = [
            (tensors.save_latents.is_some(), "--save-latents"),
            (tensors.save_embeddings.is_some(), "--save-embeddings"),
            (tensors.has_embeddings(), "--embeddings"),
            (self.draw.recipe.images.reads_stdin(), "--input"),
        ];
        if let Some((_, flag)) = flags.iter().find(|(given, _)| *given) {
            return Err(Error::usage(format!("`{flag}` cannot be used in interactive mode"))
                .at(*flag)
                .hint("leave it out"));
        }
        self.draw.check(false)
    }
}
