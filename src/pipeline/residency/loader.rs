//! Loads the components of a model to a device.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;

use crate::backend::{AccessFrequency, Backend};
use crate::error::{Error, Result};
use crate::files::TensorFiles;
use crate::model::info::ModelInfo;
use crate::model::open::{Files, no_text_encoder};
use crate::nn::{Blocks, Weights};
use crate::pipeline::residency::loads::{Component, Loading, Loads};
use crate::text_encoder::TextEncoder;
use crate::transformer::Transformer;
use crate::vae::{Decoder, Encoder, TinyDecoder};

/// Loads the components of a model to a device, or copies them from one that has them. Clones load the same.
#[derive(Clone)]
pub(crate) struct Loader<B: Backend> {
    pub(crate) backend: B,
    pub(crate) files: Arc<Files>,
    pub(crate) info: Arc<ModelInfo>,
    loads: Arc<Loads>,
    /// Those of the device whose weights are copied, if there is one.
    source: Option<Arc<Loads>>,
}

impl<B: Backend> Loader<B> {
    pub(crate) fn new(backend: B, info: Arc<ModelInfo>, files: Arc<Files>) -> Self {
        Self { backend, files, info, loads: Arc::default(), source: None }
    }

    /// The same for another device, which copies the weights of this one, once they are there, where it can.
    ///
    /// Errors as [`WeightStore::copy_weights_from`](crate::backend::WeightStore::copy_weights_from).
    pub(crate) fn on(&self, backend: B) -> Result<Self> {
        let source = backend.copy_weights_from(&self.backend)?.then(|| Arc::clone(&self.loads));
        Ok(Self { source, ..Self::new(backend, Arc::clone(&self.info), Arc::clone(&self.files)) })
    }

    /// Devices that copy the component wait from here on.
    pub(crate) fn begin(&self, component: Component) -> Loading {
        self.loads.begin(component)
    }

    /// The same; waits until the device whose weights are copied has the component, if it is loading it.
    fn begin_behind_source(&self, component: Component) -> Loading {
        let loading = self.begin(component);
        if let Some(source) = &self.source {
            source.wait(component);
        }
        loading
    }

    /// The text encoder, of which some blocks are streamed.
    pub(crate) fn text_encoder(&self, streamed: &[bool], report: &mut dyn FnMut(u64)) -> Result<TextEncoder<B>> {
        let files = self.files.text_encoder.as_ref().ok_or_else(no_text_encoder)?;
        files.check_lengths()?;
        let _loading = self.begin_behind_source(Component::TextEncoder);
        let weights = self.weights(files).with_blocks(Arc::new(Blocks::new(streamed, AccessFrequency::Seldom)));
        self.while_warming_up(|start| {
            let load = |uploads: &B::Uploads| {
                let weights = weights.with_uploads(uploads);
                let text_encoder = TextEncoder::load(&weights, self.info.text_encoder, &self.info.out_layers)?;
                // It has its memory, for which it would wait while libraries are loaded.
                drop(start);
                Ok(text_encoder)
            };
            self.backend.load(load, report)
        })
    }

    /// Runs `work` while another thread warms the backend up, once `work` has dropped what it is given.
    ///
    /// Errors as `work` and as warming up does.
    pub(crate) fn while_warming_up<T>(&self, work: impl FnOnce(Sender<()>) -> Result<T>) -> Result<T> {
        thread::scope(|scope| {
            let (start, started) = mpsc::channel();
            let warm_up = move || {
                let _ = started.recv();
                self.backend.warm_up()
            };
            let warming_up = thread::Builder::new().spawn_scoped(scope, warm_up).map_err(|e| Error::no_thread(&e))?;
            let done = work(start);
            warming_up.join().unwrap_or_else(|_| Err(Error::new("the thread that starts the backend panicked")))?;
            done
        })
    }

    /// The transformer, of which some blocks are streamed. It has its memory when `before_upload` is called.
    ///
    /// Errors also as `before_upload`.
    pub(crate) fn transformer(
        &self,
        streamed: &[bool],
        before_upload: &mut dyn FnMut() -> Result<()>,
        report: &mut dyn FnMut(u64),
    ) -> Result<Transformer<B>> {
        self.files.transformer.check_lengths()?;
        let _loading = self.begin_behind_source(Component::Transformer);
        let blocks = Arc::new(Blocks::new(streamed, AccessFrequency::Often));
        let weights = self.weights(&self.files.transformer).with_blocks(blocks);
        let load = |uploads: &B::Uploads| {
            let transformer = Transformer::load(&weights.with_uploads(uploads), &self.info.transformer)?;
            before_upload()?;
            Ok(transformer)
        };
        self.backend.load(load, report)
    }

    pub(crate) fn decoder(&self, report: &mut dyn FnMut(u64)) -> Result<Decoder<B>> {
        self.files.vae.check_lengths()?;
        let _loading = self.begin_behind_source(Component::Decoder);
        let weights = self.weights(&self.files.vae);
        self.backend.load(|uploads| Decoder::load(&weights.with_uploads(uploads), &self.info.vae), report)
    }

    pub(crate) fn encoder(&self, report: &mut dyn FnMut(u64)) -> Result<Encoder<B>> {
        self.files.vae.check_lengths()?;
        let _loading = self.begin_behind_source(Component::Encoder);
        let weights = self.weights(&self.files.vae);
        self.backend.load(|uploads| Encoder::load(&weights.with_uploads(uploads), &self.info.vae), report)
    }

    /// The tiny decoder, if there is a file of one.
    pub(crate) fn preview_decoder(&self) -> Result<Option<TinyDecoder<B>>> {
        let Some(file) = &self.files.preview_decoder else { return Ok(None) };
        file.files().check_lengths()?;
        let weights = self.weights(file.files());
        let load =
            |uploads: &B::Uploads| TinyDecoder::load(&file.weights(weights.with_uploads(uploads)), &file.sizes());
        self.backend.load(load, &mut |_| {}).map(Some)
    }

    fn weights<'a>(&'a self, files: &'a TensorFiles) -> Weights<'a, B> {
        Weights::new(&self.backend, files)
    }
}
