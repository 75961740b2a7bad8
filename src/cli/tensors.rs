//! Flags for files of noise, latents and text features.

use std::path::PathBuf;

use clap::Args;
use flux::engine::Recipe;

use super::TENSORS;
use super::values::path;

/// Tensors that come from files, or go to them: safetensors.
#[derive(Args)]
pub struct TensorArgs {
    /// Noise [1, 128, height/16, width/16] in place of the seed's; with --count K of K images. It decides the size
    #[arg(help_heading = TENSORS, long, value_name = "FILE", value_parser = path(), hide_short_help = true, conflicts_with = "latents")]
    noise: Option<PathBuf>,
    /// Latents of the same shape to start with, as they are at the first noise level: 1, or that of --schedule sigmas.
    /// Those of --save-latents have level 0
    #[arg(help_heading = TENSORS, long, value_name = "FILE", value_parser = path(), hide_short_help = true)]
    latents: Option<PathBuf>,
    /// Text features [1, tokens, features] in place of a prompt; the text encoder is not opened
    #[arg(help_heading = TENSORS, long, value_name = "FILE", value_parser = path(), hide_short_help = true)]
    embeddings: Option<PathBuf>,
    /// Write the final latents, as --latents takes them; of several images each to FILE-SEED
    #[arg(help_heading = TENSORS, long, value_name = "FILE", value_parser = path(), hide_short_help = true)]
    pub save_latents: Option<PathBuf>,
    /// Write the text features of the prompt, and with guidance those of the negative one
    #[arg(help_heading = TENSORS, long, value_name = "FILE", value_parser = path(), hide_short_help = true, conflicts_with = "embeddings")]
    pub save_embeddings: Option<PathBuf>,
}

impl TensorArgs {
    /// Changes what the flags ask for: noise takes the place of latents, and the other way round.
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

    /// Whether text features take the place of a prompt.
    pub fn has_embeddings(&self) -> bool {
        self.embeddings.is_some()
    }
}
