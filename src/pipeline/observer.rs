//! Progress and times.

use std::time::Instant;

use serde::Serialize;

use crate::backend::{Backend, Stats};
use crate::error::Result;

/// What the pipeline is busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Weights to a file that holds them in e4m3; counts elements.
    Quantise,
    /// Weights to the device, once for each model; counts elements.
    Load,
    /// Text encoder; counts layers.
    Text,
    /// Transformer; counts steps.
    Denoise,
    /// VAE; counts stages.
    Decode,
}

/// Hears how far the pipeline is.
pub trait Observer {
    /// `done` of `total` parts of a stage are done.
    fn progress(&mut self, stage: Stage, done: u64, total: u64);

    /// Of the images that are asked for, the next `together` are denoised as one batch.
    fn batch(&mut self, _together: usize) {}

    /// Whether anybody does: only then the host waits for each step to tell that it is done.
    fn listens(&self) -> bool {
        true
    }
}

/// Nobody listens.
impl Observer for () {
    fn progress(&mut self, _stage: Stage, _done: u64, _total: u64) {}
    fn listens(&self) -> bool {
        false
    }
}

/// Where the time went, in seconds, and what the device held. Of all images of one batch together.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Timings {
    /// Images of the batch.
    pub images: usize,
    /// Weights to the device, as far as the device had nothing else to do meanwhile.
    pub load_s: f64,
    /// Text encoder.
    pub text_s: f64,
    /// Prompts that the text encoder read, the empty one of guidance included; those that it read before are not read
    /// again.
    pub prompts_encoded: usize,
    /// Modulations, positions, text projection and noise.
    pub prepare_s: f64,
    /// Each step.
    pub steps_s: Vec<f64>,
    /// VAE, to pixels as bytes on the device; of several images also the way of those before to the host, where
    /// somebody listens.
    pub decode_s: f64,
    /// Of the host, until the first image was enqueued; the device works meanwhile.
    pub enqueue_s: f64,
    /// All of [`generate`](super::Pipeline::generate) or [`generate_batch`](super::Pipeline::generate_batch).
    pub total_s: f64,
    /// The backend's counters at the end.
    pub device: Stats,
}

/// Turns events in the device's work into [`Timings`]; an event costs no wait.
pub(super) struct Clock<B: Backend> {
    backend: B,
    start: Instant,
    last: B::Event,
    /// Spans that are read when all work is done: (event before, event behind, which).
    spans: Vec<(B::Event, Span)>,
    steps_done: usize,
    prompts_encoded: usize,
    enqueue_s: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum Span {
    Load,
    Text,
    Prepare,
    Step,
    Decode,
}

impl<B: Backend> Clock<B> {
    pub(super) fn new(backend: B) -> Result<Self> {
        let last = backend.event()?;
        Ok(Self {
            backend,
            start: Instant::now(),
            last,
            spans: Vec::new(),
            steps_done: 0,
            prompts_encoded: 0,
            enqueue_s: 0.0,
        })
    }

    fn end(&mut self, span: Span) -> Result<()> {
        self.spans.push((self.backend.event()?, span));
        Ok(())
    }

    pub(super) fn loaded(&mut self) -> Result<()> {
        self.end(Span::Load)
    }

    /// Text features are there, and `prompts` of them had to be computed.
    pub(super) fn encoded(&mut self, prompts: usize) -> Result<()> {
        self.prompts_encoded += prompts;
        self.end(Span::Text)
    }

    pub(super) fn prepared(&mut self) -> Result<()> {
        self.end(Span::Prepare)
    }

    pub(super) fn decoded(&mut self) -> Result<()> {
        self.end(Span::Decode)
    }

    /// A step was enqueued; how many are done.
    pub(super) fn stepped(&mut self) -> Result<u64> {
        self.end(Span::Step)?;
        let steps = self.spans.iter().filter(|(_, span)| *span == Span::Step);
        for (event, _) in steps.skip(self.steps_done) {
            if !self.backend.is_done(event)? {
                break;
            }
            self.steps_done += 1;
        }
        Ok(self.steps_done as u64)
    }

    /// Everything was enqueued, but for the pixels' way to the host.
    pub(super) fn enqueued(&mut self) {
        self.enqueue_s = self.start.elapsed().as_secs_f64();
    }

    /// Steps that were enqueued but not seen done.
    pub(super) fn remaining_steps(&self) -> std::ops::Range<u64> {
        let enqueued = self.spans.iter().filter(|(_, span)| *span == Span::Step).count();
        self.steps_done as u64..enqueued as u64
    }

    pub(super) fn wait_step(&self, step: u64) -> Result<()> {
        let mut steps = self.spans.iter().filter(|(_, span)| *span == Span::Step);
        steps.nth(step as usize).map_or(Ok(()), |(event, _)| self.backend.wait(event))
    }

    /// Waits for the last event and reads all spans.
    pub(super) fn finish(self) -> Result<Timings> {
        let mut timings = Timings {
            total_s: self.start.elapsed().as_secs_f64(),
            prompts_encoded: self.prompts_encoded,
            enqueue_s: self.enqueue_s,
            ..Timings::default()
        };
        if let Some((event, _)) = self.spans.last() {
            self.backend.wait(event)?;
        }
        let mut from = &self.last;
        for (event, span) in &self.spans {
            let seconds = self.backend.elapsed(from, event)?.as_secs_f64();
            match span {
                Span::Load => timings.load_s += seconds,
                Span::Text => timings.text_s += seconds,
                Span::Prepare => timings.prepare_s += seconds,
                Span::Step => timings.steps_s.push(seconds),
                Span::Decode => {
                    timings.images += 1;
                    timings.decode_s += seconds;
                }
            }
            from = event;
        }
        timings.device = self.backend.stats();
        Ok(timings)
    }
}
