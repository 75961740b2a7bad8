//! Denoising from noise to latents: the steps of one batch, one call each.

use std::mem;
use std::sync::Arc;

use crate::backend::{Backend, RepeatedWork};
use crate::error::Result;
use crate::pipeline::request::adapters::AdapterSet;
use crate::pipeline::residency::Residency;
use crate::pipeline::residency::adapted_cache::Adapted;
use crate::pipeline::residency::frame_store::FrameKeys;
use crate::pipeline::residency::prepared::Prepared;
use crate::pipeline::residency::steps::{Schedules, Steps};
use crate::pipeline::residency::steps_in_flight::StepsInFlight;
use crate::pipeline::residency::timings::{Clock, Span};
use crate::pipeline::session::batch::{Batch, Kept};
use crate::pipeline::session::contexts::Contexts;
use crate::pipeline::session::frame::{Frame, partial_steps};
use crate::pipeline::session::partial::PartialSteps;
use crate::pipeline::session::references::{ImageLatents, Images};
use crate::pipeline::session::text::TextFeatures;
use crate::sampler::{Drawing, Noise};
use crate::stage::Caller;
use crate::stage::Stage;
use crate::tensor::Tensor;
use crate::transformer::Transformer;

/// Maximum number of steps in flight. With two, the device has the next step while the host prepares another, and a
/// cancelled session ends within about a step.
pub(crate) const STEPS_IN_FLIGHT: usize = 2;

/// A batch that is being denoised.
pub(crate) struct Denoising<B: Backend> {
    work: Arc<RepeatedWork<Steps<B>, B>>,
    /// `true` if an image of this shape was generated before, so that the work may be captured as a CUDA graph.
    capture: bool,
    schedule: Arc<Schedules<B>>,
    context: Box<Contexts<B>>,
    /// The data that restores unmasked areas after each step, if an image has a mask.
    kept: Option<Kept<B>>,
    /// The latents of this device; after the last step is enqueued, or with tiles, the latents of all devices.
    latents: Tensor<B>,
    step: usize,
    first_step: usize,
    steps: usize,
    /// The noise level before each step, and after the last.
    sigmas: Vec<f32>,
    /// The latents before the last step, if predictions are requested.
    before: Option<Tensor<B>>,
    in_flight: StepsInFlight<B>,
    /// The transformer with adapters, if there are any.
    adapted: Option<Arc<Adapted<B>>>,
    /// Steps that compute only some tokens, if most steps do so.
    partial: Option<Box<PartialSteps<B>>>,
}

/// The inputs of denoising.
pub(crate) struct DenoiseInputs<'a, B: Backend> {
    pub txt: &'a TextFeatures<B>,
    /// The images and latents of each item.
    pub images: Vec<(&'a Images, ImageLatents<B>)>,
    /// The seed of each item.
    pub seeds: &'a [u64],
    pub adapters: &'a AdapterSet,
    /// The part of a video frame to compute, if tokens may be reused.
    pub frame: Option<Frame<B>>,
}

impl<B: Backend> Denoising<B> {
    /// Prepares everything before the first step, for at most `count` images.
    ///
    /// Errors if memory runs out, or the caller cancels.
    pub(crate) fn prepare(
        residency: &Residency<B>,
        DenoiseInputs { txt, images, seeds, adapters, frame }: DenoiseInputs<'_, B>,
        noise: Drawing,
        (prepared, count): (&Prepared, usize),
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<(Self, Noise)> {
        let (transformer, adapted) = adapted_transformer(residency, adapters, prepared, caller, clock)?;
        let batch = Batch { residency, transformer: &transformer, set: adapters.key(), prepared, count };
        let work = batch.work(&images, clock)?;
        let (samples, turns) = (work.reads().samples(), work.reads().turns);
        prepared.resize(samples);
        let levels = batch.levels()?;
        let schedule = batch.schedule(&levels)?;
        let (texts, prompt) = batch.texts(txt, samples)?;
        let references = batch.references(&images[..turns])?;
        let early = batch.early_results(&levels, samples);
        let first = batch.varied_texts(txt, &seeds[..samples])?;
        let context = Box::new(Contexts::new(&transformer, (first, texts), references, early)?);
        let drawn = noise.finish()?;
        let (latents, kept) = batch.first_latents(&drawn, &images[..samples], &schedule)?;
        clock.end(Span::Prepare)?;
        // A graph would not hold copies of streamed weights, and tiles are too large to gain from one.
        let is_tiled = work.reads().tiles.is_some();
        let may_capture = prepared.memory.graphs && !is_tiled && !transformer.block_weights().are_streamed();
        let capture = work.was_run() && may_capture;
        let partial = partial_steps(residency, prepared, (images[0].0, frame, prompt), work.reads())?.map(Box::new);
        let denoising = Self {
            work,
            capture,
            schedule,
            context,
            kept,
            latents,
            step: prepared.plan.first_step,
            first_step: prepared.plan.first_step,
            steps: prepared.plan.steps,
            sigmas: levels.sigmas,
            before: None,
            in_flight: StepsInFlight::new(residency.backend().clone()),
            adapted,
            partial,
        };
        Ok((denoising, drawn))
    }

    /// Returns the transformer with adapters, if there are any.
    pub(crate) fn adapted(&self) -> Option<&Adapted<B>> {
        self.adapted.as_deref()
    }

    /// Returns the number of images in the batch.
    pub(crate) fn samples(&self) -> usize {
        self.work.reads().samples()
    }

    /// Returns `true` if all steps are enqueued.
    pub(crate) fn is_done(&self) -> bool {
        self.step == self.steps
    }

    /// Returns the latents [samples * height / patch * width / patch, channels], complete after all steps are
    /// enqueued.
    pub(crate) fn latents(&self) -> &Tensor<B> {
        &self.latents
    }

    /// Returns [`Denoising::latents`], the steps that compute them, and the cacheable keys of a frame; frees
    /// everything else.
    pub(crate) fn into_latents(self) -> (Tensor<B>, StepsInFlight<B>, Option<FrameKeys<B>>) {
        let keys = self.partial.and_then(|partial| partial.into_frame(&self.latents));
        (self.latents, self.in_flight, keys)
    }

    /// Enables [`Denoising::predicted`]. Returns `false` if this device has only a part of the latents.
    pub(crate) fn watch(&mut self, backend: &B) -> bool {
        let watched = backend.world() == 1 && self.partial.as_ref().is_none_or(|partial| partial.has_all_latents());
        self.before = watched.then(|| self.latents.row_view(0..self.latents.rows()));
        watched
    }

    /// Returns the latents that the steps so far lead to in a straight line, [samples * tokens, channels]; `None`
    /// without [`Denoising::watch`], and before the first step.
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
            self.latents = match self.work.reads().tiles {
                Some(_) => own,
                None => own.all_gather_rows(&split.image_rows())?,
            };
        }
        self.in_flight.push(clock.end(Span::Step)?);
        caller.report(Stage::Denoise, self.in_flight.done()? as u64, total);
        Ok(())
    }
}

impl<B: Backend> Denoising<B> {
    /// Returns the input latents of the step that computes the keys and values for all later steps; `None` for other
    /// steps. In these latents, unmasked areas have the low noise of the last step's level `last`: at the first
    /// step's own level, they would be hardly visible.
    ///
    /// Errors if memory runs out.
    fn shown(&self, last: &Tensor<B>) -> Result<Option<Tensor<B>>> {
        let makes_keys = self.partial.as_ref().is_some_and(|partial| partial.makes_keys());
        let Some(Kept { noise, image, mask }) = self.kept.as_ref().filter(|_| makes_keys) else { return Ok(None) };
        self.latents.row_view(0..self.latents.rows()).inpaint_blend(noise, image, mask, last).map(Some)
    }
}

/// A transformer, and what adapted it.
type MaybeAdapted<B> = (Arc<Transformer<B>>, Option<Arc<Adapted<B>>>);

/// Loads the transformer, with these adapters. Also returns the adapted transformer, if there are any.
///
/// Errors if memory runs out, or the caller cancels.
fn adapted_transformer<B: Backend>(
    residency: &Residency<B>,
    adapters: &AdapterSet,
    prepared: &Prepared,
    caller: &Caller<'_>,
    clock: &mut Clock<B>,
) -> Result<MaybeAdapted<B>> {
    let transformer = residency.transformer(prepared, caller, clock)?;
    if adapters.is_empty() {
        return Ok((transformer, None));
    }
    let adapted = residency.adapted(&transformer, adapters, &prepared.needs, caller, clock)?;
    Ok((Arc::clone(&adapted.transformer), Some(adapted)))
}
