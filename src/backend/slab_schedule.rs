//! Which of a few slabs of memory holds which block, where blocks take turns in them.

/// How many slabs the blocks of a component share: one is computed with while the other is filled.
pub const SLABS: usize = 2;

/// The slab of a turn. It is always the same, so that weights have one address.
pub fn slab_of(turn: usize) -> usize {
    turn % SLABS
}

/// Bytes of the slabs in which blocks of these sizes take turns.
pub fn slab_bytes(turns: impl IntoIterator<Item = u64>) -> [u64; SLABS] {
    let mut slabs = [0; SLABS];
    for (turn, bytes) in turns.into_iter().enumerate() {
        let slab = &mut slabs[slab_of(turn)];
        *slab = bytes.max(*slab);
    }
    slabs
}

/// What the slabs hold. SlabSchedule come in any order: work that ends early begins again with the first.
#[derive(Debug, Default)]
pub struct SlabSchedule {
    held: [Option<usize>; SLABS],
}

impl SlabSchedule {
    /// Whether the slab of `turn` has to be filled before it is read.
    pub fn needs_filling(&self, turn: usize) -> bool {
        self.held[slab_of(turn)] != Some(turn)
    }

    /// The slab of `turn` is about to be written: what it held is gone, also where writing fails.
    pub fn begin_filling(&mut self, turn: usize) {
        self.held[slab_of(turn)] = None;
    }

    /// The slab of `turn` holds its block.
    pub fn filled(&mut self, turn: usize) {
        self.held[slab_of(turn)] = Some(turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enters turns in order and counts those that had to be filled.
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
        assert_eq!(pass(&mut turns, 0..5), [0, 1, 2, 3, 4], "an odd number: the first slab was the last block's");
        // Work that ended after its third block leaves the second and the third in the slabs.
        assert_eq!(pass(&mut turns, 0..3), [0, 1, 2]);
        assert_eq!(pass(&mut turns, 0..5), [0, 2, 3, 4], "the second is still there");
        let mut few = SlabSchedule::default();
        assert_eq!(pass(&mut few, 0..2), [0, 1]);
        assert_eq!(pass(&mut few, 0..2), [0; 0], "as many blocks as slabs stay");
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
