//! Memory of the blocks of a component when some of them are streamed.

use crate::backend::slab_bytes;

/// The sizes of a component that is made of blocks, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockSizes {
    /// Weights of each block, in the order of use.
    pub blocks: Vec<u64>,
    /// Weights outside the blocks, which are never streamed.
    pub rest: u64,
}

impl BlockSizes {
    /// Returns the bytes of all weights.
    pub fn all(&self) -> u64 {
        self.rest + self.blocks.iter().sum::<u64>()
    }

    /// Returns the bytes in memory if the marked blocks are streamed.
    pub fn in_memory(&self, streamed: &[bool]) -> u64 {
        let of = |wanted: bool| {
            self.blocks.iter().zip(streamed).filter(move |(_, streamed)| **streamed == wanted).map(|(bytes, _)| *bytes)
        };
        self.rest + of(false).sum::<u64>() + slab_bytes(of(true)).iter().sum::<u64>()
    }

    /// Returns a selection with no block streamed.
    pub fn none(&self) -> Vec<bool> {
        vec![false; self.blocks.len()]
    }

    /// Selects the fewest blocks to stream so that the weights take at most `bytes`; `None` if they take more even
    /// with all blocks streamed.
    pub fn fitting(&self, bytes: u64) -> Option<Vec<bool>> {
        // Streaming one more block never takes more memory: it is at least as large as the largest streamed block.
        let counts: Vec<usize> = (0..=self.blocks.len()).collect();
        let first = counts.partition_point(|count| self.in_memory(&self.streamed(*count)) > bytes);
        counts.get(first).map(|count| self.streamed(*count))
    }

    /// Returns the minimum bytes in memory, with all blocks streamed.
    pub fn least(&self) -> u64 {
        self.in_memory(&vec![true; self.blocks.len()])
    }

    /// Selects `count` blocks to stream: the smallest, whose slabs take the least memory. Among blocks of one size,
    /// the selection is spread evenly, so that a copy overlaps with the blocks in between.
    fn streamed(&self, count: usize) -> Vec<bool> {
        let mut sizes = self.blocks.clone();
        sizes.sort_unstable();
        let mut streamed = self.none();
        let Some(largest) = count.checked_sub(1).and_then(|last| sizes.get(last)) else { return streamed };
        let below = sizes.iter().filter(|bytes| *bytes < largest).count();
        let (of_largest, wanted) = (sizes.iter().filter(|bytes| *bytes == largest).count(), count - below);
        let mut seen = 0;
        for (streamed, bytes) in streamed.iter_mut().zip(&self.blocks) {
            *streamed = bytes < largest;
            if bytes == largest {
                *streamed = (seen + 1) * wanted / of_largest > seen * wanted / of_largest;
                seen += 1;
            }
        }
        streamed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(blocks: &[u64]) -> BlockSizes {
        BlockSizes { blocks: blocks.to_vec(), rest: 10 }
    }

    #[test]
    fn as_few_blocks_are_streamed_as_memory_asks_for() {
        let sizes = sizes(&[5; 6]);
        let count = |bytes| sizes.fitting(bytes).map(|streamed| streamed.iter().filter(|&&streamed| streamed).count());
        // All blocks; two slabs in place of three blocks, of four and so on; only the slabs.
        assert_eq!([40, 39, 35, 34, 30, 25, 20].map(count), [0, 3, 3, 4, 4, 5, 6].map(Some));
        assert_eq!((count(19), sizes.least(), sizes.all()), (None, 20, 40));
    }

    #[test]
    fn streamed_blocks_are_the_smallest_and_lie_apart() {
        let sizes = sizes(&[9, 9, 5, 5, 5, 5, 5, 5]);
        let which = |count| sizes.streamed(count).iter().map(|&streamed| u8::from(streamed)).collect::<Vec<_>>();
        assert_eq!(which(0), [0; 8]);
        assert_eq!(which(3), [0, 0, 0, 1, 0, 1, 0, 1]);
        assert_eq!(which(6), [0, 0, 1, 1, 1, 1, 1, 1]);
        assert_eq!(which(7), [0, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(which(8), [1; 8]);
        let in_memory: Vec<u64> = (0..=8).map(|count| sizes.in_memory(&sizes.streamed(count))).collect();
        assert_eq!(in_memory, [58, 58, 58, 53, 48, 43, 38, 33, 28]);
        let mixed = BlockSizes { blocks: vec![3, 8, 1, 8, 2, 3, 5, 8, 1], rest: 0 };
        let in_memory: Vec<u64> = (0..=9).map(|count| mixed.in_memory(&mixed.streamed(count))).collect();
        assert!(in_memory.is_sorted_by(|more, less| more >= less), "{in_memory:?}");
        assert_eq!(in_memory[9], mixed.least());
    }

    #[test]
    fn a_component_without_blocks_is_what_lies_around_them() {
        let none = BlockSizes::default();
        assert_eq!((none.all(), none.least(), none.fitting(0)), (0, 0, Some(Vec::new())));
    }
}
