//! Which parts of a model are in the device's memory: its components, which are prefetched, or loaded when they are
//! needed, and freed where memory is short; and what images of one shape share.
//!
//! No lock is held while the device computes. Loading holds the lock of `prefetch`, so a session that needs a component
//! that is absent waits for the session that loads it. A session holds references to what it uses, so freeing takes
//! nothing away from it: the memory is free once the session drops the last reference.

pub(crate) mod adapt;
pub(crate) mod adapted_cache;
mod byte_cache;
pub(crate) mod early_cache;
pub(crate) mod frame_store;
mod image_cache;
pub(crate) mod known;
mod loader;
pub(crate) mod loads;
pub(crate) mod placement;
pub(crate) mod prefetch;
pub(crate) mod prepared;
pub(crate) mod prompt_cache;
mod slot;
pub(crate) mod steps;
pub(crate) mod steps_in_flight;
pub(crate) mod timings;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;

use crate::backend::{Backend, Bands, Claimant, GraphCache, Participants, Promised, Reservations, Storage};
use crate::error::{Error, ErrorKind, Field, Result};
use crate::model::info::ModelInfo;
use crate::model::open::Files;
use crate::pipeline::memory::plan::{BlockPlan, MemoryPlan, MemorySizes};
use crate::pipeline::request::adapters::SetKey;
use crate::pipeline::request::needs::ActivationCost;
use crate::pipeline::request::plan::Plan;
use crate::pipeline::residency::adapted_cache::AdaptedCache;
use crate::pipeline::residency::early_cache::EarlyCache;
use crate::pipeline::residency::frame_store::FrameStore;
use crate::pipeline::residency::image_cache::ImageCache;
use crate::pipeline::residency::loader::Loader;
use crate::pipeline::residency::loads::Component;
use crate::pipeline::residency::placement::Placement;
use crate::pipeline::residency::prefetch::Prefetch;
use crate::pipeline::residency::prepared::{Prepared, claim};
use crate::pipeline::residency::prompt_cache::PromptCache;
use crate::pipeline::residency::slot::Slot;
use crate::pipeline::residency::steps::{BatchShape, Schedules, Steps};
use crate::pipeline::residency::timings::Clock;
use crate::stage::{Caller, CancelFlag};
use crate::text_encoder::TextEncoder;
use crate::transformer::Transformer;
use crate::vae::{Decoder, Encoder, ImageDecoder, TinyDecoder};

/// How many image shapes, how many schedules and how many sizes to decode are cached.
const MAX_SHAPES: NonZeroUsize = NonZeroUsize::new(4).unwrap();

/// Everything of a model that takes device memory.
pub(crate) struct Residency<B: Backend> {
    loader: Loader<B>,
    text_encoder: Slot<TextEncoder<B>>,
    transformer: Slot<Transformer<B>>,
    decoder: Slot<Decoder<B>>,
    encoder: Slot<Encoder<B>>,
    preview_decoder: Slot<TinyDecoder<B>>,
    pub(crate) adapted: AdaptedCache<B>,
    /// Where changes of low rank go, where memory does not decide.
    pub(crate) wished_placement: Mutex<Option<Placement>>,
    /// What other threads load; `None` where there is no room for all of it. The lock is held while anything is loaded.
    prefetch: Mutex<Option<Prefetch<B>>>,
    pub(crate) prompts: PromptCache<B>,
    pub(crate) early: Arc<EarlyCache<B>>,
    pub(crate) images: ImageCache<B>,
    pub(crate) frames: FrameStore<B>,
    pub(crate) schedules: Mutex<ScheduleCache<B>>,
    pub(crate) steps: GraphCache<(SetKey, BatchShape), Steps<B>, B>,
    /// By height and width alone, because the decoder runs on one image at a time.
    pub(crate) decodes: GraphCache<[usize; 2], ImageDecoder<B>, B>,
    reservations: Arc<Reservations>,
    claimant: Claimant,
}

/// By the set of adapters and the bits of the noise levels.
type ScheduleCache<B> = LruCache<(SetKey, Vec<u32>), Arc<Schedules<B>>>;

/// A component that is wanted in memory: which, its elements, and the bytes that it takes and that are needed beside
/// it.
struct Wanted {
    component: Component,
    elements: u64,
    bytes: u64,
}

impl<B: Backend> Residency<B> {
    pub(crate) fn new(backend: B, info: Arc<ModelInfo>, files: Arc<Files>) -> Self {
        Self::of(Loader::new(backend, info, files))
    }

    fn of(loader: Loader<B>) -> Self {
        static MODELS: AtomicUsize = AtomicUsize::new(0);
        let (reservations, pool) = loader.backend.reservations();
        let backend = loader.backend.clone();
        let used = Arc::new(move || backend.stats().memory_bytes);
        let available = loader.backend.available_bytes();
        Self {
            text_encoder: Slot::default(),
            transformer: Slot::default(),
            decoder: Slot::default(),
            encoder: Slot::default(),
            preview_decoder: Slot::default(),
            adapted: AdaptedCache::new(),
            wished_placement: Mutex::default(),
            prefetch: Mutex::new(None),
            prompts: PromptCache::new(available),
            early: Arc::new(EarlyCache::new(available)),
            loader,
            images: ImageCache::new(),
            frames: FrameStore::new(),
            schedules: Mutex::new(LruCache::new(MAX_SHAPES)),
            steps: GraphCache::new(MAX_SHAPES, Participants::All),
            decodes: GraphCache::new(MAX_SHAPES, Participants::All),
            reservations,
            claimant: Claimant { pool, model: MODELS.fetch_add(1, Ordering::Relaxed), used },
        }
    }

    /// The same model on another backend, which copies the weights of this one where it can.
    ///
    /// Errors as [`WeightStore::copy_weights_from`](crate::backend::WeightStore::copy_weights_from).
    pub(crate) fn on(&self, backend: B) -> Result<Self> {
        self.loader.on(backend).map(Self::of)
    }

    pub(crate) fn backend(&self) -> &B {
        &self.loader.backend
    }

    pub(crate) fn info(&self) -> &Arc<ModelInfo> {
        &self.loader.info
    }

    pub(crate) fn files(&self) -> &Files {
        &self.loader.files
    }

    /// The lock that loading holds; waits for a session that loads.
    pub(crate) fn loading(&self) -> MutexGuard<'_, Option<Prefetch<B>>> {
        self.prefetch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What images like `plan` need, and which parts of the model are in memory while they are made. Nothing is
    /// reserved.
    ///
    /// Errors when the backend cannot compute so large an image, or there is too little memory for one.
    pub(crate) fn prepare(&self, plan: Plan) -> Result<Prepared> {
        let (costs, info) = (self.loader.backend.costs(), &self.loader.info);
        if plan.kept_tokens > 0 && costs.world > 1 {
            return Err(Error::usage("some tokens are kept, which devices that make an image together cannot do")
                .hint(format!(
                    "leave it out, or have each device make images of its own with `{:#} off`",
                    Field::Parallel
                )));
        }
        let needs = ActivationCost::of(&costs, info, &plan);
        needs.check_largest(costs.max_tensor_values, info, &plan)?;
        // One device of a group reads the prompt for all.
        let reads = self.loader.backend.rank() == 0 && !plan.is_read_elsewhere;
        let sizes = MemorySizes::of(&costs, info, &plan, self.loader.files.text_encoder.is_some() && reads);
        let memory = sizes.plan(self.budget(Promised::default()), &plan)?;
        Ok(Prepared { plan, needs, sizes, memory, reservation: None })
    }

    /// Reserves memory until the batch ends. Where other batches leave too little, this waits for those of other
    /// threads. Ranks of a group wait for none, because they would wait for each other.
    ///
    /// Errors when `cancel` is set.
    pub(crate) fn reserve(&self, prepared: Prepared, cancel: &CancelFlag) -> Result<Prepared> {
        let decide = |promised: Promised| {
            let memory = match promised {
                Promised { in_pool: 0, in_others: 0, .. } => prepared.memory.clone(),
                _ => MemoryPlan::new(&prepared.sizes, self.budget(promised))?,
            };
            let claim = claim(&prepared.sizes, &memory);
            // What others use of the same model stays as it is.
            (claim.shared >= promised.shared).then_some((memory, claim))
        };
        let wait: &dyn Fn() -> Result<()> = &|| cancel.check();
        let wait = (self.loader.backend.world() == 1).then_some(wait);
        let Some((memory, reservation)) = self.reservations.reserve(&self.claimant, decide, wait)? else {
            return Ok(prepared);
        };
        Ok(Prepared { memory, reservation: Some(reservation), ..prepared })
    }

    /// Bytes that are in use or available, and not promised to others.
    fn budget(&self, promised: Promised) -> u64 {
        let (backend, in_use) = (&self.loader.backend, self.loader.backend.stats().memory_bytes);
        let own = backend.available_bytes().saturating_add(in_use).saturating_sub(promised.in_pool);
        match promised.in_others {
            0 => own,
            in_others => own.min(backend.device_bytes().saturating_add(in_use).saturating_sub(in_others)),
        }
    }

    /// Bytes that a batch may still allocate, beside what is promised to others and what previews take.
    pub(crate) fn available_bytes(&self, prepared: &Prepared) -> u64 {
        let Promised { in_pool, in_others, .. } = prepared.promised();
        let others = in_pool.saturating_add(in_others).saturating_add(prepared.sizes.previews());
        self.loader.backend.available_bytes().saturating_sub(others)
    }

    /// Whether the transformer or the decoder is there, so that nothing is loaded ahead.
    pub(crate) fn is_partly_loaded(&self) -> bool {
        self.transformer.get().is_some() || self.decoder.get().is_some()
    }

    /// Starts loading the transformer and the decoder if both are absent, and before them the text encoder if `encodes`
    /// and it is absent; but only where all of that fits beside the activations of an image.
    pub(crate) fn prefetch(&self, memory: &MemoryPlan, encodes: bool) {
        // A session that loads now does so because memory was short, or waits for what is prefetched already.
        let Ok(mut prefetch) = self.prefetch.try_lock() else { return };
        let text_encoder = encodes && self.text_encoder.get().is_none();
        let rest_is_absent = !self.is_partly_loaded();
        // Weights that take no memory, on the CPU, take no time to load.
        if prefetch.is_some() || !rest_is_absent || !memory.together || memory.transformer.all == 0 {
            return;
        }
        // What ops need may be there already, and so may the text encoder.
        let there =
            self.loader.backend.costs().workspace_bytes + if text_encoder { 0 } else { memory.text_encoder.bytes };
        if self.loader.backend.available_bytes() >= memory.peak.saturating_sub(there) {
            *prefetch = Some(Prefetch::start(&self.loader, memory.clone(), text_encoder));
        }
    }

    /// The component of `slot`, loaded by `load` where it is absent or does not suit.
    ///
    /// Errors when it cannot be loaded, or the caller cancels.
    fn component<M>(
        &self,
        slot: &Slot<M>,
        suits: impl Fn(&M) -> bool,
        wanted: Wanted,
        (caller, clock): (&Caller<'_>, &mut Clock<B>),
        load: impl FnOnce(&Loader<B>, &mut dyn FnMut(u64)) -> Result<M>,
    ) -> Result<Arc<M>> {
        let found = || slot.get().filter(|found| suits(found));
        if let Some(found) = found() {
            return Ok(found);
        }
        let mut prefetch = self.loading();
        self.take_prefetched(&mut prefetch, wanted.component, caller, clock)?;
        if let Some(found) = found() {
            return Ok(found);
        }
        if slot.free() {
            // These hold its weights.
            self.free_shapes();
            self.adapted.clear();
        }
        self.make_room(wanted.bytes, wanted.component);
        let loaded = prefetch::load(wanted.elements, caller, |report| load(&self.loader, report))?;
        let loaded = slot.put(loaded);
        clock.loaded()?;
        Ok(loaded)
    }

    /// The text encoder.
    ///
    /// Errors when it cannot be loaded, or the caller cancels.
    pub(crate) fn text_encoder(
        &self,
        prepared: &Prepared,
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<Arc<TextEncoder<B>>> {
        let BlockPlan { streamed, bytes, .. } = &prepared.memory.text_encoder;
        let elements = TextEncoder::<B>::elements(&self.loader.info.text_encoder, &self.loader.info.out_layers);
        let bytes = bytes + prepared.sizes.encode_text;
        let wanted = Wanted { component: Component::TextEncoder, elements, bytes };
        let load = |loader: &Loader<B>, report: &mut dyn FnMut(u64)| loader.text_encoder(streamed, report);
        self.component(&self.text_encoder, |_| true, wanted, (caller, clock), load)
    }

    /// The transformer. One of which more is in memory than leaves room for the batch is loaded anew.
    ///
    /// Errors as [`Residency::text_encoder`].
    pub(crate) fn transformer(
        &self,
        prepared: &Prepared,
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<Arc<Transformer<B>>> {
        let BlockPlan { streamed, bytes, .. } = &prepared.memory.transformer;
        let (elements, bytes) = (self.loader.info.transformer.elements(), bytes + prepared.needs.step);
        let wanted = Wanted { component: Component::Transformer, elements, bytes };
        let suits = |found: &Transformer<B>| self.leaves_room(found, &prepared.memory);
        let load =
            |loader: &Loader<B>, report: &mut dyn FnMut(u64)| loader.transformer(streamed, &mut || Ok(()), report);
        self.component(&self.transformer, suits, wanted, (caller, clock), load)
    }

    /// What makes the images: the tiny decoder where the model was opened so, and the VAE's otherwise.
    ///
    /// Errors as [`Residency::decoder`] and [`Residency::preview_decoder`].
    pub(crate) fn image_decoder(
        &self,
        prepared: &Prepared,
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<ImageDecoder<B>> {
        match self.loader.files.tiny_images.then(|| self.preview_decoder()).transpose()?.flatten() {
            Some(tiny) => Ok(ImageDecoder::Tiny(tiny)),
            None => self.decoder(prepared, caller, clock).map(ImageDecoder::Whole),
        }
    }

    /// The decoder. Makes room for its activations.
    ///
    /// Errors as [`Residency::text_encoder`].
    fn decoder(&self, prepared: &Prepared, caller: &Caller<'_>, clock: &mut Clock<B>) -> Result<Arc<Decoder<B>>> {
        let activations = prepared.sizes.decode.bytes(self.choose_bands(prepared));
        let elements = self.loader.info.vae.decoder_elements();
        let wanted =
            Wanted { component: Component::Decoder, elements, bytes: self.weight_bytes(elements) + activations };
        let decoder = self.component(&self.decoder, |_| true, wanted, (caller, clock), Loader::decoder)?;
        self.make_room(activations, Component::Decoder);
        Ok(decoder)
    }

    /// The VAE's encoder. Makes room for its activations.
    ///
    /// Errors as [`Residency::text_encoder`].
    pub(crate) fn encoder(
        &self,
        prepared: &Prepared,
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<Arc<Encoder<B>>> {
        let activations = prepared.sizes.encode.bytes(self.choose_bands(prepared));
        let elements = self.loader.info.vae.encoder_elements();
        let wanted =
            Wanted { component: Component::Encoder, elements, bytes: self.weight_bytes(elements) + activations };
        let encoder = self.component(&self.encoder, |_| true, wanted, (caller, clock), Loader::encoder)?;
        self.make_room(activations, Component::Encoder);
        Ok(encoder)
    }

    /// The tiny decoder, where the model was opened with one. It is so small that it stays.
    ///
    /// Errors when it cannot be loaded.
    pub(crate) fn preview_decoder(&self) -> Result<Option<Arc<TinyDecoder<B>>>> {
        if let Some(found) = self.preview_decoder.get() {
            return Ok(Some(found));
        }
        let decoder = self.loader.preview_decoder()?;
        Ok(decoder.map(|decoder| self.preview_decoder.put(decoder)))
    }

    /// Waits for the component if it is being prefetched.
    ///
    /// Errors when the caller cancels.
    fn take_prefetched(
        &self,
        prefetch: &mut Option<Prefetch<B>>,
        component: Component,
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<()> {
        let Some(prefetched) = prefetch else { return Ok(()) };
        let taken = if component == Component::TextEncoder {
            prefetched.text_encoder.take(caller).map(|taken| taken.map(|found| drop(self.text_encoder.put(found))))
        } else {
            let taken = prefetched.rest.take(caller).map(|taken| {
                taken.map(|(transformer, decoder)| {
                    self.transformer.put(transformer);
                    self.decoder.put(decoder);
                })
            });
            if !matches!(&taken, Some(Err(error)) if error.kind() == ErrorKind::Cancelled) {
                *prefetch = None;
            }
            taken
        };
        match taken {
            Some(Ok(())) => clock.loaded(),
            Some(Err(error)) if error.kind() == ErrorKind::Cancelled => Err(error),
            // What did not fit beside the others may fit once room is made. Another error comes again when the
            // component is loaded.
            Some(Err(_)) | None => Ok(()),
        }
    }

    /// Has the VAE make the images in the bands that are planned. Bands that were narrow stay so, because other
    /// sessions may count on it.
    fn choose_bands(&self, prepared: &Prepared) -> Bands {
        let bands = prepared.memory.bands;
        if bands == Bands::Narrow {
            self.loader.backend.use_bands(bands);
        }
        bands
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

    /// Bytes that weights that are not quantised take on the device.
    fn weight_bytes(&self, elements: u64) -> u64 {
        self.loader.backend.costs().weight_bytes(elements, Storage::Native)
    }

    /// Frees prompts beyond a few, early results, what images share, what adapters are merged from, transformers with
    /// adapters, and the components other than `needed`, which is needed now, until `bytes` more fit or nothing is left
    /// to free.
    pub(crate) fn make_room(&self, bytes: u64, needed: Component) {
        let is_short = || self.loader.backend.available_bytes() < bytes;
        if !is_short() {
            return;
        }
        self.prompts.shrink();
        self.early.clear();
        if !is_short() {
            return;
        }
        self.free_shapes();
        if is_short() {
            self.transformer.get().iter().for_each(|transformer| transformer.layers().free_originals());
        }
        if is_short() {
            self.adapted.clear();
        }
        let free: [(Component, &dyn Fn() -> bool); 4] = [
            (Component::TextEncoder, &|| self.text_encoder.free()),
            (Component::Transformer, &|| self.transformer.free()),
            (Component::Decoder, &|| self.decoder.free()),
            (Component::Encoder, &|| self.encoder.free()),
        ];
        for (_, free) in free.iter().filter(|(component, _)| *component != needed) {
            if is_short() {
                free();
            }
        }
        // The cached prompts and images go last: without them the encoders must be loaded again.
        if is_short() {
            self.prompts.clear();
            self.images.clear();
        }
    }

    pub(crate) fn free_text_encoder(&self) {
        self.text_encoder.free();
    }

    /// Frees what images share. It must come before freeing a component, because captured work holds references to the
    /// weights that it reads.
    pub(crate) fn free_shapes(&self) {
        self.steps.clear();
        self.frames.clear();
        self.images.clear_reference_caches();
        self.decodes.clear();
        self.early.clear();
        self.schedules.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
