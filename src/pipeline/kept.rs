//! What images of one size and number of steps have in common: kept from one to the next, as far as memory allows.

use super::Plan;
use crate::backend::Backend;
use crate::error::Result;
use crate::ops::Rope;
use crate::transformer::Modulations;

/// How many kinds of images are kept.
const MOST_KEPT: usize = 4;

/// Of one kind of image.
pub(super) struct Kept<B: Backend> {
    height: usize,
    width: usize,
    guidance: f32,
    /// Images that one batch was wanted of, and of how many it is: fewer where memory did not allow more.
    wanted: usize,
    pub(super) samples: usize,
    /// Whether both evaluations of guidance run as one batch.
    pub(super) batched: bool,
    pub(super) modulations: Modulations<B>,
    pub(super) rope: Rope<B>,
    /// One for each step.
    pub(super) steps: Vec<B::Graph>,
}

impl<B: Backend> Kept<B> {
    pub(super) fn new(
        plan: &Plan,
        wanted: usize,
        samples: usize,
        batched: bool,
        modulations: Modulations<B>,
        rope: Rope<B>,
    ) -> Self {
        let &Plan { height, width, guidance, steps, .. } = plan;
        let steps = (0..steps).map(|_| B::Graph::default()).collect();
        Self { height, width, guidance, wanted, samples, batched, modulations, rope, steps }
    }

    /// Whether it is of the batch that `wanted` images like `plan` begin with. How many images are to come does not
    /// shape the work, only how many of them are in the batch.
    pub(super) fn is_of(&self, plan: &Plan, wanted: usize) -> bool {
        (self.height, self.width, self.steps.len(), self.guidance)
            == (plan.height, plan.width, plan.steps, plan.guidance)
            && serves(self.wanted, self.samples, wanted)
    }
}

/// Whether a batch of `samples` images, made when one of `made_for` was wanted, is what `wanted` images begin with: so
/// many they are, or memory did not allow one more, although room was made for it.
fn serves(made_for: usize, samples: usize, wanted: usize) -> bool {
    samples == wanted || (samples < made_for && samples < wanted)
}

/// What is kept of a batch of `wanted` images like `plan`, which `make` makes where there is nothing.
pub(super) fn find<'a, B: Backend>(
    kept: &'a mut Vec<Kept<B>>,
    plan: &Plan,
    wanted: usize,
    make: impl FnOnce() -> Result<Kept<B>>,
) -> Result<&'a mut Kept<B>> {
    match kept.iter().position(|kept| kept.is_of(plan, wanted)) {
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

/// What is kept of the decoder, for one size of image: it runs on one image at a time, whatever else images differ in.
pub(super) struct KeptDecode<B: Backend> {
    height: usize,
    width: usize,
    graph: B::Graph,
}

/// The decoder's graph for images of the size of `plan`.
pub(super) fn decode<'a, B: Backend>(kept: &'a mut Vec<KeptDecode<B>>, plan: &Plan) -> &'a mut B::Graph {
    let &Plan { height, width, .. } = plan;
    let found =
        kept.iter().position(|kept| (kept.height, kept.width) == (height, width)).map(|index| kept.remove(index));
    if kept.len() == MOST_KEPT {
        kept.remove(0);
    }
    kept.push(found.unwrap_or_else(|| KeptDecode { height, width, graph: B::Graph::default() }));
    &mut kept.last_mut().expect("pushed above").graph
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_serves_every_count_that_begins_with_the_same_batch() {
        assert!(serves(8, 8, 8) && serves(3, 3, 3) && serves(1, 1, 1));
        assert!(!serves(8, 8, 7) && !serves(3, 3, 4) && !serves(1, 1, 8));
        // Memory allowed five of eight, and so of seven; four are another batch.
        assert!(serves(8, 5, 8) && serves(8, 5, 7) && serves(8, 5, 5) && !serves(8, 5, 4));
        // Nor does it allow eight, where five of six were all.
        assert!(serves(6, 5, 8));
    }
}
