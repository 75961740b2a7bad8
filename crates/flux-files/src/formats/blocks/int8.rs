//! 8-bit integers with one scale, or one for each row, also for weights that were multiplied by Hadamard matrices.

use super::{largest, scale_of};
use crate::formats::scales::Scales;

/// The factor of bitsandbytes, which does not divide by 127.
const PER_STEP: f32 = 1.0 / 127.0;
/// The largest integer in use.
const MAX: f32 = 127.0;

/// Decodes `q s`, or `(q s) / 127` if the scales are maxima of rows.
#[inline(always)]
pub fn int8(bytes: &[u8], scales: &Scales, cols: usize, out: &mut [f32]) {
    let is_maximum = matches!(scales, Scales::RowMaxima(_));
    for (row, (out, bytes)) in out.chunks_exact_mut(cols).zip(bytes.chunks_exact(cols)).enumerate() {
        let scale = scales.row_scale(row);
        out.iter_mut().zip(bytes).for_each(|(out, q)| *out = f32::from(*q as i8) * scale);
        if is_maximum {
            out.iter_mut().for_each(|out| *out *= PER_STEP);
        }
    }
}

/// Decodes `((q R) s) / root` for each `group` columns. `root` is the square root of the group's size; R / `root` is
/// its own inverse.
#[inline(always)]
pub fn int8_rotated(bytes: &[u8], scales: &Scales, cols: usize, group: usize, out: &mut [f32]) {
    let per_root = 1.0 / (group as f32).sqrt();
    for (row, (out, bytes)) in out.chunks_exact_mut(cols).zip(bytes.chunks_exact(cols)).enumerate() {
        out.iter_mut().zip(bytes).for_each(|(out, q)| *out = f32::from(*q as i8));
        out.chunks_exact_mut(group).for_each(rotate);
        let scale = scales.row_scale(row);
        out.iter_mut().for_each(|out| *out = *out * scale * per_root);
    }
}

/// Multiplies a group by R, the Kronecker power of \[\[1, 1, 1, -1\], \[1, 1, -1, 1\], \[1, -1, 1, 1\], \[-1, 1, 1,
/// 1\]\]: by this matrix along each base-4 digit of the column numbers, the last digit first. Sums of so few 8-bit
/// integers are exact in any order. Sums of other values are rounded in this order, as in cuda/int8.cuh.
#[inline(always)]
pub fn rotate(group: &mut [f32]) {
    let mut stride = 1;
    while stride < group.len() {
        // The compiler makes vectors of strides that it knows.
        match stride {
            1 => rotate_digit(group, 1),
            4 => rotate_digit(group, 4),
            16 => rotate_digit(group, 16),
            _ => rotate_digit(group, stride),
        }
        stride *= 4;
    }
}

/// Multiplies along one base-4 digit, whose values are `stride` columns apart.
#[inline(always)]
fn rotate_digit(group: &mut [f32], stride: usize) {
    for quadruple in group.chunks_exact_mut(4 * stride) {
        let (left, right) = quadruple.split_at_mut(2 * stride);
        let ((a, b), (c, d)) = (left.split_at_mut(stride), right.split_at_mut(stride));
        for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
            // Each result is its own column, less the column whose digit is 3 minus its own, plus the other two.
            let [w, x, y, z] = [*a, *b, *c, *d];
            *a = (w - z) + (x + y);
            *b = (x - y) + (w + z);
            *c = (y - x) + (w + z);
            *d = (z - w) + (x + y);
        }
    }
}

/// Encodes a row as integers, and returns their scale.
pub fn to_int8(values: &[f32], out: &mut [u8]) -> f32 {
    let scale = scale_of(largest(values), MAX);
    for (out, value) in out.iter_mut().zip(values) {
        *out = (value / scale).clamp(-MAX, MAX).round_ties_even() as i8 as u8;
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
            // In each row of a digit's matrix, one entry of four is negative.
            assert_eq!(group[0], (0..size).map(|i| sign(i) * values[i]).sum::<f32>());
            rotate(&mut group);
            assert_eq!(group, values.iter().map(|value| value * size as f32).collect::<Vec<_>>());
        }
    }

    /// Returns the sign in the first row: negative if an odd number of digits are 3.
    fn sign(column: usize) -> f32 {
        let threes = (0..8).filter(|digit| column >> (2 * digit) & 3 == 3).count();
        if threes.is_multiple_of(2) { 1.0 } else { -1.0 }
    }
}
