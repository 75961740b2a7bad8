//! Flags for files of noise, latents and text features.

use std::path::{Path, PathBuf};

use clap::Args;
use flux::engine::Recipe;
use serde::Serialize;

use super::TENSORS;
use super::values::path;

/// Tensors that come from files, or go to them: safetensors.
#[derive(Args, Serialize)]
pub struct TensorArgs {
    /// Noise [1, 128, height/16, width/16] in place of the seed's; with --count K of K images. It decides the size
    #[arg(help_heading = TENSORS, long, value_name = "FILE", value_parser = path(), hide_short_help = true, conflicts_with = "latents")]
    #[serde(skip_serializing_if = "Option::is_none")]
    noise: Option<PathBuf>,
    /// Latents of the same shape to start with, as they are at the first noise level: 1, or that of --schedule sigmas.
    /// Those of --save-latents have level 0
    #[arg(help_heading = TENSORS, long, value_name = "FILE", value_parser = path(), hide_short_help = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    latents: Option<PathBuf>,
    /// Text features [1, tokens, features] in place of a prompt; the text encoder is not opened
    #[arg(help_heading = TENSORS, long, value_name = "FILE", value_parser = path(), hide_short_help = true)]
    #[arg(conflicts_with_all = ["prompt", "words", "negative", "max_sequence_length"])]
    #[serde(skip_serializing_if = "Option::is_none")]
    embeddings: Option<PathBuf>,
    /// Write the final latents, as --latents takes them; of several images each to FILE-SEED
    #[arg(help_heading = TENSORS, long, value_name = "FILE", value_parser = path(), hide_short_help = true)]
    #[serde(skip)]
    pub save_latents: Option<PathBuf>,
    /// Write the text features of the prompt, and with guidance those of the negative one
    #[arg(help_heading = TENSORS, long, value_name = "FILE", value_parser = path(), hide_short_help = true, conflicts_with = "embeddings")]
    #[serde(skip)]
    pub save_embeddings: Option<PathBuf>,
}

impl TensorArgs {
    /// Adds what the flags ask for.
    pub fn apply(&self, recipe: Recipe) -> Recipe {
        let (noise, latents, embeddings) = (self.noise.clone(), self.latents.clone(), self.embeddings.clone());
        Recipe { noise, latents, embeddings, ..recipe }
    }

    /// The files that are read, each with its flag.
    pub fn inputs(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let files =
            [("--noise", &self.noise), ("--latents", &self.latents), ("--embeddings", &self.embeddings)].into_iter();
        files.filter_map(|(flag, file)| Some((flag, file.as_deref()?)))
    }

    /// Whether text features take the place of a prompt.
    pub fn has_embeddings(&self) -> bool {
        self.embeddings.is_some()
    }
}
