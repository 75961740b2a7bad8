//! The limit and use of device memory.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Field};

const MIB: u64 = 1 << 20;

/// Bytes in use, their peak and the cap. Memory of tensors and graphs counts here; the owner of the driver's pools
/// keeps their fragmentation below the same cap.
pub struct Budget {
    used: AtomicU64,
    peak: AtomicU64,
    /// The part of `used` outside of the driver's pools.
    outside: AtomicU64,
    cap: u64,
}

impl Budget {
    pub fn new(cap: u64) -> Self {
        Self { used: AtomicU64::new(0), peak: AtomicU64::new(0), outside: AtomicU64::new(0), cap }
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    pub fn available(&self) -> u64 {
        self.cap.saturating_sub(self.used())
    }

    /// Returns the bytes in use outside of the driver's pools.
    pub fn outside(&self) -> u64 {
        self.outside.load(Ordering::Relaxed)
    }

    /// Returns the part of the cap that is left to the driver's pools.
    pub fn cap_of_pool(&self) -> u64 {
        self.cap.saturating_sub(self.outside())
    }

    /// Counts `bytes` as used; returns `false` if the cap doesn't allow them.
    pub fn reserve(&self, bytes: u64) -> bool {
        let reserved = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= self.cap)
        });
        if let Ok(before) = reserved {
            self.peak.fetch_max(before + bytes, Ordering::Relaxed);
        }
        reserved.is_ok()
    }

    /// As [`Budget::reserve`], for memory outside of the driver's pools.
    pub fn reserve_outside(&self, bytes: u64) -> bool {
        let reserved = self.reserve(bytes);
        if reserved {
            self.outside.fetch_add(bytes, Ordering::Relaxed);
        }
        reserved
    }

    pub fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub fn release_outside(&self, bytes: u64) {
        self.outside.fetch_sub(bytes, Ordering::Relaxed);
        self.release(bytes);
    }

    /// Returns the error for `bytes` that exceed the cap or the GPU's memory.
    pub fn full(&self, bytes: u64) -> Error {
        let mib = |bytes: u64| bytes.div_ceil(MIB);
        Error::new(format!(
            "out of GPU memory: {} MiB more are needed, {} MiB of {} MiB are in use",
            mib(bytes),
            mib(self.used()),
            mib(self.cap)
        ))
        .hint(format!("request a smaller image or batch, or allow more memory with `{}`", Field::GpuMemory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cap_is_never_passed() {
        let budget = Budget::new(10 * MIB);
        assert!(budget.reserve(6 * MIB));
        assert!(!budget.reserve(5 * MIB));
        assert!(budget.reserve(4 * MIB));
        budget.release(6 * MIB);
        assert_eq!((budget.used(), budget.peak(), budget.available()), (4 * MIB, 10 * MIB, 6 * MIB));
    }

    #[test]
    fn what_lies_outside_is_taken_from_the_pool() {
        let budget = Budget::new(10 * MIB);
        assert!(budget.reserve_outside(3 * MIB) && budget.reserve(2 * MIB));
        assert_eq!((budget.used(), budget.cap_of_pool()), (5 * MIB, 7 * MIB));
        assert!(!budget.reserve_outside(6 * MIB));
        budget.release_outside(3 * MIB);
        assert_eq!((budget.used(), budget.cap_of_pool()), (2 * MIB, 10 * MIB));
    }

    #[test]
    fn a_full_budget_says_what_is_needed_and_used() {
        let budget = Budget::new(8 * MIB);
        assert!(budget.reserve(5 * MIB));
        let message = budget.full(4 * MIB).to_string();
        assert!(message.contains("4 MiB more") && message.contains("5 MiB of 8 MiB"), "{message}");
        assert!(message.contains("`gpu_memory`"), "{message}");
    }
}
