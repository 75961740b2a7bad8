//! Integers of 8 bits, with one scale or one a row, also of weights that were multiplied by Hadamard matrices.

use super::super::scales::Scales;
use super::{largest, scale_of};

/// What bitsandbytes multiplies with instead of dividing by 127.
const PER_STEP: f32 = 1.0 / 127.0;
/// The largest integer that is used.
const MOST: f32 = 127.0;

/// `q s`; where rows have maxima, `(q s) / 127`.
#[inline(always)]
pub fn int8(bytes: &[u8], scales: &Scales, cols: usize, out: &mut [f32]) {
    let is_maximum = matches!(scales, Scales::RowMaxima(_));
    for (row, (out, bytes)) in out.chunks_exact_mut(cols).zip(bytes.chunks_exact(cols)).enumerate() {
        let scale = scales.of_row(row);
        out.iter_mut().zip(bytes).for_each(|(out, q)| *out = f32::from(*q as i8) * scale);
        if is_maximum {
            out.iter_mut().for_each(|out| *out *= PER_STEP);
        }
    }
}

/// `((q R) s) / root` for each `group` columns, where root is that of its size, and R over it its own inverse.
#[inline(always)]
pub fn int8_rotated(bytes: &[u8], scales: &Scales, cols: usize, group: usize, out: &mut [f32]) {
    let per_root = 1.0 / (group as f32).sqrt();
    for (row, (out, bytes)) in out.chunks_exact_mut(cols).zip(bytes.chunks_exact(cols)).enumerate() {
        out.iter_mut().zip(bytes).for_each(|(out, q)| *out = f32::from(*q as i8));
        out.chunks_exact_mut(group).for_each(rotate);
        let scale = scales.of_row(row);
        out.iter_mut().for_each(|out| *out = *out * scale * per_root);
    }
}

/// Multiplies a group by R, the Kronecker power of \[\[1, 1, 1, -1\], \[1, 1, -1, 1\], \[1, -1, 1, 1\],
/// \[-1, 1, 1, 1\]\]: by the matrix along each digit to base 4 of the columns' numbers, the last digit first. Sums of
/// so few integers of 8 bits are exact in any order; those of other values are rounded in this one, as in
/// cuda/int8.cuh.
#[inline(always)]
pub fn rotate(group: &mut [f32]) {
    let mut stride = 1;
    while stride < group.len() {
        for quadruple in group.chunks_exact_mut(4 * stride) {
            for i in 0..stride {
                let [a, b, c, d] = [0, 1, 2, 3].map(|digit| quadruple[digit * stride + i]);
                // A column less the one whose digit is 3 less its own, and the sum of the other two.
                quadruple[i] = (a - d) + (b + c);
                quadruple[stride + i] = (b - c) + (a + d);
                quadruple[2 * stride + i] = (c - b) + (a + d);
                quadruple[3 * stride + i] = (d - a) + (b + c);
            }
        }
        stride *= 4;
    }
}

/// A row of integers times the scale that is returned.
pub fn to_int8(values: &[f32], out: &mut [u8]) -> f32 {
    let scale = scale_of(largest(values), MOST);
    for (out, value) in out.iter_mut().zip(values) {
        *out = (value / scale).clamp(-MOST, MOST).round_ties_even() as i8 as u8;
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_is_its_own_inverse_but_for_the_size() {
        for size in [4, 16, 64, 256] {
            let values: Vec<f32> = (0..size).map(|i| (i * 37 % 256) as f32 - 128.0).collect();
            let mut group = values.clone();
            rotate(&mut group);
            // Of each row of the matrix of a digit, one entry of four is negative.
            assert_eq!(group[0], (0..size).map(|i| sign(i) * values[i]).sum::<f32>());
            rotate(&mut group);
            assert_eq!(group, values.iter().map(|value| value * size as f32).collect::<Vec<_>>());
        }
    }

    /// Of the first row: negative where an odd number of digits are 3.
    fn sign(column: usize) -> f32 {
        let threes = (0..8).filter(|digit| column >> (2 * digit) & 3 == 3).count();
        if threes.is_multiple_of(2) { 1.0 } else { -1.0 }
    }
}
