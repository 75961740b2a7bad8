//! Decoding of latents to pixels, one image at a time: decoding a whole batch at once would need many times the
//! memory.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::backend::{Backend, Bands, RepeatedWork};
use crate::error::{Error, Result};
use crate::pipeline::request::plan::Plan;
use crate::pipeline::residency::Residency;
use crate::pipeline::residency::prepared::Prepared;
use crate::pipeline::residency::steps_in_flight::StepsInFlight;
use crate::pipeline::residency::timings::{Clock, Span};
use crate::pipeline::session::agreement;
use crate::pipeline::session::denoise::STEPS_IN_FLIGHT;
use crate::stage::Caller;
use crate::stage::Stage;
use crate::tensor::Tensor;
use crate::vae::{Band, ImageDecoder};

/// A batch that is being decoded.
pub(crate) struct Decoding<B: Backend> {
    work: Arc<RepeatedWork<ImageDecoder<B>, B>>,
    latents: Tensor<B>,
    /// The size of one image in packed latents.
    height: usize,
    width: usize,
    steps: usize,
    samples: usize,
    /// The steps that compute the latents.
    in_flight: StepsInFlight<B>,
    enqueued: usize,
    taken: usize,
    /// `true` if there is memory for a CUDA graph.
    may_capture: bool,
    bands: Bands,
    /// Pixels that are enqueued but not taken yet.
    waiting: VecDeque<B::Rgb8>,
}

impl<B: Backend> Decoding<B> {
    /// Prepares everything before the first image.
    ///
    /// Errors if memory runs out, or the caller cancels.
    pub(crate) fn prepare(
        residency: &Residency<B>,
        (latents, in_flight): (Tensor<B>, StepsInFlight<B>),
        prepared: &Prepared,
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<Self> {
        let (decoder, plan) = (residency.image_decoder(prepared, caller, clock)?, &prepared.plan);
        let (height, width) = residency.info().latent_size(plan);
        let decodes = &residency.decodes;
        let found = decodes.find(|size, reads| *size == [height, width] && reads.is(&decoder));
        let work = found.unwrap_or_else(|| decodes.insert([height, width], Arc::new(decoder)));
        let (samples, steps) = (latents.rows() / (height * width), plan.steps_to_run());
        let (waiting, may_capture, bands) = (VecDeque::new(), prepared.memory.graphs, prepared.memory.bands);
        Ok(Self {
            work,
            latents,
            height,
            width,
            steps,
            samples,
            in_flight,
            enqueued: 0,
            taken: 0,
            may_capture,
            bands,
            waiting,
        })
    }

    /// Returns the RGB bytes of the next image; `None` after the last.
    ///
    /// Errors if memory runs out, a pixel is not a number, or the caller cancels.
    pub(crate) fn next(
        &mut self,
        backend: &B,
        plan: &Plan,
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<Option<Vec<u8>>> {
        if self.taken == self.samples {
            return Ok(None);
        }
        caller.check()?;
        let is_idle = clock.is_idle()?;
        let (first, steps_done) = (self.taken == 0, self.in_flight.done()?);
        if first {
            caller.report(Stage::Denoise, steps_done as u64, self.steps as u64);
        }
        if self.enqueued == self.taken {
            self.enqueue(backend, plan, caller, clock, is_idle)?;
        }
        // Enqueues the next image before taking this one, so that the device has work in the meantime. A backend that
        // computes while the host enqueues, such as the CPU, is idle here: this image is ready, and computing the
        // next one first would only delay it.
        if self.enqueued < self.samples && !clock.is_idle()? {
            self.enqueue(backend, plan, caller, clock, false)?;
        }
        if first {
            // The host now waits for the last steps anyway, so it reports each of them.
            for step in self.steps.saturating_sub(STEPS_IN_FLIGHT)..self.steps {
                self.in_flight.wait(step)?;
                if step >= steps_done {
                    caller.report(Stage::Denoise, step as u64 + 1, self.steps as u64);
                }
            }
        }
        let rgb = self.waiting.pop_front().expect("enqueued above");
        let rgb = backend.take_rgb8(rgb)?;
        clock.taken();
        self.taken += 1;
        self.report(self.taken, 0, caller);
        Ok(Some(rgb))
    }

    /// Returns the number of images that were taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    fn report(&self, images: usize, stages: usize, caller: &Caller<'_>) {
        let of_one = self.work.reads().stages();
        caller.report(Stage::Decode, (images * of_one + stages) as u64, (self.samples * of_one) as u64);
    }

    /// Enqueues the next image. If the device is busy, the decoder's stages are enqueued long before they run, so
    /// they are reported only if `is_idle`.
    fn enqueue(
        &mut self,
        backend: &B,
        plan: &Plan,
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
        is_idle: bool,
    ) -> Result<()> {
        let report = |stages| {
            if is_idle {
                self.report(self.enqueued, stages, caller);
            }
            caller.check()
        };
        report(0)?;
        agreement::decoder(backend)?;
        let tokens = self.height * self.width;
        let latents = self.latents.row_view(self.enqueued * tokens..(self.enqueued + 1) * tokens);
        let band = Band::new(self.height, backend.rank(), backend.world());
        let work = |decoder: &ImageDecoder<B>, [latents]: [&Tensor<B>; 1]| {
            let pixels = decoder.forward(latents, [self.height, self.width], band, report)?;
            if (pixels.height, pixels.width) == (plan.height, plan.width) {
                return Ok(pixels.pixels);
            }
            Err(Error::new(format!(
                "the VAE returned {} x {} pixels for a {} x {} image",
                pixels.width, pixels.height, plan.width, plan.height
            )))
        };
        let graphed = self.work.was_run() && self.may_capture;
        let run = || self.work.run(backend, graphed, [&latents], work);
        let pixels = backend.with_max_resident(self.bands.max_resident(), run)?;
        if self.enqueued == 0 {
            clock.enqueued(self.in_flight.waited());
            // This takes host time, which overlaps with the device's work.
            backend.settle()?;
        }
        self.waiting.push_back(backend.rgb8(&pixels)?);
        clock.end(Span::Decode)?;
        self.enqueued += 1;
        Ok(())
    }
}
