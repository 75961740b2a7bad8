//! What of a model is in memory: its components, prefetched or loaded when they are needed and freed where memory is
//! short, and what images of one shape have in common.
//!
//! Locks are held to look and to take, not while the device computes. Whoever loads holds one lock for that time, and
//! whoever needs what is not there waits for it. A session holds what it uses, so that freeing takes nothing away from
//! it: the memory is free when the session lets go of it.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;

use super::denoise::{BatchShape, Schedules, Steps};
use super::memory::Needs;
use super::opened::Files;
use super::prefetch::{Prefetch, load, load_decoder, load_text_encoder, load_transformer};
use super::progress::Caller;
use super::prompt_cache::PromptCache;
use super::timings::Clock;
use super::{ModelInfo, Plan};
use crate::backend::{Backend, GraphCache, Storage};
use crate::error::{Kind, Result};
use crate::nn::WeightPolicy;
use crate::text_encoder::TextEncoder;
use crate::transformer::Transformer;
use crate::vae::Decoder;

/// How many shapes of images, schedules and sizes to decode are held.
const MAX_SHAPES: NonZeroUsize = NonZeroUsize::new(4).unwrap();

/// Everything of a model that takes memory of the device.
pub(super) struct Residency<B: Backend> {
    pub(super) backend: B,
    pub(super) info: Arc<ModelInfo>,
    files: Arc<Files>,
    components: Mutex<Components<B>>,
    /// What other threads load; none where there is no room for all of it. Held while anything is loaded.
    prefetch: Mutex<Option<Prefetch<B>>>,
    pub(super) prompts: PromptCache<B>,
    pub(super) schedules: Mutex<LruCache<[usize; 2], Arc<Schedules<B>>>>,
    pub(super) steps: GraphCache<BatchShape, Steps<B>, B>,
    /// By height and width: the decoder runs on one image at a time, whatever else images differ in.
    pub(super) decodes: GraphCache<[usize; 2], Decoder<B>, B>,
}

struct Components<B: Backend> {
    text_encoder: Option<Arc<TextEncoder<B>>>,
    transformer: Option<Arc<Transformer<B>>>,
    decoder: Option<Arc<Decoder<B>>>,
}

/// The component that must stay.
#[derive(PartialEq, Eq)]
pub(super) enum Keep {
    TextEncoder,
    Transformer,
    Decoder,
}

impl<B: Backend> Residency<B> {
    pub(super) fn new(backend: B, info: ModelInfo, files: Files) -> Self {
        Self {
            backend,
            info: Arc::new(info),
            files: Arc::new(files),
            components: Mutex::new(Components { text_encoder: None, transformer: None, decoder: None }),
            prefetch: Mutex::new(None),
            prompts: PromptCache::new(),
            schedules: Mutex::new(LruCache::new(MAX_SHAPES)),
            steps: GraphCache::new(MAX_SHAPES),
            decodes: GraphCache::new(MAX_SHAPES),
        }
    }

    fn components(&self) -> MutexGuard<'_, Components<B>> {
        self.components.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for whoever loads.
    fn loading(&self) -> MutexGuard<'_, Option<Prefetch<B>>> {
        self.prefetch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts loading transformer and decoder if both are yet to come, and before them the text encoder if it is to
    /// encode and is absent; but only where all of it fits, with what an image needs beside.
    pub(super) fn prefetch(&self, plan: &Plan, encodes: bool) {
        // Whoever loads now loads because memory was short, or joins what is prefetched.
        let Ok(mut prefetch) = self.prefetch.try_lock() else { return };
        let (text_encoder, rest_is_absent) = {
            let Components { text_encoder, transformer, decoder } = &*self.components();
            (encodes && text_encoder.is_none(), transformer.is_none() && decoder.is_none())
        };
        if prefetch.is_some() || !rest_is_absent {
            return;
        }
        let text_encoder_bytes = if text_encoder { self.weight_bytes(self.text_encoder_elements()) } else { 0 };
        // Convolution weights are there twice while they are reordered.
        let bytes = self.transformer_bytes() + self.weight_bytes(2 * self.info.vae.decoder_elements());
        let needs = Needs::of(&self.backend, &self.info, plan);
        // Where weights take no memory, loading them takes no time.
        if bytes > 0 && self.backend.available_bytes() >= text_encoder_bytes + bytes + needs.step + needs.decode {
            *prefetch = Some(Prefetch::start(&self.backend, &self.files, &self.info, text_encoder));
        }
    }

    /// The text encoder, loaded where it is absent.
    ///
    /// Errors when it cannot be loaded, or the caller cancels.
    pub(super) fn text_encoder(&self, caller: &Caller<'_>, clock: &mut Clock<B>) -> Result<Arc<TextEncoder<B>>> {
        let resident = || self.components().text_encoder.clone();
        if let Some(text_encoder) = resident() {
            return Ok(text_encoder);
        }
        let mut prefetch = self.loading();
        if let Some(text_encoder) = resident() {
            return Ok(text_encoder);
        }
        let text_encoder = match prefetch.as_mut().and_then(|prefetch| prefetch.text_encoder.take(caller)) {
            Some(prefetched) => prefetched?,
            None => {
                let elements = self.text_encoder_elements();
                self.make_room(self.weight_bytes(elements), Keep::TextEncoder);
                load(elements, caller, |report| load_text_encoder(&self.backend, &self.files, &self.info, report))?
            }
        };
        let text_encoder = Arc::new(text_encoder);
        self.components().text_encoder = Some(Arc::clone(&text_encoder));
        clock.loaded()?;
        Ok(text_encoder)
    }

    /// The transformer, loaded where it is absent.
    ///
    /// Errors as [`Residency::text_encoder`].
    pub(super) fn transformer(
        &self,
        needs: &Needs,
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<Arc<Transformer<B>>> {
        let resident = || self.components().transformer.clone();
        if let Some(transformer) = resident() {
            return Ok(transformer);
        }
        let mut prefetch = self.loading();
        self.take_prefetched(&mut prefetch, caller, clock)?;
        if let Some(transformer) = resident() {
            return Ok(transformer);
        }
        self.make_room(self.transformer_bytes() + needs.step, Keep::Transformer);
        let elements = self.info.transformer.elements();
        let load_it = |report: &mut dyn FnMut(u64)| load_transformer(&self.backend, &self.files, &self.info, report);
        let transformer = Arc::new(load(elements, caller, load_it)?);
        self.components().transformer = Some(Arc::clone(&transformer));
        clock.loaded()?;
        Ok(transformer)
    }

    /// The decoder, loaded where it is absent, with room for what it needs.
    ///
    /// Errors as [`Residency::text_encoder`].
    pub(super) fn decoder(&self, needs: &Needs, caller: &Caller<'_>, clock: &mut Clock<B>) -> Result<Arc<Decoder<B>>> {
        let resident = || {
            let decoder = self.components().decoder.clone()?;
            self.make_room(needs.decode, Keep::Decoder);
            Some(decoder)
        };
        if let Some(decoder) = resident() {
            return Ok(decoder);
        }
        let mut prefetch = self.loading();
        self.take_prefetched(&mut prefetch, caller, clock)?;
        if let Some(decoder) = resident() {
            return Ok(decoder);
        }
        let elements = self.info.vae.decoder_elements();
        self.make_room(self.weight_bytes(elements) + needs.decode, Keep::Decoder);
        let load_it = |report: &mut dyn FnMut(u64)| load_decoder(&self.backend, &self.files, &self.info, report);
        let decoder = Arc::new(load(elements, caller, load_it)?);
        self.components().decoder = Some(Arc::clone(&decoder));
        clock.loaded()?;
        Ok(decoder)
    }

    /// Waits for the transformer and decoder that were prefetched, if they were.
    ///
    /// Errors when the caller cancels.
    fn take_prefetched(
        &self,
        prefetch: &mut Option<Prefetch<B>>,
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<()> {
        match prefetch.as_mut().and_then(|prefetch| prefetch.rest.take(caller)) {
            Some(Err(error)) if error.kind() == Kind::Cancelled => Err(error),
            Some(Ok((transformer, decoder))) => {
                *prefetch = None;
                let mut components = self.components();
                components.transformer = Some(Arc::new(transformer));
                components.decoder = Some(Arc::new(decoder));
                drop(components);
                clock.loaded()
            }
            // What did not fit beside the text encoder may fit once room is made; what fails for another reason fails
            // again.
            Some(Err(_)) | None => {
                *prefetch = None;
                Ok(())
            }
        }
    }

    /// What the transformer's weights take on the device.
    fn transformer_bytes(&self) -> u64 {
        let config = &self.info.transformer;
        self.backend.weight_bytes(config.block_elements(), WeightPolicy::of(&self.backend).blocks())
            + self.weight_bytes(config.other_elements())
    }

    /// What weights that are not quantised take on the device.
    fn weight_bytes(&self, elements: u64) -> u64 {
        self.backend.weight_bytes(elements, Storage::Native)
    }

    /// Elements of the text encoder that go to the device.
    fn text_encoder_elements(&self) -> u64 {
        TextEncoder::<B>::elements(&self.info.text_encoder, &self.info.out_layers)
    }

    /// Frees what images have in common and components that `keep` does not need, while `bytes` more do not fit.
    pub(super) fn make_room(&self, bytes: u64, keep: Keep) {
        let is_short = || self.backend.available_bytes() < bytes;
        if !is_short() {
            return;
        }
        self.free_shapes();
        if is_short() && keep != Keep::TextEncoder {
            self.free_text_encoder();
        }
        // The locks are released before what they guard is dropped: a graph waits for the device then.
        if is_short() && keep != Keep::Transformer {
            let freed = self.components().transformer.take();
            drop(freed);
        }
        if is_short() && keep != Keep::Decoder {
            let freed = self.components().decoder.take();
            drop(freed);
        }
        // Last, because without them the text encoder has to come back.
        if is_short() {
            self.prompts.clear();
        }
    }

    pub(super) fn free_text_encoder(&self) {
        let freed = self.components().text_encoder.take();
        drop(freed);
    }

    /// Frees what images have in common. Before any component, because captured work holds the weights that it reads.
    pub(super) fn free_shapes(&self) {
        self.steps.clear();
        self.decodes.clear();
        self.schedules.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
