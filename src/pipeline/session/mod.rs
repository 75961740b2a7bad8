//! Sessions: each generates one batch of images, step by step. The items of a batch have one shape, which is size,
//! steps, guidance and adapters, and each item has its own prompt and seed.
//!
//! Nothing here knows jobs or queues. Start reading at [`Session`].

mod agreement;
mod batch;
mod contexts;
mod decode;
mod denoise;
mod early_results;
mod frame;
pub(crate) mod model;
mod partial;
pub(crate) mod preview;
mod references;
pub(crate) mod shape;
pub(crate) mod shared_text;
mod text;

use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::thread;

use crate::backend::Backend;
use crate::error::{Error, Field, Result};
use crate::files::Array;
use crate::model::info::ModelInfo;
use crate::pipeline::request::adapters::AdapterSet;
use crate::pipeline::request::embeddings::Embeddings;
use crate::pipeline::request::fields::Request;
use crate::pipeline::request::frame::FrameRequest;
use crate::pipeline::request::given::Given;
use crate::pipeline::request::latents::Latents;
use crate::pipeline::request::plan::Plan;
use crate::pipeline::residency::adapted_cache::Adapted;
use crate::pipeline::residency::frame_store::{FrameKeys, StoredFrame};
use crate::pipeline::residency::placement::Placement;
use crate::pipeline::residency::prepared::Prepared;
use crate::pipeline::residency::timings::{Clock, Timings, TokenCount};
use crate::pipeline::session::decode::Decoding;
use crate::pipeline::session::denoise::{DenoiseInputs, Denoising};
use crate::pipeline::session::frame::{Found, Frame};
use crate::pipeline::session::model::Model;
use crate::pipeline::session::references::{CachedImages, ImageLatents, Images};
use crate::pipeline::session::shape::Shape;
use crate::pipeline::session::shared_text::TextSource;
use crate::pipeline::session::text::{Text, TextFeatures};
use crate::rgb::Rgb;
use crate::sampler::{Drawing, Start};
use crate::stage::{Caller, CancelFlag, Progress};
use crate::tensor::Tensor;

/// A session, which generates the images of one batch, from the prompts to pixels.
///
/// [`Session::encode`], [`Session::prepare`], [`Session::step`] and [`Session::decode`] follow each other. Each of
/// them first does all preceding work, so calling only `decode` generates the images too. They report their progress
/// to the caller, and fail with [`ErrorKind::Cancelled`](crate::error::ErrorKind::Cancelled) after the session's flag
/// is set. They enqueue work: `step` waits until fewer than two steps are in flight, and `decode` waits for the pixels
/// that it returns. A session cannot be used after an error.
pub struct Session<B: Backend> {
    model: Arc<Model<B>>,
    text: Text,
    reader: TextSource,
    prepared: Prepared,
    /// The items, at least one.
    items: Vec<Item>,
    adapters: AdapterSet,
    /// The request of a video frame that may reuse tokens.
    frame: Option<FrameRequest>,
    cancel: CancelFlag,
    clock: Clock<B>,
    state: State<B>,
}

/// The data of a single image of the batch.
struct Item {
    plan: Plan,
    given: Given,
    images: Images,
}

enum State<B: Backend> {
    /// Nothing is enqueued yet. Another thread may be drawing the noise.
    New(Drawing),
    /// The text features and the latents of input images are enqueued.
    Encoded(Drawing, TextFeatures<B>, Vec<ImageLatents<B>>, Option<Frame<B>>),
    Denoising(Denoising<B>),
    /// Steps are enqueued; the keys of a frame are to be cached with its image.
    Decoding(Decoding<B>, Option<FrameKeys<B>>),
    /// The image is that of an earlier frame; `true` if it is taken.
    Given(Arc<StoredFrame<B>>, bool),
    /// An error ended the session.
    Failed,
}

/// An image of a session.
#[derive(Debug, Clone)]
pub struct Decoded {
    /// RGB bytes, row by row: 3 * width * height.
    pub rgb: Vec<u8>,
    /// Size, steps, seed and guidance of the image.
    pub plan: Plan,
}

impl Decoded {
    /// Returns the pixels as an image, and the plan.
    pub(crate) fn into_parts(self) -> (Rgb, Plan) {
        let Self { rgb: bytes, plan } = self;
        (Rgb { width: plan.width, height: plan.height, bytes }, plan)
    }
}

/// An image with its plan and timings.
#[derive(Debug, Clone)]
pub struct Image {
    /// RGB bytes, row by row: 3 * width * height.
    pub rgb: Vec<u8>,
    /// Size, steps, seed and guidance of the image.
    pub plan: Plan,
    /// Timings of the image's batch.
    pub timings: Timings,
}

impl<B: Backend> Session<B> {
    /// Creates a session, see [`Model::session_of`].
    pub(crate) fn new(
        model: &Arc<Model<B>>,
        requests: &[Request],
        reader: &TextSource,
        cancel: &CancelFlag,
    ) -> Result<Self> {
        let kind = model.info().kind;
        let requests = requests.iter().map(|request| Ok(request.for_kind(kind)?.into_owned()));
        let requests = &requests.collect::<Result<Vec<_>>>()?[..];
        let Some(first) = requests.first() else { return Err(Error::usage("a batch has no items")) };
        requests.iter().try_for_each(|request| request.check_count(1))?;
        if first.hires.is_some() {
            return Err(Error::usage("a session has one pass").for_field(Field::Hires).hint("use an engine"));
        }
        let prepared = model.prepare(first, reader.is_other())?;
        cancel.check()?;
        let shape = Shape::new(first, &prepared, model.info());
        let requests = &requests[..requests.len().min(shape.max_images())];
        let mut plans = vec![prepared.plan.clone()];
        for request in &requests[1..] {
            let plan = model.prepare(request, reader.is_other())?;
            if Shape::new(request, &plan, model.info()) != shape {
                return Err(Error::usage(
                    "the items of a batch differ in size, steps, guidance, references or adapters",
                )
                .hint("generate each shape in its own batch"));
            }
            plans.push(plan.plan);
        }
        let noise = draw(model, requests, &plans)?;
        let text = model.read(requests, &mut plans)?;
        let item =
            |(plan, request)| Item { plan, given: Given::from_request(request), images: Images::from_request(request) };
        Ok(Self {
            model: Arc::clone(model),
            text,
            reader: reader.clone(),
            prepared: model.residency.reserve(prepared, cancel)?,
            items: plans.into_iter().zip(requests).map(item).collect(),
            adapters: AdapterSet::new(&first.adapters),
            frame: FrameRequest::from_request(first),
            cancel: cancel.clone(),
            clock: Clock::new(model.backend().clone())?,
            state: State::New(noise),
        })
    }

    /// Returns size, steps, guidance and the first image's seed.
    pub fn plan(&self) -> &Plan {
        &self.items[0].plan
    }

    /// Enqueues the text features of the prompt, and the latents of the input images.
    ///
    /// Errors if memory runs out, or the session is cancelled; this holds for all following functions.
    pub fn encode(&mut self, report: &mut dyn FnMut(Progress)) -> Result<()> {
        match mem::replace(&mut self.state, State::Failed) {
            State::New(noise) => {
                let caller = Caller::new(report, &self.cancel);
                let (residency, clock) = (&self.model.residency, &mut self.clock);
                let frame = match self.frame.as_ref().map(|frame| Found::look_up(residency, frame)) {
                    Some(Found::Image(before)) => {
                        clock.computed_tokens(TokenCount {
                            computed: 0,
                            all: tokens(residency.info(), &self.items[0].plan),
                        });
                        // Keeps the noise for a frame that is computed.
                        if let Drawing::Drawn(noise) = noise {
                            self.model.reuse(noise);
                        }
                        self.state = State::Given(before, false);
                        return Ok(());
                    }
                    Some(Found::Frame(frame)) => Some(frame),
                    None => None,
                };
                let prepared = &self.prepared;
                let images = CachedImages::collect(self.items.iter().map(|item| &item.images), residency)?;
                let text = self.text.encode(residency, prepared, &self.reader, &caller, clock)?;
                let encoder = images.encoder(residency, prepared, &caller, clock)?;
                agreement::encoders(residency.backend())?;
                let txt = text.share(residency)?;
                let latents = images.encode(residency, (encoder, prepared.memory.bands), &caller, clock)?;
                self.state = State::Encoded(noise, txt, latents, frame);
            }
            State::Failed => return Err(Error::new("the session has failed")),
            state => self.state = state,
        }
        Ok(())
    }

    /// Prepares everything before the first step. Returns the number of images in the batch: as many as memory
    /// allows, at least one.
    pub fn prepare(&mut self, report: &mut dyn FnMut(Progress)) -> Result<usize> {
        self.encode(report)?;
        match mem::replace(&mut self.state, State::Failed) {
            State::Encoded(noise, txt, latents, frame) => {
                let caller = Caller::new(report, &self.cancel);
                let (residency, batch) = (&self.model.residency, (&self.prepared, self.items.len()));
                let images: Vec<_> = self.items.iter().map(|item| &item.images).zip(latents).collect();
                let seeds: Vec<_> = self.items.iter().map(|item| item.plan.seed).collect();
                let read = DenoiseInputs { txt: &txt, images, seeds: &seeds, adapters: &self.adapters, frame };
                let (denoising, noise) = Denoising::prepare(residency, read, noise, batch, &caller, &mut self.clock)?;
                self.model.reuse(noise);
                self.items.truncate(denoising.samples());
                self.state = State::Denoising(denoising);
            }
            state => self.state = state,
        }
        Ok(self.items.len())
    }

    /// Returns the placement of this session's adapters as text during denoising, for verbose output.
    pub fn adapter_remark(&self) -> Option<&str> {
        self.adapted().map(|adapted| adapted.remark.as_str())
    }

    /// Returns the placement of this session's adapters during denoising; `None` without adapters.
    pub fn adapter_placement(&self) -> Option<Placement> {
        self.adapted().map(|adapted| adapted.placement)
    }

    fn adapted(&self) -> Option<&Adapted<B>> {
        match &self.state {
            State::Denoising(denoising) => denoising.adapted(),
            _ => None,
        }
    }

    /// Enqueues one step. Returns `true` if a step was left.
    pub fn step(&mut self, report: &mut dyn FnMut(Progress)) -> Result<bool> {
        self.prepare(report)?;
        let State::Denoising(denoising) = &mut self.state else { return Ok(false) };
        if denoising.is_done() {
            return Ok(false);
        }
        let caller = Caller::new(report, &self.cancel);
        let stepped = denoising.step(self.model.backend(), &caller, &mut self.clock);
        self.end_on_error(stepped)?;
        Ok(true)
    }

    /// Enables [`Session::predicted`]. Returns `false` if several devices generate the images together: no device has
    /// all latents before the end.
    pub fn watch(&mut self, report: &mut dyn FnMut(Progress)) -> Result<bool> {
        self.prepare(report)?;
        let State::Denoising(denoising) = &mut self.state else { return Ok(false) };
        Ok(denoising.watch(self.model.backend()))
    }

    /// Returns the latents that the steps so far lead to, in float32 [samples * height / patch * width / patch,
    /// channels]: the final latents if the remaining steps went in a straight line. Waits for the last step. `None`
    /// before the first step, and without [`Session::watch`].
    pub fn predicted(&mut self) -> Result<Option<Vec<f32>>> {
        let predicted = self.predict()?;
        let values = predicted.map(|latents| self.model.backend().download(&latents)).transpose();
        self.end_on_error(values)
    }

    /// Enqueues [`Session::predicted`] on the device.
    pub(crate) fn predict(&mut self) -> Result<Option<Tensor<B>>> {
        let State::Denoising(denoising) = &mut self.state else { return Ok(None) };
        let predicted = denoising.predicted();
        self.end_on_error(predicted)
    }

    /// Returns `true` if all enqueued work is done.
    pub(crate) fn is_idle(&mut self) -> Result<bool> {
        let is_idle = self.clock.is_idle();
        self.end_on_error(is_idle)
    }

    /// Returns the next image; `None` after the last.
    pub fn decode(&mut self, report: &mut dyn FnMut(Progress)) -> Result<Option<Decoded>> {
        while self.step(report)? {}
        let caller = Caller::new(report, &self.cancel);
        let (model, prepared, clock) = (&self.model, &self.prepared, &mut self.clock);
        match mem::replace(&mut self.state, State::Failed) {
            State::Denoising(denoising) => {
                // Drops the inputs of the steps, before making room for the decoder.
                let (latents, in_flight, keys) = denoising.into_latents();
                let latents = (latents, in_flight);
                let decoding = Decoding::prepare(&model.residency, latents, prepared, &caller, clock)?;
                self.state = State::Decoding(decoding, keys);
            }
            state => self.state = state,
        }
        let (decoding, keys) = match &mut self.state {
            State::Decoding(decoding, keys) => (decoding, keys.take()),
            State::Given(before, is_taken) => {
                let image = (!mem::replace(is_taken, true)).then(|| before.image.clone());
                clock.taken();
                let plan = Plan { is_read_elsewhere: false, ..self.items[0].plan.clone() };
                return Ok(image.map(|rgb| Decoded { rgb, plan }));
            }
            _ => unreachable!("prepared above"),
        };
        let item = self.items.get(decoding.taken());
        let decoded = decoding.next(model.backend(), &prepared.plan, &caller, clock);
        let decoded = decoded.map_err(|error| match item {
            Some(item) => model.residency.files().explain(error, |what| item.given.blame(what)),
            None => error,
        });
        let plan = item.map(|item| Plan { is_read_elsewhere: false, ..item.plan.clone() });
        if let (Ok(Some(image)), Some(keys), Some(frame)) = (&decoded, keys, &self.frame) {
            model.residency.frames.put(frame.clone(), keys, image.clone());
        }
        let rgb = self.end_on_error(decoded)?;
        Ok(rgb.zip(plan).map(|(rgb, plan)| Decoded { rgb, plan }))
    }

    /// Returns the timings of the session. Waits for all enqueued work. All devices of a group must call it.
    pub fn finish(self) -> Result<Timings> {
        agreement::timings(self.model.backend(), self.clock.finish()?)
    }

    /// Generates all remaining images.
    pub fn run(mut self, report: &mut dyn FnMut(Progress)) -> Result<Vec<Image>> {
        let mut decoded = Vec::new();
        while let Some(image) = self.decode(report)? {
            decoded.push(image);
        }
        let timings = self.finish()?;
        let image = |Decoded { rgb, plan }| Image { rgb, plan, timings: timings.clone() };
        Ok(decoded.into_iter().map(image).collect())
    }

    /// Returns the text features of the first image's prompt, and with guidance of its negative prompt, in float32.
    /// Waits for them.
    ///
    /// Errors also if the steps have begun, or there are regions.
    pub fn embeddings(&mut self) -> Result<Embeddings> {
        if self.plan().regions.is_some() {
            return Err(Error::usage("text features cannot be saved with regions: a file has those of one prompt")
                .for_field(Field::Regions)
                .hint("leave out the regions, or the text features"));
        }
        self.encode(&mut |_| {})?;
        let State::Encoded(_, txt, ..) = &self.state else { return Err(Error::new("the text features were used up")) };
        let download = |rows: Range<usize>| {
            let text = txt.rows.row_view(rows);
            Ok(Array { shape: vec![text.rows(), text.cols()], values: self.model.backend().download(&text)? })
        };
        let mut texts = txt.item_rows(0).map(download);
        let prompt = texts.next().unwrap_or_else(|| Err(Error::new("an item has no prompt")))?;
        Embeddings::new(prompt, texts.next().transpose()?)
    }

    /// Returns the final latents of each image, as [`Request::latents`] takes them. Waits for them.
    ///
    /// Errors also if decoding has begun.
    pub fn final_latents(&mut self, report: &mut dyn FnMut(Progress)) -> Result<Vec<Latents>> {
        while self.step(report)? {}
        let (height, width) = self.model.info().latent_size(self.plan());
        let channels = self.model.info().transformer.in_channels;
        let tokens = self.latents()?;
        let images = tokens.chunks_exact(height * width * channels);
        Ok(images.map(|tokens| Latents::from_tokens(tokens, channels, [height, width])).collect())
    }

    /// Returns the final latents, in float32 [samples * height / patch * width / patch, channels]. Waits for them.
    /// For tests and tools.
    ///
    /// Errors also if decoding has begun.
    pub fn latents(&mut self) -> Result<Vec<f32>> {
        while self.step(&mut |_| {})? {}
        match &self.state {
            State::Denoising(denoising) => self.model.backend().download(denoising.latents()),
            State::Given(before, false) => self.model.backend().download(&before.made.latents),
            _ => Err(Error::new("the latents were already passed to the decoder")),
        }
    }

    fn end_on_error<T>(&mut self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.state = State::Failed;
        }
        result
    }
}

/// Returns the tokens of an image over all steps.
fn tokens(info: &ModelInfo, plan: &Plan) -> u64 {
    let (height, width) = info.latent_size(plan);
    (plan.steps_to_run() * (plan.text_tokens + info.reference_tokens(plan) + height * width)) as u64
}

/// Draws the noise of each request, or copies its passed noise, on another thread, because the noise is not needed
/// before the first step. If the noise of the last batch is the same, it is reused.
///
/// Errors if the system starts no thread.
fn draw<B: Backend>(model: &Model<B>, requests: &[Request], plans: &[Plan]) -> Result<Drawing> {
    let info = model.info();
    let (channels, (height, width)) = (info.transformer.in_channels, info.latent_size(&plans[0]));
    let given = requests.iter().map(|request| request.start().map(|(start, _)| start.clone())).collect::<Vec<_>>();
    let drawn: Vec<_> = plans.iter().map(Plan::start).collect();
    let mut noise = model.noise();
    if given.iter().all(Option::is_none) && noise.is_drawn(&drawn, channels, height, width) {
        return Ok(Drawing::Drawn(noise));
    }
    let draw = move || {
        let starts = given.iter().zip(drawn).map(|(given, drawn)| match given {
            Some(latents) => Start::Given(latents.values()),
            None => drawn,
        });
        noise.fill(&starts.collect::<Vec<_>>(), channels, height, width);
        noise
    };
    thread::Builder::new().spawn(draw).map(Drawing::OnThread).map_err(|e| Error::no_thread(&e))
}

impl<B: Backend> Model<B> {
    /// Creates a session for the first of `count` images of one prompt: as many as memory allows in one batch, at
    /// least one. Seeds count up from the request's seed. `cancel` ends the session.
    ///
    /// An image in a batch equals the image of its seed alone, up to rounding in matrix multiplications of another
    /// size.
    ///
    /// Errors as [`Model::plan`] does, and if `count` is 0 or the seeds would exceed the largest seed.
    pub fn session(self: &Arc<Self>, request: &Request, count: usize, cancel: &CancelFlag) -> Result<Session<B>> {
        self.session_of(&request.items(count)?, cancel)
    }

    /// Creates a session for the first of `requests`: as many as memory allows in one batch, at least one. Each
    /// request is an item of the batch, with its own prompt and seed. All have one shape, which is size, steps,
    /// guidance, the numbers of text tokens, the sizes of references, and adapters. Images with input images are
    /// evaluated one after the other. `cancel` ends the session.
    ///
    /// Errors as [`Model::plan`] does, and if there are no requests, or they do not have one shape.
    pub fn session_of(self: &Arc<Self>, requests: &[Request], cancel: &CancelFlag) -> Result<Session<B>> {
        Session::new(self, requests, &TextSource::Own, cancel)
    }

    /// Generates an image.
    ///
    /// Errors if the model cannot do what is requested, or memory runs out.
    pub fn generate(self: &Arc<Self>, request: &Request) -> Result<Image> {
        let mut images = self.generate_batch(request, 1)?;
        Ok(images.pop().expect("one was requested"))
    }

    /// Generates the images of one [`Model::session`].
    ///
    /// Errors as [`Model::session`] and [`Model::generate`].
    pub fn generate_batch(self: &Arc<Self>, request: &Request, count: usize) -> Result<Vec<Image>> {
        self.session(request, count, &CancelFlag::default())?.run(&mut |_| {})
    }

    /// Generates the final latents of an image, see [`Session::latents`].
    ///
    /// Errors as [`Model::generate`].
    pub fn latents(self: &Arc<Self>, request: &Request) -> Result<Vec<f32>> {
        self.session(request, 1, &CancelFlag::default())?.latents()
    }
}
