//! Bounds of an adapter's values. An adapter that overflows the type in which it is used is refused when it is read.

use super::change::{Delta, LowRank};
use crate::formats::values::{is_zeros, largest};

impl LowRank {
    /// Returns an upper bound of the magnitudes of the product and of its factors.
    fn extent(&self) -> f64 {
        let (up, down) = (largest(&self.up) * f64::from(self.scale.abs()), largest(&self.down));
        (up * down * self.rank() as f64).max(up).max(down)
    }

    fn is_zero(&self) -> bool {
        self.scale == 0.0 || is_zeros(&self.up) || is_zeros(&self.down)
    }
}

impl Delta {
    /// Returns `true` if all values are zero.
    pub fn is_zero(&self) -> bool {
        match self {
            Self::LowRank(low_rank) => low_rank.is_zero(),
            Self::Kronecker { left, right, scale } => {
                [left.largest(), right.largest(), f64::from(scale.abs())].contains(&0.0)
            }
            Self::Hadamard { first, second, scale } => first.is_zero() || second.is_zero() || *scale == 0.0,
            Self::Difference(view) => is_zeros(view),
            Self::Replacement(_) => false,
        }
    }

    /// Returns an upper bound of the magnitudes of the values and of the intermediate products.
    pub fn extent(&self) -> f64 {
        match self {
            Self::LowRank(low_rank) => low_rank.extent(),
            Self::Kronecker { left, right, scale } => left.largest() * right.largest() * f64::from(scale.abs()),
            Self::Hadamard { first, second, scale } => {
                let (first, second) = (first.extent(), second.extent());
                (first * second * f64::from(scale.abs())).max(first).max(second)
            }
            Self::Difference(view) | Self::Replacement(view) => largest(view),
        }
    }
}
