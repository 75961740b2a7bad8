//! What was done so far.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that grows.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Goes back to an earlier number.
    pub fn reset(&self, to: u64) {
        self.0.store(to, Ordering::Relaxed);
    }
}

/// What was done so far.
#[derive(Default)]
pub struct Counters {
    /// Kernels, library calls and copies on the device.
    pub launches: Counter,
    /// Times the host waited.
    pub waits: Counter,
    /// Copies between host and device.
    pub copies: Counter,
    /// Allocations.
    pub allocations: Counter,
    /// Fused ops that ran as compositions.
    pub composed: Counter,
    /// Launches of captured graphs.
    pub graph_launches: Counter,
    /// Pieces of work that could not be captured.
    pub uncaptured: Counter,
}
