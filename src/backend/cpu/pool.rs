//! Memory of earlier results for later ones: the system takes longer to map new pages than an op to fill them.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Smaller pieces of memory the allocator keeps by itself.
const LEAST_BYTES: usize = 1 << 20;
/// What is kept at most, over all.
const MOST_BYTES: usize = 1 << 30;
/// What values hold that nobody wrote: pages that the system maps are zeros anyway, and while we debug a value that is
/// missed shall show.
const UNWRITTEN: f32 = if cfg!(debug_assertions) { f32::NAN } else { 0.0 };

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

    fn values(&self, count: usize) -> Vec<f32> {
        let found = {
            let mut spare = self.spare();
            let fits = |values: &Vec<f32>| (count..=2 * count).contains(&values.capacity());
            let best = (0..spare.len()).filter(|&i| fits(&spare[i])).min_by_key(|&i| spare[i].capacity());
            best.filter(|_| count * size_of::<f32>() >= LEAST_BYTES).map(|i| spare.remove(i))
        };
        let Some(mut values) = found else { return vec![UNWRITTEN; count] };
        if cfg!(debug_assertions) {
            values.clear();
        }
        values.truncate(count);
        // What is left was never written, or not as long.
        values.resize(count, UNWRITTEN);
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

/// `count` values, all of which the caller writes, in memory that was used before where there is some of about that
/// size.
pub(super) fn values(count: usize) -> Vec<f32> {
    POOL.values(count)
}

/// Keeps the memory of `values` for [`values`]; what has waited longest goes where too much would be kept.
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
    fn memory_serves_again() {
        let (pool, count) = (pool(), (3 << 20) + 17);
        let first = pool.values(count);
        let at = first.as_ptr();
        pool.give(first);
        for count in [count, count - 5, count] {
            let values = pool.values(count);
            assert!(values.len() == count && values.as_ptr() == at, "{count}");
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
        assert_eq!(
            pool.spare().iter().map(Vec::capacity).collect::<Vec<_>>(),
            [third + 3, third + 4],
            "the latest stay"
        );
        assert_eq!(pool.kept_bytes(), (2 * third + 7) * size_of::<f32>());
    }

    #[test]
    fn a_piece_of_another_size_does_not_serve() {
        let pool = pool();
        pool.give(Vec::with_capacity((9 << 20) + 1));
        assert_eq!(pool.values(4 << 20).len(), 4 << 20);
        assert_eq!(pool.spare().len(), 1, "more than twice too large");
        assert_eq!(pool.values(5 << 20).len(), 5 << 20);
        assert!(pool.spare().is_empty());
    }
}
