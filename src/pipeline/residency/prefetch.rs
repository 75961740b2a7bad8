//! Prefetching: other threads load weights to the device while the tokenizer is read and the text encoder runs.

use std::cmp::min;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::backend::{Backend, Storage};
use crate::error::{Error, Result};
use crate::pipeline::memory::plan::MemoryPlan;
use crate::pipeline::residency::loader::Loader;
use crate::pipeline::residency::loads::Component;
use crate::stage::Stage;
use crate::stage::{Caller, CancelFlag};
use crate::text_encoder::TextEncoder;
use crate::transformer::Transformer;
use crate::vae::Decoder;

/// Polling interval of the cancel flag for sessions that wait for other threads.
pub(crate) const CHECK_EVERY: Duration = Duration::from_millis(20);

/// Loads a component of about `total` elements by calling `load`, which reports the number of enqueued elements.
///
/// Errors as `load` does, and if the caller has cancelled before it begins.
pub(crate) fn load<M>(
    total: u64,
    caller: &Caller<'_>,
    load: impl FnOnce(&mut dyn FnMut(u64)) -> Result<M>,
) -> Result<M> {
    caller.check()?;
    let mut done = 0;
    caller.report(Stage::Load, 0, total);
    let model = load(&mut |elements| {
        done += elements;
        caller.report(Stage::Load, min(done, total), total);
    })?;
    caller.report(Stage::Load, total, total);
    Ok(model)
}

/// The components that other threads load, one after the other in the order of use.
pub(crate) struct Prefetch<B: Backend> {
    pub(crate) text_encoder: Prefetched<TextEncoder<B>>,
    pub(crate) rest: Prefetched<(Transformer<B>, Decoder<B>)>,
    /// Set if components that are not loaded yet are no longer needed.
    unwanted: CancelFlag,
}

impl<B: Backend> Prefetch<B> {
    /// Starts loading the transformer and the decoder, and before them the text encoder if `text_encoder` is set.
    pub(crate) fn start(loader: &Loader<B>, plan: MemoryPlan, text_encoder: bool) -> Self {
        let MemoryPlan { text_encoder: text_plan, transformer: plan, graphs: has_room, .. } = plan;
        let (info, unwanted) = (&loader.info, CancelFlag::default());
        // The sender is dropped after the text encoder is loaded, which ends the wait of the receiver.
        let (text_encoder_loads, text_encoder_done) = mpsc::channel::<()>();
        let encoder = if text_encoder {
            let loader = loader.clone();
            Prefetched::start(TextEncoder::<B>::elements(&info.text_encoder, &info.out_layers), move |report| {
                let _dropped_at_the_end = text_encoder_loads;
                loader.text_encoder(&text_plan.streamed, report)
            })
        } else {
            drop(text_encoder_loads);
            Prefetched::nothing()
        };
        let total = info.transformer.elements() + info.vae.decoder_elements();
        let (loader, flag) = (loader.clone(), unwanted.clone());
        // Marked before the thread starts, so that a device that copies these weights does not read the files first.
        let loading = [Component::Transformer, Component::Decoder].map(|component| loader.begin(component));
        let rest = Prefetched::start(total, move |report| {
            let [transformer_loads, _decoder_loads] = loading;
            // The text encoder's weights are uploaded first. In the meantime memory is allocated, if there is enough
            // and weights are uploaded together: quantized weights are uploaded one by one.
            let mut wait = || {
                let _ = text_encoder_done.recv();
                flag.check()
            };
            if !has_room || loader.backend.costs().products != Storage::Native {
                wait()?;
            }
            let mut load = || loader.transformer(&plan.streamed, &mut wait, report);
            // Loading the text encoder has warmed up the backend. Ranks of a group may already wait for each other,
            // when no kernels may be loaded.
            let transformer = if text_encoder || loader.backend.world() > 1 {
                load()
            } else {
                loader.while_warming_up(|start| {
                    drop(start);
                    load()
                })
            }?;
            drop(transformer_loads);
            flag.check()?;
            Ok((transformer, loader.decoder(report)?))
        });
        Self { text_encoder: encoder, rest, unwanted }
    }
}

impl<B: Backend> Drop for Prefetch<B> {
    fn drop(&mut self) {
        self.unwanted.cancel();
    }
}

/// Weights that another thread loads, until a session takes them.
pub(crate) struct Prefetched<M> {
    thread: Option<JoinHandle<Result<M>>>,
    elements: mpsc::Receiver<u64>,
    done: u64,
    total: u64,
}

impl<M> Prefetched<M> {
    fn nothing() -> Self {
        let (_, elements) = mpsc::channel();
        Self { thread: None, elements, done: 0, total: 0 }
    }
}

impl<M: Send + 'static> Prefetched<M> {
    /// Starts `work` on another thread; it reports the number of enqueued elements, of about `total`. If no thread
    /// can be started, the session loads the weights later.
    fn start(total: u64, work: impl FnOnce(&mut dyn FnMut(u64)) -> Result<M> + Send + 'static) -> Self {
        let (sender, elements) = mpsc::channel();
        let thread = thread::Builder::new().spawn(move || {
            // Sending fails if the model was dropped, which is no error.
            work(&mut |elements| {
                let _ = sender.send(elements);
            })
        });
        Self { thread: thread.ok(), elements, done: 0, total }
    }

    /// Waits until the weights are loaded, and takes them; `None` if loading was never started or the weights were
    /// already taken.
    ///
    /// Errors as the loading does. If the caller cancels, loading continues for other sessions.
    pub(crate) fn take(&mut self, caller: &Caller<'_>) -> Option<Result<M>> {
        self.thread.as_ref()?;
        loop {
            if let Err(cancelled) = caller.check() {
                return Some(Err(cancelled));
            }
            match self.elements.recv_timeout(CHECK_EVERY) {
                Ok(elements) => self.done += elements,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            }
            caller.report(Stage::Load, min(self.done, self.total), self.total);
        }
        let loaded = self.thread.take()?.join();
        Some(loaded.unwrap_or_else(|_| Err(Error::new("a thread that loads weights panicked"))))
    }
}

impl<M> Drop for Prefetched<M> {
    /// Waits for the thread: a program must not end while one of its threads enqueues copies.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
