//! The input of a convolution: an image itself, doubled in height and width, or normed. A normed image, and an image in
//! host memory, are in bands of rows if they are large.

use std::ops::Range;

use super::group_norm::Coefficients;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::{Error, Result};
use crate::ops::{Conv, Halo};

/// Bands begin at multiples of this many rows, as tiles of convolutions do.
pub const BAND_MULTIPLE: usize = 16;

/// The input of a convolution. The result does not depend on how many rows the convolution reads at once: a norm's
/// statistics are of the whole image, and convolutions split their work as if they read all of it.
pub enum Input<'a> {
    /// [height * width, channels]
    Image(Rows<'a>),
    /// An image doubled in height and width: every pixel becomes a square of two by two.
    Doubled(Rows<'a>),
    /// `silu(group_norm(..))` of an image.
    Normed(Window<'a>),
}

/// An image with the rows of its halo above and below.
pub enum Rows<'a> {
    /// In device memory.
    All {
        /// [rows * width, channels]
        pixels: Tensor<Cuda>,
        /// Rows of pixels of the halo.
        halo: [usize; 2],
    },
    /// In host memory.
    Window(Window<'a>),
}

impl<'a> Rows<'a> {
    /// Creates the input of a convolution, in bands of at most `band_bytes` if x is in host memory.
    pub fn new(x: &'a Tensor<Cuda>, halo: Option<&'a Halo<Cuda>>, conv: Conv, band_bytes: usize) -> Result<Self> {
        if x.buffer().is_on_host() {
            return Ok(Self::Window(Window::new(x, halo, None, conv, band_bytes)));
        }
        let pixels = halo.map_or_else(|| Ok(x.row_view(0..x.rows())), |halo| halo.around(x))?;
        Ok(Self::All { pixels, halo: halo_height(halo, conv.width) })
    }
}

/// Returns the rows of pixels above and below an image of `width` columns.
fn halo_height(halo: Option<&Halo<Cuda>>, width: usize) -> [usize; 2] {
    halo.map_or([0, 0], Halo::rows).map(|rows| rows / width.max(1))
}

/// Some rows of pixels of an input.
pub struct InputBand {
    /// [rows * width, channels]
    pub pixels: Tensor<Cuda>,
    /// The index of the first of these rows, counted from the first row of the halo.
    pub first: usize,
}

impl<'a> Input<'a> {
    /// Returns the window, if the input is in bands.
    fn window(&self) -> Option<&Window<'a>> {
        match self {
            Input::Image(Rows::All { .. }) | Input::Doubled(Rows::All { .. }) => None,
            Input::Image(Rows::Window(window)) | Input::Doubled(Rows::Window(window)) | Input::Normed(window) => {
                Some(window)
            }
        }
    }

    /// Returns the tensor from which the input is computed.
    pub fn source(&self) -> &Tensor<Cuda> {
        match self {
            Input::Image(Rows::All { pixels, .. }) | Input::Doubled(Rows::All { pixels, .. }) => pixels,
            Input::Image(Rows::Window(window)) | Input::Doubled(Rows::Window(window)) | Input::Normed(window) => {
                window.x
            }
        }
    }

    /// Returns the rows of pixels of the source above and below the image, used instead of zeros.
    pub fn halo(&self) -> [usize; 2] {
        match self {
            Input::Image(Rows::All { halo, .. }) | Input::Doubled(Rows::All { halo, .. }) => *halo,
            Input::Image(Rows::Window(window)) | Input::Doubled(Rows::Window(window)) | Input::Normed(window) => {
                window.halo
            }
        }
    }

    /// Returns `true` if rows of pixels are multiples of 16 bytes.
    pub fn aligned(&self) -> bool {
        match self.window() {
            None => self.source().aligned(),
            Some(window) => window.x.cols().is_multiple_of(8),
        }
    }

    /// Returns the bands for an image of `height` rows, of at most `max` rows each.
    pub fn bands(&self, height: usize, max: usize) -> Vec<Range<usize>> {
        let band = self.window().map_or(height.max(1), |window| window.band).min(max);
        (0..height).step_by(band).map(|first| first..(first + band).min(height)).collect()
    }

    /// Returns at least `rows` of the source, before doubling, counted from the first row of the halo. They are valid
    /// until the next call.
    pub fn show(&mut self, rows: Range<usize>) -> Result<InputBand> {
        match self {
            Input::Image(Rows::All { pixels, .. }) | Input::Doubled(Rows::All { pixels, .. }) => {
                Ok(InputBand { pixels: pixels.row_view(0..pixels.rows()), first: 0 })
            }
            Input::Image(Rows::Window(window)) | Input::Doubled(Rows::Window(window)) | Input::Normed(window) => {
                window.show(rows)
            }
        }
    }
}

/// An image with rows that are copied to the device or normed some at a time.
pub struct Window<'a> {
    x: &'a Tensor<Cuda>,
    /// The image and its halo, in the order of rows.
    parts: Vec<&'a Tensor<Cuda>>,
    /// Rows of pixels of the halo.
    halo: [usize; 2],
    /// The coefficients of the norm; `None` without a norm.
    coefficients: Option<Coefficients>,
    /// Rows of pixels, including the halo.
    height: usize,
    width: usize,
    /// Rows of a band, and rows before and after it that a convolution of the band reads.
    band: usize,
    seen: usize,
    /// Memory for some rows, and the range of rows in it.
    pixels: Option<Tensor<Cuda>>,
    held: Range<usize>,
}

impl<'a> Window<'a> {
    /// Creates an image and its halo, or with `coefficients` `silu(group_norm(x))` of both, as input of a convolution,
    /// in bands of at most `band_bytes`.
    pub fn new(
        x: &'a Tensor<Cuda>,
        halo: Option<&'a Halo<Cuda>>,
        coefficients: Option<Coefficients>,
        conv: Conv,
        band_bytes: usize,
    ) -> Self {
        let [above, below] = halo.map_or([None; 2], |halo| [halo.above.as_ref(), halo.below.as_ref()]);
        let (width, parts) = (conv.width, [above, Some(x), below]);
        let band = band_rows(conv.height, 2 * width * x.cols(), band_bytes);
        // Bands are counted in rows of the output.
        let band = if conv.stride == 1 { band } else { (band / conv.stride).next_multiple_of(BAND_MULTIPLE) };
        let halo = halo_height(halo, width);
        let (parts, height) = (parts.into_iter().flatten().collect(), conv.height + halo.iter().sum::<usize>());
        let seen = conv.kernel - 1;
        Self { x, parts, halo, coefficients, height, width, band, seen, pixels: None, held: 0..0 }
    }

    fn show(&mut self, rows: Range<usize>) -> Result<InputBand> {
        let (cuda, width) = (self.x.backend(), self.width);
        if rows.start < self.held.start || rows.end > self.held.end {
            let room = |pixels: &Option<Tensor<Cuda>>| pixels.as_ref().map_or(0, |pixels| pixels.rows() / width);
            if room(&self.pixels) < rows.len() {
                self.pixels = None;
                let room = rows.len().max(self.band.saturating_add(self.seen)).min(self.height);
                self.pixels = Some(cuda.empty(room * width, self.x.cols())?);
            }
            let held = rows.start..(rows.start + room(&self.pixels)).min(self.height);
            let mut first = 0;
            for part in &self.parts {
                let end = first + part.rows() / width;
                let rows = first.max(held.start)..end.min(held.end);
                if let Some(pixels) = self.pixels.as_ref().filter(|_| !rows.is_empty()) {
                    let pixels_of = |from: usize| (rows.start - from) * width..(rows.end - from) * width;
                    let (from, to) = (part.row_view(pixels_of(first)), pixels.row_view(pixels_of(held.start)));
                    let on_host = from.buffer().is_on_host();
                    if on_host || self.coefficients.is_none() {
                        cuda.copy_cells(&from, &to)?;
                    }
                    if let Some(coefficients) = &self.coefficients {
                        cuda.apply_group_norm(if on_host { &to } else { &from }, coefficients, &to, true)?;
                    }
                }
                first = end;
            }
            self.held = held;
        }
        // Callers request rows of the image, so there is memory for them from here on.
        let pixels = self.pixels.as_ref().ok_or_else(|| Error::new("a convolution requested no rows of an image"))?;
        Ok(InputBand { pixels: pixels.row_view(0..self.held.len() * width), first: self.held.start })
    }
}

/// Returns the rows of a band, for an image of `height` rows of `row_bytes` bytes: a band takes at most `limit` bytes,
/// but has at least BAND_MULTIPLE rows.
fn band_rows(height: usize, row_bytes: usize, limit: usize) -> usize {
    if height.saturating_mul(row_bytes) <= limit.saturating_mul(2) {
        return height.max(1);
    }
    let (most, all) = ((limit / row_bytes / BAND_MULTIPLE).max(1), height.div_ceil(BAND_MULTIPLE));
    // All bands have one size: a short last one would leave multiprocessors idle.
    all.div_ceil(all.div_ceil(most)) * BAND_MULTIPLE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_are_of_one_size_and_take_no_more_than_they_may() {
        const LIMIT: usize = 256 << 20;
        // An image of 1024 x 1024 is one band; 2048 x 2048 and 4096 x 4096 are several.
        let bands = |side: usize, channels: usize| side.div_ceil(band_rows(side, 2 * side * channels, LIMIT));
        assert_eq!([1024, 2048, 4096].map(|side| bands(side, 256)), [1, 8, 32]);
        assert_eq!([1024, 2048, 4096].map(|side| bands(side, 128)), [1, 4, 16]);
        for (height, row_bytes) in
            [(1, 8), (17, 1 << 20), (1040, 512 << 10), (4095, 2 << 20), (4096, 100 << 20), (33, LIMIT)]
        {
            for limit in [0, 1, 1 << 20, LIMIT, usize::MAX] {
                let rows = band_rows(height, row_bytes, limit);
                if height * row_bytes <= limit.saturating_mul(2) {
                    assert_eq!(rows, height, "{height} x {row_bytes} in {limit}");
                    continue;
                }
                assert!(rows.is_multiple_of(BAND_MULTIPLE) && rows > 0, "{height} x {row_bytes} in {limit}: {rows}");
                assert!(
                    rows * row_bytes <= limit || rows == BAND_MULTIPLE,
                    "{height} x {row_bytes} in {limit}: {rows}"
                );
            }
        }
        assert_eq!([band_rows(96, 1, 48), band_rows(97, 1, 48)], [96, 48], "slightly more than two bands become three");
        assert_eq!(band_rows(129, 1, 64), 48, "three bands have the same length");
    }
}
