//! Where the weights of a component's blocks are: each in memory, or some of them take turns in it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::backend::{AccessFrequency, Backend, Storage};
use crate::error::Result;
use crate::files::TensorView;

/// The blocks of a component, in the order of use. Components that share weights share them.
pub struct Blocks<B: Backend> {
    /// Of each block, which turn it has if it is streamed. Blocks behind the last are resident.
    turns: Vec<Option<usize>>,
    stream: B::BlockStream,
    passes: AccessFrequency,
    /// Held by a thread that enqueues work with blocks: two that take turns would wait for each other's copies, and
    /// read each other's weights.
    order: Mutex<()>,
}

/// Work that goes over blocks, while it is enqueued.
pub struct Pass<'a, B: Backend> {
    backend: &'a B,
    blocks: &'a Blocks<B>,
    current: Option<usize>,
    _order: Option<MutexGuard<'a, ()>>,
}

impl<B: Backend> Default for Blocks<B> {
    /// All resident.
    fn default() -> Self {
        Self::new(&[], AccessFrequency::Seldom)
    }
}

impl<B: Backend> Blocks<B> {
    /// Blocks of which some are streamed, for so many passes; those that are not listed are resident.
    pub fn new(streamed: &[bool], passes: AccessFrequency) -> Self {
        let mut next = 0;
        let turns = streamed.iter().map(|streamed| {
            streamed.then(|| {
                next += 1;
                next - 1
            })
        });
        Self { turns: turns.collect(), stream: B::BlockStream::default(), passes, order: Mutex::default() }
    }

    /// Whether some blocks are streamed.
    pub fn are_streamed(&self) -> bool {
        self.turns.iter().any(Option::is_some)
    }

    /// Which blocks are streamed; those behind the last are resident.
    pub fn streamed(&self) -> Vec<bool> {
        self.turns.iter().map(Option::is_some).collect()
    }

    /// Loads a weight of `block`, or notes where it comes from.
    ///
    /// Errors as [`WeightStore::load_weight`](crate::backend::WeightStore::load_weight).
    pub(super) fn load(
        &self,
        (backend, uploads): (&B, Option<&B::Uploads>),
        block: usize,
        parts: &[TensorView],
        storage: Storage,
    ) -> Result<B::Weight> {
        match self.turn(block) {
            Some(turn) => backend.stream_weight(&self.stream, turn, parts, storage),
            None => backend.load_weight(parts, storage, uploads),
        }
    }

    /// The same of weights whose products are summed.
    ///
    /// Errors as [`WeightStore::load_weight`](crate::backend::WeightStore::load_weight).
    pub(super) fn load_summed(
        &self,
        (backend, uploads): (&B, Option<&B::Uploads>),
        block: usize,
        weights: &[Vec<TensorView>],
        storage: Storage,
    ) -> Result<Vec<B::Weight>> {
        match self.turn(block) {
            Some(turn) => backend.stream_summed_weights(&self.stream, turn, weights, storage),
            None => backend.load_summed_weights(weights, storage, uploads),
        }
    }

    fn turn(&self, block: usize) -> Option<usize> {
        self.turns.get(block).copied().flatten()
    }

    /// Makes the memory in which blocks take turns, once all weights are noted.
    ///
    /// Errors when memory runs out.
    pub fn allocate(&self, backend: &B) -> Result<()> {
        if self.are_streamed() { backend.allocate_stream(&self.stream, self.passes) } else { Ok(()) }
    }

    /// Begins work that goes over the blocks. Where some are streamed, it waits while another thread enqueues such
    /// work.
    pub fn begin<'a>(&'a self, backend: &'a B) -> Pass<'a, B> {
        let order = self.are_streamed().then(|| self.order.lock().unwrap_or_else(PoisonError::into_inner));
        Pass { backend, blocks: self, current: None, _order: order }
    }
}

impl<B: Backend> Pass<'_, B> {
    /// From here on work reads the weights of `block`, and no longer those of the block before.
    ///
    /// Errors when they cannot be copied to the device.
    pub fn enter(&mut self, block: usize) -> Result<()> {
        self.leave()?;
        let Some(turn) = self.blocks.turn(block) else { return Ok(()) };
        self.current = Some(turn);
        self.backend.enter_block(&self.blocks.stream, turn)
    }

    fn leave(&mut self) -> Result<()> {
        self.current.take().map_or(Ok(()), |turn| self.backend.leave_block(&self.blocks.stream, turn))
    }
}

impl<B: Backend> Drop for Pass<'_, B> {
    fn drop(&mut self) {
        // What fails here has failed before, on a device that does not answer.
        let _ = self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::Cpu;

    #[test]
    fn streamed_blocks_have_turns_in_the_order_of_use() {
        let blocks: Blocks<Cpu> = Blocks::new(&[false, true, true, false, true], AccessFrequency::Often);
        assert_eq!([0, 1, 2, 3, 4, 5].map(|block| blocks.turn(block)), [None, Some(0), Some(1), None, Some(2), None]);
        assert_eq!(blocks.streamed(), [false, true, true, false, true]);
        assert!(blocks.are_streamed() && !Blocks::<Cpu>::default().are_streamed());
    }
}
