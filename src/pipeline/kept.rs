//! What pictures of one size and number of steps have in common: kept from one to the next, as far as memory allows.

use super::Plan;
use crate::backend::Backend;
use crate::error::Result;
use crate::ops::Rope;
use crate::transformer::Modulations;

/// How many kinds of pictures are kept.
const MOST_KEPT: usize = 4;

/// Of one kind of picture.
pub(super) struct Kept<B: Backend> {
    height: usize,
    width: usize,
    guidance: f32,
    /// Pictures that were asked for, and how many of them run as one batch.
    count: usize,
    pub(super) samples: usize,
    /// Whether both evaluations of guidance run as one batch.
    pub(super) batched: bool,
    pub(super) modulations: Modulations<B>,
    pub(super) rope: Rope<B>,
    /// One for each step.
    pub(super) steps: Vec<B::Replay>,
    pub(super) decode: B::Replay,
}

impl<B: Backend> Kept<B> {
    pub(super) fn new(plan: &Plan, count: usize, samples: usize, batched: bool, modulations: Modulations<B>, rope: Rope<B>) -> Self {
        let &Plan { height, width, guidance, steps, .. } = plan;
        let steps = (0..steps).map(|_| B::Replay::default()).collect();
        Self { height, width, guidance, count, samples, batched, modulations, rope, steps, decode: B::Replay::default() }
    }

    pub(super) fn is_of(&self, plan: &Plan, count: usize) -> bool {
        (self.height, self.width, self.steps.len(), self.guidance, self.count) == (plan.height, plan.width, plan.steps, plan.guidance, count)
    }
}

/// What is kept of `count` pictures like `plan`, which `make` makes where there is nothing.
pub(super) fn find<'a, B: Backend>(
    kept: &'a mut Vec<Kept<B>>,
    plan: &Plan,
    count: usize,
    make: impl FnOnce() -> Result<Kept<B>>,
) -> Result<&'a mut Kept<B>> {
    match kept.iter().position(|kept| kept.is_of(plan, count)) {
        // To the end, as the latest.
        Some(index) => {
            let found = kept.remove(index);
            kept.push(found);
        }
        None => {
            if kept.len() == MOST_KEPT {
                kept.remove(0);
            }
            kept.push(make()?);
        }
    }
    Ok(kept.last_mut().expect("pushed above"))
}
