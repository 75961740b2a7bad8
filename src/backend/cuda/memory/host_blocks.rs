//! Host memory of large activations: blocks that serve one activation after the other.

/// Blocks of host memory for work on the compute stream. A block that is released serves later requests at once: their
/// work runs after the work that used it.
#[derive(Default)]
pub struct HostBlocks {
    blocks: Vec<Block>,
}

struct Block {
    address: u64,
    bytes: usize,
    free: bool,
}

impl HostBlocks {
    /// Returns the bytes of all blocks.
    pub fn bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.bytes as u64).sum()
    }

    /// Returns the address of a free block of at least `bytes` bytes, the smallest one.
    pub fn request(&mut self, bytes: usize) -> Option<u64> {
        let fitting = self.blocks.iter_mut().filter(|block| block.free && block.bytes >= bytes);
        let block = fitting.min_by_key(|block| block.bytes)?;
        block.free = false;
        Some(block.address)
    }

    /// Adds a block that was allocated for a request.
    pub fn add(&mut self, address: u64, bytes: usize) {
        self.blocks.push(Block { address, bytes, free: false });
    }

    /// Removes the free blocks, before another one is allocated. Returns their addresses.
    pub fn take_free(&mut self) -> Vec<u64> {
        self.blocks.extract_if(.., |block| block.free).map(|block| block.address).collect()
    }

    /// Releases the block at an address. Removes all blocks if none is in use any more, and returns their addresses.
    pub fn release(&mut self, address: u64) -> Vec<u64> {
        self.blocks.iter_mut().filter(|block| block.address == address).for_each(|block| block.free = true);
        if self.blocks.iter().all(|block| block.free) { self.take_free() } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The large activations of a decoder at 4096 x 4096, in GiB: the last blocks hold 12 of them at most.
    #[test]
    fn blocks_are_reused_and_never_more_than_are_in_use_at_once() {
        let mut blocks = HostBlocks::default();
        let (mut last, mut peak) = (0, 0);
        let mut get = |blocks: &mut HostBlocks, bytes: usize| {
            let address = blocks.request(bytes).unwrap_or_else(|| {
                blocks.take_free();
                last += 1;
                blocks.add(last, bytes);
                last
            });
            peak = peak.max(blocks.bytes());
            address
        };
        let mut x = get(&mut blocks, 1);
        for (input, own) in [(1, 1), (4, 2), (8, 4)] {
            if input > own {
                let upsampled = get(&mut blocks, input);
                assert!(blocks.release(x).is_empty());
                x = upsampled;
            }
            // The shortcut and the sum overwrite x.
            for _ in 0..3 {
                let h = get(&mut blocks, own);
                assert!(h != x && blocks.release(h).is_empty());
            }
        }
        assert_eq!(blocks.release(x).len(), 2, "the last one and its middle");
        assert_eq!((peak, last, blocks.bytes()), (12, 5, 0));
    }

    #[test]
    fn the_smallest_block_that_is_large_enough_serves_a_request() {
        let mut blocks = HostBlocks::default();
        [(1, 8), (2, 4), (3, 6)].into_iter().for_each(|(address, bytes)| blocks.add(address, bytes));
        assert_eq!(blocks.request(1), None, "all are in use");
        assert!(blocks.release(1).is_empty() && blocks.release(3).is_empty());
        assert_eq!([blocks.request(5), blocks.request(5), blocks.request(5)], [Some(3), Some(1), None]);
        assert!(blocks.release(3).is_empty());
        assert_eq!((blocks.take_free(), blocks.bytes()), (vec![3], 12));
        assert!(blocks.release(1).is_empty());
        assert_eq!(blocks.release(2), [1, 2]);
    }
}
