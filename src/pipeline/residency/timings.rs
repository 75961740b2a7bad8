//! Timings of a session.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::backend::{Backend, Stats};
use crate::error::Result;

/// Time spent in each stage of a batch, in seconds, and the device's counters. Times are totals over all images of
/// the batch.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Timings {
    /// Images of the batch.
    pub images: usize,
    /// Loading weights to the device, as far as the device had no other work.
    pub load_s: f64,
    /// Uploading the factors of adapters, if the session's set of adapters is not cached.
    pub factors_s: f64,
    /// Merging factors into copies of the weights that they change.
    pub merge_s: f64,
    /// Text encoder.
    pub text_s: f64,
    /// Prompts that the text encoder read, including the empty one of guidance, without cached prompts.
    pub prompts_encoded: usize,
    /// Passes of a text or of references through the early blocks, each for all steps computed together. Cached
    /// results need no pass.
    pub early_passes: usize,
    /// Tokens that went through the blocks in all steps, if some were cached from another step or image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenCount>,
    /// VAE's encoder for input images, without cached images.
    pub encode_s: f64,
    /// Keys and values of the references, for models that compute them once; without cached ones.
    pub references_s: f64,
    /// Modulations, positions, text projection and noise.
    pub prepare_s: f64,
    /// Each step.
    pub steps_s: Vec<f64>,
    /// VAE's decoder, to pixels as bytes on the device; with several images also idle time of the device in between.
    pub decode_s: f64,
    /// Host time until the first image was enqueued, without waits for steps. The device works in parallel.
    pub enqueue_s: f64,
    /// From the session's start until its last image was on the host, including time of the caller.
    pub total_s: f64,
    /// The backend's counters at the end.
    pub device: Stats,
    /// Timings of the other devices that generated the images together, in the order of ranks from the second on.
    /// Only set on the first device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub other_devices: Vec<Timings>,
}

impl Timings {
    /// Returns the times of a first pass and of the second pass of one of its images, `next`.
    pub(crate) fn followed_by(mut self, next: Self) -> Self {
        for (own, next) in [
            (&mut self.load_s, next.load_s),
            (&mut self.factors_s, next.factors_s),
            (&mut self.merge_s, next.merge_s),
            (&mut self.text_s, next.text_s),
            (&mut self.encode_s, next.encode_s),
            (&mut self.references_s, next.references_s),
            (&mut self.prepare_s, next.prepare_s),
            (&mut self.decode_s, next.decode_s),
            (&mut self.enqueue_s, next.enqueue_s),
            (&mut self.total_s, next.total_s),
        ] {
            *own += next;
        }
        self.prompts_encoded += next.prompts_encoded;
        self.early_passes += next.early_passes;
        self.tokens = self.tokens.into_iter().chain(next.tokens).reduce(TokenCount::plus);
        self.steps_s.extend(next.steps_s);
        self.device = next.device;
        let others = self.other_devices.into_iter().zip(next.other_devices);
        self.other_devices = others.map(|(own, next)| own.followed_by(next)).collect();
        self
    }
}

/// Token counts over all steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TokenCount {
    /// Computed tokens.
    pub computed: u64,
    /// All tokens.
    pub all: u64,
}

impl TokenCount {
    /// Returns the sum of two counts.
    pub fn plus(self, other: Self) -> Self {
        Self { computed: self.computed + other.computed, all: self.all + other.all }
    }
}

/// A stopwatch that measures [`Timings`] with events in the device's work. An event requires no wait.
pub(crate) struct Clock<B: Backend> {
    backend: B,
    start: Instant,
    first: B::Event,
    /// The event at the end of each span, and the span's kind. Events are read when all work is done.
    spans: Vec<(Arc<B::Event>, Span)>,
    prompts_encoded: usize,
    early_passes: usize,
    tokens: Option<TokenCount>,
    enqueued: Duration,
    total: Duration,
}

/// The kinds of work that [`Timings`] measures.
#[derive(Clone, Copy)]
pub(crate) enum Span {
    Load,
    /// The upload of adapter factors.
    Factors,
    /// The merging of adapters.
    Merge,
    /// Text features.
    Text,
    /// The input images' latents.
    Encode,
    /// The references' keys and values.
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

    /// Ends the enqueuing of a span. Returns the event at its end.
    pub(crate) fn end(&mut self, span: Span) -> Result<Arc<B::Event>> {
        let end = Arc::new(self.backend.event()?);
        self.spans.push((Arc::clone(&end), span));
        Ok(end)
    }

    /// Adds prompts that the text encoder read.
    pub(crate) fn ran_text_encoder(&mut self, prompts: usize) {
        self.prompts_encoded += prompts;
    }

    /// Adds passes through early blocks.
    pub(crate) fn ran_early_blocks(&mut self, passes: usize) {
        self.early_passes += passes;
    }

    /// Adds the token counts of a step that computes only some of its tokens.
    pub(crate) fn computed_tokens(&mut self, count: TokenCount) {
        self.tokens = Some(self.tokens.unwrap_or_default().plus(count));
    }

    /// Returns `true` if the device has done all work up to the last event; does not wait.
    pub(crate) fn is_idle(&self) -> Result<bool> {
        self.spans.last().map_or(Ok(true), |(event, _)| self.backend.is_done(event))
    }

    /// Marks the first image as enqueued, except its copy to the host. `waited` is the time that the host waited for
    /// steps.
    pub(crate) fn enqueued(&mut self, waited: Duration) {
        self.enqueued = self.start.elapsed().saturating_sub(waited);
    }

    /// Marks an image as copied to the host.
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
