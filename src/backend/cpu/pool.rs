//! Memory of earlier results for later ones: the system takes longer to map new pages than an op to fill them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rayon::prelude::*;

/// Smaller pieces of memory the allocator keeps by itself.
const LEAST_BYTES: usize = 1 << 20;
/// What is kept at most, over all.
const MOST_BYTES: usize = 1 << 30;
/// Values that one task clears.
const TASK_VALUES: usize = 1 << 18;

static POOL: Pool = Pool(Mutex::new(Vec::new()));

/// Memory that waits, the latest last.
struct Pool(Mutex<Vec<Vec<f32>>>);

fn bytes(values: &Vec<f32>) -> usize {
    values.capacity() * size_of::<f32>()
}

impl Pool {
    fn spare(&self) -> MutexGuard<'_, Vec<Vec<f32>>> {
        // Vectors go in and out whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn zeros(&self, count: usize) -> Vec<f32> {
        let found = {
            let mut spare = self.spare();
            let fits = |values: &Vec<f32>| (count..=2 * count).contains(&values.capacity());
            let best = (0..spare.len()).filter(|&i| fits(&spare[i])).min_by_key(|&i| spare[i].capacity());
            best.filter(|_| count * size_of::<f32>() >= LEAST_BYTES).map(|i| spare.remove(i))
        };
        let Some(mut values) = found else { return vec![0.0; count] };
        values.truncate(count);
        values.par_chunks_mut(TASK_VALUES).for_each(|part| part.fill(0.0));
        // What is left was never written, or not as long.
        values.resize(count, 0.0);
        values
    }

    fn kept_bytes(&self) -> usize {
        self.spare().iter().map(bytes).sum()
    }

    fn give(&self, values: Vec<f32>) {
        if bytes(&values) < LEAST_BYTES || bytes(&values) > MOST_BYTES {
            return;
        }
        let mut spare = self.spare();
        spare.push(values);
        let mut kept: usize = spare.iter().map(bytes).sum();
        while kept > MOST_BYTES {
            kept -= bytes(&spare.remove(0));
        }
    }
}

/// `count` zeros, in memory that was used before where there is some of about that size.
pub(super) fn zeros(count: usize) -> Vec<f32> {
    POOL.zeros(count)
}

/// Keeps the memory of `values` for [`zeros`]; what has waited longest goes where too much would be kept.
pub(super) fn give(values: Vec<f32>) {
    POOL.give(values);
}

/// What waits to be used again.
pub(super) fn kept_bytes() -> u64 {
    POOL.kept_bytes() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Pool {
        Pool(Mutex::new(Vec::new()))
    }

    #[test]
    fn memory_that_was_used_before_is_zeros_again() {
        let (pool, count) = (pool(), (3 << 20) + 17);
        let mut first = pool.zeros(count);
        first.fill(1.0);
        let at = first.as_ptr();
        pool.give(first);
        for count in [count, count - 5, count] {
            let mut values = pool.zeros(count);
            assert!(values.len() == count && values.as_ptr() == at && values.iter().all(|value| *value == 0.0), "{count}");
            values.fill(2.0);
            pool.give(values);
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let pool = pool();
        pool.give(vec![1.0; 1000]);
        pool.give(Vec::with_capacity(MOST_BYTES / size_of::<f32>() + 1));
        assert!(pool.spare().is_empty(), "neither small pieces nor too large ones");
        let third = MOST_BYTES / size_of::<f32>() / 3;
        for more in 1..=4 {
            pool.give(Vec::with_capacity(third + more));
        }
        assert_eq!(pool.spare().iter().map(Vec::capacity).collect::<Vec<_>>(), [third + 3, third + 4], "the latest stay");
        assert_eq!(pool.kept_bytes(), (2 * third + 7) * size_of::<f32>());
    }

    #[test]
    fn a_piece_of_another_size_does_not_serve() {
        let pool = pool();
        pool.give(Vec::with_capacity((9 << 20) + 1));
        assert_eq!(pool.zeros(4 << 20).len(), 4 << 20);
        assert_eq!(pool.spare().len(), 1, "more than twice too large");
        assert_eq!(pool.zeros(5 << 20).len(), 5 << 20);
        assert!(pool.spare().is_empty());
    }
}
