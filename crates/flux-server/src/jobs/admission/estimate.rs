//! The work of a request, estimated before any of it is done.

use std::ops::{Add, AddAssign};

/// Work, estimated from headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Pixels to decode.
    pub decoded: u64,
    /// Pixels of the largest image to decode.
    pub largest: u64,
    /// Pixels read and written by scaling, changing or encoding.
    pub scaled: u64,
    /// Bytes to parse, hash or inflate.
    pub inflated: u64,
    /// Nodes of a graph to evaluate.
    pub nodes: u64,
}

impl Estimate {
    /// Returns the work of decoding an image of this size.
    pub fn decode([width, height]: [usize; 2]) -> Self {
        let pixels = (width as u64).saturating_mul(height as u64);
        Self { decoded: pixels, largest: pixels, ..Self::default() }
    }

    /// Returns the work of scaling, changing or encoding this number of pixels.
    pub const fn scale(pixels: u64) -> Self {
        Self { decoded: 0, largest: 0, scaled: pixels, inflated: 0, nodes: 0 }
    }

    /// Returns the work of parsing, hashing or inflating this number of bytes.
    pub fn bytes(bytes: usize) -> Self {
        Self { inflated: bytes as u64, ..Self::default() }
    }

    /// Returns the total work, in pixels that take as long to decode.
    pub(super) fn cost(&self) -> u64 {
        let Self { decoded, scaled, inflated, nodes, .. } = *self;
        decoded.saturating_add(scaled).saturating_add(inflated / 4).saturating_add(nodes.saturating_mul(1 << 10))
    }
}

impl Add for Estimate {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            decoded: self.decoded.saturating_add(other.decoded),
            largest: self.largest.max(other.largest),
            scaled: self.scaled.saturating_add(other.scaled),
            inflated: self.inflated.saturating_add(other.inflated),
            nodes: self.nodes.saturating_add(other.nodes),
        }
    }
}

impl AddAssign for Estimate {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}
