//! A pool that reuses the memory of earlier results: the system takes longer to map new pages than an op takes to fill
//! them.

use std::mem;
use std::ops::Deref;

use parking_lot::Mutex;

use crate::memory::expect_or_unwind;

/// The min size of pooled memory: the allocator reuses smaller pieces by itself.
const MIN_BYTES: usize = 1 << 20;
/// The max bytes in the pool.
const MAX_BYTES: usize = 1 << 30;
/// The value of unwritten cells: zero, as in new pages from the system, and NaN in debug builds, to reveal an op that
/// misses a cell.
const UNWRITTEN: f32 = if cfg!(debug_assertions) { f32::NAN } else { 0.0 };

static POOL: Pool = Pool(Mutex::new(Vec::new()));

/// The memory that a tensor of the CPU views. It returns to the pool on drop.
pub struct Values(Vec<f32>);

impl Values {
    pub(super) fn into_vec(mut self) -> Vec<f32> {
        mem::take(&mut self.0)
    }
}

impl From<Vec<f32>> for Values {
    fn from(values: Vec<f32>) -> Self {
        Self(values)
    }
}

impl Deref for Values {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0
    }
}

impl Drop for Values {
    fn drop(&mut self) {
        give(mem::take(&mut self.0));
    }
}

/// Unused memory, the most recent last.
struct Pool(Mutex<Vec<Vec<f32>>>);

fn bytes(values: &Vec<f32>) -> usize {
    values.capacity() * size_of::<f32>()
}

impl Pool {
    fn values(&self, count: usize) -> Vec<f32> {
        let found = {
            let mut spare = self.0.lock();
            let fits = |values: &Vec<f32>| (count..=2 * count).contains(&values.capacity());
            let best = (0..spare.len()).filter(|&i| fits(&spare[i])).min_by_key(|&i| spare[i].capacity());
            best.filter(|_| count * size_of::<f32>() >= MIN_BYTES).map(|i| spare.remove(i))
        };
        let Some(mut values) = found else {
            expect_or_unwind(count.saturating_mul(size_of::<f32>()));
            return vec![UNWRITTEN; count];
        };
        if cfg!(debug_assertions) {
            values.clear();
        }
        values.truncate(count);
        // The vector may be shorter than this, or was cleared above.
        values.resize(count, UNWRITTEN);
        values
    }

    fn pooled_bytes(&self) -> usize {
        self.0.lock().iter().map(bytes).sum()
    }

    fn give(&self, values: Vec<f32>) {
        if bytes(&values) < MIN_BYTES || bytes(&values) > MAX_BYTES {
            return;
        }
        let mut spare = self.0.lock();
        spare.push(values);
        let mut pooled: usize = spare.iter().map(bytes).sum();
        while pooled > MAX_BYTES {
            pooled -= bytes(&spare.remove(0));
        }
    }
}

/// Returns `count` values for the caller to write, in pooled memory if there is a piece of about that size.
pub(super) fn values(count: usize) -> Vec<f32> {
    POOL.values(count)
}

/// Returns the memory of `values` to the pool, which drops its oldest pieces if it would become too large.
pub(super) fn give(values: Vec<f32>) {
    POOL.give(values);
}

/// Returns the bytes of memory in the pool.
pub(super) fn pooled_bytes() -> u64 {
    POOL.pooled_bytes() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Pool {
        Pool(Mutex::new(Vec::new()))
    }

    #[test]
    fn memory_is_used_again() {
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
    fn the_pool_is_bounded() {
        let pool = pool();
        pool.give(vec![1.0; 1000]);
        pool.give(Vec::with_capacity(MAX_BYTES / size_of::<f32>() + 1));
        assert!(pool.0.lock().is_empty(), "small and oversized buffers are not pooled");
        let third = MAX_BYTES / size_of::<f32>() / 3;
        for more in 1..=4 {
            pool.give(Vec::with_capacity(third + more));
        }
        assert_eq!(
            pool.0.lock().iter().map(Vec::capacity).collect::<Vec<_>>(),
            [third + 3, third + 4],
            "the latest buffers are kept"
        );
        assert_eq!(pool.pooled_bytes(), (2 * third + 7) * size_of::<f32>());
    }

    #[test]
    fn a_piece_of_another_size_is_not_used() {
        let pool = pool();
        pool.give(Vec::with_capacity((9 << 20) + 1));
        assert_eq!(pool.values(4 << 20).len(), 4 << 20);
        assert_eq!(pool.0.lock().len(), 1, "more than twice the requested size");
        assert_eq!(pool.values(5 << 20).len(), 5 << 20);
        assert!(pool.0.lock().is_empty());
    }
}
