//! Upscalers: networks that enlarge an image by a fixed factor, without a prompt and without steps.
//!
//! [`UpscalerFile`] recognises the network of a file by its tensors, [`Upscaler`] runs it: ESRGAN and its relatives
//! ([`rrdb`]), the Compact networks of Real-ESRGAN ([`compact`]), and SPAN ([`span`]). An image that is too large for
//! the memory is enlarged in overlapping [`tiles`]. Start reading at [`Upscaler::enlarge`].

mod compact;
mod file;
mod layers;
mod pixels;
mod rrdb;
mod span;
#[cfg(test)]
mod tests;
mod tiles;

pub use file::UpscalerFile;
pub use tiles::Tiles;

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::rgb::Rgb;
use crate::stage::{Caller, CancelFlag, Stage};
use crate::tensor::{Dtype, Tensor};
use crate::tiles::places;
use compact::Compact;
use file::Kind;
use rrdb::Rrdb;
use span::Span;

/// The share of the available memory that an image or a tile may use.
const MEMORY_SHARE: f64 = 0.8;
/// The smallest and the largest side of a tile that is chosen by memory, and its overlap with the next tile.
const MIN_TILE: usize = 64;
const MAX_TILE: usize = 4096;
const OVERLAP: usize = 32;

/// A network on a device.
pub struct Upscaler<B: Backend> {
    backend: B,
    network: Network<B>,
    scale: usize,
    /// The side of the squares of pixels that become channels of the input.
    unshuffle: usize,
    /// Values that the device holds for each pixel of the image, at most.
    values_per_pixel: usize,
    /// [1, 3]: map pixels in -1..1 to 0..1.
    half: Tensor<B>,
    shift: Tensor<B>,
}

/// The pixels of an enlarged image, in about -1..1.
enum Computed<B: Backend> {
    /// [height * width, 3] on the device.
    Whole(Tensor<B>),
    Tiled(tiles::Sums),
}

enum Network<B: Backend> {
    Rrdb(Rrdb<B>),
    Compact(Compact<B>),
    Span(Span<B>),
}

/// Progress of one image: calls of [`Step::next`] report parts, and end a cancelled image.
pub(crate) struct Step<'a> {
    /// Reports completed parts of all; errors if the image is cancelled.
    report: &'a dyn Fn(u64, u64) -> Result<()>,
    done: u64,
    total: u64,
}

impl Step<'_> {
    /// Begins the next part, and reports the parts before.
    ///
    /// Errors if the image is cancelled.
    fn next(&mut self) -> Result<()> {
        (self.report)(self.done, self.total)?;
        self.done += 1;
        Ok(())
    }
}

/// Reports completed parts of all.
///
/// Errors if the caller cancels.
fn report(caller: &Caller<'_>, done: u64, total: u64) -> Result<()> {
    caller.report(Stage::Upscale, done, total);
    caller.check()
}

impl<B: Backend> Upscaler<B> {
    /// Loads the network of a file.
    ///
    /// Errors if memory runs out, or the file has changed.
    pub fn load(backend: &B, file: &UpscalerFile) -> Result<Self> {
        let network = match file.kind() {
            Kind::Rrdb(sizes) => Network::Rrdb(Rrdb::load(&file.weights(backend), sizes)?),
            Kind::Compact(sizes) => Network::Compact(Compact::load(&file.weights(backend), sizes)?),
            Kind::Span(sizes) => Network::Span(Span::load(&file.weights(backend), sizes)?),
        };
        let (scale, unshuffle, values_per_pixel) = (file.scale(), file.unshuffle(), file.values_per_pixel());
        let [half, shift] = [-0.5, 0.5].map(|value| backend.upload(&[value; 3], 1, 3));
        let backend = backend.clone();
        Ok(Self { backend, network, scale, unshuffle, values_per_pixel, half: half?, shift: shift? })
    }

    /// Returns the factor by which the network enlarges width and height.
    pub fn scale(&self) -> usize {
        self.scale
    }

    /// Returns the device.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Enlarges an image by the network's factor: whole with [`Tiles::Whole`] or if the memory allows it, otherwise in
    /// tiles. Where tiles overlap, their results are averaged with weights that fall towards the edge.
    ///
    /// Errors if the image has no pixels, memory runs out, a pixel of the result is not a number, or the caller
    /// cancels.
    pub fn enlarge(&self, image: &Rgb, tiles: Tiles, caller: &Caller<'_>) -> Result<Rgb> {
        let size = [image.width, image.height].map(|side| side * self.scale);
        let (computed, parts) = self.compute(image, tiles, caller)?;
        let made = match computed {
            Computed::Whole(pixels) => {
                // Also waits. The system allocates the memory of the image meanwhile, which takes as long as a third of
                // the network.
                let bytes = self.backend.take_rgb8(self.backend.rgb8(&pixels)?)?;
                Rgb { width: size[0], height: size[1], bytes }
            }
            Computed::Tiled(sums) => sums.into_image()?,
        };
        report(caller, parts, parts)?;
        Ok(made)
    }

    /// Computes the values of the enlarged image, [height * width, 3], in about 0..1.
    ///
    /// Errors as [`Upscaler::enlarge`].
    pub fn values(&self, image: &Rgb, tiles: Tiles) -> Result<Vec<f32>> {
        let caller = &mut |_| {};
        let values: Vec<_> = match self.compute(image, tiles, &Caller::new(caller, &CancelFlag::default()))?.0 {
            Computed::Whole(pixels) => self.backend.download(&pixels)?,
            Computed::Tiled(sums) => sums.averages().collect(),
        };
        Ok(values.into_iter().map(|value| value / 2.0 + 0.5).collect())
    }

    /// Returns the pixels, which a device may still compute, and the number of parts in progress reports.
    fn compute(&self, image: &Rgb, tiles: Tiles, caller: &Caller<'_>) -> Result<(Computed<B>, u64)> {
        let Rgb { width, height, bytes } = image;
        if *width == 0 || *height == 0 || bytes.len() != 3 * width * height {
            return Err(Error::new(format!("an image of {width}x{height} pixels cannot be upscaled")));
        }
        let tiles = self.tiles(tiles, [*width, *height]);
        let places = places([*width, *height], tiles);
        let report = |done, total| report(caller, done, total);
        let total = (places.len() * self.parts()) as u64;
        let mut step = Step { report: &report, done: 0, total };
        if places.len() == 1 {
            return Ok((Computed::Whole(self.forward(image, &mut step)?), total));
        }
        let mut sums = tiles::Sums::new([width * self.scale, height * self.scale])?;
        for place in &places {
            let values = self.backend.download(&self.forward(&pixels::crop(image, place), &mut step)?)?;
            sums.add(&values, place, self.scale, tiles.1);
        }
        Ok((Computed::Tiled(sums), total))
    }

    /// Computes the pixels of an image, [height * width * scale^2, 3] in about -1..1.
    pub(crate) fn forward(&self, image: &Rgb, step: &mut Step<'_>) -> Result<Tensor<B>> {
        if self.unshuffle == 1 {
            let size @ [height, width] = [image.height, image.width];
            let base = self.backend.upload_rgb8(&image.bytes, height, width)?;
            let x = base.row_view(0..base.rows()).scale_shift(&self.half, &self.shift)?;
            return match &self.network {
                Network::Compact(network) => network.forward(x, base, size, step),
                Network::Rrdb(network) => network.forward(x, size, step),
                Network::Span(network) => network.forward(x, size, step),
            };
        }
        let (values, [width, height]) = pixels::unshuffled(image, self.unshuffle);
        let x = self.backend.upload(&values, width * height, values.len() / (width * height))?;
        drop(values);
        match &self.network {
            Network::Compact(_) | Network::Span(_) => Err(Error::new("the network does not read squares of pixels")),
            Network::Rrdb(network) => {
                let made = network.forward(x, [height, width], step)?;
                let [wide, high] = [width, height].map(|side| side * self.unshuffle * self.scale);
                pixels::cut(made, [wide, high], [image.width, image.height].map(|side| side * self.scale))
            }
        }
    }

    /// Returns the parts of an image in progress reports.
    fn parts(&self) -> usize {
        match &self.network {
            Network::Rrdb(network) => network.parts(),
            Network::Compact(network) => network.parts(),
            Network::Span(network) => network.parts(),
        }
    }

    /// Returns the side and the overlap of tiles: as passed, otherwise as large as the available memory allows.
    fn tiles(&self, tiles: Tiles, [width, height]: [usize; 2]) -> (usize, usize) {
        let by_memory = || {
            // Values are float32 on the host, and the result is in the host's memory as well.
            let element = if self.backend.activation_dtype() == Dtype::F32 { 4.0 } else { 2.0 };
            let pixel = self.values_per_pixel as f64 * element;
            let most = self.backend.available_bytes() as f64 * MEMORY_SHARE / pixel;
            if (width * height) as f64 <= most { usize::MAX } else { (most.sqrt() as usize).clamp(MIN_TILE, MAX_TILE) }
        };
        let (side, overlap) = match tiles {
            Tiles::Whole => (usize::MAX, 0),
            Tiles::Of { side, overlap } => (side, overlap),
            Tiles::Auto => (by_memory(), OVERLAP),
            Tiles::UpTo(side) => (by_memory().min(side), OVERLAP),
        };
        let side = if side >= width.max(height) { side } else { (side / self.unshuffle).max(1) * self.unshuffle };
        (side, overlap.min(side / 2))
    }
}
