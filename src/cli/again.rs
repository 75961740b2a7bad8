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
    /// Images that flux made
    #[arg(value_name = "IMAGE", required = true, value_parser = path())]
    pub images: Vec<PathBuf>,
    /// Another prompt
    #[arg(help_heading = PROMPT, short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<OsString>,
    /// Images of each, with its seed and the following ones
    #[arg(help_heading = SAMPLING, short = 'n', long, value_name = "K", default_value_t = 1)]
    #[arg(allow_negative_numbers = true, value_parser = values::count)]
    pub count: u64,
    /// Fail where the model, a file or the machine is not what made the image
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
    /// The recipe, changed as the flags say.
    ///
    /// Errors when the prompt is too long or no text, and when the strength of an adapter is no number.
    pub fn recipe(&self, base: Recipe) -> Result<Recipe> {
        let prompt = self.prompt.as_ref().map(|prompt| prompt::text(prompt.as_encoded_bytes().to_vec()));
        let recipe = match prompt.transpose().map_err(|e| e.at("--prompt"))? {
            Some(prompt) => Recipe { prompt, embeddings: None, ..base },
            None if self.draw.recipe.tensors.has_embeddings() => {
                Recipe { prompt: String::new(), negative: None, max_sequence_length: None, ..base }
            }
            None => base,
        };
        self.draw.recipe.apply(recipe)
    }

    /// Errors where flags contradict each other in a way that clap does not express.
    pub fn check(&self) -> Result<()> {
        if self.prompt.as_ref().is_some_and(|prompt| prompt == "-") || self.draw.recipe.images.reads_stdin() {
            return Err(Error::usage("standard input is not read here").hint("name files, and give the prompt itself"));
        }
        if self.prompt.is_some() && self.draw.recipe.tensors.has_embeddings() {
            return Err(Error::usage("`--embeddings` takes the place of a prompt, and there is one")
                .at("--embeddings")
                .hint("leave one of them out"));
        }
        let count = self.count.saturating_mul(self.images.len() as u64);
        self.output.check(count, &self.draw.console, &self.show)?;
        self.draw.check(false)
    }
}
