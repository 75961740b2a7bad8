//! What a picture takes of the device's memory, beside the weights.

use super::{ModelInfo, Plan};
use crate::backend::Backend;
use crate::error::{Error, Result};

/// Bytes that activations take at their peak.
pub(super) struct Needs {
    /// One evaluation of the transformer.
    pub step: u64,
    /// The decoder.
    pub decode: u64,
}

impl Needs {
    pub(super) fn of<B: Backend>(backend: &B, info: &ModelInfo, plan: &Plan) -> Self {
        let (height, width) = info.latent_size(plan);
        let tokens = (info.max_sequence_length + height * width) as u64;
        let (dim, mlp) = (info.transformer.dim() as u64, info.transformer.mlp() as u64);
        // A single block holds the stream, its norm, the projection [3 * dim + 2 * mlp] and the output; with narrow weights not the norm
        // then, but [dim + mlp] of half the size.
        let step = tokens * (6 * dim + 5 * mlp / 2);
        // The last up block reads the channels of the one before, at full size: the picture and its norm, and half of that behind.
        let widest = info.vae.decoder_channels().iter().take(2).max().copied().unwrap_or(0) as u64;
        let decode = (plan.width * plan.height) as u64 * widest * 5 / 2;
        Self { step: step * backend.element_bytes(), decode: decode * backend.element_bytes() }
    }

    /// Errors when the picture does not fit however much is freed, before minutes are spent on it.
    pub(super) fn check<B: Backend>(&self, backend: &B, plan: &Plan) -> Result<()> {
        let free = backend.available_bytes().saturating_add(backend.stats().memory_bytes);
        let least = self.step.max(self.decode);
        if least <= free {
            return Ok(());
        }
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let what = format!("a {} x {} picture needs {} MiB of memory, {} MiB are free", plan.width, plan.height, mib(least), mib(free));
        Err(Error::new(what).hint("ask for a smaller picture with `-W` and `-H`"))
    }
}
