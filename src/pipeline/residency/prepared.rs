//! The plan, needs and memory of a batch, derived once.

use crate::backend::{Claim, Promised, Reservation};
use crate::pipeline::memory::plan::{MemoryPlan, MemorySizes};
use crate::pipeline::request::needs::ActivationCost;
use crate::pipeline::request::plan::Plan;

/// The plan of a batch, its needs, and its reserved device memory, which is released on drop.
pub(crate) struct Prepared {
    pub(crate) plan: Plan,
    pub(crate) needs: ActivationCost,
    pub(crate) sizes: MemorySizes,
    pub(crate) memory: MemoryPlan,
    /// `None` if the batch found too little memory and could not wait for other threads.
    pub(super) reservation: Option<Reservation>,
}

impl Prepared {
    /// Returns the memory that is promised to others.
    pub(crate) fn promised(&self) -> Promised {
        self.reservation.as_ref().map(Reservation::promised).unwrap_or_default()
    }

    /// Adjusts the reservation to `samples` images that are denoised at once.
    pub(crate) fn resize(&self, samples: usize) {
        if let Some(reservation) = &self.reservation {
            let more = self.needs.batch(samples).saturating_sub(self.needs.step);
            reservation.resize(claim(&self.sizes, &self.memory).own + more);
        }
    }
}

/// Returns the claim of a batch on planned memory.
pub(super) fn claim(sizes: &MemorySizes, memory: &MemoryPlan) -> Claim {
    let beside = if memory.together { memory.text_encoder.bytes + 2 * sizes.decoder + sizes.encoder } else { 0 };
    let shared = (sizes.workspace + memory.transformer.bytes + beside).min(memory.peak);
    Claim { shared, own: memory.peak - shared }
}
