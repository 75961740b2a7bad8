//! The choice of tiles, and the average of their results.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::memory;
use crate::rgb::Rgb;
use crate::tiles::Place;

/// The choice of tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tiles {
    /// The whole image if the memory allows it, otherwise tiles as large as the memory allows.
    #[default]
    Auto,
    /// Tiles of at most this side in pixels of the image, smaller ones only if memory is short.
    UpTo(usize),
    /// The whole image.
    Whole,
    /// Square tiles of `side` pixels of the image. Neighbours share at least `overlap` pixels.
    Of {
        /// The side in pixels of the image.
        side: usize,
        /// The least pixels that two neighbours share.
        overlap: usize,
    },
}

/// The weighted sums of the tiles' pixels.
pub(super) struct Sums {
    size: [usize; 2],
    /// [height, width, 3]
    values: Vec<f32>,
    /// [height, width]
    weights: Vec<f32>,
}

impl Sums {
    /// Errors if there is no memory for them.
    pub(super) fn new(size: [usize; 2]) -> Result<Self> {
        let [width, height] = size;
        let pixels = width.checked_mul(height).filter(|pixels| pixels.checked_mul(16).is_some());
        let pixels = pixels.ok_or_else(|| Error::new(format!("an image of {width}x{height} pixels is too large")))?;
        drop(memory::reserve(16 * pixels)?);
        Ok(Self { size, values: vec![0.0; 3 * pixels], weights: vec![0.0; pixels] })
    }

    /// Adds the result of a tile, [rows * columns * scale^2, 3].
    pub(super) fn add(&mut self, values: &[f32], place: &Place, scale: usize, overlap: usize) {
        let scaled = |range: &Range<usize>| range.start * scale..range.end * scale;
        let (columns, rows) = (scaled(&place.columns), scaled(&place.rows));
        let [across, down] = place.ramps(overlap, scale);
        for (row, (from, down)) in rows.zip(values.chunks_exact(3 * columns.len()).zip(down)) {
            let first = row * self.size[0] + columns.start;
            let weights = self.weights[first..].iter_mut();
            let pixels = self.values[3 * first..].chunks_exact_mut(3).zip(weights);
            for ((from, across), (pixel, sum)) in from.chunks_exact(3).zip(&across).zip(pixels) {
                let weight = down * across;
                *sum += weight;
                pixel.iter_mut().zip(from).for_each(|(value, from)| *value += weight * from);
            }
        }
    }

    /// Returns the averages, in -1..1.
    pub(super) fn averages(&self) -> impl Iterator<Item = f32> {
        self.values.chunks_exact(3).zip(&self.weights).flat_map(|(pixel, weight)| pixel.iter().map(move |v| v / weight))
    }

    /// Rounds the averages to bytes.
    ///
    /// Errors if one is NaN.
    pub(super) fn into_image(self) -> Result<Rgb> {
        if self.values.iter().any(|value| value.is_nan()) {
            return Err(
                Error::new(crate::backend::NOT_NUMBERS).hint("the upscaler's weights are damaged: fetch it again")
            );
        }
        let byte = |v: f32| ((v * 0.5 + 0.5).clamp(0.0, 1.0) * 255.0).round_ties_even() as u8;
        let bytes = self.averages().map(byte).collect();
        Ok(Rgb { width: self.size[0], height: self.size[1], bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiles::places;

    #[test]
    fn equal_tiles_average_to_themselves() {
        let mut sums = Sums::new([40, 28]).unwrap();
        for place in places([20, 14], (8, 4)) {
            sums.add(&[0.25; 16 * 16 * 3], &place, 2, 4);
        }
        assert!(sums.averages().all(|value| (value - 0.25).abs() < 1e-6));
        assert_eq!(sums.into_image().unwrap().bytes[0], 159);
    }
}
