//! Flags for files of noise, latents and text features.

use std::path::PathBuf;

use clap::Args;
use flux::engine::Recipe;
use flux::{Error, Result};

use super::TENSORS;
use super::values::path;

/// Flags for tensors in safetensors files, read or written.
#[derive(Args)]
pub struct TensorArgs {
    /// Initial noise, instead of the noise of the seed
    ///
    /// The shape is [1, 128, height/16, width/16]; with --count K, it is the noise of K images. The shape determines
    /// the size.
    #[arg(help_heading = TENSORS, long, value_name = "FILE", value_parser = path(), hide_short_help = true, conflicts_with = "latents")]
    noise: Option<PathBuf>,
    /// Initial latents, at the first noise level
    ///
    /// The shape is that of --noise. The first noise level is 1, or that of --schedule sigmas. Latents of
    /// --save-latents have level 0.
    #[arg(help_heading = TENSORS, long, value_name = "FILE", value_parser = path(), hide_short_help = true)]
    latents: Option<PathBuf>,
    /// Text features, instead of a prompt
    ///
    /// The shape is [1, tokens, features]. The text encoder is not loaded.
    #[arg(help_heading = TENSORS, long, value_name = "FILE", value_parser = path(), hide_short_help = true)]
    embeddings: Option<PathBuf>,
    /// Write the final latents, as input for --latents
    ///
    /// With several images, each is written to FILE-SEED.
    #[arg(help_heading = TENSORS, long, value_name = "FILE", value_parser = path(), hide_short_help = true)]
    pub save_latents: Option<PathBuf>,
    /// Write the text features of the prompt
    ///
    /// With guidance, the file also has those of the negative prompt.
    #[arg(help_heading = TENSORS, long, value_name = "FILE", value_parser = path(), hide_short_help = true, conflicts_with = "embeddings")]
    pub save_embeddings: Option<PathBuf>,
}

impl TensorArgs {
    /// Returns the recipe with the flags applied. Noise and latents replace each other.
    pub fn apply(&self, recipe: Recipe) -> Recipe {
        let recipe = match (&self.noise, &self.latents) {
            (Some(noise), _) => Recipe { noise: Some(noise.clone()), latents: None, ..recipe },
            (None, Some(latents)) => Recipe { noise: None, latents: Some(latents.clone()), ..recipe },
            (None, None) => recipe,
        };
        match &self.embeddings {
            Some(embeddings) => Recipe { embeddings: Some(embeddings.clone()), ..recipe },
            None => recipe,
        }
    }

    /// Returns the recipe with a prompt, which replaces its embeddings. Without a prompt, the embeddings of the flags
    /// replace the recipe's prompt.
    pub fn with_prompt(&self, recipe: Recipe, prompt: Option<String>) -> Recipe {
        match prompt {
            Some(prompt) => recipe.with_prompt(prompt),
            None if self.has_embeddings() => {
                Recipe { negative: None, max_sequence_length: None, ..recipe.with_prompt(String::new()) }
            }
            None => recipe,
        }
    }

    /// Returns `true` if embeddings replace the prompt.
    pub fn has_embeddings(&self) -> bool {
        self.embeddings.is_some()
    }

    /// Returns a flag that writes tensors, if there is one.
    pub fn saves(&self) -> Option<&'static str> {
        let embeddings = || self.save_embeddings.is_some().then_some("--save-embeddings");
        self.save_latents.is_some().then_some("--save-latents").or_else(embeddings)
    }

    /// Errors if there are both embeddings and a prompt.
    pub fn check(&self, has_prompt: bool) -> Result<()> {
        if has_prompt && self.has_embeddings() {
            return Err(Error::usage("`--embeddings` cannot be used with a prompt")
                .at("--embeddings")
                .hint("leave one of them out"));
        }
        Ok(())
    }
}
