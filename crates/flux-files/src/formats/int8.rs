//! Matrix multiplications of 8-bit integers: rows of activations and weights as integers with a float32 scale.
//!
//! Each `group` columns of a row are first multiplied by R / root, as in [`Format::Int8Rotated`]: R is the Kronecker
//! power of \[\[1, 1, 1, -1\], \[1, 1, -1, 1\], \[1, -1, 1, 1\], \[-1, 1, 1, 1\]\], and root is the square root of the
//! group's size. This rotation is its own inverse, so products of rotated rows equal products of the rows. It spreads
//! outliers of a row over a whole group. Then
//!
//! ```text
//! scale = max |value| / 127                    value  of the rotated row
//! q     = round(value * (127 / max |value|))   ties to even: -127 to 127
//! x weight^T = sum(q_x q_weight) * (scale_x * scale_weight)
//! ```
//!
//! The sum is of integers, so it is exact. cuda/int8.cuh and cuda/linear_int8.cu compute the same integers, scales and
//! sums from equal rows.

use crate::formats::blocks::int8::{int8_rotated, rotate};
use crate::formats::format::Format;
use crate::formats::scales::Scales;
use crate::formats::tensor_view::TensorView;

/// The max number of columns that are rotated together, as in published files.
pub const GROUP: usize = 256;
/// The max number of terms of a dot product whose sum always fits 32 bits.
pub const MAX_TERMS: usize = i32::MAX as usize / (127 * 127);
/// The largest integer.
pub(crate) const MAX: f32 = 127.0;
/// The min magnitude that a row's scale is computed from, so that a row of zeros is not divided by zero.
const MIN_AMAX: f32 = 1e-30;

/// Returns the number of columns that are rotated together in rows of `cols`: the largest power of 4 up to [`GROUP`]
/// that divides `cols`. A group of 1 means no rotation.
pub fn group_of(cols: usize) -> usize {
    let mut group = GROUP;
    while !cols.is_multiple_of(group) {
        group /= 4;
    }
    group
}

/// Rotates each `group` columns of `values` in place, writes the row's integers to `out`, and returns their scale.
/// `out` is as long as `values`.
///
/// Integers cannot represent NaN or infinity. A row with a value that is not finite gets a scale that is not finite
/// either, so that damaged weights still end in an error.
#[inline(always)]
pub fn quantize_row(values: &mut [f32], group: usize, out: &mut [i8]) -> f32 {
    let amax = rotate_row(values, group);
    let inverse = MAX / amax;
    out.iter_mut().zip(values).for_each(|(out, value)| *out = (*value * inverse).round_ties_even() as i8);
    amax / MAX
}

/// Rotates each `group` columns of a row. Returns the largest magnitude of the rotated row, at least `MIN_AMAX`.
#[inline(always)]
pub(crate) fn rotate_row(values: &mut [f32], group: usize) -> f32 {
    let per_root = 1.0 / (group as f32).sqrt();
    if group > 1 {
        values.chunks_exact_mut(group).for_each(rotate);
        // Exact: the square root of a power of 4 is a power of 2.
        values.iter_mut().for_each(|value| *value *= per_root);
    }
    // Compared as bits, because the bits of a NaN are above those of all numbers.
    let bits = values.iter().fold(0, |bits: u32, value| bits.max(value.abs().to_bits()));
    f32::from_bits(bits.max(MIN_AMAX.to_bits()))
}

/// Returns the group in which the rows of all parts are rotated, if int8 matrix multiplications can use the parts as
/// stored in their files; 1 without rotation. Returns `None` if the parts have to be quantized: they have another
/// format, different groups, groups larger than [`GROUP`], or their file keeps activations unquantized.
pub fn group_of_parts(parts: &[TensorView]) -> Option<usize> {
    let group = |part: &TensorView| match part.format() {
        _ if part.is_weight_only() || part.shape().len() != 2 => None,
        Format::Int8 => Some(1),
        Format::Int8Rotated { group } => Some(usize::from(group)).filter(|group| *group <= GROUP),
        _ => None,
    };
    let first = group(parts.first()?)?;
    parts.iter().all(|part| group(part) == Some(first)).then_some(first)
}

/// Returns the scale of a row of integers. The rows are of [`Format::Int8`] or rotated.
pub fn scale_of_row(part: &TensorView, row: usize) -> f32 {
    let scale = part.scales().row_scale(row);
    // The constant that bitsandbytes multiplies by instead of dividing by 127.
    if matches!(part.scales(), Scales::RowMaxima(_)) { scale * (1.0 / MAX) } else { scale }
}

/// Dequantizes a row of integers, passed as bytes: multiplies by the scale and rotates back.
pub fn values_of_row(bytes: &[u8], scale: f32, group: usize) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len()];
    int8_rotated(bytes, &Scales::Tensor(scale), bytes.len().max(1), group, &mut values);
    values
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::formats::scales::FileSlice;
    use crate::io::bytes::Bytes;
    use crate::testing::Random;

    fn values(seed: u64, len: usize) -> Vec<f32> {
        let mut random = Random(seed);
        (0..len).map(|_| 2.0 * random.uniform()).collect()
    }

    fn quantized(values: &[f32], group: usize) -> (Vec<i8>, f32) {
        let mut out = vec![0; values.len()];
        let scale = quantize_row(&mut values.to_vec(), group, &mut out);
        (out, scale)
    }

    #[test]
    fn a_row_is_rotated_in_the_largest_groups_that_divide_it() {
        assert_eq!([3072, 768, 320, 48, 12, 6, 1, 0].map(group_of), [256, 256, 64, 16, 4, 1, 1, 256]);
    }

    #[test]
    fn integers_use_the_whole_range_and_ties_go_to_the_even_one() {
        let (out, scale) = quantized(&[127.0, -127.0, 0.5, 1.5, -2.5, 3.49, 0.0], 1);
        assert_eq!((out, scale), (vec![127, -127, 0, 2, -2, 3, 0], 1.0));
        let (out, scale) = quantized(&[0.0; 4], 4);
        assert!(out == [0; 4] && scale > 0.0 && scale.is_finite());
    }

    /// Compares with the matrix itself, in float64. Its entries are the products of the entries of each base-4 digit.
    #[test]
    fn a_rotated_row_is_its_product_with_the_matrix() {
        for (group, cols) in [(4usize, 12), (16, 16), (64, 128), (256, 512)] {
            let row = values(group as u64, cols);
            let entry = |i: usize, j: usize| {
                let digits = (0..group.ilog(4)).map(|digit| [i, j].map(|n| n >> (2 * digit) & 3));
                digits.map(|[i, j]| if i + j == 3 { -1.0 } else { 1.0 }).product::<f64>() / (group as f64).sqrt()
            };
            let of_matrix = |column: usize| {
                let first = column / group * group;
                (0..group).map(|j| entry(column % group, j) * f64::from(row[first + j])).sum::<f64>()
            };
            let (out, scale) = quantized(&row, group);
            for (column, q) in out.into_iter().enumerate() {
                let off = f64::from(q) * f64::from(scale) - of_matrix(column);
                assert!(off.abs() < 0.5001 * f64::from(scale), "{group}, column {column}: {off}");
            }
        }
    }

    /// The purpose of the rotation: an outlier costs the other values little precision.
    #[test]
    fn a_product_of_rotated_rows_is_nearer_where_a_value_is_far_above_the_others() {
        let mut x = values(1, 1024);
        x[300] = 60.0;
        // The root mean square error over a hundred weights.
        let error = |group: usize| {
            let (x_integers, x_scale) = quantized(&x, group);
            let of_weight = |seed: u64| {
                let weight = values(seed, 1024);
                let exact: f64 = x.iter().zip(&weight).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                let (integers, scale) = quantized(&weight, group);
                let sum: i32 = x_integers.iter().zip(&integers).map(|(x, w)| i32::from(*x) * i32::from(*w)).sum();
                (f64::from(sum as f32 * (x_scale * scale)) - exact).powi(2)
            };
            ((2..102).map(of_weight).sum::<f64>() / 100.0).sqrt()
        };
        let (plain, rotated) = (error(1), error(256));
        assert!(rotated < plain / 3.0, "{rotated}, not rotated {plain}");
    }

    #[test]
    fn what_is_not_finite_makes_its_row_so() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut row = values(3, 16);
            row[5] = bad;
            assert!([1, 16].iter().all(|group| !quantized(&row, *group).1.is_finite()), "{bad}");
        }
    }

    #[test]
    fn files_of_integers_are_taken_as_they_are_where_all_parts_are_alike() {
        let view = |format| {
            let bytes = Arc::new(Bytes::Embedded(&[3; 2048]));
            TensorView::new(bytes, 0..2048, format, vec![2, 1024], Scales::Tensor(0.5)).unwrap()
        };
        let [plain, rotated, wide] =
            [view(Format::Int8), view(Format::Int8Rotated { group: 256 }), view(Format::Int8Rotated { group: 1024 })];
        let of = |parts: &[&TensorView]| group_of_parts(&parts.iter().map(|part| (*part).clone()).collect::<Vec<_>>());
        assert_eq!((of(&[&plain]), of(&[&rotated, &rotated])), (Some(1), Some(256)));
        assert_eq!((of(&[&plain, &rotated]), of(&[&wide]), of(&[])), (None, None, None));
        assert_eq!(of(&[&rotated, &rotated.clone().with_weight_only(true)]), None);
        let maxima = FileSlice::new(Arc::new(Bytes::Embedded(&[0, 0, 0x80, 0x3f, 0, 0, 0, 0x40])), 0..8).unwrap();
        let file = Arc::clone(plain.file());
        let maxima = Scales::RowMaxima(Box::new(maxima));
        let maxima = TensorView::new(file, 0..2048, Format::Int8, vec![2, 1024], maxima).unwrap();
        assert_eq!((scale_of_row(&plain, 1), scale_of_row(&maxima, 1)), (0.5, 2.0 / 127.0));
    }
}
