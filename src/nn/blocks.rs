//! Placement of a component's blocks: resident in device memory, or streamed through it.

use parking_lot::{Mutex, MutexGuard};

use crate::backend::{AccessFrequency, Backend, Storage};
use crate::error::Result;
use crate::files::TensorView;

/// The blocks of a component, in the order of use. Components that share weights share their blocks too.
pub struct Blocks<B: Backend> {
    /// The turn of each block, if it is streamed. Blocks after the last entry are resident.
    turns: Vec<Option<usize>>,
    stream: B::BlockStream,
    passes: AccessFrequency,
    /// Held by a thread that enqueues work with blocks. Two threads taking turns would wait for each other's copies,
    /// and read each other's weights.
    order: Mutex<()>,
}

/// A pass over the blocks, while its work is enqueued.
pub struct Pass<'a, B: Backend> {
    backend: &'a B,
    blocks: &'a Blocks<B>,
    current: Option<usize>,
    _order: Option<MutexGuard<'a, ()>>,
}

impl<B: Backend> Default for Blocks<B> {
    /// All blocks resident.
    fn default() -> Self {
        Self::new(&[], AccessFrequency::Seldom)
    }
}

impl<B: Backend> Blocks<B> {
    /// Creates blocks, some of them streamed, for passes of this frequency; blocks that are not listed are
    /// resident.
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

    /// Returns `true` if some blocks are streamed.
    pub fn are_streamed(&self) -> bool {
        self.turns.iter().any(Option::is_some)
    }

    /// Returns `true` for each block that is streamed; blocks after the last entry are resident.
    pub fn streamed(&self) -> Vec<bool> {
        self.turns.iter().map(Option::is_some).collect()
    }

    /// Loads a weight of `block`, or records its source if the block is streamed.
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

    /// As `load`, for weights whose results are summed.
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

    /// Allocates the memory that streamed blocks share, once all weights are recorded.
    ///
    /// Errors if memory runs out.
    pub fn allocate(&self, backend: &B) -> Result<()> {
        if self.are_streamed() { backend.allocate_stream(&self.stream, self.passes) } else { Ok(()) }
    }

    /// Begins a pass over the blocks. If some are streamed, this waits while another thread enqueues one.
    pub fn begin<'a>(&'a self, backend: &'a B) -> Pass<'a, B> {
        let order = self.are_streamed().then(|| self.order.lock());
        Pass { backend, blocks: self, current: None, _order: order }
    }
}

impl<B: Backend> Pass<'_, B> {
    /// Makes later work read the weights of `block`, and leaves the block before it.
    ///
    /// Errors if the weights cannot be copied to the device.
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
        // An error here was reported before: the device does not respond.
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
