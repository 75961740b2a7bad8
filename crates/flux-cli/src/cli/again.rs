//! Flags of `flux again`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use flux::engine::Recipe;
use flux::{Error, Result};

use super::values::path;
use super::{DrawArgs, OutputArgs, PROMPT, SAMPLING, ShowArgs, prompt, values};

/// `flux again`
#[derive(Args)]
pub struct Again {
    /// Images made by flux, or with settings of another program
    #[arg(value_name = "IMAGE", required = true, value_parser = path())]
    pub images: Vec<PathBuf>,
    /// Replacement for the prompt
    #[arg(help_heading = PROMPT, short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<OsString>,
    /// Images per input image, with consecutive seeds
    #[arg(help_heading = SAMPLING, short = 'n', long, value_name = "K", default_value_t = 1)]
    #[arg(allow_negative_numbers = true, value_parser = values::count)]
    pub count: u64,
    /// Fail if the model, a file or the machine differs from the original
    #[arg(long)]
    pub exact: bool,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub show: ShowArgs,
    #[command(flatten)]
    pub draw: DrawArgs,
}

impl Again {
    /// Returns the recipe with the flags applied.
    ///
    /// Errors when the prompt is too long or not UTF-8, and when the strength of an adapter is not a number.
    pub fn recipe(&self, base: Recipe) -> Result<Recipe> {
        let prompt = self.prompt.as_ref().map(|prompt| prompt::text(prompt.as_encoded_bytes().to_vec()));
        let prompt = prompt.transpose().map_err(|e| e.at("--prompt"))?;
        self.draw.recipe.apply(self.draw.recipe.tensors.with_prompt(base, prompt))
    }

    /// Errors if flags contradict each other in a way that clap does not express.
    pub fn check(&self) -> Result<()> {
        if self.prompt.as_ref().is_some_and(|prompt| prompt == "-") || self.draw.recipe.images.reads_stdin() {
            return Err(
                Error::usage("standard input cannot be read here").hint("name files, and pass the prompt itself")
            );
        }
        self.draw.recipe.tensors.check(self.prompt.is_some())?;
        let count = self.count.saturating_mul(self.images.len() as u64);
        self.output.check(count, &self.draw.console, &self.show)?;
        self.draw.check(false)
    }
}
