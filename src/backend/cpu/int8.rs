//! Matrix multiplications of 8-bit integers, as [`crate::files::int8`] defines them: exact, and no faster than float32.
//!
//! Integers are multiplied as float32. A sum of [`EXACT_TERMS`] products of them is exact, and sums of sums are 32-bit
//! integers, so the partition of the work doesn't affect the result.

use rayon::prelude::*;

use super::{Rows, gemm};
use crate::backend::Storage;
use crate::error::{Error, Result};
use crate::files::int8::{MAX_TERMS, group_of, group_of_parts, quantize_row, scale_of_row};
use crate::files::{TensorView, w4a8};

/// Number of products of integers up to 127 with a sum below 2^24.
const EXACT_TERMS: usize = 1024;
/// Weight rows that are widened at once.
const PANEL_ROWS: usize = 256;
/// Rows of activations of one task: enough that widening weights is cheap compared with multiplying them.
const TASK_ROWS: std::ops::RangeInclusive<usize> = 32..=512;

/// A weight [rows, cols] of integers, and the scales of its rows.
pub struct Int8Weight {
    integers: Vec<i8>,
    scales: Vec<f32>,
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
        let (mut integers, mut scales) = (vec![0; rows * cols], vec![0.0; rows]);
        let in_4_bits = storage == Storage::W4a8 && w4a8::takes(cols);
        let as_it_is = group_of_parts(parts).filter(|_| !in_4_bits);
        let group = as_it_is.unwrap_or_else(|| group_of(cols));
        let rows = parts.iter().flat_map(|part| (0..part.rows()).map(move |row| (part, row)));
        let places = integers.chunks_mut(cols.max(1)).zip(&mut scales);
        let rows: Vec<_> = rows.zip(places).collect();
        rows.into_par_iter().for_each(|((part, row), (integers, scale))| {
            let view = part.row_range(row..row + 1);
            if as_it_is.is_some() {
                integers.iter_mut().zip(view.bytes()).for_each(|(integer, byte)| *integer = *byte as i8);
                *scale = scale_of_row(part, row);
            } else {
                let quantize = if in_4_bits { w4a8::quantize_row } else { quantize_row };
                *scale = quantize(&mut view.to_f32(), group, integers);
            }
        });
        Ok(Self { integers, scales, cols, group })
    }
}

/// Rows of activations as integers, stored as float32, and their scales.
struct Operand {
    integers: Vec<f32>,
    scales: Vec<f32>,
    cols: usize,
}

impl Operand {
    /// Quantizes the concatenated columns of `xs`.
    fn new(xs: &[Rows<'_>], group: usize) -> Self {
        let (rows, cols) = (xs[0].rows, xs.iter().map(|x| x.cols).sum::<usize>());
        let (mut integers, mut scales) = (vec![0.0; rows * cols], vec![0.0; rows]);
        let rows = integers.par_chunks_exact_mut(cols.max(1)).zip(&mut scales).enumerate();
        rows.for_each_init(
            || (Vec::with_capacity(cols), vec![0; cols]),
            |(values, quantized), (row, (integers, scale))| {
                values.clear();
                xs.iter().for_each(|x| values.extend_from_slice(x.row(row)));
                *scale = quantize_row(values, group, quantized);
                integers.iter_mut().zip(quantized).for_each(|(integer, q)| *integer = f32::from(*q));
            },
        );
        Self { integers, scales, cols }
    }

    /// Returns some of the columns of some rows.
    fn part(&self, rows: std::ops::Range<usize>, first_col: usize, cols: usize) -> Rows<'_> {
        Rows { data: &self.integers[rows.start * self.cols + first_col..], rows: rows.len(), cols, stride: self.cols }
    }
}

/// Computes `out = [x_0 | x_1 | ..] weight^T`, with concatenated columns of the x; out is dense [rows, weight rows].
pub fn linear(xs: &[Rows<'_>], weight: &Int8Weight, out: &mut [f32]) {
    if out.is_empty() {
        return;
    }
    let (x, n) = (Operand::new(xs, weight.group), weight.scales.len());
    let rows = xs[0].rows;
    let task = rows.div_ceil(rayon::current_num_threads()).clamp(*TASK_ROWS.start(), *TASK_ROWS.end());
    out.par_chunks_mut(task * n).enumerate().for_each_init(Tile::default, |tile, (index, out)| {
        let rows = index * task..index * task + out.len() / n;
        for first in (0..n).step_by(PANEL_ROWS) {
            let panel = first..(first + PANEL_ROWS).min(n);
            let sums = tile.multiply(&x, rows.clone(), weight, panel.clone());
            for ((sums, out), row) in sums.chunks_exact(panel.len()).zip(out.chunks_exact_mut(n)).zip(rows.clone()) {
                let scales = weight.scales[panel.clone()].iter().map(|scale| x.scales[row] * scale);
                let out = out[panel.clone()].iter_mut().zip(sums).zip(scales);
                out.for_each(|((out, sum), scale)| *out = *sum as f32 * scale);
            }
        }
    });
}

/// The memory of a task.
#[derive(Default)]
struct Tile {
    weight: Vec<f32>,
    product: Vec<f32>,
    sums: Vec<i32>,
}

impl Tile {
    /// Computes the sums [rows, panel].
    fn multiply(
        &mut self,
        x: &Operand,
        rows: std::ops::Range<usize>,
        weight: &Int8Weight,
        panel: std::ops::Range<usize>,
    ) -> &[i32] {
        self.sums.clear();
        self.sums.resize(rows.len() * panel.len(), 0);
        self.product.resize(rows.len() * panel.len(), 0.0);
        for first in (0..x.cols).step_by(EXACT_TERMS) {
            let cols = EXACT_TERMS.min(x.cols - first);
            self.weight.clear();
            for row in panel.clone() {
                let integers = &weight.integers[row * weight.cols + first..][..cols];
                self.weight.extend(integers.iter().map(|integer| f32::from(*integer)));
            }
            gemm::dense(x.part(rows.clone(), first, cols), &self.weight, panel.len(), &mut self.product);
            self.sums.iter_mut().zip(&self.product).for_each(|(sum, product)| *sum += *product as i32);
        }
        &self.sums
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::values;
    use super::*;
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
        let cols = 3 * EXACT_TERMS + 1;
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
