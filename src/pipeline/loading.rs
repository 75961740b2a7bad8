//! Weights to the device, now or by another thread while the text encoder runs.

use std::cmp::min;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use super::opened::Files;
use super::{ModelInfo, Observer, Stage};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::transformer::Transformer;
use crate::vae::Decoder;
use crate::weights::{WeightFiles, Weights};

/// Loads a model of about `total` elements and reports how many are on their way.
pub(super) fn load<B: Backend, M>(
    backend: &B,
    files: &WeightFiles,
    total: u64,
    observer: &mut dyn Observer,
    load: impl FnOnce(&Weights<'_, B>) -> Result<M>,
) -> Result<M> {
    let mut done = 0;
    observer.progress(Stage::Load, 0, total);
    let model = backend.load(|| load(&Weights::new(backend, files)), &mut |elements| {
        done += elements;
        observer.progress(Stage::Load, min(done, total), total);
    })?;
    observer.progress(Stage::Load, total, total);
    Ok(model)
}

type Models<B> = (Transformer<B>, Decoder<B>);

/// Transformer and decoder, on their way.
pub(super) struct Ahead<B: Backend> {
    thread: Option<JoinHandle<Result<Models<B>>>>,
    elements: mpsc::Receiver<u64>,
    total: u64,
}

impl<B: Backend> Ahead<B> {
    /// Starts loading.
    pub(super) fn start(backend: &B, files: &Arc<Files>, info: &ModelInfo) -> Self {
        let (sender, elements) = mpsc::channel();
        let (backend, files, info) = (backend.clone(), Arc::clone(files), info.clone());
        let total = info.transformer.elements() + info.vae.decoder_elements();
        let thread = thread::spawn(move || {
            // Nobody listens any more where the pipeline was dropped.
            let mut report = |elements| {
                let _ = sender.send(elements);
            };
            let transformer = backend.load(|| Transformer::load(&Weights::new(&backend, &files.transformer), &info.transformer), &mut report)?;
            let decoder = backend.load(|| Decoder::load(&Weights::new(&backend, &files.vae), &info.vae), &mut report)?;
            Ok((transformer, decoder))
        });
        Self { thread: Some(thread), elements, total }
    }

    /// Waits until all is on its way.
    pub(super) fn join(mut self, observer: &mut dyn Observer) -> Result<Models<B>> {
        let mut done = 0;
        for elements in &self.elements {
            done += elements;
            observer.progress(Stage::Load, min(done, self.total), self.total);
        }
        let thread = self.thread.take().expect("only this and `drop` take it");
        thread.join().unwrap_or_else(|_| Err(Error::new("the thread that loads the transformer panicked")))
    }
}

impl<B: Backend> Drop for Ahead<B> {
    /// A program must not end while a thread of it enqueues copies.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
