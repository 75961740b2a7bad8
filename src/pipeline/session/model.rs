//! A model on a backend: the state that all of its sessions share.

use std::mem;
use std::path::Path;
use std::slice;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::backend::Backend;
use crate::error::Result;
use crate::files::adapter::Adapter;
use crate::files::{Container, ModelFiles};
use crate::model::info::ModelInfo;
use crate::model::open::{LazyTokenizer, OpenModel};
use crate::pipeline::memory::plan::MemoryPlan;
use crate::pipeline::request::fields::Request;
use crate::pipeline::request::frame::FrameRequest;
use crate::pipeline::request::plan::Plan;
use crate::pipeline::residency::Residency;
use crate::pipeline::residency::byte_cache::CacheStats;
use crate::pipeline::residency::placement::Placement;
use crate::pipeline::residency::prepared::Prepared;
use crate::pipeline::residency::timings::Clock;
use crate::pipeline::session::frame::Found;
use crate::pipeline::session::preview::Previewer;
use crate::pipeline::session::references::{CachedImages, Images};
use crate::pipeline::session::text::Text;
use crate::sampler::Noise;
use crate::stage::{Caller, CancelFlag};
use crate::vae::preview::PreviewMap;

/// A model on a backend, ready to generate images. Any number of [`Session`](crate::pipeline::Session)s share it,
/// from any threads.
///
/// As far as memory allows, it caches the weights, the text features of recent prompts, and data that images of one
/// shape share.
pub struct Model<B: Backend> {
    pub(crate) residency: Residency<B>,
    tokenizer: Arc<LazyTokenizer>,
    /// The noise of the last batch; the next batch reuses its memory.
    noise: Mutex<Noise>,
    /// The map from latents to previews, created on first use.
    preview: Arc<OnceLock<Result<Arc<PreviewMap>>>>,
}

impl<B: Backend> Model<B> {
    /// Loads a model: [`OpenModel::open`] and [`Model::new`]. Nothing is copied to the device yet.
    ///
    /// Errors as [`OpenModel::open`].
    pub fn load(backend: B, dir: &ModelFiles) -> Result<Arc<Self>> {
        OpenModel::open(dir).map(|model| Self::new(backend, model))
    }

    /// Creates a model on a backend. Nothing is copied to the device yet.
    pub fn new(backend: B, OpenModel { info, tokenizer, files, .. }: OpenModel) -> Arc<Self> {
        let residency = Residency::new(backend, Arc::new(info), Arc::new(files));
        Arc::new(Self { residency, tokenizer: Arc::new(tokenizer), noise: Mutex::default(), preview: Arc::default() })
    }

    /// Creates the same model on another backend. It shares the files. Weights are copied from this model's device,
    /// if they are loaded there and both devices are linked.
    ///
    /// Errors as [`WeightStore::copy_weights_from`](crate::backend::WeightStore::copy_weights_from).
    pub fn on(&self, backend: B) -> Result<Arc<Self>> {
        let residency = self.residency.on(backend)?;
        let (tokenizer, preview) = (Arc::clone(&self.tokenizer), Arc::clone(&self.preview));
        Ok(Arc::new(Self { residency, tokenizer, noise: Mutex::default(), preview }))
    }

    /// Returns the model's configs.
    pub fn info(&self) -> &ModelInfo {
        self.residency.info()
    }

    /// Returns the backend of the model.
    pub fn backend(&self) -> &B {
        self.residency.backend()
    }

    /// Returns the usage of the prompt cache.
    pub(crate) fn prompt_cache(&self) -> CacheStats {
        self.residency.prompts.stats()
    }

    /// Returns the source of previews: the tiny decoder if the model was opened with one, otherwise the map from
    /// latents to small images.
    ///
    /// Errors as [`Model::preview_map`], and if the decoder cannot be loaded.
    pub(crate) fn previewer(&self) -> Result<Previewer<B>> {
        match self.residency.preview_decoder()? {
            Some(decoder) => Ok(Previewer::Decoder(decoder)),
            None => self.preview_map().map(Previewer::Map),
        }
    }

    /// Prepares previews, if this takes long.
    ///
    /// Errors as [`Model::preview_map`].
    pub(crate) fn prepare_previews(&self) -> Result<()> {
        if self.residency.files().preview_decoder.is_some() {
            return Ok(());
        }
        self.preview_map().map(drop)
    }

    /// Returns the map from latents to small images. The first call computes it, on the CPU.
    ///
    /// Errors if the VAE has no encoder to compute it with.
    pub fn preview_map(&self) -> Result<Arc<PreviewMap>> {
        let make = || self.residency.files().preview_map(self.info()).map(Arc::new);
        self.preview.get_or_init(make).clone()
    }

    /// Opens an adapter for this model.
    ///
    /// Errors as [`Adapter::open`].
    pub fn adapter(&self, path: &Path) -> Result<Arc<Adapter>> {
        let weights = self.residency.files().transformer.files().first().map(Container::path);
        self.info().adapter_near(path, weights)
    }

    /// Sets the placement of low-rank changes of adapters, regardless of memory; with `None`, the default, memory
    /// decides. Drops cached sets of adapters. For tests and tools.
    pub fn place_adapters(&self, placement: Option<Placement>) {
        self.residency.place_adapters(placement);
    }

    /// Starts loading the weights for a first image on other threads, while the caller does something else, such as
    /// waiting for the tokenizer. Does nothing if the weights do not all fit in memory at once, take no memory, or
    /// are loaded.
    ///
    /// Errors if the model cannot do what is requested.
    pub fn prefetch(&self, request: &Request) -> Result<()> {
        self.prefetch_as(request, false)
    }

    /// Prefetches as [`Model::prefetch`] does. With `is_read_elsewhere`, another device encodes the prompt.
    ///
    /// Errors as [`Model::prefetch`].
    pub(crate) fn prefetch_as(&self, request: &Request, is_read_elsewhere: bool) -> Result<()> {
        let plan = Plan { is_read_elsewhere, ..Plan::new(request, self.info())? };
        if self.residency.is_partly_loaded() {
            return Ok(());
        }
        // One device of a group encodes the prompt for all.
        let reads = request.embeddings.is_none() && self.backend().rank() == 0 && !is_read_elsewhere;
        // If there is too little memory, the session reports it.
        if let Ok(prepared) = self.residency.prepare(plan) {
            self.residency.prefetch(&prepared.memory, reads);
        }
        Ok(())
    }

    /// Encodes the images of a request while the device has other work, so that its session finds them cached. Does
    /// nothing if several devices generate an image together, if not all parts of the model are in memory, or if the
    /// image of a frame is known.
    ///
    /// Errors as sessions do.
    pub(crate) fn encode_images_ahead(&self, request: &Request, cancel: &CancelFlag) -> Result<()> {
        let (residency, request) = (&self.residency, request.for_kind(self.info().kind)?);
        if !request.has_images() || residency.backend().world() > 1 || !residency.is_partly_loaded() {
            return Ok(());
        }
        let prepared = residency.prepare(Plan::new(&request, self.info())?)?;
        let has_room = residency.backend().available_bytes() >= prepared.sizes.encoding_alongside();
        let is_known = FrameRequest::from_request(&request).is_some_and(|frame| Found::is_known(residency, &frame));
        if is_known || !prepared.memory.together || !has_room {
            return Ok(());
        }
        let no_events = &mut |_| {};
        let (caller, mut clock) = (Caller::new(no_events, cancel), Clock::new(residency.backend().clone())?);
        let images = Images::from_request(&request);
        let images = CachedImages::collect([&images].into_iter(), residency)?;
        let encoder = images.encoder(residency, &prepared, &caller, &mut clock)?;
        images.encode(residency, (encoder, prepared.memory.bands), &caller, &mut clock).map(drop)
    }

    /// Returns the plan of a request. Waits for the tokenizer.
    ///
    /// Errors if the model cannot do what is requested, or its tokenizer cannot be read.
    pub fn plan(&self, request: &Request) -> Result<Plan> {
        let mut plan = self.prepare(request, false)?.plan;
        self.read(slice::from_ref(request), slice::from_mut(&mut plan))?;
        Ok(plan)
    }

    /// Returns the memory plan for images like `plan`.
    ///
    /// Errors if there is too little memory for one, or for its second pass.
    pub fn memory_plan(&self, plan: &Plan) -> Result<MemoryPlan> {
        self.check_second_pass(plan)?;
        self.residency.prepare(plan.clone()).map(|prepared| prepared.memory)
    }

    /// Errors if there is too little memory for the second pass of a plan.
    fn check_second_pass(&self, plan: &Plan) -> Result<()> {
        let Some(edit) = plan.second_pass() else { return Ok(()) };
        let Err(error) = self.memory_plan(edit) else { return Ok(()) };
        let error = error.prefixed("second pass");
        let alone = Plan { references: Vec::new(), reference_weights: Vec::new(), ..edit.clone() };
        if edit.references.is_empty() || self.memory_plan(&alone).is_err() {
            return Err(error);
        }
        Err(error.hint_instead("leave out the enlarged image as the reference of the second pass"))
    }

    /// Computes the plan of a request and its needs, without notes about the prompt, which another device may read.
    ///
    /// Errors as [`Model::plan`].
    pub(crate) fn prepare(&self, request: &Request, is_read_elsewhere: bool) -> Result<Prepared> {
        let count = |prompt: &str| self.tokenizer.get()?.count(prompt);
        let plan = Plan { is_read_elsewhere, ..Plan::counted(request, self.info(), count)? };
        self.check_second_pass(&plan)?;
        let has_images = request.has_images() || plan.second_pass().is_some();
        let prepared = self.residency.prepare(plan)?;
        if has_images {
            self.residency.files().check_encoder(self.info())?;
        }
        Ok(prepared)
    }

    /// Tokenizes the prompts of a session. Waits for the tokenizer if there are any.
    pub(crate) fn read(&self, requests: &[Request], plans: &mut [Plan]) -> Result<Text> {
        Text::read(requests, plans, |prompt, length| {
            let tokenizer = self.tokenizer.get()?;
            let tokens = tokenizer.encode_to(prompt, length)?;
            tokenizer.check_vocabulary(&tokens, self.info().text_encoder.vocab_size)?;
            Ok(tokens)
        })
    }

    /// Takes the noise of an earlier batch, to reuse its memory.
    pub(crate) fn noise(&self) -> Noise {
        mem::take(&mut *self.noise.lock())
    }

    /// Returns noise to [`Model::noise`].
    pub(crate) fn reuse(&self, noise: Noise) {
        *self.noise.lock() = noise;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::{Cpu, Precision};
    use crate::backend::cuda::Cuda;
    use crate::pipeline::request::kept::Reuse;
    use crate::rgb::Rgb;
    use crate::sampler::{Rng, Start};

    #[test]
    fn a_model_may_be_shared_by_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Model<Cpu>>();
        shared::<Model<Cuda>>();
    }

    #[test]
    fn noise_that_was_drawn_stays_where_a_frame_comes_again() {
        let dir = ModelFiles::open("models/tiny".as_ref()).unwrap();
        let model = Model::load(Cpu::new(Precision::F32), &dir).unwrap();
        let frame = Arc::new(Rgb { width: 64, height: 64, bytes: (0..3 * 64 * 64).map(|i| (i % 200) as u8).collect() });
        let reuse = Some(Reuse { threshold: 0.02, refresh: 100 });
        let request = Request { references: vec![frame], steps: Some(1), reuse, ..Request::new("a cat", 1) };
        let plan = model.plan(&request).unwrap();
        let (channels, (height, width)) = (model.info().transformer.in_channels, model.info().latent_size(&plan));
        for time in 0..3 {
            model.generate_batch(&request, 1).unwrap();
            let noise = model.noise();
            assert!(noise.is_drawn(&[Start::Seed(Rng::default(), 1)], channels, height, width), "{time}");
            model.reuse(noise);
        }
    }

    #[test]
    fn batches_of_the_same_size_have_one_shape_however_many_are_to_come() {
        let dir = ModelFiles::open("models/tiny".as_ref()).unwrap();
        let model = Model::load(Cpu::new(Precision::F32), &dir).unwrap();
        let mut request = Request { width: Some(32), height: Some(32), steps: Some(1), ..Request::new("a cat", 1) };
        let shapes = || (model.residency.steps.len(), model.residency.decodes.len());
        let (mut left, mut batches) = (26, Vec::new());
        while left > 0 {
            let images = model.generate_batch(&request, left).unwrap().len();
            (left, request.seed) = (left - images, request.seed + images as u64);
            batches.push((images, shapes()));
        }
        assert_eq!(batches, [(8, (1, 1)), (8, (1, 1)), (8, (1, 1)), (2, (2, 1))]);
        request.height = Some(16);
        model.generate_batch(&request, 2).unwrap();
        assert_eq!(shapes(), (3, 2), "a different size is a different shape");
        request.steps = Some(2);
        model.generate_batch(&request, 2).unwrap();
        assert_eq!(shapes(), (3, 2), "the number of steps does not matter");
    }
}
