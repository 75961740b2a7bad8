//! Noise to latents: the steps of one batch, one call each.

use std::borrow::Cow;
use std::mem;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

use crate::backend::{Backend, RepeatedWork};
use crate::error::{Error, Result};
use crate::ops::{Sharing, TokenLayout, TokenSplit};
use crate::pipeline::request::adapters::{AdapterSet, SetKey};
use crate::pipeline::request::plan::Plan;
use crate::pipeline::residency::Residency;
use crate::pipeline::residency::adapted_cache::Adapted;
use crate::pipeline::residency::frame_store::FrameKeys;
use crate::pipeline::residency::loads::Component;
use crate::pipeline::residency::prepared::Prepared;
use crate::pipeline::residency::steps::{BatchShape, Schedules, Steps};
use crate::pipeline::residency::steps_in_flight::StepsInFlight;
use crate::pipeline::residency::timings::Clock;
use crate::pipeline::session::agreement::{self, BeforeSteps};
use crate::pipeline::session::contexts::{Contexts, References, Texts, Turn};
use crate::pipeline::session::early_results::EarlyResults;
use crate::pipeline::session::frame::{Frame, partial_steps};
use crate::pipeline::session::partial::PartialSteps;
use crate::pipeline::session::references::{ImageLatents, Images, make_reference_cache};
use crate::pipeline::session::text::TextFeatures;
use crate::sampler::{Drawing, Evaluations, Noise, Schedule, times};
use crate::stage::Caller;
use crate::stage::Stage;
use crate::tensor::Tensor;
use crate::token_split::share;
use crate::transformer::{KeyCache, Transformer, time_in_bf16};

/// The most steps that are enqueued and not done. With two of them the device has the next step while the host prepares
/// another, and a session that is cancelled ends within about a step.
pub(crate) const STEPS_IN_FLIGHT: usize = 2;

/// A batch that is being denoised.
pub(crate) struct Denoising<B: Backend> {
    work: Arc<RepeatedWork<Steps<B>, B>>,
    /// Whether an image of this shape was made before, so that the work may be captured as a CUDA graph.
    capture: bool,
    schedule: Arc<Schedules<B>>,
    context: Box<Contexts<B>>,
    /// What comes back after each step, where not all of an image is drawn anew.
    kept: Option<Kept<B>>,
    /// Those of this device; once all steps are enqueued, those of all.
    latents: Tensor<B>,
    step: usize,
    first_step: usize,
    steps: usize,
    /// The noise level before each step, and after the last.
    sigmas: Vec<f32>,
    /// The latents before the last step, where somebody asks what they lead to.
    before: Option<Tensor<B>>,
    in_flight: StepsInFlight<B>,
    /// Its transformer, if it has adapters.
    adapted: Option<Arc<Adapted<B>>>,
    /// Where only some tokens are computed at most steps.
    partial: Option<Box<PartialSteps<B>>>,
}

/// What [`Tensor::inpaint_blend`] reads: the first noise, the latents of the image to change, and the mask.
struct Kept<B: Backend> {
    noise: Tensor<B>,
    image: Tensor<B>,
    mask: Tensor<B>,
}

/// What an image is made from.
pub(crate) struct DenoiseInputs<'a, B: Backend> {
    pub txt: &'a TextFeatures<B>,
    /// Of each item.
    pub images: Vec<(&'a Images, ImageLatents<B>)>,
    pub adapters: &'a AdapterSet,
    /// What is computed of a frame, where some of it may be kept.
    pub frame: Option<Frame<B>>,
}

impl<B: Backend> Denoising<B> {
    /// Does everything before the first step, for at most `count` images.
    ///
    /// Errors when memory runs out, or the caller cancels.
    pub(crate) fn prepare(
        residency: &Residency<B>,
        DenoiseInputs { txt, images, adapters, frame }: DenoiseInputs<'_, B>,
        noise: Drawing,
        (prepared, count): (&Prepared, usize),
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<(Self, Noise)> {
        let (info, backend) = (residency.info(), residency.backend());
        let Prepared { plan, needs, .. } = prepared;
        let transformer = residency.transformer(prepared, caller, clock)?;
        let adapted = (!adapters.is_empty())
            .then(|| residency.adapted(&transformer, adapters, needs, caller, clock))
            .transpose()?;
        let transformer = adapted.as_ref().map_or(transformer, |adapted| Arc::clone(&adapted.transformer));
        let ranks = needs.sharing.ranks(backend.rank(), backend.world());
        let own = |count: usize| share(count, backend.rank() - ranks.start, ranks.len());
        // The items of a batch have the same references where these are cached.
        let (first, latents) = images.first().ok_or_else(|| Error::usage("a batch has no items"))?;
        let to_cache = latents.references.as_ref().filter(|_| info.caches_references);
        let find = || residency.images.reference_cache(first.references(), &transformer);
        let mut cached = to_cache.and_then(|_| find());
        let embed = |latents: &Tensor<B>| transformer.references(&latents.row_view(own(latents.rows())));
        let batch =
            Batch { residency, transformer: &transformer, set: adapters.key(), prepared, wanted: needs.wanted(count) };
        let found = batch.find(cached.as_ref());
        let before = BeforeSteps {
            has_references: to_cache.is_none() || cached.is_some(),
            batch: found.as_ref().map_or(0, |found| kind(found.reads())),
            available: batch.make_room(found.as_deref(), count),
        };
        let agreed = agreement::steps(backend, before)?;
        if let Some(latents) = to_cache {
            if !agreed.has_references {
                cached = Some(make_reference_cache(residency, &transformer, first, &embed(latents)?, prepared)?);
            }
            clock.references_cached()?;
        }
        let work = match found.filter(|_| agreed.has_batch) {
            Some(found) => found,
            None => batch.make(cached, agreed.available)?,
        };
        prepared.resize(work.reads().samples());
        let (height, width) = info.latent_size(plan);
        let shift = info.schedule_shift(height * width, plan.steps);
        let levels = plan.schedule.schedule(shift, plan.steps);
        let levels = match times::are_rounded()? {
            true => levels.with_times(|sigma| time_in_bf16(&info.transformer, sigma)),
            false => levels,
        };
        let schedule = schedule(residency, &transformer, adapters.key(), &levels)?;
        let next_times = levels.times().iter().map(|times| times.next.to_bits()).collect();
        let sigmas = levels.sigmas;
        let split = work.reads().split;
        let (samples, turns, [_, _, tokens]) = (work.reads().samples(), work.reads().turns, split.tokens());
        let (texts, places) = txt.read(evaluated(backend, needs.sharing, plan), samples);
        let meet_early = info.transformer.has_early_blocks();
        let numbers = texts.iter().map(|text| text.number).collect();
        let prompt = texts.first().map_or(plan.text_tokens, |text| text.prompt);
        let rows = texts.into_iter().map(|text| if meet_early { text.rows } else { within(text.rows, own) });
        let rows: Vec<Range<usize>> = rows.collect();
        let text = transformer.context(&own_text(&txt.rows, &rows)?)?;
        let whole = |rows: &Range<usize>| TokenSplit::apart(TokenLayout::new(1, rows.len(), 0), backend.rank());
        let texts = Texts {
            rows: text,
            numbers,
            splits: rows.iter().map(whole).collect(),
            own: rows.iter().map(|rows| if meet_early { own(rows.len()) } else { 0..rows.len() }).collect(),
            places,
            samples,
        };
        let share = |layout| TokenSplit::shared(layout, needs.sharing, backend.rank(), backend.world());
        let mut images_of_turns = Vec::new();
        for (images, latents) in &images[..turns] {
            let in_sequence = latents.references.as_ref().filter(|_| !info.caches_references);
            let embedded = in_sequence.map(embed).transpose()?;
            images_of_turns.push(Turn { images: images.references(), numbers: &latents.numbers, embedded });
        }
        let layout = TokenLayout { references: info.reference_tokens(plan), ..TokenLayout::new(1, 0, 0) };
        let references = References::new(images_of_turns, info.reference_sizes(plan), share(layout));
        let spare = residency.available_bytes(prepared).saturating_sub(needs.batch(samples) + needs.early);
        let early = EarlyResults {
            cache: (backend.world() == 1).then(|| Arc::clone(&residency.early)),
            adapters: adapters.key().clone(),
            next_times: if info.transformer.reads_next_time() { next_times } else { Vec::new() },
            value_bytes: backend.costs().element_bytes,
            spare,
            made: 0,
        };
        let context = Box::new(Contexts::new(&transformer, texts, references, early)?);
        let drawn = noise.finish()?;
        let (rows, channels) = (samples * tokens.len(), info.transformer.in_channels);
        let noise = &drawn.values()[..samples * height * width * channels];
        let noise = backend.upload(&own_values(noise, height * width, tokens.clone(), channels), rows, channels)?;
        let images = &images[..samples];
        let own_rows = |image: &Tensor<B>| image.row_view(tokens.clone());
        let changed: Vec<_> = images.iter().filter_map(|(_, latents)| latents.changed.as_ref().map(own_rows)).collect();
        let cells = images.iter().filter_map(|(images, _)| images.cells());
        let cells: Vec<f32> = cells.flat_map(|cells| &cells[tokens.clone()]).copied().collect();
        let sigma = schedule.sigmas.row_view(plan.first_step..plan.first_step + 1);
        let (latents, kept) = begin(backend, noise, changed, &cells, &sigma)?;
        clock.prepared()?;
        // No graph holds copies of weights that are streamed.
        let may_capture = prepared.memory.graphs && !transformer.block_weights().are_streamed();
        let capture = work.was_run() && may_capture;
        let partial = partial_steps(residency, prepared, (first, frame, prompt), work.reads())?.map(Box::new);
        let (step, first_step, steps) = (plan.first_step, plan.first_step, plan.steps);
        let in_flight = StepsInFlight::new(backend.clone());
        Ok((
            Self {
                work,
                capture,
                schedule,
                context,
                kept,
                latents,
                step,
                first_step,
                steps,
                sigmas,
                before: None,
                in_flight,
                adapted,
                partial,
            },
            drawn,
        ))
    }

    /// The transformer with its adapters, if it has any.
    pub(crate) fn adapted(&self) -> Option<&Adapted<B>> {
        self.adapted.as_deref()
    }

    /// Images of the batch.
    pub(crate) fn samples(&self) -> usize {
        self.work.reads().samples()
    }

    /// Whether all steps were enqueued.
    pub(crate) fn is_done(&self) -> bool {
        self.step == self.steps
    }

    /// Once all steps were enqueued, latents [samples * height / patch * width / patch, channels].
    pub(crate) fn latents(&self) -> &Tensor<B> {
        &self.latents
    }

    /// [`Denoising::latents`], the steps that make them, and what is kept of a frame; frees everything else.
    pub(crate) fn into_latents(self) -> (Tensor<B>, StepsInFlight<B>, Option<FrameKeys<B>>) {
        let keys = self.partial.and_then(|partial| partial.into_frame(&self.latents));
        (self.latents, self.in_flight, keys)
    }

    /// From here on [`Denoising::predicted`] can be asked for. Returns false where other devices have a part of the
    /// latents.
    pub(crate) fn watch(&mut self, backend: &B) -> bool {
        let watched = backend.world() == 1 && self.partial.as_ref().is_none_or(|partial| partial.has_all_latents());
        self.before = watched.then(|| self.latents.row_view(0..self.latents.rows()));
        watched
    }

    /// The latents that the steps so far lead to in a straight line, [samples * tokens, channels]. `None` where nobody
    /// watches, and before the first step.
    pub(crate) fn predicted(&mut self) -> Result<Option<Tensor<B>>> {
        if self.step == self.first_step {
            return Ok(None);
        }
        let now = self.latents.row_view(0..self.latents.rows());
        let Some(before) = self.before.as_mut() else { return Ok(None) };
        let before = mem::replace(before, now.row_view(0..now.rows()));
        let [before_level, level] = [self.step - 1, self.step].map(|step| self.sigmas[step]);
        // Latents are (1 - sigma) * image + sigma * noise, and a step goes along noise - image.
        let rest = if level == before_level { 0.0 } else { level / (level - before_level) };
        // now + rest * (before - now)
        before.guide(&now, rest).map(Some)
    }

    /// Enqueues the next step, after waiting until fewer than [`STEPS_IN_FLIGHT`] are in flight.
    pub(crate) fn step(&mut self, backend: &B, caller: &Caller<'_>, clock: &mut Clock<B>) -> Result<()> {
        let (done, total) = (self.step - self.first_step, (self.steps - self.first_step) as u64);
        if done == 0 {
            caller.report(Stage::Denoise, 0, total);
        }
        if let Some(before) = done.checked_sub(STEPS_IN_FLIGHT) {
            self.in_flight.wait(before)?;
        }
        caller.check()?;
        let Schedules { modulations, dts, sigmas } = &*self.schedule;
        let shown = self.shown(&sigmas.row_view(self.steps - 1..self.steps))?;
        let row = |table: &Tensor<B>, row: usize| table.row_view(row..row + 1);
        let (modulation, dt) = (modulations.row(self.step), row(dts, self.step));
        let reads = self.work.reads();
        let rows = reads.split.own().rows();
        let context = self.context.at_step(&reads.transformer, modulations, self.step..self.steps, rows)?;
        clock.ran_early_blocks(self.context.take_made());
        let inputs = [shown.as_ref().unwrap_or(&self.latents), &context, &modulation, &dt];
        let stepped = match &mut self.partial {
            Some(partial) => {
                clock.computed_tokens(partial.count());
                partial.step(self.work.reads(), inputs)?
            }
            None => self.work.run(backend, self.capture, inputs, Steps::step)?,
        };
        self.latents = match &self.kept {
            Some(Kept { noise, image, mask }) => {
                stepped.inpaint_blend(noise, image, mask, &row(sigmas, self.step + 1))?
            }
            None => stepped,
        };
        self.step += 1;
        if self.is_done() {
            let split = self.work.reads().split.with_batch(self.samples());
            let own = match &self.partial {
                Some(partial) => partial.finish(&self.latents)?,
                None => self.latents.row_view(0..self.latents.rows()),
            };
            self.latents = own.all_gather_rows(&split.image_rows())?;
        }
        self.in_flight.push(clock.stepped()?);
        caller.report(Stage::Denoise, self.in_flight.done()? as u64, total);
        Ok(())
    }
}

impl<B: Backend> Denoising<B> {
    /// The latents of the step that makes the keys and values which all later ones read. What is not drawn anew is as
    /// noisy there as before the last step, of noise level `last`: at the first step's own level there is little to be
    /// seen of it. `None` at all other steps.
    ///
    /// Errors when memory runs out.
    fn shown(&self, last: &Tensor<B>) -> Result<Option<Tensor<B>>> {
        let makes_keys = self.partial.as_ref().is_some_and(|partial| partial.makes_keys());
        let Some(Kept { noise, image, mask }) = self.kept.as_ref().filter(|_| makes_keys) else { return Ok(None) };
        self.latents.row_view(0..self.latents.rows()).inpaint_blend(noise, image, mask, last).map(Some)
    }
}

/// The latents with which the schedule begins at noise level `sigma`, and what is kept of the images to change. There
/// are `changed` images and `cells` of all items, or of none.
fn begin<B: Backend>(
    backend: &B,
    noise: Tensor<B>,
    changed: Vec<Tensor<B>>,
    cells: &[f32],
    sigma: &Tensor<B>,
) -> Result<(Tensor<B>, Option<Kept<B>>)> {
    if changed.is_empty() {
        return Ok((noise, None));
    }
    let image = Tensor::concat_rows(&changed.iter().collect::<Vec<_>>())?;
    let rows = noise.rows();
    let nothing = backend.upload(&vec![0.0; rows], rows, 1)?;
    let latents = noise.row_view(0..rows).inpaint_blend(&noise, &image, &nothing, sigma)?;
    let kept = || Ok(Kept { noise, image, mask: backend.upload(cells, rows, 1)? });
    Ok((latents, (!cells.is_empty()).then(kept).transpose()?))
}

/// The first batch of images of a session.
struct Batch<'a, B: Backend> {
    residency: &'a Residency<B>,
    transformer: &'a Arc<Transformer<B>>,
    /// Its adapters.
    set: &'a SetKey,
    prepared: &'a Prepared,
    /// Images that are wanted in it; it has as many as memory allows, at least one.
    wanted: usize,
}

type BatchWork<B> = Arc<RepeatedWork<Steps<B>, B>>;

/// Tells apart batches of one shape.
fn kind<B: Backend>(steps: &Steps<B>) -> u64 {
    (2 * steps.samples() + usize::from(steps.evaluations == Evaluations::Batched)) as u64
}

impl<B: Backend> Batch<'_, B> {
    /// What the steps of such a batch read, if there was one.
    fn find(&self, cached: Option<&Arc<KeyCache<B>>>) -> Option<BatchWork<B>> {
        self.residency.steps.find(|(of, shape): &(SetKey, BatchShape), steps: &Arc<Steps<B>>| {
            of == self.set
                && shape.serves(&self.prepared.plan, self.wanted)
                && Arc::ptr_eq(&steps.transformer, self.transformer)
                && steps.cached.as_ref().map(Arc::as_ptr) == cached.map(Arc::as_ptr)
        })
    }

    /// Bytes that the batch may take. Makes room for it where it was not `found`; of `count` images there may be more
    /// batches.
    fn make_room(&self, found: Option<&RepeatedWork<Steps<B>, B>>, count: usize) -> u64 {
        let Self { residency, prepared, .. } = self;
        let needs = &prepared.needs;
        if let Some(found) = found {
            return needs.batch(found.reads().samples()).max(residency.available_bytes(prepared));
        }
        if residency.available_bytes(prepared) < needs.batch(self.wanted) {
            residency.free_shapes();
            // The text encoder has done its work for all of them.
            if count > 1 {
                residency.free_text_encoder();
            }
            // Earlier images may have been smaller.
            residency.make_room(needs.step, Component::Transformer);
        }
        residency.available_bytes(prepared)
    }

    /// What the steps of the batch read where so many bytes are available on each device.
    fn make(&self, cached: Option<Arc<KeyCache<B>>>, available: u64) -> Result<BatchWork<B>> {
        let Self { residency, transformer, set, prepared: Prepared { plan, needs, .. }, wanted } = *self;
        let (backend, info, sharing) = (residency.backend(), residency.info(), needs.sharing);
        let samples = needs.samples(available, wanted);
        let (batch, turns) = if needs.in_turn { (1, samples) } else { (samples, 1) };
        let (height, width) = info.latent_size(plan);
        // A half of the devices makes one of the two evaluations, which are those of no batch then.
        let evaluated = evaluated(backend, sharing, plan).start;
        let txt = plan.text()[evaluated];
        let own_negative = plan.guided() && sharing == Sharing::Group && plan.negative_tokens != txt;
        let evaluations = match sharing {
            Sharing::Half => Evaluations::Halved { has_prompt: evaluated == 0 },
            Sharing::Group if !own_negative && needs.batched(available, samples) => Evaluations::Batched,
            Sharing::Group => Evaluations::InTurn,
        };
        let references = if cached.is_some() { Vec::new() } else { info.reference_sizes(plan) };
        let sequence = |txt: usize| {
            let tokens = references.iter().map(|[height, width]| height * width).sum();
            let layout = TokenLayout { references: tokens, ..TokenLayout::new(batch, txt, height * width) };
            let split = TokenSplit::shared(layout, sharing, backend.rank(), backend.world());
            Ok::<_, Error>((transformer.rope(&split, &references, [height, width])?, split))
        };
        let (rope, split) = sequence(txt)?;
        let steps = Steps {
            transformer: Arc::clone(transformer),
            rope,
            split,
            turns,
            negative: own_negative.then(|| sequence(plan.negative_tokens)).transpose()?,
            cached,
            guidance: plan.guided().then_some(plan.guidance),
            evaluations,
        };
        Ok(residency.steps.insert((set.clone(), BatchShape::new(plan, wanted, samples)), Arc::new(steps)))
    }
}

/// The modulations and lengths of all steps of a schedule.
fn schedule<B: Backend>(
    residency: &Residency<B>,
    transformer: &Transformer<B>,
    set: &SetKey,
    schedule: &Schedule,
) -> Result<Arc<Schedules<B>>> {
    let key = (set.clone(), schedule.sigmas.iter().map(|sigma| sigma.to_bits()).collect());
    let schedules = || residency.schedules.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = schedules().get(&key) {
        return Ok(Arc::clone(found));
    }
    let modulations = transformer.modulations(&schedule.times())?;
    let (backend, dts, sigmas) = (residency.backend(), schedule.dts(), &schedule.sigmas);
    let made = Arc::new(Schedules {
        modulations,
        dts: backend.upload(&dts, dts.len(), 1)?,
        sigmas: backend.upload_f32(sigmas, sigmas.len(), 1)?,
    });
    schedules().put(key, Arc::clone(&made));
    Ok(made)
}

/// Which of the evaluations of a step this device takes part in.
fn evaluated<B: Backend>(backend: &B, sharing: Sharing, plan: &Plan) -> Range<usize> {
    match sharing {
        Sharing::Group => 0..plan.text().len(),
        Sharing::Half => {
            let half = 2 * backend.rank() / backend.world();
            half..half + 1
        }
    }
}

/// The rows that this device has of those of a text: `own` of so many.
fn within(text: Range<usize>, own: impl Fn(usize) -> Range<usize>) -> Range<usize> {
    let own = own(text.len());
    text.start + own.start..text.start + own.end
}

/// These rows of the text features.
fn own_text<B: Backend>(txt: &Tensor<B>, rows: &[Range<usize>]) -> Result<Tensor<B>> {
    if rows.iter().cloned().flatten().eq(0..txt.rows()) {
        return Ok(txt.row_view(0..txt.rows()));
    }
    let views: Vec<_> = rows.iter().map(|rows| txt.row_view(rows.clone())).collect();
    Tensor::concat_rows(&views.iter().collect::<Vec<_>>())
}

/// Tokens `own` of each image of `tokens` tokens.
fn own_values(values: &[f32], tokens: usize, own: Range<usize>, channels: usize) -> Cow<'_, [f32]> {
    if own.len() == tokens {
        return Cow::Borrowed(values);
    }
    let images = values.chunks_exact(tokens * channels);
    Cow::Owned(images.flat_map(|image| &image[own.start * channels..own.end * channels]).copied().collect())
}
