//! Prompt to picture: the order in which the models run, and how long each lives.
//!
//! [`Pipeline::load`] opens and checks everything; weights go to the device when they are first needed. The text encoder
//! leaves it before the transformer comes, unless there is room for both.
//!
//! ```no_run
//! use flux::backend::cpu::{Cpu, Precision};
//! use flux::model_dir::ModelDir;
//! use flux::pipeline::{Pipeline, Request};
//!
//! let dir = ModelDir::open("models/tiny".as_ref())?;
//! let mut pipeline = Pipeline::load(Cpu::new(Precision::F32), &dir)?;
//! let picture = pipeline.generate(&Request::new("a red circle on a blue background", 42), &mut ())?;
//! assert_eq!(picture.rgb.len(), 3 * picture.plan.width * picture.plan.height);
//! # Ok::<(), flux::Error>(())
//! ```

mod memory;
mod model;
mod observer;
mod request;

pub use model::ModelInfo;
pub use observer::{Observer, Stage, Timings};
pub use request::{Plan, Request};

use std::cell::RefCell;

use crate::backend::Backend;
use crate::backend::cpu::{Cpu, Precision};
use crate::error::{Error, Result};
use crate::model_dir::ModelDir;
use crate::sampler::{self, Conditioning, Schedule};
use crate::tensor::Tensor;
use crate::text_encoder::{self, TextEncoder, Tokenizer};
use crate::transformer::{self, Transformer};
use crate::vae::{self, Decoder};
use crate::weights::{WeightFiles, Weights};
use memory::Needs;
use observer::Clock;

/// A model on a backend, ready to make pictures.
pub struct Pipeline<B: Backend> {
    backend: B,
    info: ModelInfo,
    tokenizer: Tokenizer,
    files: Files,
    text_encoder: Option<TextEncoder<B>>,
    transformer: Option<Transformer<B>>,
    decoder: Option<Decoder<B>>,
}

struct Files {
    text_encoder: WeightFiles,
    transformer: WeightFiles,
    vae: WeightFiles,
}

/// A picture and how it was made.
#[derive(Debug, Clone)]
pub struct Picture {
    /// RGB bytes, row by row: 3 * width * height.
    pub rgb: Vec<u8>,
    /// Size, steps, seed and guidance that were used.
    pub plan: Plan,
    /// Where the time went.
    pub timings: Timings,
}

impl<B: Backend> Pipeline<B> {
    /// Opens a model folder and checks all of it: configs, tokenizer, and the name, shape and dtype of every tensor.
    ///
    /// Errors say which file and tensor is wrong. Nothing is copied to the device yet.
    pub fn load(backend: B, dir: &ModelDir) -> Result<Self> {
        let info = ModelInfo::read(dir)?;
        let tokenizer = Tokenizer::load(dir, info.max_sequence_length)?;
        let files = Files { text_encoder: text_encoder::open(dir)?, transformer: transformer::open(dir)?, vae: vae::open(dir)? };
        // On the CPU weights stay in the mapped files, so loading there checks every tensor and costs nothing.
        let host = Cpu::new(Precision::F32);
        let weights = |files| Weights::new(&host, files);
        TextEncoder::load(&weights(&files.text_encoder), info.text_encoder, &info.out_layers).map_err(|e| info.explain(e))?;
        Transformer::load(&weights(&files.transformer), &info.transformer).map_err(|e| info.explain(e))?;
        Decoder::load(&weights(&files.vae), &info.vae)?;
        Ok(Self { backend, info, tokenizer, files, text_encoder: None, transformer: None, decoder: None })
    }

    /// What the model is.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Where it runs.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// What [`Pipeline::generate`] would do.
    ///
    /// Errors when the model cannot do what is asked for.
    pub fn plan(&self, request: &Request) -> Result<Plan> {
        let mut plan = Plan::new(request, &self.info)?;
        let tokens = self.tokenizer.encode(&request.prompt)?;
        if tokens.truncated > 0 {
            plan.notes.push(format!("the prompt is {} tokens longer than the model reads; its end is cut off", tokens.truncated));
        }
        Needs::of(&self.backend, &self.info, &plan).check(&self.backend, &plan)?;
        Ok(plan)
    }

    /// Makes a picture.
    ///
    /// Errors when the model cannot do what is asked for, or memory runs out.
    pub fn generate(&mut self, request: &Request, observer: &mut dyn Observer) -> Result<Picture> {
        let plan = self.plan(request)?;
        let mut clock = Clock::new(self.backend.clone())?;

        let txt = self.encode(request, &plan, &mut clock, observer)?;
        let latents = self.denoise(&txt, &plan, &mut clock, observer)?;
        drop(txt);
        let rgb = self.decode(latents, &plan, &mut clock, observer)?;

        let timings = clock.finish()?;
        Ok(Picture { rgb, plan, timings })
    }

    /// Text features [tokens, features]; with guidance those of the empty prompt under them.
    fn encode(&mut self, request: &Request, plan: &Plan, clock: &mut Clock<B>, observer: &mut dyn Observer) -> Result<Tensor<B>> {
        if self.text_encoder.is_none() {
            let elements = TextEncoder::<B>::elements(&self.info.text_encoder, &self.info.out_layers);
            self.make_room(self.backend.weight_bytes(elements), Keep::TextEncoder);
            let (config, layers) = (self.info.text_encoder, &self.info.out_layers);
            let encoder = load(&self.backend, &self.files.text_encoder, elements, observer, |weights| TextEncoder::load(weights, config, layers))?;
            self.text_encoder = Some(encoder);
            clock.loaded()?;
        }
        let encoder = self.text_encoder.as_ref().expect("loaded above");
        let prompts: &[&str] = if plan.guided() { &[&request.prompt, ""] } else { &[&request.prompt] };
        let total = (prompts.len() * encoder.layers()) as u64;
        let encode = |(i, prompt): (usize, &&str)| {
            let tokens = self.tokenizer.encode(prompt)?;
            encoder.forward(&tokens, |done| observer.progress(Stage::Text, (i * encoder.layers() + done) as u64, total))
        };
        let txt: Vec<Tensor<B>> = prompts.iter().enumerate().map(encode).collect::<Result<_>>()?;
        let txt = Tensor::concat_rows(&txt.iter().collect::<Vec<_>>())?;
        clock.encoded()?;
        Ok(txt)
    }

    /// Latents [height / patch * width / patch, channels].
    fn denoise(&mut self, txt: &Tensor<B>, plan: &Plan, clock: &mut Clock<B>, observer: &mut dyn Observer) -> Result<Tensor<B>> {
        let config = self.info.transformer.clone();
        let (height, width) = self.info.latent_size(plan);
        let img = height * width;
        let txt_tokens = self.info.max_sequence_length;
        let needs = Needs::of(&self.backend, &self.info, plan);
        if self.transformer.is_none() {
            let (blocks, others) = (config.block_elements(), config.other_elements());
            let bytes = self.backend.narrow_weight_bytes(blocks) + self.backend.weight_bytes(others);
            self.make_room(bytes + needs.step, Keep::Transformer);
            let transformer = load(&self.backend, &self.files.transformer, blocks + others, observer, |weights| Transformer::load(weights, &config))?;
            self.transformer = Some(transformer);
            clock.loaded()?;
        }
        let transformer = self.transformer.as_ref().expect("loaded above");

        let schedule = Schedule::new(img, plan.steps);
        let modulations = transformer.modulations(&schedule.timesteps)?;
        let rope = transformer.rope(txt_tokens, height, width)?;
        let context = transformer.context(txt)?;
        let conditioning = Conditioning {
            context: &context,
            rope: &rope,
            txt: txt_tokens,
            guidance: plan.guided().then_some(plan.guidance),
            batched: self.backend.available_bytes() > 2 * needs.step,
        };
        let noise = sampler::noise(plan.seed, config.in_channels, height, width);
        let mut latents = self.backend.upload(&noise, img, config.in_channels)?;
        clock.prepared()?;

        let total = plan.steps as u64;
        observer.progress(Stage::Denoise, 0, total);
        for step in 0..plan.steps {
            latents = sampler::step(transformer, latents, &conditioning, &modulations.step(step), schedule.dt(step))?;
            // Only asks how far the device is: a step waits for nothing.
            let done = clock.stepped()?;
            observer.progress(Stage::Denoise, done, total);
        }
        for done in clock.remaining_steps() {
            clock.wait_step(done)?;
            observer.progress(Stage::Denoise, done + 1, total);
        }
        Ok(latents)
    }

    /// RGB bytes.
    fn decode(&mut self, latents: Tensor<B>, plan: &Plan, clock: &mut Clock<B>, observer: &mut dyn Observer) -> Result<Vec<u8>> {
        let elements = if self.decoder.is_none() { self.info.vae.decoder_elements() } else { 0 };
        self.make_room(self.backend.weight_bytes(elements) + Needs::of(&self.backend, &self.info, plan).decode, Keep::Decoder);
        if self.decoder.is_none() {
            self.decoder = Some(load(&self.backend, &self.files.vae, elements, observer, |weights| Decoder::load(weights, &self.info.vae))?);
            clock.loaded()?;
        }
        let decoder = self.decoder.as_ref().expect("loaded above");
        let (height, width) = self.info.latent_size(plan);
        let total = decoder.stages() as u64;
        observer.progress(Stage::Decode, 0, total);
        let unpacked = decoder.unpack(&latents, height, width)?;
        drop(latents);
        let pixels = decoder.forward(unpacked, |done| observer.progress(Stage::Decode, done as u64, total))?;
        if (pixels.height, pixels.width) != (plan.height, plan.width) {
            return Err(Error::new(format!(
                "the VAE made {} x {} pixels of a {} x {} picture",
                pixels.width, pixels.height, plan.width, plan.height
            )));
        }
        let rgb = self.backend.download_rgb8(&pixels.pixels)?;
        clock.decoded()?;
        Ok(rgb)
    }

    /// Frees models that `keep` does not need, while `bytes` more do not fit.
    fn make_room(&mut self, bytes: u64, keep: Keep) {
        if self.backend.available_bytes() < bytes && keep != Keep::TextEncoder {
            self.text_encoder = None;
        }
        if self.backend.available_bytes() < bytes && keep != Keep::Transformer {
            self.transformer = None;
        }
        if self.backend.available_bytes() < bytes && keep != Keep::Decoder {
            self.decoder = None;
        }
    }

    /// The latents behind a picture, in float32 [height / patch * width / patch, channels]: for tests and tools.
    ///
    /// Errors as [`Pipeline::generate`].
    pub fn latents(&mut self, request: &Request) -> Result<Vec<f32>> {
        let plan = self.plan(request)?;
        let mut clock = Clock::new(self.backend.clone())?;
        let txt = self.encode(request, &plan, &mut clock, &mut ())?;
        let latents = self.denoise(&txt, &plan, &mut clock, &mut ())?;
        self.backend.download(&latents)
    }
}

/// Loads a model of about `total` elements and reports how many are on their way.
fn load<B: Backend, M>(
    backend: &B,
    files: &WeightFiles,
    total: u64,
    observer: &mut dyn Observer,
    load: impl FnOnce(&Weights<'_, B>) -> Result<M>,
) -> Result<M> {
    let progress = RefCell::new((0, observer));
    let report = |elements: u64| {
        let (done, observer) = &mut *progress.borrow_mut();
        *done += elements;
        observer.progress(Stage::Load, (*done).min(total), total);
    };
    report(0);
    load(&Weights::new(backend, files).reporting(&report))
}

/// The model that must stay.
#[derive(PartialEq, Eq)]
enum Keep {
    TextEncoder,
    Transformer,
    Decoder,
}
