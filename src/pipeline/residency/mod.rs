//! Device memory of a model: loads, prefetches and frees its components, and caches data that images of one shape
//! share.
//!
//! No lock is held while the device computes. Loading holds the lock of `prefetch`, so a session that needs an absent
//! component waits for the session that loads it. A session holds references to the components that it uses: freed
//! memory becomes available when the session drops the last reference. Nothing here knows the order of the stages of
//! an image. Start reading at [`Residency`].

pub(crate) mod adapt;
pub(crate) mod adapted_cache;
pub(crate) mod byte_cache;
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
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lru::LruCache;
use parking_lot::{Mutex, MutexGuard};

use crate::backend::{Backend, Bands, Claimant, GraphCache, Participants, Promised, Reservations, Storage};
use crate::error::{Error, ErrorKind, Field, Result};
use crate::memory;
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
use crate::pipeline::residency::timings::{Clock, Span};
use crate::stage::{Caller, CancelFlag};
use crate::text_encoder::TextEncoder;
use crate::transformer::Transformer;
use crate::vae::{Decoder, Encoder, ImageDecoder, TinyDecoder};

/// Maximum number of cached image shapes, of cached schedules, and of cached decoding sizes.
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
    /// Requested placement of low-rank changes; if `None`, memory decides.
    pub(crate) wished_placement: Mutex<Option<Placement>>,
    /// The components that other threads load; `None` if they do not all fit in memory. The lock is held during any
    /// load.
    prefetch: Mutex<Option<Prefetch<B>>>,
    pub(crate) prompts: PromptCache<B>,
    pub(crate) early: Arc<EarlyCache<B>>,
    pub(crate) images: ImageCache<B>,
    pub(crate) frames: FrameStore<B>,
    pub(crate) schedules: Mutex<ScheduleCache<B>>,
    pub(crate) steps: GraphCache<(SetKey, BatchShape), Steps<B>, B>,
    /// Decoding work by height and width only, because the decoder runs on one image at a time.
    pub(crate) decodes: GraphCache<[usize; 2], ImageDecoder<B>, B>,
    reservations: Arc<Reservations>,
    claimant: Claimant,
}

/// Schedules by the set of adapters and the bits of the noise levels.
type ScheduleCache<B> = LruCache<(SetKey, Vec<u32>), Arc<Schedules<B>>>;

/// A component to load: its name, its elements, and the bytes of its weights and of the memory needed besides them.
struct Wanted {
    component: Component,
    elements: u64,
    bytes: u64,
}

impl<B: Backend> Residency<B> {
    pub(crate) fn new(backend: B, info: Arc<ModelInfo>, files: Arc<Files>) -> Self {
        Self::with_loader(Loader::new(backend, info, files))
    }

    fn with_loader(loader: Loader<B>) -> Self {
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

    /// Creates a residency of the same model on another backend, which copies the weights of this one if it can.
    ///
    /// Errors as [`WeightStore::copy_weights_from`](crate::backend::WeightStore::copy_weights_from).
    pub(crate) fn on(&self, backend: B) -> Result<Self> {
        self.loader.on(backend).map(Self::with_loader)
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

    /// Takes the lock that loading holds; waits for a session that loads.
    pub(crate) fn loading(&self) -> MutexGuard<'_, Option<Prefetch<B>>> {
        self.prefetch.lock()
    }

    /// Computes the needs of images like `plan`, and the memory plan for them. Nothing is reserved.
    ///
    /// Errors if the backend cannot compute such a large image, or there is too little memory for one.
    pub(crate) fn prepare(&self, plan: Plan) -> Result<Prepared> {
        let (costs, info) = (self.loader.backend.costs(), &self.loader.info);
        if plan.kept_tokens > 0 && costs.world > 1 {
            return Err(Error::usage("tokens cannot be cached when devices share one image")
                .hint(format!("leave it out, or generate each image on one device with `{:#} off`", Field::Parallel)));
        }
        if plan.regions.is_some() && costs.world > 1 {
            return Err(Error::usage("regions cannot be used when devices share one image")
                .for_field(Field::Regions)
                .hint(format!("generate each image on one device with `{:#} off`", Field::Parallel)));
        }
        let needs = ActivationCost::new(&costs, info, &plan);
        needs.check_largest(costs.max_tensor_values, info, &plan)?;
        // One device of a group encodes the prompt for all.
        let reads = self.loader.backend.rank() == 0 && !plan.is_read_elsewhere;
        let sizes = MemorySizes::new(&costs, info, &plan, self.loader.files.text_encoder.is_some() && reads);
        // Memory of an image that is being decoded is free by then.
        let host = || memory::available_bytes().saturating_add(self.loader.backend.host_bytes());
        let memory = sizes.plan(self.budget(Promised::default()), host, &plan)?;
        Ok(Prepared { plan, needs, sizes, memory, reservation: None })
    }

    /// Reserves memory until the batch ends. If other batches leave too little, this waits for batches of other
    /// threads. Ranks of a group do not wait, because they would wait for each other.
    ///
    /// Errors if `cancel` is set.
    pub(crate) fn reserve(&self, prepared: Prepared, cancel: &CancelFlag) -> Result<Prepared> {
        let decide = |promised: Promised| {
            let memory = match promised {
                Promised { in_pool: 0, in_others: 0, .. } => prepared.memory.clone(),
                // Waiting for other batches is faster than activations in host memory.
                _ => MemoryPlan::new(&prepared.sizes, self.budget(promised))
                    .filter(|plan| plan.host <= prepared.memory.host)?,
            };
            let claim = claim(&prepared.sizes, &memory);
            // Memory that others use for the same model stays as it is.
            (claim.shared >= promised.shared).then_some((memory, claim))
        };
        let wait: &dyn Fn() -> Result<()> = &|| cancel.check();
        let wait = (self.loader.backend.world() == 1).then_some(wait);
        let Some((memory, reservation)) = self.reservations.reserve(&self.claimant, decide, wait)? else {
            return Ok(prepared);
        };
        Ok(Prepared { memory, reservation: Some(reservation), ..prepared })
    }

    /// Returns the bytes that are in use or available, and not promised to others.
    fn budget(&self, promised: Promised) -> u64 {
        let (backend, in_use) = (&self.loader.backend, self.loader.backend.stats().memory_bytes);
        let own = backend.available_bytes().saturating_add(in_use).saturating_sub(promised.in_pool);
        match promised.in_others {
            0 => own,
            in_others => own.min(backend.device_bytes().saturating_add(in_use).saturating_sub(in_others)),
        }
    }

    /// Returns the bytes that a batch may still allocate, without memory promised to others and memory of previews.
    pub(crate) fn available_bytes(&self, prepared: &Prepared) -> u64 {
        let Promised { in_pool, in_others, .. } = prepared.promised();
        let others = in_pool.saturating_add(in_others).saturating_add(prepared.sizes.previews());
        self.loader.backend.available_bytes().saturating_sub(others)
    }

    /// Returns `true` if the transformer or the decoder is loaded, so that nothing is prefetched.
    pub(crate) fn is_partly_loaded(&self) -> bool {
        self.transformer.get().is_some() || self.decoder.get().is_some()
    }

    /// Starts loading the transformer and the decoder if both are absent, and before them the text encoder if
    /// `encodes` and it is absent. Does nothing if they do not all fit besides the activations of an image.
    pub(crate) fn prefetch(&self, memory: &MemoryPlan, encodes: bool) {
        // A session that is loading now does so because memory was short, or is waiting for prefetched components.
        let Some(mut prefetch) = self.prefetch.try_lock() else { return };
        let text_encoder = encodes && self.text_encoder.get().is_none();
        let rest_is_absent = !self.is_partly_loaded();
        // On the CPU, weights take no memory and no time to load.
        if prefetch.is_some() || !rest_is_absent || !memory.together || memory.transformer.all == 0 {
            return;
        }
        // The workspace of ops may be allocated already, and so may the text encoder.
        let there =
            self.loader.backend.costs().workspace_bytes + if text_encoder { 0 } else { memory.text_encoder.bytes };
        if self.loader.backend.available_bytes() >= memory.peak.saturating_sub(there) {
            *prefetch = Some(Prefetch::start(&self.loader, memory.clone(), text_encoder));
        }
    }

    /// Returns the component in `slot`; if it is absent or does not suit, calls `load`.
    ///
    /// Errors if it cannot be loaded, or the caller cancels.
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
            // Both hold its weights.
            self.free_shapes();
            self.adapted.clear();
        }
        self.make_room(wanted.bytes, wanted.component);
        let loaded = prefetch::load(wanted.elements, caller, |report| load(&self.loader, report))?;
        let loaded = slot.put(loaded);
        clock.end(Span::Load)?;
        Ok(loaded)
    }

    /// Returns the text encoder, and loads it if necessary.
    ///
    /// Errors if it cannot be loaded, or the caller cancels.
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

    /// Returns the transformer, and loads it if necessary. It is reloaded if its resident blocks leave too little
    /// room for the batch.
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

    /// Returns the decoder of images: the tiny decoder if the model was opened that way, otherwise the VAE's decoder.
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

    /// Returns the VAE's decoder. Makes room for its activations.
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

    /// Returns the VAE's encoder. Makes room for its activations.
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

    /// Returns the tiny decoder, if the model was opened with one. It is small and stays loaded.
    ///
    /// Errors if it cannot be loaded.
    pub(crate) fn preview_decoder(&self) -> Result<Option<Arc<TinyDecoder<B>>>> {
        if let Some(found) = self.preview_decoder.get() {
            return Ok(Some(found));
        }
        let decoder = self.loader.preview_decoder()?;
        Ok(decoder.map(|decoder| self.preview_decoder.put(decoder)))
    }

    /// Waits for the component if it is being prefetched.
    ///
    /// Errors if the caller cancels.
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
            Some(Ok(())) => clock.end(Span::Load).map(drop),
            Some(Err(error)) if error.kind() == ErrorKind::Cancelled => Err(error),
            // Components that did not all fit may fit after making room. Other errors repeat when the component is
            // loaded.
            Some(Err(_)) | None => Ok(()),
        }
    }

    /// Applies the planned bands of the VAE. Narrow bands are never widened again, because other sessions may rely on
    /// them.
    fn choose_bands(&self, prepared: &Prepared) -> Bands {
        let bands = prepared.memory.bands;
        if bands != Bands::Wide {
            self.loader.backend.use_bands(bands);
        }
        bands
    }

    /// Returns `true` if a loaded transformer leaves room for everything that `memory` was planned for.
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

    /// Returns the bytes of unquantized weights on the device.
    fn weight_bytes(&self, elements: u64) -> u64 {
        self.loader.backend.costs().weight_bytes(elements, Storage::Native)
    }

    /// Frees cached data and components until `bytes` more fit or nothing is left to free: all but a few prompts,
    /// early results, data shared by images of one shape, originals that adapters are merged from, transformers with
    /// adapters, then components other than `needed`, which is in use.
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
        // Cached prompts and images are freed last: without them, the encoders must be loaded again.
        if is_short() {
            self.prompts.clear();
            self.images.clear();
        }
    }

    pub(crate) fn free_text_encoder(&self) {
        self.text_encoder.free();
    }

    /// Frees data that images of one shape share. Call it before freeing a component, because captured work holds
    /// references to the weights that it reads.
    pub(crate) fn free_shapes(&self) {
        self.steps.clear();
        self.frames.clear();
        self.images.clear_reference_caches();
        self.decodes.clear();
        self.early.clear();
        self.schedules.lock().clear();
    }
}
