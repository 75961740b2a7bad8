//! Weights to the device, now or by another thread while the tokenizer is read and the text encoder runs.

use std::cmp::min;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use super::opened::Files;
use super::{ModelInfo, Observer, Stage};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::nn::Weights;
use crate::text_encoder::TextEncoder;
use crate::transformer::Transformer;
use crate::vae::Decoder;

/// Lets `load` load a model of about `total` elements; it reports how many are on their way.
pub(super) fn load<M>(
    total: u64,
    observer: &mut dyn Observer,
    load: impl FnOnce(&mut dyn FnMut(u64)) -> Result<M>,
) -> Result<M> {
    let mut done = 0;
    observer.progress(Stage::Load, 0, total);
    let model = load(&mut |elements| {
        done += elements;
        observer.progress(Stage::Load, min(done, total), total);
    })?;
    observer.progress(Stage::Load, total, total);
    Ok(model)
}

/// As [`load`], of the text encoder; meanwhile the backend warms up.
pub(super) fn load_text_encoder<B: Backend>(
    backend: &B,
    files: &Files,
    info: &ModelInfo,
    report: &mut dyn FnMut(u64),
) -> Result<TextEncoder<B>> {
    thread::scope(|scope| {
        let warming_up = scope.spawn(|| backend.warm_up());
        let load =
            || TextEncoder::load(&Weights::new(backend, &files.text_encoder), info.text_encoder, &info.out_layers);
        let encoder = backend.load(load, report);
        warming_up.join().unwrap_or_else(|_| Err(Error::new("the thread that starts the backend panicked")))?;
        encoder
    })
}

/// The models of an image, on their way one after the other, in the order of use.
pub(super) struct Ahead<B: Backend> {
    /// None where it was there before, or was taken.
    pub(super) text_encoder: Option<Coming<TextEncoder<B>>>,
    pub(super) rest: Coming<(Transformer<B>, Decoder<B>)>,
}

impl<B: Backend> Ahead<B> {
    /// Starts loading transformer and decoder, and before them the text encoder if it is wanted.
    pub(super) fn start(backend: &B, files: &Arc<Files>, info: &ModelInfo, text_encoder: bool) -> Self {
        let own = || (backend.clone(), Arc::clone(files), info.clone());
        // Nobody holds the sender's end any more when the text encoder is on its way.
        let (on_its_way, text_encoder_first) = mpsc::channel::<()>();
        let text_encoder = text_encoder.then(|| {
            let (backend, files, info) = own();
            Coming::start(TextEncoder::<B>::elements(&info.text_encoder, &info.out_layers), move |report| {
                let _on_its_way = on_its_way;
                load_text_encoder(&backend, &files, &info, report)
            })
        });
        let (backend, files, info) = own();
        let rest = Coming::start(info.transformer.elements() + info.vae.decoder_elements(), move |report| {
            let _ = text_encoder_first.recv();
            let transformer = backend
                .load(|| Transformer::load(&Weights::new(&backend, &files.transformer), &info.transformer), report)?;
            let decoder = backend.load(|| Decoder::load(&Weights::new(&backend, &files.vae), &info.vae), report)?;
            Ok((transformer, decoder))
        });
        Self { text_encoder, rest }
    }
}

/// Weights that another thread loads.
pub(super) struct Coming<M> {
    thread: Option<JoinHandle<Result<M>>>,
    elements: mpsc::Receiver<u64>,
    total: u64,
}

impl<M: Send + 'static> Coming<M> {
    /// `work` reports how many of about `total` elements are on their way.
    fn start(total: u64, work: impl FnOnce(&mut dyn FnMut(u64)) -> Result<M> + Send + 'static) -> Self {
        let (sender, elements) = mpsc::channel();
        let thread = thread::spawn(move || {
            // Nobody listens any more where the pipeline was dropped.
            work(&mut |elements| {
                let _ = sender.send(elements);
            })
        });
        Self { thread: Some(thread), elements, total }
    }

    /// Waits until all is on its way.
    pub(super) fn join(mut self, observer: &mut dyn Observer) -> Result<M> {
        let mut done = 0;
        for elements in &self.elements {
            done += elements;
            observer.progress(Stage::Load, min(done, self.total), self.total);
        }
        let thread = self.thread.take().expect("only this and `drop` take it");
        thread.join().unwrap_or_else(|_| Err(Error::new("a thread that loads weights panicked")))
    }
}

impl<M> Drop for Coming<M> {
    /// A program must not end while a thread of it enqueues copies.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
