//! Loading of a model's components to a device.

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

/// A loader of a model's components to a device, from files or as copies from another device. Clones share the record
/// of running loads.
#[derive(Clone)]
pub(crate) struct Loader<B: Backend> {
    pub(crate) backend: B,
    pub(crate) files: Arc<Files>,
    pub(crate) info: Arc<ModelInfo>,
    loads: Arc<Loads>,
    /// The loads of the source device whose weights are copied, if there is one.
    source: Option<Arc<Loads>>,
}

impl<B: Backend> Loader<B> {
    pub(crate) fn new(backend: B, info: Arc<ModelInfo>, files: Arc<Files>) -> Self {
        Self { backend, files, info, loads: Arc::default(), source: None }
    }

    /// Creates a loader for another device, which copies the weights of this device after they are loaded, if it can.
    ///
    /// Errors as [`WeightStore::copy_weights_from`](crate::backend::WeightStore::copy_weights_from).
    pub(crate) fn on(&self, backend: B) -> Result<Self> {
        let source = backend.copy_weights_from(&self.backend)?.then(|| Arc::clone(&self.loads));
        Ok(Self { source, ..Self::new(backend, Arc::clone(&self.info), Arc::clone(&self.files)) })
    }

    /// Marks a component as loading. From here on, devices that copy the component wait.
    pub(crate) fn begin(&self, component: Component) -> Loading {
        self.loads.begin(component)
    }

    /// Marks a component as loading, and waits until the source device has loaded it, if that is in progress.
    fn begin_behind_source(&self, component: Component) -> Loading {
        let loading = self.begin(component);
        if let Some(source) = &self.source {
            source.wait(component);
        }
        loading
    }

    /// Loads the text encoder; `streamed` marks the blocks to stream.
    pub(crate) fn text_encoder(&self, streamed: &[bool], report: &mut dyn FnMut(u64)) -> Result<TextEncoder<B>> {
        let files = self.files.text_encoder.as_ref().ok_or_else(no_text_encoder)?;
        files.check_lengths()?;
        let _loading = self.begin_behind_source(Component::TextEncoder);
        let weights = self.weights(files).with_blocks(Arc::new(Blocks::new(streamed, AccessFrequency::Seldom)));
        self.while_warming_up(|start| {
            let load = |uploads: &B::Uploads| {
                let weights = weights.with_uploads(uploads);
                let text_encoder = TextEncoder::load(&weights, self.info.text_encoder, &self.info.out_layers)?;
                // The text encoder's memory is allocated. Earlier, allocating would wait for the loading of
                // libraries.
                drop(start);
                Ok(text_encoder)
            };
            self.backend.load(load, report)
        })
    }

    /// Runs `work` while another thread warms up the backend. Warming up begins when `work` drops the sender that it
    /// receives.
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

    /// Loads the transformer; `streamed` marks the blocks to stream. Calls `before_upload` when memory is allocated.
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

    /// Loads the tiny decoder, if the model has a file of one.
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
