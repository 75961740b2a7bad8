//! Weights to formats of fewer bits: the other way round than [`dequantise_rows`].
//!
//! What is made is an ordinary [`TensorView`] of memory of its own, so nothing that reads weights knows the difference
//! from a file in that format. Rows are read a panel at a time, on all cores, so that no more than one tensor is in
//! memory beside what is made. The bytes are the same on every processor and on any number of cores.

mod names;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;

pub use self::names::format_of_name;
use super::blocks::largest;
use super::bytes::Bytes;
use super::dequantise::dequantise_rows;
use super::format::{Encode, Format};
use super::scales::{BlockScales, FileSlice, ScaleLayout, Scales};
use super::tensor_view::TensorView;

/// A largest magnitude at which no format loses more than it should: those of scales in float16 lose bits below.
const SAFE_MAGNITUDE: f32 = 0.01;
/// The most of the squares of all values that a format may lose; those of 4 bits lose a hundredth.
const MOST_LOST: f64 = 0.25;
/// Values that one task reads: one MiB.
const PANEL_VALUES: usize = 1 << 18;

/// The format in which rows of `cols` values are stored where `wanted` is asked for: the one of the next larger size
/// whose blocks fit, as llama.cpp chooses it; none where no such blocks fit.
pub fn fitting(wanted: Format, cols: usize) -> Option<Format> {
    let fits = |format: &Format| cols > 0 && cols.is_multiple_of(format.block().values);
    Some(wanted).filter(fits).or(wanted.row().smaller_blocks.filter(fits))
}

/// The bits that a value takes, scales included; those of a whole tensor or of rows are not counted.
pub fn bits_per_value(format: Format) -> f64 {
    let block = format.block();
    let scales = usize::from(format.row().safetensors.is_some_and(|layout| layout.block_scales.is_some()));
    8.0 * (block.bytes + scales) as f64 / block.values as f64
}

/// The rows of `parts`, one part under the other, as one tensor in `format`: a plain float, or one of those that
/// are [made](Format::made). With a scale of the whole tensor, all parts have the same. What is in the format already
/// is copied where its blocks hold their scales.
///
/// Errors with the reason when values are infinite, no numbers, too large for the format, or so small that most of them
/// is lost in it, or rows are no whole blocks.
///
/// Panics when parts differ in columns or there are none.
pub fn quantise(parts: &[TensorView], format: Format) -> Result<TensorView, String> {
    let matrix = Matrix::new(parts, format);
    let shape = matrix.shape();
    let len = format.bytes(&shape).ok_or_else(|| format!("cannot be {shape:?} in {format}"))?;
    let (bytes, scales) = Bytes::filled(len, |out| matrix.encode(out))?;
    let made = TensorView::new(Arc::new(bytes), 0..len, format, shape, scales)?;
    matrix.check_not_lost(&made)?;
    Ok(made)
}

/// Rows of several views, one under the other, and what becomes of them.
struct Matrix<'a> {
    parts: &'a [TensorView],
    format: Format,
    rows: usize,
    cols: usize,
    /// The bits of the largest magnitude that was read.
    largest: AtomicU32,
}

impl<'a> Matrix<'a> {
    fn new(parts: &'a [TensorView], format: Format) -> Self {
        let cols = parts.first().expect("a tensor has parts").cols();
        assert!(parts.iter().all(|part| part.cols() == cols), "parts of equal rows");
        Self { parts, format, rows: parts.iter().map(TensorView::rows).sum(), cols, largest: AtomicU32::new(0) }
    }

    fn shape(&self) -> Vec<usize> {
        let mut shape = self.parts[0].shape().to_vec();
        shape.iter_mut().take(1).for_each(|rows| *rows = self.rows);
        shape
    }

    /// Writes the values to `out`, and returns the scales that lie beside them.
    fn encode(&self, out: &mut [u8]) -> Result<Scales, String> {
        let encode = self.format.row().encode;
        let is_as_it_was = |part: &TensorView| part.format() == self.format && part.scales().is_none();
        if self.parts.iter().all(is_as_it_was) {
            self.copy(out);
            // Files that are written have a scale for each layer in such a format.
            return Ok(if matches!(encode, Some(Encode::Tensor(..))) { Scales::Tensor(1.0) } else { Scales::None });
        }
        match encode.ok_or_else(|| format!("cannot be made in {}", self.format))? {
            Encode::Blocks(encode) => {
                self.panels(out, &mut [], |values, out, _| encode(values, out))?;
                Ok(Scales::None)
            }
            Encode::Tensor(scale, encode) => {
                let scale = scale(self.largest()?);
                self.panels(out, &mut [], |values, out, _| encode(values, scale, out))?;
                Ok(Scales::Tensor(scale))
            }
            Encode::Rows(encode) => {
                let mut scales = vec![0; 4 * self.rows];
                self.panels(out, &mut scales, |values, out, scales| {
                    let rows = values.chunks_exact(self.cols).zip(out.chunks_exact_mut(self.cols));
                    for ((values, out), scale) in rows.zip(scales.as_chunks_mut::<4>().0) {
                        *scale = encode(values, out).to_le_bytes();
                    }
                })?;
                Ok(Scales::Rows(Box::new(FileSlice::owned(scales))))
            }
            Encode::BlockScales(factor, encode) => {
                let factor = factor.map(|factor| self.largest().map(factor)).transpose()?.unwrap_or(1.0);
                self.block_scales(out, factor, |values, out, scales| encode(values, factor, out, scales))
            }
        }
    }

    fn copy(&self, out: &mut [u8]) {
        let mut place = 0;
        for part in self.parts {
            let bytes = part.bytes();
            out[place..place + bytes.len()].copy_from_slice(bytes);
            place += bytes.len();
        }
    }

    /// Blocks whose scales of one byte lie beside them.
    fn block_scales(
        &self,
        out: &mut [u8],
        all: f32,
        encode: impl Fn(&[f32], &mut [u8], &mut [u8]) + Sync,
    ) -> Result<Scales, String> {
        let blocks = self.cols / self.format.block().values;
        let mut linear = vec![0; self.rows * blocks];
        self.panels(out, &mut linear, encode)?;
        let layout = ScaleLayout::Swizzled;
        let [rows, cols] = layout.padded([self.rows, blocks]).ok_or("is too large")?;
        let mut scales = vec![0; rows * cols];
        for (row, of_row) in linear.chunks_exact(blocks).enumerate() {
            for (block, scale) in of_row.iter().enumerate() {
                scales[layout.place(row, block, blocks)] = *scale;
            }
        }
        BlockScales::new(FileSlice::owned(scales), layout, [self.rows, blocks], all)
            .map(|scales| Scales::Blocks(Box::new(scales)))
    }

    /// The largest magnitude.
    fn largest(&self) -> Result<f32, String> {
        let panels = (0..self.rows).into_par_iter().step_by(self.panel_rows());
        let of_panel = |first| self.read(first..(first + self.panel_rows()).min(self.rows)).map(|v| largest(&v));
        panels.map(of_panel).try_reduce(|| 0.0, |a, b| Ok(a.max(b)))
    }

    /// Calls `encode` for the values of some rows, their part of `out` and their part of `scales`, on all cores.
    fn panels(
        &self,
        out: &mut [u8],
        scales: &mut [u8],
        encode: impl Fn(&[f32], &mut [u8], &mut [u8]) + Sync,
    ) -> Result<(), String> {
        let rows = self.panel_rows();
        if out.is_empty() {
            return Ok(());
        }
        let [of_out, of_scales] = [out.len(), scales.len()].map(|bytes| bytes / self.rows * rows);
        let count = self.rows.div_ceil(rows);
        let mut scales: Vec<&mut [u8]> = scales.chunks_mut(of_scales.max(1)).collect();
        scales.resize_with(count, Default::default);
        out.par_chunks_mut(of_out).zip(scales).enumerate().try_for_each(|(panel, (out, scales))| {
            let first = panel * rows;
            encode(&self.read(first..(first + rows).min(self.rows))?, out, scales);
            Ok(())
        })
    }

    /// Rows that one task reads. A vector, whose rows are single values, is read at once.
    fn panel_rows(&self) -> usize {
        if self.parts[0].shape().len() < 2 { self.rows.max(1) } else { (PANEL_VALUES / self.cols.max(1)).max(1) }
    }

    /// The values of some rows.
    fn read(&self, rows: Range<usize>) -> Result<Vec<f32>, String> {
        let mut values = vec![0.0; rows.len() * self.cols];
        let (mut first, mut place) = (0, 0);
        for part in self.parts {
            let own = rows.start.max(first)..rows.end.min(first + part.rows());
            if own.start < own.end {
                let count = own.len() * self.cols;
                dequantise_rows(part, own.start - first..own.end - first, &mut values[place..place + count]);
                place += count;
            }
            first += part.rows();
        }
        self.check(&values)?;
        // Floats that are not negative are in the order of their bits.
        self.largest.fetch_max(largest(&values).to_bits(), Ordering::Relaxed);
        Ok(values)
    }

    /// Errors when the values are so small that most of them is lost. Only those of small magnitudes are looked at
    /// again.
    fn check_not_lost(&self, made: &TensorView) -> Result<(), String> {
        let largest = f32::from_bits(self.largest.load(Ordering::Relaxed));
        if largest == 0.0 || largest >= SAFE_MAGNITUDE {
            return Ok(());
        }
        let panels = (0..self.rows).into_par_iter().step_by(self.panel_rows());
        let squares = panels.map(|first| {
            let rows = first..(first + self.panel_rows()).min(self.rows);
            let values = self.read(rows.clone())?;
            let mut kept = vec![0.0; values.len()];
            dequantise_rows(made, rows, &mut kept);
            let sum = |value: fn(f32, f32) -> f64| values.iter().zip(&kept).map(|(v, k)| value(*v, *k)).sum::<f64>();
            Ok::<_, String>([
                sum(|value, kept| f64::from(value - kept).powi(2)),
                sum(|value, _| f64::from(value).powi(2)),
            ])
        });
        let [lost, all] = squares.try_reduce(|| [0.0; 2], |a, b| Ok([a[0] + b[0], a[1] + b[1]]))?;
        if lost > MOST_LOST * all {
            return Err(format!(
                "holds magnitudes up to {largest:e} alone, which {} does not tell from zeros",
                self.format
            ));
        }
        Ok(())
    }

    fn check(&self, values: &[f32]) -> Result<(), String> {
        // A sum would do for what is not finite, but not for the largest.
        let most = self.format.row().most;
        match values.iter().find(|value| value.is_nan() || value.abs() > most) {
            None => Ok(()),
            Some(value) if value.is_finite() => {
                Err(format!("holds {value:e}, and {} holds magnitudes up to {most:e}", self.format))
            }
            Some(_) => Err("holds values that are not numbers, or infinite".to_string()),
        }
    }
}
