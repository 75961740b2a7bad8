//! Which parts of a model are in the device's memory: its components, which are prefetched, or loaded when they are
//! needed, and freed where memory is short; and what images of one shape share.
//!
//! No lock is held while the device computes. Loading holds the lock of `prefetch`, so a session that needs a component
//! that is absent waits for the session that loads it. A session holds references to what it uses, so freeing takes
//! nothing away from it: the memory is free once the session drops the last reference.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;

use super::adapted_cache::AdaptedCache;
use super::adapters::SetKey;
use super::image_cache::ImageCache;
use super::loader::Loader;
use super::loads::Component;
use super::memory::Needs;
use super::opened::Files;
use super::placement::Placement;
use super::prefetch::{Prefetch, load};
use super::progress::Caller;
use super::prompt_cache::PromptCache;
use super::steps::{BatchShape, Schedules, Steps};
use super::timings::Clock;
use super::{BlockPlan, MemoryPlan, MemorySizes, Plan};
use crate::backend::{Backend, Bands, Doers, GraphCache, Storage};
use crate::error::{Kind, Result};
use crate::model::ModelInfo;
use crate::text_encoder::TextEncoder;
use crate::transformer::Transformer;
use crate::vae::{Decoder, Encoder};

/// How many image shapes, how many schedules and how many sizes to decode are cached.
const MAX_SHAPES: NonZeroUsize = NonZeroUsize::new(4).unwrap();

/// Everything of a model that takes device memory.
pub(super) struct Residency<B: Backend> {
    loader: Loader<B>,
    components: Mutex<Components<B>>,
    pub(super) adapted: AdaptedCache<B>,
    /// Where changes of low rank go, where memory does not decide.
    pub(super) wished_placement: Mutex<Option<Placement>>,
    /// What other threads load; `None` where there is no room for all of it. The lock is held while anything is loaded.
    prefetch: Mutex<Option<Prefetch<B>>>,
    pub(super) prompts: PromptCache<B>,
    pub(super) images: ImageCache<B>,
    pub(super) schedules: Mutex<ScheduleCache<B>>,
    pub(super) steps: GraphCache<(SetKey, BatchShape), Steps<B>, B>,
    /// By height and width alone, because the decoder runs on one image at a time.
    pub(super) decodes: GraphCache<[usize; 2], Decoder<B>, B>,
}

/// By the set of adapters and the bits of the noise levels.
type ScheduleCache<B> = LruCache<(SetKey, Vec<u32>), Arc<Schedules<B>>>;

struct Components<B: Backend> {
    text_encoder: Option<Arc<TextEncoder<B>>>,
    transformer: Option<Arc<Transformer<B>>>,
    decoder: Option<Arc<Decoder<B>>>,
    encoder: Option<Arc<Encoder<B>>>,
}

impl<B: Backend> Residency<B> {
    pub(super) fn new(backend: B, info: Arc<ModelInfo>, files: Arc<Files>) -> Self {
        Self::of(Loader::new(backend, info, files))
    }

    fn of(loader: Loader<B>) -> Self {
        Self {
            loader,
            components: Mutex::new(Components { text_encoder: None, transformer: None, decoder: None, encoder: None }),
            adapted: AdaptedCache::new(),
            wished_placement: Mutex::default(),
            prefetch: Mutex::new(None),
            prompts: PromptCache::new(),
            images: ImageCache::new(),
            schedules: Mutex::new(LruCache::new(MAX_SHAPES)),
            steps: GraphCache::new(MAX_SHAPES, Doers::All),
            decodes: GraphCache::new(MAX_SHAPES, Doers::All),
        }
    }

    /// The same model on another backend, which copies the weights of this one where it can.
    ///
    /// Errors as [`WeightStore::copy_weights_from`](crate::backend::WeightStore::copy_weights_from).
    pub(super) fn on(&self, backend: B) -> Result<Self> {
        self.loader.on(backend).map(Self::of)
    }

    pub(super) fn backend(&self) -> &B {
        &self.loader.backend
    }

    pub(super) fn info(&self) -> &Arc<ModelInfo> {
        &self.loader.info
    }

    pub(super) fn files(&self) -> &Files {
        &self.loader.files
    }

    fn components(&self) -> MutexGuard<'_, Components<B>> {
        self.components.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock that loading holds; waits for a session that loads.
    pub(super) fn loading(&self) -> MutexGuard<'_, Option<Prefetch<B>>> {
        self.prefetch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which parts of the model are in memory while images like `plan` are made.
    ///
    /// Errors when there is too little memory for one.
    pub(super) fn checked_memory_plan(&self, plan: &Plan) -> Result<MemoryPlan> {
        self.memory_sizes(plan).plan(self.budget(), plan)
    }

    /// The same while an image is made: what was available on the host may be in use by then.
    pub(super) fn memory_plan(&self, plan: &Plan) -> Result<MemoryPlan> {
        let sizes = self.memory_sizes(plan);
        sizes.plan(self.budget().max(sizes.least()), plan)
    }

    fn memory_sizes(&self, plan: &Plan) -> MemorySizes {
        // One device of a group reads the prompt for all.
        let reads = self.loader.backend.rank() == 0 && !plan.is_read_elsewhere;
        let text = self.loader.files.text_encoder.is_some() && reads;
        MemorySizes::of(&self.loader.backend.costs(), &self.loader.info, plan, text)
    }

    /// Bytes that are in use or available.
    fn budget(&self) -> u64 {
        self.loader.backend.available_bytes().saturating_add(self.loader.backend.stats().memory_bytes)
    }

    /// Starts loading the transformer and the decoder if both are absent, and before them the text encoder if `encodes`
    /// and it is absent; but only where all of that fits beside the activations of an image.
    pub(super) fn prefetch(&self, plan: &Plan, encodes: bool) -> Result<()> {
        // A session that loads now does so because memory was short, or waits for what is prefetched already.
        let Ok(mut prefetch) = self.prefetch.try_lock() else { return Ok(()) };
        let (text_encoder, rest_is_absent) = {
            let Components { text_encoder, transformer, decoder, .. } = &*self.components();
            (encodes && text_encoder.is_none(), transformer.is_none() && decoder.is_none())
        };
        let memory = self.memory_plan(plan)?;
        // Weights that take no memory, on the CPU, take no time to load.
        if prefetch.is_some() || !rest_is_absent || !memory.together || memory.transformer.all == 0 {
            return Ok(());
        }
        // What ops need may be there already, and so may the text encoder.
        let there =
            self.loader.backend.costs().workspace_bytes + if text_encoder { 0 } else { memory.text_encoder.bytes };
        if self.loader.backend.available_bytes() >= memory.peak.saturating_sub(there) {
            *prefetch = Some(Prefetch::start(&self.loader, memory, text_encoder));
        }
        Ok(())
    }

    /// The text encoder, loaded where it is absent.
    ///
    /// Errors when it cannot be loaded, or the caller cancels.
    pub(super) fn text_encoder(
        &self,
        plan: &Plan,
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<Arc<TextEncoder<B>>> {
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
                let BlockPlan { streamed, bytes, .. } = self.memory_plan(plan)?.text_encoder;
                self.make_room(bytes + self.memory_sizes(plan).encode_text, Component::TextEncoder);
                let elements = TextEncoder::<B>::elements(&self.loader.info.text_encoder, &self.loader.info.out_layers);
                load(elements, caller, |report| self.loader.text_encoder(&streamed, report))?
            }
        };
        let text_encoder = Arc::new(text_encoder);
        self.components().text_encoder = Some(Arc::clone(&text_encoder));
        clock.loaded()?;
        Ok(text_encoder)
    }

    /// The transformer, loaded where it is absent, or where more of it is in memory than leaves room for images like
    /// `plan`.
    ///
    /// Errors as [`Residency::text_encoder`].
    pub(super) fn transformer(
        &self,
        (plan, needs): (&Plan, &Needs),
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<Arc<Transformer<B>>> {
        let memory = self.memory_plan(plan)?;
        let resident = || self.components().transformer.clone().filter(|found| self.leaves_room(found, &memory));
        if let Some(transformer) = resident() {
            return Ok(transformer);
        }
        let mut prefetch = self.loading();
        self.take_prefetched(&mut prefetch, caller, clock)?;
        if let Some(transformer) = resident() {
            return Ok(transformer);
        }
        self.free_transformer();
        let BlockPlan { streamed, bytes, .. } = memory.transformer;
        self.make_room(bytes + needs.step, Component::Transformer);
        let elements = self.loader.info.transformer.elements();
        let transformer = load(elements, caller, |report| self.loader.transformer(&streamed, &mut || Ok(()), report))?;
        let transformer = Arc::new(transformer);
        self.components().transformer = Some(Arc::clone(&transformer));
        clock.loaded()?;
        Ok(transformer)
    }

    /// The decoder, loaded where it is absent. Makes room for its activations.
    ///
    /// Errors as [`Residency::text_encoder`].
    pub(super) fn decoder(&self, plan: &Plan, caller: &Caller<'_>, clock: &mut Clock<B>) -> Result<Arc<Decoder<B>>> {
        let activations = self.memory_sizes(plan).decode.bytes(self.choose_bands(plan)?);
        let resident = || {
            let decoder = self.components().decoder.clone()?;
            self.make_room(activations, Component::Decoder);
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
        let elements = self.loader.info.vae.decoder_elements();
        self.make_room(self.weight_bytes(elements) + activations, Component::Decoder);
        let decoder = Arc::new(load(elements, caller, |report| self.loader.decoder(report))?);
        self.components().decoder = Some(Arc::clone(&decoder));
        clock.loaded()?;
        Ok(decoder)
    }

    /// The VAE's encoder, loaded where it is absent. Makes room for its activations.
    ///
    /// Errors as [`Residency::text_encoder`].
    pub(super) fn encoder(&self, plan: &Plan, caller: &Caller<'_>, clock: &mut Clock<B>) -> Result<Arc<Encoder<B>>> {
        let activations = self.memory_sizes(plan).encode.bytes(self.choose_bands(plan)?);
        let resident = || {
            let encoder = self.components().encoder.clone()?;
            self.make_room(activations, Component::Encoder);
            Some(encoder)
        };
        if let Some(encoder) = resident() {
            return Ok(encoder);
        }
        let mut prefetch = self.loading();
        self.take_prefetched(&mut prefetch, caller, clock)?;
        if let Some(encoder) = resident() {
            return Ok(encoder);
        }
        let elements = self.loader.info.vae.encoder_elements();
        self.make_room(self.weight_bytes(elements) + activations, Component::Encoder);
        let encoder = Arc::new(load(elements, caller, |report| self.loader.encoder(report))?);
        self.components().encoder = Some(Arc::clone(&encoder));
        clock.loaded()?;
        Ok(encoder)
    }

    /// Waits for the transformer and the decoder if they are being prefetched.
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
            // What did not fit beside the text encoder may fit once room is made. Another error comes again when the
            // component is loaded.
            Some(Err(_)) | None => {
                *prefetch = None;
                Ok(())
            }
        }
    }

    /// Has the VAE make images like `plan` in the bands that are planned. Bands that were narrow stay so, because other
    /// sessions may count on it.
    fn choose_bands(&self, plan: &Plan) -> Result<Bands> {
        let bands = self.memory_plan(plan)?.bands;
        if bands == Bands::Narrow {
            self.loader.backend.use_bands(bands);
        }
        Ok(bands)
    }

    /// Whether a transformer that is loaded leaves room for what `memory` was planned for.
    fn leaves_room(&self, transformer: &Transformer<B>, memory: &MemoryPlan) -> bool {
        let blocks = transformer.block_weights();
        if !blocks.are_streamed() && memory.transformer.streamed() == 0 {
            return true;
        }
        let sizes = MemorySizes::transformer(&self.loader.backend.costs(), &self.loader.info);
        let mut streamed = blocks.streamed();
        streamed.resize(sizes.blocks.len(), false);
        memory.admits(sizes.in_memory(&streamed))
    }

    /// Frees the transformer if it is there, and what holds its weights.
    fn free_transformer(&self) {
        let freed = self.components().transformer.take();
        if freed.is_some() {
            self.free_shapes();
            self.adapted.clear();
        }
    }

    /// Bytes that weights that are not quantised take on the device.
    fn weight_bytes(&self, elements: u64) -> u64 {
        self.loader.backend.costs().weight_bytes(elements, Storage::Native)
    }

    /// Frees what images share, what adapters are merged from, transformers with adapters, and the components other
    /// than `needed`, which is needed now, until `bytes` more fit or nothing is left to free.
    pub(super) fn make_room(&self, bytes: u64, needed: Component) {
        let is_short = || self.loader.backend.available_bytes() < bytes;
        if !is_short() {
            return;
        }
        self.free_shapes();
        if is_short() {
            let transformer = self.components().transformer.clone();
            transformer.iter().for_each(|transformer| transformer.layers().free_originals());
        }
        if is_short() {
            self.adapted.clear();
        }
        if is_short() && needed != Component::TextEncoder {
            self.free_text_encoder();
        }
        // Each lock is released before what it guarded is dropped, because dropping a graph waits for the device.
        if is_short() && needed != Component::Transformer {
            let freed = self.components().transformer.take();
            drop(freed);
        }
        if is_short() && needed != Component::Decoder {
            let freed = self.components().decoder.take();
            drop(freed);
        }
        if is_short() && needed != Component::Encoder {
            let freed = self.components().encoder.take();
            drop(freed);
        }
        // The cached prompts and images go last: without them the encoders must be loaded again.
        if is_short() {
            self.prompts.clear();
            self.images.clear();
        }
    }

    pub(super) fn free_text_encoder(&self) {
        let freed = self.components().text_encoder.take();
        drop(freed);
    }

    /// Frees what images share. It must come before freeing a component, because captured work holds references to the
    /// weights that it reads.
    pub(super) fn free_shapes(&self) {
        self.steps.clear();
        self.images.clear_reference_caches();
        self.decodes.clear();
        self.schedules.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
