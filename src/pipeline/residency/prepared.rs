//! What is derived once for a batch of images.

use crate::backend::{Claim, Promised, Reservation};
use crate::pipeline::memory::plan::{MemoryPlan, MemorySizes};
use crate::pipeline::request::needs::ActivationCost;
use crate::pipeline::request::plan::Plan;

/// What the images of a batch are, what they need, and what of the device's memory they have until this is dropped.
pub(crate) struct Prepared {
    pub(crate) plan: Plan,
    pub(crate) needs: ActivationCost,
    pub(crate) sizes: MemorySizes,
    pub(crate) memory: MemoryPlan,
    /// None where the batch would have to wait for itself, or for nothing.
    pub(super) reservation: Option<Reservation>,
}

impl Prepared {
    /// What is promised to others.
    pub(crate) fn promised(&self) -> Promised {
        self.reservation.as_ref().map(Reservation::promised).unwrap_or_default()
    }

    /// So many images are denoised at once.
    pub(crate) fn resize(&self, samples: usize) {
        if let Some(reservation) = &self.reservation {
            let more = self.needs.batch(samples).saturating_sub(self.needs.step);
            reservation.resize(claim(&self.sizes, &self.memory).own + more);
        }
    }
}

/// What a batch claims of memory that was planned.
pub(super) fn claim(sizes: &MemorySizes, memory: &MemoryPlan) -> Claim {
    let beside = if memory.together { memory.text_encoder.bytes + 2 * sizes.decoder + sizes.encoder } else { 0 };
    let shared = (sizes.workspace + memory.transformer.bytes + beside).min(memory.peak);
    Claim { shared, own: memory.peak - shared }
}
