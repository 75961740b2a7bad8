//! Prompt to image: the order in which the models run, and how long each lives.
//!
//! [`Pipeline::load`] opens and checks the model, while another thread reads the tokenizer; weights go to the device
//! when they are first needed, or when [`Pipeline::start_loading`] asks for them. The text encoder leaves it before the
//! transformer comes, unless there is room for both: then the other models are on their way while it runs. The host
//! enqueues the whole image before it waits.
//!
//! ```no_run
//! use flux::backend::cpu::{Cpu, Precision};
//! use flux::files::ModelFiles;
//! use flux::pipeline::{Pipeline, Request};
//!
//! let dir = ModelFiles::open("models/tiny".as_ref())?;
//! let mut pipeline = Pipeline::load(Cpu::new(Precision::F32), &dir)?;
//! let image = pipeline.generate(&Request::new("a red circle on a blue background", 42), &mut ())?;
//! assert_eq!(image.rgb.len(), 3 * image.plan.width * image.plan.height);
//! # Ok::<(), flux::Error>(())
//! ```

mod kept;
mod loading;
mod memory;
mod model;
mod observer;
mod opened;
mod request;
mod text_features;

pub use model::ModelInfo;
pub use observer::{Observer, Stage, Timings};
pub use opened::OpenModel;
pub use request::{Plan, Request};

use std::cell::RefCell;
use std::mem;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::backend::{Backend, Storage};
use crate::error::{Error, Result};
use crate::files::ModelFiles;
use crate::nn::{WeightPolicy, Weights};
use crate::sampler::{self, Conditioning, Noise, Schedule};
use crate::tensor::Tensor;
use crate::text_encoder::{PromptTokens, TextEncoder};
use crate::transformer::Transformer;
use crate::vae::Decoder;
use kept::{Kept, KeptDecode};
use loading::{Ahead, load, load_text_encoder};
use memory::Needs;
use observer::Clock;
use opened::{Files, LateTokenizer};
use text_features::TextFeatures;

/// A model on a backend, ready to make images.
pub struct Pipeline<B: Backend> {
    backend: B,
    info: ModelInfo,
    tokenizer: LateTokenizer,
    files: Arc<Files>,
    text_encoder: Option<TextEncoder<B>>,
    text_features: TextFeatures<B>,
    /// What other threads load; none where there is no room for all of it.
    ahead: Option<Ahead<B>>,
    transformer: Option<Transformer<B>>,
    decoder: Option<Decoder<B>>,
    /// What images of one kind have in common, the latest last. It refers to the models' weights.
    kept: Vec<Kept<B>>,
    /// The same of the decoder, whose work only the size shapes.
    kept_decodes: Vec<KeptDecode<B>>,
    /// Of the last batch, for its memory.
    noise: Noise,
    graph_reads: Arc<()>,
}

/// An image and how it was made.
#[derive(Debug, Clone)]
pub struct Image {
    /// RGB bytes, row by row: 3 * width * height.
    pub rgb: Vec<u8>,
    /// Size, steps, seed and guidance that were used.
    pub plan: Plan,
    /// Where the time of its batch went.
    pub timings: Timings,
}

impl<B: Backend> Pipeline<B> {
    /// [`OpenModel::open`] and [`Pipeline::new`].
    ///
    /// Errors as [`OpenModel::open`]. Nothing is copied to the device yet.
    pub fn load(backend: B, dir: &ModelFiles) -> Result<Self> {
        OpenModel::open(dir).map(|model| Self::new(backend, model))
    }

    /// A model on a backend. Nothing is copied to the device yet.
    pub fn new(backend: B, model: OpenModel) -> Self {
        let OpenModel { info, tokenizer, files } = model;
        Self {
            backend,
            info,
            tokenizer,
            files: Arc::new(files),
            text_encoder: None,
            text_features: TextFeatures::new(),
            ahead: None,
            transformer: None,
            decoder: None,
            kept: Vec::new(),
            kept_decodes: Vec::new(),
            noise: Noise::default(),
            graph_reads: Arc::default(),
        }
    }

    /// What the model is.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Where it runs.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Lets the weights that a first image needs be on their way while the caller does something else, such as waiting
    /// for the tokenizer. Does nothing where they do not all fit the memory at once, take none, or are there.
    ///
    /// Errors when the model cannot do what is asked for.
    pub fn start_loading(&mut self, request: &Request) -> Result<()> {
        let plan = Plan::new(request, &self.info)?;
        self.load_ahead(&plan, true);
        Ok(())
    }

    /// What [`Pipeline::generate`] would do. Waits for the tokenizer.
    ///
    /// Errors when the model cannot do what is asked for, or its tokenizer cannot be read.
    pub fn plan(&self, request: &Request) -> Result<Plan> {
        let mut plan = self.plan_without_words(request)?;
        self.read(request, &mut plan)?;
        Ok(plan)
    }

    fn plan_without_words(&self, request: &Request) -> Result<Plan> {
        let plan = Plan::new(request, &self.info)?;
        Needs::of(&self.backend, &self.info, &plan).check(&self.backend, &plan)?;
        Ok(plan)
    }

    /// The prompt's tokens; what is cut off is noted in the plan. Waits for the tokenizer.
    fn read(&self, request: &Request, plan: &mut Plan) -> Result<PromptTokens> {
        let tokens = self.tokenizer.get()?.encode(&request.prompt)?;
        if tokens.truncated > 0 {
            plan.notes.push(format!(
                "the prompt is {} tokens longer than the model reads; its end is cut off",
                tokens.truncated
            ));
        }
        Ok(tokens)
    }

    /// Makes an image.
    ///
    /// Errors when the model cannot do what is asked for, or memory runs out.
    pub fn generate(&mut self, request: &Request, observer: &mut dyn Observer) -> Result<Image> {
        let mut images = self.generate_batch(request, 1, observer)?;
        Ok(images.pop().expect("one was asked for"))
    }

    /// Makes the next of `count` images of one prompt, whose seeds are the request's and those that follow it: as many
    /// of them as one batch as the memory allows, at least one.
    ///
    /// An image is the one that [`Pipeline::generate`] makes of its seed, up to the rounding of products of another
    /// size.
    ///
    /// Errors as [`Pipeline::generate`], and when `count` is 0 or there are not so many seeds.
    pub fn generate_batch(
        &mut self,
        request: &Request,
        count: usize,
        observer: &mut dyn Observer,
    ) -> Result<Vec<Image>> {
        if count == 0 {
            return Err(Error::usage("0 images are asked for, expected at least 1").at("--count"));
        }
        if request.seed.checked_add(count as u64 - 1).is_none() {
            return Err(Error::usage(format!("seed {} is too large for {count} images", request.seed)).at("--seed"));
        }
        let mut plan = self.plan_without_words(request)?;
        let noise = self.draw(&plan, count);
        let tokens = self.read(request, &mut plan)?;
        let mut clock = Clock::new(self.backend.clone())?;

        let txt = self.encode(request, &tokens, &plan, &mut clock, observer)?;
        let latents = self.denoise(&txt, noise, &plan, count, &mut clock, observer)?;
        drop(txt);
        let rgbs = self.decode(&latents, &plan, &mut clock, observer)?;

        let timings = clock.finish()?;
        let image =
            |(i, rgb)| Image { rgb, plan: Plan { seed: plan.seed + i, ..plan.clone() }, timings: timings.clone() };
        Ok((0..).zip(rgbs).map(image).collect())
    }

    /// Draws noise for as many of `count` images as may be one batch, on another thread: the host has enough to do
    /// until the first step, and the device the text encoder.
    fn draw(&mut self, plan: &Plan, count: usize) -> JoinHandle<Noise> {
        let samples = Needs::of(&self.backend, &self.info, plan).wanted(plan, count);
        let (channels, (height, width), seed) =
            (self.info.transformer.in_channels, self.info.latent_size(plan), plan.seed);
        let mut noise = mem::take(&mut self.noise);
        thread::spawn(move || {
            noise.draw(seed, samples, channels, height, width);
            noise
        })
    }

    /// Text features [tokens, features] of the request's prompt, which is `tokens`; with guidance those of the empty
    /// prompt under them. Only prompts that are new run.
    fn encode(
        &mut self,
        request: &Request,
        tokens: &PromptTokens,
        plan: &Plan,
        clock: &mut Clock<B>,
        observer: &mut dyn Observer,
    ) -> Result<Tensor<B>> {
        let prompts: &[&str] = if plan.guided() { &[&request.prompt, ""] } else { &[&request.prompt] };
        // Held here, so that neither a new prompt nor want of memory takes them away.
        let known: Vec<Option<Tensor<B>>> = prompts.iter().map(|prompt| self.text_features.get(prompt)).collect();
        let mut new: Vec<&str> =
            prompts.iter().zip(&known).filter(|(_, known)| known.is_none()).map(|(prompt, _)| *prompt).collect();
        new.dedup(); // the prompt itself may be empty
        self.load_ahead(plan, !new.is_empty());
        if !new.is_empty() && self.text_encoder.is_none() {
            let encoder = match self.ahead.as_mut().and_then(|ahead| ahead.text_encoder.take()) {
                Some(coming) => coming.join(observer)?,
                None => {
                    let elements = self.text_encoder_elements();
                    self.make_room(self.backend.weight_bytes(elements, Storage::Native), Keep::TextEncoder);
                    load(elements, observer, |report| {
                        load_text_encoder(&self.backend, &self.files, &self.info, report)
                    })?
                }
            };
            self.text_encoder = Some(encoder);
            clock.loaded()?;
        }
        for (i, prompt) in new.iter().enumerate() {
            let encoder = self.text_encoder.as_ref().expect("loaded above");
            let (layers, total) = (encoder.layers(), (new.len() * encoder.layers()) as u64);
            let empty = if **prompt == request.prompt { None } else { Some(self.tokenizer.get()?.encode(prompt)?) };
            let features = encoder.forward(empty.as_ref().unwrap_or(tokens), |done| {
                observer.progress(Stage::Text, (i * layers + done) as u64, total)
            })?;
            self.text_features.insert(prompt, features);
        }
        let of = |(known, prompt): (Option<Tensor<B>>, &&str)| {
            known.or_else(|| self.text_features.get(prompt)).expect("encoded above")
        };
        let txt: Vec<Tensor<B>> = known.into_iter().zip(prompts).map(of).collect();
        let txt = Tensor::concat_rows(&txt.iter().collect::<Vec<_>>())?;
        clock.encoded(new.len())?;
        Ok(txt)
    }

    /// What the transformer's weights take on the device.
    fn transformer_bytes(&self) -> u64 {
        let config = &self.info.transformer;
        self.backend.weight_bytes(config.block_elements(), WeightPolicy::of(&self.backend).blocks())
            + self.backend.weight_bytes(config.other_elements(), Storage::Native)
    }

    /// Elements of the text encoder that go to the device.
    fn text_encoder_elements(&self) -> u64 {
        TextEncoder::<B>::elements(&self.info.text_encoder, &self.info.out_layers)
    }

    /// Starts loading transformer and decoder if both are yet to come, and before them the text encoder if it is to
    /// encode and is absent; but only where all of it fits, with what an image needs beside.
    fn load_ahead(&mut self, plan: &Plan, encodes: bool) {
        if self.ahead.is_some() || self.transformer.is_some() || self.decoder.is_some() {
            return;
        }
        let text_encoder = encodes && self.text_encoder.is_none();
        let text_encoder_bytes =
            if text_encoder { self.backend.weight_bytes(self.text_encoder_elements(), Storage::Native) } else { 0 };
        // Convolution weights are there twice while they are reordered.
        let bytes =
            self.transformer_bytes() + self.backend.weight_bytes(2 * self.info.vae.decoder_elements(), Storage::Native);
        let needs = Needs::of(&self.backend, &self.info, plan);
        // Where weights take no memory, loading them takes no time.
        if bytes > 0 && self.backend.available_bytes() >= text_encoder_bytes + bytes + needs.step + needs.decode {
            self.ahead = Some(Ahead::start(&self.backend, &self.files, &self.info, text_encoder));
        }
    }

    /// Latents [samples * height / patch * width / patch, channels] of at most `count` images. Enqueues the work and
    /// does not wait for it.
    fn denoise(
        &mut self,
        txt: &Tensor<B>,
        noise: JoinHandle<Noise>,
        plan: &Plan,
        count: usize,
        clock: &mut Clock<B>,
        observer: &mut dyn Observer,
    ) -> Result<Tensor<B>> {
        let config = self.info.transformer.clone();
        let (height, width) = self.info.latent_size(plan);
        let img = height * width;
        let txt_tokens = self.info.max_sequence_length;
        let needs = Needs::of(&self.backend, &self.info, plan);
        // What did not fit ahead may fit once room is made; what fails for another reason fails again.
        if let Some(Ok((transformer, decoder))) = self.ahead.take().map(|ahead| ahead.rest.join(observer)) {
            (self.transformer, self.decoder) = (Some(transformer), Some(decoder));
            clock.loaded()?;
        }
        if self.transformer.is_none() {
            self.make_room(self.transformer_bytes() + needs.step, Keep::Transformer);
            let (backend, files) = (&self.backend, &self.files.transformer);
            let load_transformer = |report: &mut dyn FnMut(u64)| {
                backend.load(|| Transformer::load(&Weights::new(backend, files), &config), report)
            };
            self.transformer = Some(load(config.elements(), observer, load_transformer)?);
            clock.loaded()?;
        }
        let wanted = needs.wanted(plan, count);
        let is_new = !self.kept.iter().any(|kept| kept.is_of(plan, wanted));
        if is_new && self.backend.available_bytes() < needs.batch(plan, wanted) {
            self.forget();
            // It has done its work for all of them.
            if count > 1 {
                self.text_encoder = None;
            }
            // The images before may have been smaller.
            self.make_room(needs.step, Keep::Transformer);
        }
        let transformer = self.transformer.as_ref().expect("loaded above");

        let schedule = Schedule::new(img, plan.steps);
        let available = self.backend.available_bytes();
        let make = || {
            let samples = needs.samples(available, plan, wanted);
            let batched = needs.batched(available, samples);
            let (modulations, rope) =
                (transformer.modulations(&schedule.timesteps)?, transformer.rope(txt_tokens, height, width)?);
            Ok(Kept::new(plan, wanted, samples, batched, modulations, rope))
        };
        let Kept { samples, batched, modulations, rope, steps, .. } = kept::find(&mut self.kept, plan, wanted, make)?;
        let (samples, batched, rope) = (*samples, *batched, &*rope);
        observer.batch(samples);
        let context = repeat(transformer.context(txt)?, txt_tokens, samples)?;
        self.noise = noise.join().map_err(|_| Error::new("the thread that draws the noise panicked"))?;
        let noise = &self.noise.values()[..samples * img * config.in_channels];
        let mut latents = self.backend.upload(noise, samples * img, config.in_channels)?;
        clock.prepared()?;

        let total = plan.steps as u64;
        observer.progress(Stage::Denoise, 0, total);
        for (step, graph) in steps.iter_mut().enumerate() {
            let modulation = modulations.step(step);
            let work = |_: &(), [latents, context]: [&Tensor<B>; 2]| {
                let guidance = plan.guided().then_some(plan.guidance);
                let conditioning = Conditioning { context, rope, txt: txt_tokens, guidance, batched };
                sampler::step(
                    transformer,
                    latents.row_view(0..samples * img),
                    &conditioning,
                    &modulation,
                    schedule.dt(step),
                )
            };
            latents = self.backend.run_graph(graph, &self.graph_reads, [&latents, &context], work)?;
            // Only asks how far the device is: a step waits for nothing.
            let done = clock.stepped()?;
            observer.progress(Stage::Denoise, done, total);
        }
        Ok(latents)
    }

    /// RGB bytes of each image, one after the other: a decoder fills the memory that a batch of it would need many
    /// times over.
    fn decode(
        &mut self,
        latents: &Tensor<B>,
        plan: &Plan,
        clock: &mut Clock<B>,
        observer: &mut dyn Observer,
    ) -> Result<Vec<Vec<u8>>> {
        let elements = if self.decoder.is_none() { self.info.vae.decoder_elements() } else { 0 };
        self.make_room(
            self.backend.weight_bytes(elements, Storage::Native) + Needs::of(&self.backend, &self.info, plan).decode,
            Keep::Decoder,
        );
        if self.decoder.is_none() {
            let (backend, files) = (&self.backend, &self.files.vae);
            let load_decoder = |report: &mut dyn FnMut(u64)| {
                backend.load(|| Decoder::load(&Weights::new(backend, files), &self.info.vae), report)
            };
            self.decoder = Some(load(elements, observer, load_decoder)?);
            clock.loaded()?;
        }
        let decoder = self.decoder.as_ref().expect("loaded above");
        let (height, width) = self.info.latent_size(plan);
        let samples = latents.rows() / (height * width);
        let (stages, total) = (decoder.stages(), (samples * decoder.stages()) as u64);
        let observer = RefCell::new(observer);
        let mut rgbs = Vec::with_capacity(samples);
        // Where nobody looks on, the next image is enqueued before the one ahead of it is taken, so that the device
        // never waits.
        let listens = observer.borrow().listens();
        let mut waiting = None;
        let mut take = |rgb: B::Rgb8| -> Result<()> {
            rgbs.push(self.backend.take_rgb8(rgb)?);
            observer.borrow_mut().progress(Stage::Decode, (rgbs.len() * stages) as u64, total);
            Ok(())
        };
        for sample in 0..samples {
            // Where the device is still at the steps, the decoder's stages are enqueued long before they run, and only
            // their end is told.
            let at_once = listens && clock.remaining_steps().is_empty();
            let tell = |done| {
                if at_once {
                    observer.borrow_mut().progress(Stage::Decode, (sample * stages + done) as u64, total)
                }
            };
            tell(0);
            let work = |_: &(), [latents]: [&Tensor<B>; 1]| {
                let pixels = decoder.forward(decoder.unpack(latents, height, width)?, tell)?;
                if (pixels.height, pixels.width) == (plan.height, plan.width) {
                    return Ok(pixels.pixels);
                }
                let (made, asked) = ([pixels.width, pixels.height], [plan.width, plan.height]);
                Err(Error::new(format!(
                    "the VAE made {} x {} pixels of a {} x {} image",
                    made[0], made[1], asked[0], asked[1]
                )))
            };
            let latents = latents.row_view(sample * height * width..(sample + 1) * height * width);
            let pixels = self.backend.run_graph(
                kept::decode(&mut self.kept_decodes, plan),
                &self.graph_reads,
                [&latents],
                work,
            )?;
            if sample == 0 {
                clock.enqueued();
                // Takes the host some time, which it has while the device computes.
                self.backend.settle()?;
            }
            if listens {
                for done in clock.remaining_steps() {
                    clock.wait_step(done)?;
                    observer.borrow_mut().progress(Stage::Denoise, done + 1, plan.steps as u64);
                }
            }
            let before = waiting.replace(self.backend.rgb8(&pixels)?);
            clock.decoded()?;
            before.map_or(Ok(()), &mut take)?;
            if listens {
                waiting.take().map_or(Ok(()), &mut take)?;
            }
        }
        waiting.map_or(Ok(()), &mut take)?;
        Ok(rgbs)
    }

    /// Frees what was kept and models that `keep` does not need, while `bytes` more do not fit.
    fn make_room(&mut self, bytes: u64, keep: Keep) {
        if self.backend.available_bytes() >= bytes {
            return;
        }
        self.forget();
        if self.backend.available_bytes() < bytes && keep != Keep::TextEncoder {
            self.text_encoder = None;
        }
        if self.backend.available_bytes() < bytes && keep != Keep::Transformer {
            self.transformer = None;
        }
        if self.backend.available_bytes() < bytes && keep != Keep::Decoder {
            self.decoder = None;
        }
        // Last, because without them the text encoder has to come back.
        if self.backend.available_bytes() < bytes {
            self.text_features.clear();
        }
    }

    /// Lets go of what images have in common. Before any model goes, because captured work refers to their weights.
    fn forget(&mut self) {
        self.kept.clear();
        self.kept_decodes.clear();
    }

    /// The latents behind an image, in float32 [height / patch * width / patch, channels]: for tests and tools.
    ///
    /// Errors as [`Pipeline::generate`].
    pub fn latents(&mut self, request: &Request) -> Result<Vec<f32>> {
        let mut plan = self.plan_without_words(request)?;
        let noise = self.draw(&plan, 1);
        let tokens = self.read(request, &mut plan)?;
        let mut clock = Clock::new(self.backend.clone())?;
        let txt = self.encode(request, &tokens, &plan, &mut clock, &mut ())?;
        let latents = self.denoise(&txt, noise, &plan, 1, &mut clock, &mut ())?;
        self.backend.download(&latents)
    }
}

/// Each prompt's rows of `context`, `txt` of them, `samples` times one under the other.
fn repeat<B: Backend>(context: Tensor<B>, txt: usize, samples: usize) -> Result<Tensor<B>> {
    if samples == 1 {
        return Ok(context);
    }
    let prompts = (0..context.rows() / txt).map(|prompt| context.row_view(prompt * txt..(prompt + 1) * txt));
    let parts: Vec<Tensor<B>> = prompts.flat_map(|rows| (0..samples).map(move |_| rows.row_view(0..txt))).collect();
    Tensor::concat_rows(&parts.iter().collect::<Vec<_>>())
}

/// The model that must stay.
#[derive(PartialEq, Eq)]
enum Keep {
    TextEncoder,
    Transformer,
    Decoder,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::{Cpu, Precision};

    #[test]
    fn batches_of_the_same_size_are_one_kind_however_many_are_to_come() {
        let dir = ModelFiles::open("models/tiny".as_ref()).unwrap();
        let mut pipeline = Pipeline::load(Cpu::new(Precision::F32), &dir).unwrap();
        let mut request = Request { width: Some(32), height: Some(32), steps: Some(1), ..Request::new("a cat", 1) };
        let (mut left, mut batches) = (26, Vec::new());
        while left > 0 {
            let images = pipeline.generate_batch(&request, left, &mut ()).unwrap().len();
            (left, request.seed) = (left - images, request.seed + images as u64);
            batches.push((images, pipeline.kept.len(), pipeline.kept_decodes.len()));
        }
        assert_eq!(batches, [(8, 1, 1), (8, 1, 1), (8, 1, 1), (2, 2, 1)]);
        request.height = Some(16);
        pipeline.generate_batch(&request, 2, &mut ()).unwrap();
        assert_eq!((pipeline.kept.len(), pipeline.kept_decodes.len()), (3, 2), "another size is another kind");
    }
}
