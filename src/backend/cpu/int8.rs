//! Matrix multiplications of 8-bit integers, as [`crate::files::int8`] defines them, on the fastest unit of the CPU for
//! them. Sums are 32-bit integers and exact, so neither the unit nor the partition of the work affects the result.

use rayon::prelude::*;

use super::tiles::{self, Integers, Output, Packed, WeightRows};
use super::{Rows, math};
use crate::backend::Storage;
use crate::error::{Error, Result};
use crate::files::int8::{MAX_TERMS, group_of, group_of_parts, scale_of_row};
use crate::files::{TensorView, w4a8};

/// A weight [rows, cols] of integers, and the scales and sums of its rows.
pub struct Int8Weight {
    integers: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    cols: usize,
    /// Columns that were rotated together.
    group: usize,
}

impl Int8Weight {
    /// Creates the weight with the concatenated rows of the parts: quantized values of files are used unchanged, others
    /// are quantized, via 4 bits if `storage` requires it.
    ///
    /// Errors if rows are too long.
    pub fn new(parts: &[TensorView], storage: Storage) -> Result<Self> {
        let (rows, cols) =
            (parts.iter().map(TensorView::rows).sum::<usize>(), parts.first().map_or(0, TensorView::cols));
        if cols > MAX_TERMS {
            return Err(Error::new(format!("rows of {cols} columns are too long for int8 matrix multiplications")));
        }
        let (mut integers, mut scales, mut sums) = (vec![0; rows * cols], vec![0.0; rows], vec![0; rows]);
        let in_4_bits = storage == Storage::W4a8 && w4a8::takes(cols);
        let as_it_is = group_of_parts(parts).filter(|_| !in_4_bits);
        let group = as_it_is.unwrap_or_else(|| group_of(cols));
        let rows = parts.iter().flat_map(|part| (0..part.rows()).map(move |row| (part, row)));
        let places = integers.chunks_mut(cols.max(1)).zip(scales.iter_mut().zip(&mut sums));
        let rows: Vec<_> = rows.zip(places).collect();
        rows.into_par_iter().for_each_init(
            || vec![0.0; cols],
            |values, ((part, row), (integers, (scale, sum)))| {
                let view = part.row_range(row..row + 1);
                if as_it_is.is_some() {
                    integers.iter_mut().zip(view.bytes()).for_each(|(integer, byte)| *integer = *byte as i8);
                    *scale = scale_of_row(part, row);
                } else {
                    let quantize = if in_4_bits { w4a8::quantize_row } else { math::quantize_row };
                    math::dequantize(&view, values);
                    *scale = quantize(values, group, integers);
                }
                *sum = integers.iter().map(|integer| i32::from(*integer)).sum();
            },
        );
        Ok(Self { integers, scales, sums, cols, group })
    }
}

/// Computes `out = [x_0 | x_1 | ..] weight^T`, with concatenated columns of the x; out is dense [rows, weight rows].
pub fn linear(xs: &[Rows<'_>], weight: &Int8Weight, out: &mut [f32]) {
    let Int8Weight { integers, scales, sums, cols, group } = weight;
    let (packed, x_scales) = Packed::quantize(xs[0].rows, *cols, Vec::new, |row, values, integers| {
        values.clear();
        xs.iter().for_each(|x| values.extend_from_slice(x.row(row)));
        math::quantize_row(values, *group, integers)
    });
    let rows = WeightRows { bytes: bytemuck::cast_slice(integers), rows: scales.len(), stride: *cols };
    let integers = Some(Integers { x: &x_scales, weight: scales, weight_sums: sums });
    (tiles::int8().multiply)(&packed, rows, Output { values: out, stride: scales.len(), add: false, integers });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::values;
    use super::*;
    use crate::files::int8::quantize_row;
    use crate::files::{Bytes, Format, Scales};

    fn view(values: Vec<f32>, cols: usize) -> TensorView {
        let (rows, len) = (values.len() / cols, values.len());
        TensorView::new(Arc::new(Bytes::Computed(values)), 0..4 * len, Format::F32, vec![rows, cols], Scales::None)
            .unwrap()
    }

    /// Returns the definition, term by term.
    fn expected(x: &[f32], weight: &[f32], cols: usize) -> Vec<f32> {
        let quantized = |values: &[f32]| {
            let row = |row: &[f32]| {
                let mut integers = vec![0; cols];
                let scale = quantize_row(&mut row.to_vec(), group_of(cols), &mut integers);
                (integers, scale)
            };
            values.chunks(cols).map(row).collect::<Vec<_>>()
        };
        let weight = quantized(weight);
        let of_row = |(x, x_scale): (Vec<i8>, f32)| {
            let terms = |row: &[i8]| x.iter().zip(row).map(|(x, w)| i32::from(*x) * i32::from(*w)).sum::<i32>();
            weight.iter().map(|(row, scale)| terms(row) as f32 * (x_scale * scale)).collect::<Vec<_>>()
        };
        quantized(x).into_iter().flat_map(of_row).collect()
    }

    #[test]
    fn products_are_those_of_the_definition_to_the_last_bit() {
        for [rows, cols, n] in [[1, 1, 1], [3, 7, 5], [70, 48, 300], [33, 1024, 9], [5, 2304, 257]] {
            let (x, host) = (values(1, rows * cols), values(2, n * cols));
            let (top, bottom) = host.split_at(n / 2 * cols);
            let parts = [top, bottom].map(|part| view(part.to_vec(), cols));
            let weight = Int8Weight::new(&parts, Storage::Int8).unwrap();
            // Concatenated columns of two tensors.
            let left = cols / 3;
            let of = |first: usize, cols_of: usize| Rows { data: &x[first..], rows, cols: cols_of, stride: cols };
            let mut out = vec![0.0; rows * n];
            linear(&[of(0, left), of(left, cols - left)], &weight, &mut out);
            assert!(out == expected(&x, &host, cols), "{rows} x {cols} -> {n}");
        }
    }

    #[test]
    fn the_largest_sums_are_exact() {
        let cols = MAX_TERMS;
        let weight = Int8Weight::new(&[view(vec![1.0; cols], cols)], Storage::Int8).unwrap();
        let (x, mut out) = (vec![-1.0; cols], [0.0]);
        linear(&[Rows { data: &x, rows: 1, cols, stride: cols }], &weight, &mut out);
        assert_eq!(out[0], -((127 * 127 * cols) as f32) * (1.0 / 127.0 * (1.0 / 127.0)));
    }

    #[test]
    fn integers_of_a_file_are_multiplied_as_they_are() {
        let bytes: Vec<u8> = (0..512).map(|i| (i * 37 % 255) as u8).collect();
        let integers: Vec<i8> = bytes.iter().map(|byte| *byte as i8).collect();
        let bytes = Arc::new(Bytes::Embedded(bytes.leak()));
        for (format, group) in [(Format::Int8, 1), (Format::Int8Rotated { group: 64 }, 64)] {
            let part = TensorView::new(Arc::clone(&bytes), 0..512, format, vec![2, 256], Scales::Tensor(0.25)).unwrap();
            let parts = [part.row_range(1..2), part.row_range(0..1)];
            let weight = Int8Weight::new(&parts, Storage::Int8).unwrap();
            assert_eq!((weight.group, &weight.scales), (group, &vec![0.25; 2]));
            assert_eq!(weight.integers, [&integers[256..], &integers[..256]].concat());
        }
    }
}
