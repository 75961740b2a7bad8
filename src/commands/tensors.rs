//! The files of latents and text features that a run writes.

use std::collections::HashMap;
use std::path::Path;

use flux::Result;
use flux::files::ArrayTarget;
use flux::pipeline::{Embeddings, Latents, Request};

use super::outputs::Outputs;

/// Where tensors go, found to be writable.
pub struct Tensors {
    /// One for each image, where latents are asked for.
    latents: Vec<ArrayTarget>,
    embeddings: Option<ArrayTarget>,
}

impl Tensors {
    /// Errors when a file cannot be written.
    pub fn new(outputs: &Outputs) -> Result<Self> {
        let target = |path: &Path, flag: &str| ArrayTarget::new(path, outputs.no_clobber).map_err(|e| e.at(flag));
        let latents = outputs.latents.iter().map(|path| target(path, "--save-latents")).collect::<Result<_>>()?;
        let embeddings = outputs.embeddings.as_deref();
        let embeddings = embeddings.map(|path| target(path, "--save-embeddings")).transpose()?;
        Ok(Self { latents, embeddings })
    }

    /// Whether latents are asked for.
    pub fn wants_latents(&self) -> bool {
        !self.latents.is_empty()
    }

    /// Whether text features are asked for.
    pub fn wants_embeddings(&self) -> bool {
        self.embeddings.is_some()
    }

    /// Writes the final latents of image `index`.
    pub fn write_latents(&self, index: usize, latents: &Latents, seed: u64, prompt: &str, model: &str) -> Result<()> {
        let Some(target) = self.latents.get(index) else { return Ok(()) };
        let mut metadata = header("final latents, packed and normalised [1, channels, height, width]", prompt, model);
        metadata.insert("seed".to_string(), seed.to_string());
        target.write(&[("latents", &latents.to_array())], metadata)
    }

    /// Writes the text features.
    pub fn write_embeddings(&self, embeddings: &Embeddings, request: &Request, model: &str) -> Result<()> {
        let Some(target) = &self.embeddings else { return Ok(()) };
        embeddings.write(target, header("text features [1, tokens, features]", &request.prompt, model))
    }
}

/// What the header of a file says.
fn header(content: &str, prompt: &str, model: &str) -> HashMap<String, String> {
    let software = concat!("flux ", env!("CARGO_PKG_VERSION"));
    [("content", content), ("prompt", prompt), ("model", model), ("software", software)]
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .into()
}
