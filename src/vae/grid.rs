//! Images with one tensor row per pixel, and their bands on several devices.

use std::ops::Range;

use crate::backend::Backend;
use crate::error::Result;
use crate::ops::{Conv, Convolved, Halo, RowSplit};
use crate::tensor::Tensor;
use crate::token_split::share;

/// An image with one tensor row per pixel, or a band of an image: all columns of some rows.
pub struct Grid<B: Backend> {
    /// [height * width, channels]
    pub pixels: Tensor<B>,
    /// Rows of pixels, of the band if it is one.
    pub height: usize,
    /// Columns of pixels.
    pub width: usize,
    /// Channel statistics of these pixels, if the op that made them computed them as well.
    statistics: Option<B::ChannelStatistics>,
    /// `None` for a whole image.
    band: Option<Band>,
}

/// A device's share of an image. The image has `units` pieces of rows, one for each row of packed latents, and each
/// device has its share of the pieces. So a band has whole rows at every size of the image in the VAE.
#[derive(Debug, Clone, Copy)]
pub struct Band {
    units: usize,
    rank: usize,
    world: usize,
}

impl Band {
    /// Returns the band of the device `rank` of `world`. `None` with one device, or with fewer pieces than devices:
    /// then each device has the whole image, because bands of such an image would gain nothing.
    pub fn new(units: usize, rank: usize, world: usize) -> Option<Self> {
        (world > 1 && units >= world).then_some(Self { units, rank, world })
    }

    /// Returns the pieces of this device.
    pub(crate) fn own(&self) -> Range<usize> {
        share(self.units, self.rank, self.world)
    }

    /// Returns the rows of pixels of all devices, with `unit` rows in a piece.
    pub(super) fn rows(&self, unit: usize) -> RowSplit {
        RowSplit::bands(self.units, unit, self.world)
    }
}

impl<B: Backend> Grid<B> {
    /// Creates a whole image from `pixels` [height * width, channels], a tensor or the result of a convolution.
    pub fn new(pixels: impl Into<Convolved<B>>, height: usize, width: usize) -> Self {
        Self::with_band(pixels, height, width, None)
    }

    pub(super) fn with_band(pixels: impl Into<Convolved<B>>, height: usize, width: usize, band: Option<Band>) -> Self {
        let Convolved { pixels, statistics } = pixels.into();
        Self { pixels, height, width, statistics, band }
    }

    /// Takes a band of a whole image, or all of it without a band.
    pub(super) fn into_band(self, band: Option<Band>) -> Self {
        let Some(band) = band else { return self };
        let (own, unit) = (band.own(), self.height / band.units);
        let pixels = self.pixels.row_view(own.start * unit * self.width..own.end * unit * self.width);
        Self::with_band(pixels, own.len() * unit, self.width, Some(band))
    }

    /// Gathers the whole image on all devices.
    pub(super) fn into_whole(self) -> Result<Self> {
        let Some(rows) = self.rows() else { return Ok(self) };
        let pixels = self.pixels.all_gather_rows(&rows)?;
        let height = pixels.rows() / self.width;
        Ok(Self::new(pixels, height, self.width))
    }

    /// Returns the pixels and their statistics.
    pub(super) fn into_convolved(self) -> Convolved<B> {
        Convolved { pixels: self.pixels, statistics: self.statistics }
    }

    pub(super) fn band(&self) -> Option<Band> {
        self.band
    }

    /// Returns the pixels of the whole image that each device has; `None` for a whole image.
    pub(super) fn rows(&self) -> Option<RowSplit> {
        self.band.map(|band| band.rows(self.height / band.own().len() * self.width))
    }

    /// Returns the channel statistics of these pixels, if they are known.
    pub(super) fn statistics(&self) -> Option<&B::ChannelStatistics> {
        self.statistics.as_ref()
    }

    /// Returns the channel statistics of the whole image, if this is a band; `None` for a whole image.
    pub(super) fn reduced_statistics(&self) -> Result<Option<B::ChannelStatistics>> {
        match self.band {
            Some(_) => self.pixels.all_reduce_statistics(self.statistics()),
            None => Ok(None),
        }
    }

    /// Returns the rows of the neighbours that `conv` reads. Around the whole image, `conv` reads zeros.
    pub(super) fn halo(&self, conv: Conv) -> Result<Halo<B>> {
        match [conv.pad_before, conv.pad_after] {
            rows if self.band.is_some() && rows != [0, 0] => self.pixels.halo_rows(rows.map(|rows| rows * self.width)),
            _ => Ok(Halo::default()),
        }
    }
}
