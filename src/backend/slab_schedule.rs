//! The assignment of blocks to a few slabs of memory that the blocks use in turn.

/// Slabs that the blocks of a component share: one is read while the other is filled.
pub const SLABS: usize = 2;

/// Returns the slab of a turn. It is always the same, so that weights have one address.
pub fn slab_of(turn: usize) -> usize {
    turn % SLABS
}

/// Returns the bytes of the slabs for blocks of these sizes.
pub fn slab_bytes(turns: impl IntoIterator<Item = u64>) -> [u64; SLABS] {
    let mut slabs = [0; SLABS];
    for (turn, bytes) in turns.into_iter().enumerate() {
        let slab = &mut slabs[slab_of(turn)];
        *slab = bytes.max(*slab);
    }
    slabs
}

/// The contents of the slabs. Turns come in any order: work that ends early starts again with the first.
#[derive(Debug, Default)]
pub struct SlabSchedule {
    held: [Option<usize>; SLABS],
}

impl SlabSchedule {
    /// Returns `true` if the slab of `turn` must be filled before it is read.
    pub fn needs_filling(&self, turn: usize) -> bool {
        self.held[slab_of(turn)] != Some(turn)
    }

    /// Marks the slab of `turn` as empty, because it is about to be overwritten; also valid if writing fails.
    pub fn begin_filling(&mut self, turn: usize) {
        self.held[slab_of(turn)] = None;
    }

    /// Marks the slab of `turn` as filled.
    pub fn filled(&mut self, turn: usize) {
        self.held[slab_of(turn)] = Some(turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs turns in order and returns those that had to be filled.
    fn pass(turns: &mut SlabSchedule, order: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let mut filled = Vec::new();
        for turn in order {
            if turns.needs_filling(turn) {
                turns.begin_filling(turn);
                turns.filled(turn);
                filled.push(turn);
            }
        }
        filled
    }

    #[test]
    fn every_block_is_filled_once_a_pass_and_never_read_from_a_slab_of_another() {
        let mut turns = SlabSchedule::default();
        assert_eq!(pass(&mut turns, 0..5), [0, 1, 2, 3, 4]);
        assert_eq!(pass(&mut turns, 0..5), [0, 1, 2, 3, 4], "with an odd number, the last block replaced the first");
        // Work that ended after its third block leaves the second and the third in the slabs.
        assert_eq!(pass(&mut turns, 0..3), [0, 1, 2]);
        assert_eq!(pass(&mut turns, 0..5), [0, 2, 3, 4], "the second block is still loaded");
        let mut few = SlabSchedule::default();
        assert_eq!(pass(&mut few, 0..2), [0, 1]);
        assert_eq!(pass(&mut few, 0..2), [0; 0], "as many blocks as slabs stay loaded");
    }

    #[test]
    fn a_slab_whose_filling_failed_holds_nothing() {
        let mut turns = SlabSchedule::default();
        pass(&mut turns, 0..2);
        turns.begin_filling(2);
        assert!(turns.needs_filling(0) && turns.needs_filling(2) && !turns.needs_filling(1));
    }

    #[test]
    fn a_slab_is_as_large_as_its_largest_block() {
        assert_eq!(slab_bytes([5, 1, 2, 3]), [5, 3]);
        assert_eq!(slab_bytes([7]), [7, 0]);
        assert_eq!(slab_bytes([]), [0, 0]);
    }
}
