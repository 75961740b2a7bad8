//! Counters of a backend's work.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that only grows, except by [`Counter::reset`].
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Resets to an earlier number.
    pub fn reset(&self, to: u64) {
        self.0.store(to, Ordering::Relaxed);
    }
}

/// Counters of a backend's work.
#[derive(Default)]
pub struct Counters {
    /// Kernels, library calls and copies on the device.
    pub launches: Counter,
    /// Times the host waited.
    pub waits: Counter,
    /// Copies between host and device.
    pub copies: Counter,
    /// Device allocations.
    pub allocations: Counter,
    /// Fused ops that ran as compositions.
    pub composed: Counter,
    /// Launches of captured graphs.
    pub graph_launches: Counter,
    /// Pieces of work that could not be captured.
    pub uncaptured: Counter,
}
