//! Quantization of weights: the inverse of [`dequantize_rows`].
//!
//! The result is an ordinary [`TensorView`] with its own memory, so readers of weights treat it like a file in that
//! format. Rows are read in panels, on all cores, so that at most one tensor is in memory besides the result. The bytes
//! are the same on every processor and for any number of cores.

mod names;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;

pub use self::names::format_of_name;
use crate::formats::blocks::largest;
use crate::formats::dequantize::dequantize_rows;
use crate::formats::format::{Encode, Format};
use crate::formats::scales::{BlockScales, FileSlice, ScaleLayout, Scales};
use crate::formats::tensor_view::TensorView;
use crate::io::bytes::Bytes;

/// The largest magnitude from which on no format loses too much: formats with float16 scales lose bits below.
const SAFE_MAGNITUDE: f32 = 0.01;
/// The max part of the sum of squares that a format may lose; 4-bit formats lose a hundredth.
const MAX_LOSS: f64 = 0.25;
/// Values that one task reads: 1 MiB.
const PANEL_VALUES: usize = 1 << 18;

/// Returns the format that stores rows of `cols` values when `wanted` is requested: `wanted` itself, or the next larger
/// format with smaller blocks, as in llama.cpp. Returns `None` if neither has blocks that fit.
pub fn fitting(wanted: Format, cols: usize) -> Option<Format> {
    let fits = |format: &Format| cols > 0 && cols.is_multiple_of(format.block().values);
    Some(wanted).filter(fits).or(wanted.row().smaller_blocks.filter(fits))
}

/// Returns the bits per value, including block scales; scales of a whole tensor or of rows are not counted.
pub fn bits_per_value(format: Format) -> f64 {
    let block = format.block();
    let scales = usize::from(format.row().safetensors.is_some_and(|layout| layout.block_scales.is_some()));
    8.0 * (block.bytes + scales) as f64 / block.values as f64
}

/// Quantizes the concatenated rows of `parts` to one tensor in `format`: a plain float, or one of the formats that are
/// [made](Format::made). In a format with one scale per tensor, all parts share the scale. Parts that are already in
/// the format are copied if their blocks contain their scales.
///
/// Errors with the reason if values are infinite, NaN, too large for the format, or so small that the format loses most
/// of them, or if rows are not whole blocks.
///
/// Panics if parts differ in columns or there are none.
pub fn quantize(parts: &[TensorView], format: Format) -> Result<TensorView, String> {
    let matrix = Matrix::new(parts, format);
    let shape = matrix.shape();
    let len = format.bytes(&shape).ok_or_else(|| format!("cannot have shape {shape:?} in {format}"))?;
    let (bytes, scales) = Bytes::filled(len, |out| matrix.encode(out))?;
    let made = TensorView::new(Arc::new(bytes), 0..len, format, shape, scales)?;
    matrix.check_not_lost(&made)?;
    Ok(made)
}

/// The concatenated rows of several views, and the format that they are encoded in.
struct Matrix<'a> {
    parts: &'a [TensorView],
    format: Format,
    rows: usize,
    cols: usize,
    /// The bits of the largest magnitude read so far.
    largest: AtomicU32,
}

impl<'a> Matrix<'a> {
    fn new(parts: &'a [TensorView], format: Format) -> Self {
        let cols = parts.first().expect("a tensor has at least one part").cols();
        assert!(parts.iter().all(|part| part.cols() == cols), "parts of equal rows");
        Self { parts, format, rows: parts.iter().map(TensorView::rows).sum(), cols, largest: AtomicU32::new(0) }
    }

    fn shape(&self) -> Vec<usize> {
        let mut shape = self.parts[0].shape().to_vec();
        shape.iter_mut().take(1).for_each(|rows| *rows = self.rows);
        shape
    }

    /// Writes the values to `out`, and returns the scales that are stored separately.
    fn encode(&self, out: &mut [u8]) -> Result<Scales, String> {
        let encode = self.format.row().encode;
        let is_as_it_was = |part: &TensorView| part.format() == self.format && part.scales().is_none();
        if self.parts.iter().all(is_as_it_was) {
            self.copy(out);
            // Written files have a scale for each layer in such a format.
            return Ok(if matches!(encode, Some(Encode::Tensor(..))) { Scales::Tensor(1.0) } else { Scales::None });
        }
        match encode.ok_or_else(|| format!("cannot be converted to {}", self.format))? {
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

    /// Encodes blocks whose one-byte scales are stored separately.
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

    /// Returns the largest magnitude.
    fn largest(&self) -> Result<f32, String> {
        let panels = (0..self.rows).into_par_iter().step_by(self.panel_rows());
        let of_panel = |first| self.read(first..(first + self.panel_rows()).min(self.rows)).map(|v| largest(&v));
        panels.map(of_panel).try_reduce(|| 0.0, |a, b| Ok(a.max(b)))
    }

    /// Calls `encode` on all cores for the values of some rows, their part of `out` and their part of `scales`.
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

    /// Returns the number of rows that one task reads. A vector, whose rows are single values, is read at once.
    fn panel_rows(&self) -> usize {
        if self.parts[0].shape().len() < 2 { self.rows.max(1) } else { (PANEL_VALUES / self.cols.max(1)).max(1) }
    }

    /// Reads the values of some rows.
    fn read(&self, rows: Range<usize>) -> Result<Vec<f32>, String> {
        let mut values = vec![0.0; rows.len() * self.cols];
        let (mut first, mut place) = (0, 0);
        for part in self.parts {
            let own = rows.start.max(first)..rows.end.min(first + part.rows());
            if own.start < own.end {
                let count = own.len() * self.cols;
                dequantize_rows(part, own.start - first..own.end - first, &mut values[place..place + count]);
                place += count;
            }
            first += part.rows();
        }
        self.check(&values)?;
        // Floats that are not negative are ordered like their bits.
        self.largest.fetch_max(largest(&values).to_bits(), Ordering::Relaxed);
        Ok(values)
    }

    /// Errors if the values are so small that most of them are lost. Only tensors of small magnitudes are decoded for
    /// this check.
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
            dequantize_rows(made, rows, &mut kept);
            let sum = |value: fn(f32, f32) -> f64| values.iter().zip(&kept).map(|(v, k)| value(*v, *k)).sum::<f64>();
            Ok::<_, String>([
                sum(|value, kept| f64::from(value - kept).powi(2)),
                sum(|value, _| f64::from(value).powi(2)),
            ])
        });
        let [lost, all] = squares.try_reduce(|| [0.0; 2], |a, b| Ok([a[0] + b[0], a[1] + b[1]]))?;
        if lost > MAX_LOSS * all {
            return Err(format!(
                "has no magnitude above {largest:e}, which {} cannot distinguish from zero",
                self.format
            ));
        }
        Ok(())
    }

    fn check(&self, values: &[f32]) -> Result<(), String> {
        // A sum would find values that are not finite, but not values that are too large.
        let most = self.format.row().max_magnitude;
        match values.iter().find(|value| value.is_nan() || value.abs() > most) {
            None => Ok(()),
            Some(value) if value.is_finite() => {
                Err(format!("contains {value:e}, but {} is limited to magnitudes up to {most:e}", self.format))
            }
            Some(_) => Err("contains NaN or infinite values".to_string()),
        }
    }
}
