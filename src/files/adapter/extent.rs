//! How large the values of an adapter are: what overflows the type in which it is used is refused when it is read.

use half::{bf16, f16};
use rayon::prelude::*;

use super::change::{Delta, LowRank, rows_of};
use crate::files::zeros::is_zeros;
use crate::files::{Format, TensorView};

const BYTES_AT_ONCE: usize = 1 << 18;

/// The largest magnitude of the values of a tensor; all are finite.
fn largest(view: &TensorView) -> f64 {
    if view.format().is_float() && view.bytes().len() > BYTES_AT_ONCE {
        let chunks = view.bytes().par_chunks(BYTES_AT_ONCE);
        return chunks.map(|bytes| largest_of(view.format(), bytes)).reduce(|| 0.0, f64::max);
    }
    match view.format() {
        format @ (Format::Bf16 | Format::F16 | Format::F32) => largest_of(format, view.bytes()),
        _ => rows_of(view, 0..view.rows()).iter().map(|value| f64::from(value.abs())).fold(0.0, f64::max),
    }
}

/// The same of plain floats. Magnitudes of floats have the order of their bits, as integers that the compiler takes many
/// at once of.
fn largest_of(format: Format, bytes: &[u8]) -> f64 {
    let halves = || {
        let (values, _) = bytes.as_chunks::<2>();
        values.iter().fold(0, |most: i16, value| most.max(i16::from_le_bytes(*value) & i16::MAX)) as u16
    };
    match format {
        Format::Bf16 => bf16::from_bits(halves()).into(),
        Format::F16 => f16::from_bits(halves()).into(),
        _ => {
            let (values, _) = bytes.as_chunks::<4>();
            let most = values.iter().fold(0, |most: i32, value| most.max(i32::from_le_bytes(*value) & i32::MAX));
            f32::from_bits(most as u32).into()
        }
    }
}

impl LowRank {
    /// A bound of its values and of those of its factors.
    fn extent(&self) -> f64 {
        let (up, down) = (largest(&self.up) * f64::from(self.scale.abs()), largest(&self.down));
        (up * down * self.rank() as f64).max(up).max(down)
    }

    fn is_zero(&self) -> bool {
        self.scale == 0.0 || is_zeros(&self.up) || is_zeros(&self.down)
    }
}

impl Delta {
    /// Whether all of its values are zero.
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

    /// A bound of its values, and of those from which they are computed.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::files::{Bytes, Scales};

    #[test]
    fn the_largest_magnitude_is_found_in_every_type_and_part() {
        let values = |count: usize, place: usize| (0..count).map(move |i| if i == place { -48.0 } else { 3.5 });
        let view = |format: Format, bytes: Vec<u8>, count: usize| {
            let length = bytes.len();
            TensorView::new(Arc::new(Bytes::Owned(bytes)), 0..length, format, vec![count], Scales::None).unwrap()
        };
        for count in [1, 5, BYTES_AT_ONCE] {
            for place in [0, count - 1] {
                let f32s = values(count, place).flat_map(|value: f32| value.to_le_bytes()).collect();
                assert_eq!(largest(&view(Format::F32, f32s, count)), 48.0);
                let bf16s = values(count, place).flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect();
                assert_eq!(largest(&view(Format::Bf16, bf16s, count)), 48.0);
                let f16s = values(count, place).flat_map(|value| f16::from_f32(value).to_le_bytes()).collect();
                assert_eq!(largest(&view(Format::F16, f16s, count)), 48.0);
            }
        }
        assert_eq!(f64::from(bf16::MAX), super::super::change::LARGEST);
    }
}
