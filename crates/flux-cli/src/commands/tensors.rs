//! Output files for latents and text features.

use std::collections::HashMap;
use std::path::Path;

use flux::Result;
use flux::files::ArrayTarget;
use flux::pipeline::{Embeddings, Latents, Request};

use super::outputs::Outputs;

/// The output files for tensors, checked to be writable.
pub struct Tensors {
    /// One file for each image, if latents are requested.
    latents: Vec<ArrayTarget>,
    embeddings: Option<ArrayTarget>,
}

impl Tensors {
    /// Creates the targets. Errors when a file cannot be written.
    pub fn new(outputs: &Outputs) -> Result<Self> {
        let target = |path: &Path, flag: &str| ArrayTarget::new(path, outputs.no_clobber).map_err(|e| e.at(flag));
        let latents = outputs.latents.iter().map(|path| target(path, "--save-latents")).collect::<Result<_>>()?;
        let embeddings = outputs.embeddings.as_deref();
        let embeddings = embeddings.map(|path| target(path, "--save-embeddings")).transpose()?;
        Ok(Self { latents, embeddings })
    }

    /// Returns `true` if latents are requested.
    pub fn wants_latents(&self) -> bool {
        !self.latents.is_empty()
    }

    /// Returns `true` if text features are requested.
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

/// Returns the metadata for the header of a file.
fn header(content: &str, prompt: &str, model: &str) -> HashMap<String, String> {
    let software = concat!("flux ", env!("CARGO_PKG_VERSION"));
    [("content", content), ("prompt", prompt), ("model", model), ("software", software)]
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .into()
}
