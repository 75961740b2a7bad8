//! Flags of `flux chat`.

use std::path::PathBuf;

use clap::Args;
use flux::{Error, Result};

use super::values::path;
use super::{DrawArgs, OUTPUT, RecipeArgs, ShowArgs};

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
        let RecipeArgs { tensors, images, .. } = &self.draw.recipe;
        let embeddings = tensors.has_embeddings().then_some("--embeddings");
        let stdin = images.reads_stdin().then_some("--input");
        if let Some(flag) = tensors.saves().or(embeddings).or(stdin) {
            return Err(Error::usage(format!("`{flag}` cannot be used in interactive mode"))
                .at(flag)
                .hint("leave it out"));
        }
        self.draw.check(false)
    }
}
