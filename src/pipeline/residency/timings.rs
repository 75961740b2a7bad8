//! Where the time of a session goes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::backend::{Backend, Stats};
use crate::error::Result;

/// Where the time of a batch went, in seconds, and what the device held. The times are of all its images together.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Timings {
    /// Images of the batch.
    pub images: usize,
    /// Loading weights to the device, as far as the device had nothing else to do meanwhile.
    pub load_s: f64,
    /// Bringing the factors of adapters to the device, in a session whose set of adapters is not cached.
    pub factors_s: f64,
    /// Merging them into copies of the weights that they change.
    pub merge_s: f64,
    /// Text encoder.
    pub text_s: f64,
    /// How many prompts the text encoder read, the empty one of guidance included. Cached prompts are not read again.
    pub prompts_encoded: usize,
    /// How often a text or references went through blocks of their own, for as many steps as were made at once. What
    /// is cached does not again.
    pub early_passes: usize,
    /// Tokens that went through the blocks, of all steps, where some were kept from another step or image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenCount>,
    /// The VAE's encoder, for the images that are given. Those that are cached are not encoded again.
    pub encode_s: f64,
    /// Keys and values of the references, for models that make them once. Those that are cached are not made again.
    pub references_s: f64,
    /// Modulations, positions, text projection and noise.
    pub prepare_s: f64,
    /// Each step.
    pub steps_s: Vec<f64>,
    /// VAE, to pixels as bytes on the device; with several images also the time in between in which the device had no
    /// work.
    pub decode_s: f64,
    /// Time of the host until the first image was enqueued, without its waits for steps. The device works meanwhile.
    pub enqueue_s: f64,
    /// From the session's start until its last image was on the host, including what the caller did meanwhile.
    pub total_s: f64,
    /// The backend's counters at the end.
    pub device: Stats,
    /// The same of the other devices that made the images together, in the order of ranks from the second on. Only the
    /// first device has them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub other_devices: Vec<Timings>,
}

/// Tokens of all steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TokenCount {
    /// That were computed.
    pub computed: u64,
    /// That there are.
    pub all: u64,
}

impl TokenCount {
    /// With those of another count.
    pub fn plus(self, other: Self) -> Self {
        Self { computed: self.computed + other.computed, all: self.all + other.all }
    }
}

/// A stopwatch: makes [`Timings`] from events in the device's work. An event costs no wait.
pub(crate) struct Clock<B: Backend> {
    backend: B,
    start: Instant,
    first: B::Event,
    /// The event at the end of each span, and what the device did in it. They are read when all work is done.
    spans: Vec<(Arc<B::Event>, Span)>,
    prompts_encoded: usize,
    early_passes: usize,
    tokens: Option<TokenCount>,
    enqueued: Duration,
    total: Duration,
}

#[derive(Clone, Copy)]
enum Span {
    Load,
    Factors,
    Merge,
    Text,
    Encode,
    References,
    Prepare,
    Step,
    Decode,
}

impl<B: Backend> Clock<B> {
    pub(crate) fn new(backend: B) -> Result<Self> {
        let first = backend.event()?;
        Ok(Self {
            backend,
            start: Instant::now(),
            first,
            spans: Vec::new(),
            prompts_encoded: 0,
            early_passes: 0,
            tokens: None,
            enqueued: Duration::ZERO,
            total: Duration::ZERO,
        })
    }

    fn end(&mut self, span: Span) -> Result<()> {
        self.spans.push((Arc::new(self.backend.event()?), span));
        Ok(())
    }

    pub(crate) fn loaded(&mut self) -> Result<()> {
        self.end(Span::Load)
    }

    /// The factors of adapters are beside the weights.
    pub(crate) fn factors_loaded(&mut self) -> Result<()> {
        self.end(Span::Factors)
    }

    /// They are merged.
    pub(crate) fn merged(&mut self) -> Result<()> {
        self.end(Span::Merge)
    }

    /// The text encoder read so many prompts.
    pub(crate) fn ran_text_encoder(&mut self, prompts: usize) {
        self.prompts_encoded += prompts;
    }

    /// Texts or references went through blocks of their own so many times.
    pub(crate) fn ran_early_blocks(&mut self, passes: usize) {
        self.early_passes += passes;
    }

    /// So many of the tokens of a step were computed, and the others kept.
    pub(crate) fn computed_tokens(&mut self, count: TokenCount) {
        self.tokens = Some(self.tokens.unwrap_or_default().plus(count));
    }

    /// The text features are enqueued.
    pub(crate) fn encoded(&mut self) -> Result<()> {
        self.end(Span::Text)
    }

    /// The latents of the images that are given are enqueued.
    pub(crate) fn images_encoded(&mut self) -> Result<()> {
        self.end(Span::Encode)
    }

    /// Keys and values of the references are enqueued.
    pub(crate) fn references_cached(&mut self) -> Result<()> {
        self.end(Span::References)
    }

    pub(crate) fn prepared(&mut self) -> Result<()> {
        self.end(Span::Prepare)
    }

    pub(crate) fn decoded(&mut self) -> Result<()> {
        self.end(Span::Decode)
    }

    /// A step was enqueued. Returns the event at its end.
    pub(crate) fn stepped(&mut self) -> Result<Arc<B::Event>> {
        let end = Arc::new(self.backend.event()?);
        self.spans.push((Arc::clone(&end), Span::Step));
        Ok(end)
    }

    /// Whether the device has done all that was enqueued up to the last event; does not wait.
    pub(crate) fn is_idle(&self) -> Result<bool> {
        self.spans.last().map_or(Ok(true), |(event, _)| self.backend.is_done(event))
    }

    /// The first image is enqueued, except its copy to the host. Meanwhile the host `waited` so long for steps.
    pub(crate) fn enqueued(&mut self, waited: Duration) {
        self.enqueued = self.start.elapsed().saturating_sub(waited);
    }

    /// An image is on the host.
    pub(crate) fn taken(&mut self) {
        self.total = self.start.elapsed();
    }

    /// Waits for the last event and reads all spans.
    pub(crate) fn finish(self) -> Result<Timings> {
        let mut timings = Timings {
            total_s: self.total.as_secs_f64(),
            prompts_encoded: self.prompts_encoded,
            early_passes: self.early_passes,
            tokens: self.tokens,
            enqueue_s: self.enqueued.as_secs_f64(),
            ..Timings::default()
        };
        if let Some((event, _)) = self.spans.last() {
            self.backend.wait(event)?;
        }
        let mut from = &self.first;
        for (event, span) in &self.spans {
            let event: &B::Event = event;
            let seconds = self.backend.elapsed(from, event)?.as_secs_f64();
            match span {
                Span::Load => timings.load_s += seconds,
                Span::Factors => timings.factors_s += seconds,
                Span::Merge => timings.merge_s += seconds,
                Span::Text => timings.text_s += seconds,
                Span::Encode => timings.encode_s += seconds,
                Span::References => timings.references_s += seconds,
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
