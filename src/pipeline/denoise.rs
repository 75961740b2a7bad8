//! Noise to latents: the steps of one batch, one call each.

use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use super::adapters::{AdapterSet, SetKey};
use super::memory::Needs;
use super::progress::Caller;
use super::residency::{Component, Residency};
use super::steps::{BatchShape, Schedules, Steps};
use super::timings::Clock;
use super::{Plan, Stage};
use crate::backend::{Backend, RepeatedWork};
use crate::error::{Error, Result};
use crate::sampler::{Noise, Schedule};
use crate::tensor::Tensor;
use crate::transformer::Transformer;

/// The most steps that are enqueued and not done. With two of them the device has the next step while the host prepares
/// another, and a session that is cancelled ends within about a step.
pub(super) const STEPS_IN_FLIGHT: usize = 2;

/// A batch that is being denoised.
pub(super) struct Denoising<B: Backend> {
    work: Arc<RepeatedWork<Steps<B>, B>>,
    /// Whether an image of this shape was made before, so that the work may be captured as a CUDA graph.
    capture: bool,
    schedule: Arc<Schedules<B>>,
    context: Tensor<B>,
    latents: Tensor<B>,
    step: usize,
    steps: usize,
    remark: Option<String>,
}

impl<B: Backend> Denoising<B> {
    /// Does everything before the first step, for at most `count` images. `noise` is the thread that draws the noise.
    ///
    /// Errors when memory runs out, or the caller cancels.
    pub(super) fn prepare(
        residency: &Residency<B>,
        txt: &Tensor<B>,
        noise: JoinHandle<Noise>,
        (plan, count, set): (&Plan, usize, &AdapterSet),
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<(Self, Noise)> {
        let (info, backend) = (&residency.info, &residency.backend);
        let needs = Needs::of(backend, info, plan);
        let transformer = residency.transformer(&needs, caller, clock)?;
        let adapted = match set.is_empty() {
            true => None,
            false => Some(residency.adapted(&transformer, set, &needs, caller, clock)?),
        };
        let remark = adapted.as_ref().map(|adapted| adapted.remark.clone());
        let transformer = adapted.map_or(transformer, |adapted| Arc::clone(&adapted.transformer));
        let work = batch(residency, &transformer, &needs, plan, (count, set.key()))?;
        let (height, width) = info.latent_size(plan);
        let schedule = schedule(residency, &transformer, set.key(), [height * width, plan.steps])?;
        let samples = work.reads().samples;
        let context = repeat(transformer.context(txt)?, info.max_sequence_length, samples)?;
        let noise = noise.join().map_err(|_| Error::new("the thread that draws the noise panicked"))?;
        let (rows, channels) = (samples * height * width, info.transformer.in_channels);
        let latents = backend.upload(&noise.values()[..rows * channels], rows, channels)?;
        clock.prepared()?;
        let capture = work.seen_before();
        Ok((Self { work, capture, schedule, context, latents, step: 0, steps: plan.steps, remark }, noise))
    }

    /// How the transformer has its adapters, if it has any.
    pub(super) fn remark(&self) -> Option<&str> {
        self.remark.as_deref()
    }

    /// Images of the batch.
    pub(super) fn samples(&self) -> usize {
        self.work.reads().samples
    }

    /// Whether all steps were enqueued.
    pub(super) fn is_done(&self) -> bool {
        self.step == self.steps
    }

    /// Latents [samples * height / patch * width / patch, channels].
    pub(super) fn latents(&self) -> &Tensor<B> {
        &self.latents
    }

    /// [`Denoising::latents`]; frees everything else.
    pub(super) fn into_latents(self) -> Tensor<B> {
        self.latents
    }

    /// Enqueues the next step, after waiting until fewer than [`STEPS_IN_FLIGHT`] are in flight.
    pub(super) fn step(&mut self, backend: &B, caller: &Caller<'_>, clock: &mut Clock<B>) -> Result<()> {
        if self.step == 0 {
            caller.report(Stage::Denoise, 0, self.steps as u64);
        }
        if let Some(before) = self.step.checked_sub(STEPS_IN_FLIGHT) {
            clock.wait_step(before)?;
        }
        caller.check()?;
        let Schedules { modulations, dts } = &*self.schedule;
        let (modulation, dt) = (modulations.row(self.step), dts.row_view(self.step..self.step + 1));
        let inputs = [&self.latents, &self.context, &modulation, &dt];
        self.latents = self.work.run(backend, self.capture, inputs, Steps::step)?;
        self.step += 1;
        clock.stepped()?;
        caller.report(Stage::Denoise, clock.steps_done()? as u64, self.steps as u64);
        Ok(())
    }
}

/// What the steps of the first batch of `count` images like `plan` read. The batch has as many images as memory allows,
/// at least one.
fn batch<B: Backend>(
    residency: &Residency<B>,
    transformer: &Arc<Transformer<B>>,
    needs: &Needs,
    plan: &Plan,
    (count, set): (usize, &SetKey),
) -> Result<Arc<RepeatedWork<Steps<B>, B>>> {
    let (backend, info) = (&residency.backend, &residency.info);
    let wanted = needs.wanted(plan, count);
    let fits = |(of, shape): &(SetKey, BatchShape), steps: &Arc<Steps<B>>| {
        of == set && shape.serves(plan, wanted) && Arc::ptr_eq(&steps.transformer, transformer)
    };
    if let Some(found) = residency.steps.find(fits) {
        return Ok(found);
    }
    if backend.available_bytes() < needs.batch(plan, wanted) {
        residency.free_shapes();
        // The text encoder has done its work for all of them.
        if count > 1 {
            residency.free_text_encoder();
        }
        // Earlier images may have been smaller.
        residency.make_room(needs.step, Component::Transformer);
    }
    let available = backend.available_bytes();
    let samples = needs.samples(available, plan, wanted);
    let (height, width) = info.latent_size(plan);
    let txt = info.max_sequence_length;
    let steps = Steps {
        transformer: Arc::clone(transformer),
        rope: transformer.rope(txt, height, width)?,
        txt,
        samples,
        guidance: plan.guided().then_some(plan.guidance),
        batched: needs.batched(available, samples),
    };
    Ok(residency.steps.insert((set.clone(), BatchShape::new(plan, wanted, samples)), Arc::new(steps)))
}

/// The modulations and lengths of all `steps` steps of an image of `tokens` tokens.
fn schedule<B: Backend>(
    residency: &Residency<B>,
    transformer: &Transformer<B>,
    set: &SetKey,
    [tokens, steps]: [usize; 2],
) -> Result<Arc<Schedules<B>>> {
    let schedules = || residency.schedules.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (set.clone(), [tokens, steps]);
    if let Some(found) = schedules().get(&key) {
        return Ok(Arc::clone(found));
    }
    let schedule = Schedule::new(tokens, steps);
    let modulations = transformer.modulations(&schedule.timesteps)?;
    let made = Arc::new(Schedules { modulations, dts: residency.backend.upload(&schedule.dts(), steps, 1)? });
    schedules().put(key, Arc::clone(&made));
    Ok(made)
}

/// `context` with the `txt` rows of each prompt repeated `samples` times.
fn repeat<B: Backend>(context: Tensor<B>, txt: usize, samples: usize) -> Result<Tensor<B>> {
    if samples == 1 {
        return Ok(context);
    }
    let prompts = (0..context.rows() / txt).map(|prompt| context.row_view(prompt * txt..(prompt + 1) * txt));
    let parts: Vec<Tensor<B>> = prompts.flat_map(|rows| (0..samples).map(move |_| rows.row_view(0..txt))).collect();
    Tensor::concat_rows(&parts.iter().collect::<Vec<_>>())
}
