//! Loads the components of a model to a device.

use std::sync::Arc;
use std::thread;

use super::ModelInfo;
use super::opened::{Files, no_text_encoder};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::files::TensorFiles;
use crate::nn::{Blocks, Weights};
use crate::text_encoder::TextEncoder;
use crate::transformer::Transformer;
use crate::vae::{Decoder, Encoder};

/// Loads the components of a model to a device. Clones load the same.
#[derive(Clone)]
pub(super) struct Loader<B: Backend> {
    pub(super) backend: B,
    pub(super) files: Arc<Files>,
    pub(super) info: Arc<ModelInfo>,
}

impl<B: Backend> Loader<B> {
    /// The text encoder, of which some blocks are streamed, while another thread warms the backend up.
    pub(super) fn text_encoder(&self, streamed: &[bool], report: &mut dyn FnMut(u64)) -> Result<TextEncoder<B>> {
        let files = self.files.text_encoder.as_ref().ok_or_else(no_text_encoder)?;
        files.check_lengths()?;
        thread::scope(|scope| {
            let warming_up = thread::Builder::new().spawn_scoped(scope, || self.backend.warm_up());
            let warming_up = warming_up.map_err(|e| Error::no_thread(&e))?;
            let weights = self.weights(files).with_blocks(Arc::new(Blocks::new(streamed)));
            let load = || TextEncoder::load(&weights, self.info.text_encoder, &self.info.out_layers);
            let encoder = self.backend.load(load, report);
            warming_up.join().unwrap_or_else(|_| Err(Error::new("the thread that starts the backend panicked")))?;
            encoder
        })
    }

    /// The transformer, of which some blocks are streamed.
    pub(super) fn transformer(&self, streamed: &[bool], report: &mut dyn FnMut(u64)) -> Result<Transformer<B>> {
        self.files.transformer.check_lengths()?;
        let weights = self.weights(&self.files.transformer).with_blocks(Arc::new(Blocks::new(streamed)));
        self.backend.load(|| Transformer::load(&weights, &self.info.transformer), report)
    }

    pub(super) fn decoder(&self, report: &mut dyn FnMut(u64)) -> Result<Decoder<B>> {
        self.files.vae.check_lengths()?;
        self.backend.load(|| Decoder::load(&self.weights(&self.files.vae), &self.info.vae), report)
    }

    pub(super) fn encoder(&self, report: &mut dyn FnMut(u64)) -> Result<Encoder<B>> {
        self.files.vae.check_lengths()?;
        self.backend.load(|| Encoder::load(&self.weights(&self.files.vae), &self.info.vae), report)
    }

    fn weights<'a>(&'a self, files: &'a TensorFiles) -> Weights<'a, B> {
        Weights::new(&self.backend, files)
    }
}
