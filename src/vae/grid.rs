//! Images whose rows are pixels, and the bands of them that several devices have.

use std::ops::Range;

use crate::backend::Backend;
use crate::error::Result;
use crate::ops::{Conv, Convolved, Halo, RowSplit};
use crate::tensor::Tensor;
use crate::token_split::share;

/// An image whose rows are pixels, or a band of one: all columns of some rows.
pub struct Grid<B: Backend> {
    /// [height * width, channels]
    pub pixels: Tensor<B>,
    /// Rows of pixels, of the band if it is one.
    pub height: usize,
    /// Columns of pixels.
    pub width: usize,
    /// Channel statistics of these pixels, where the op that made them computed them as well.
    statistics: Option<B::ChannelStatistics>,
    /// None where it is a whole image.
    band: Option<Band>,
}

/// How an image is shared: it has `units` pieces of rows, as many as packed latents have rows, and each device has its
/// share of them. So a band has rows of its own at every size that the image has on its way through the VAE.
#[derive(Debug, Clone, Copy)]
pub struct Band {
    units: usize,
    rank: usize,
    world: usize,
}

impl Band {
    /// The band of the device `rank` of `world`. None where there is one device, or there are too few pieces for all of
    /// them: then each device has the whole image, because bands of such an image would gain nothing.
    pub fn new(units: usize, rank: usize, world: usize) -> Option<Self> {
        (world > 1 && units >= world).then_some(Self { units, rank, world })
    }

    /// The pieces of this device.
    pub(crate) fn own(&self) -> Range<usize> {
        share(self.units, self.rank, self.world)
    }

    /// The rows of pixels of all devices, where a piece has `unit` of them.
    pub(super) fn rows(&self, unit: usize) -> RowSplit {
        RowSplit::bands(self.units, unit, self.world)
    }
}

impl<B: Backend> Grid<B> {
    /// The whole image `pixels` [height * width, channels], a tensor or what a convolution returns.
    pub fn new(pixels: impl Into<Convolved<B>>, height: usize, width: usize) -> Self {
        Self::of_band(pixels, height, width, None)
    }

    pub(super) fn of_band(pixels: impl Into<Convolved<B>>, height: usize, width: usize, band: Option<Band>) -> Self {
        let Convolved { pixels, statistics } = pixels.into();
        Self { pixels, height, width, statistics, band }
    }

    /// The band of a whole image, or all of it where there is none.
    pub(super) fn into_band(self, band: Option<Band>) -> Self {
        let Some(band) = band else { return self };
        let (own, unit) = (band.own(), self.height / band.units);
        let pixels = self.pixels.row_view(own.start * unit * self.width..own.end * unit * self.width);
        Self::of_band(pixels, own.len() * unit, self.width, Some(band))
    }

    /// The whole image, on all devices.
    pub(super) fn into_whole(self) -> Result<Self> {
        let Some(rows) = self.rows() else { return Ok(self) };
        let pixels = self.pixels.all_gather_rows(&rows)?;
        let height = pixels.rows() / self.width;
        Ok(Self::new(pixels, height, self.width))
    }

    /// The pixels and their statistics.
    pub(super) fn into_convolved(self) -> Convolved<B> {
        Convolved { pixels: self.pixels, statistics: self.statistics }
    }

    pub(super) fn band(&self) -> Option<Band> {
        self.band
    }

    /// Which pixels of the whole each device has; `None` where this is the whole.
    pub(super) fn rows(&self) -> Option<RowSplit> {
        self.band.map(|band| band.rows(self.height / band.own().len() * self.width))
    }

    /// Channel statistics of these pixels, where they are known.
    pub(super) fn statistics(&self) -> Option<&B::ChannelStatistics> {
        self.statistics.as_ref()
    }

    /// Channel statistics of the whole image of which this is a band; `None` where it is the whole.
    pub(super) fn reduced_statistics(&self) -> Result<Option<B::ChannelStatistics>> {
        match self.band {
            Some(_) => self.pixels.all_reduce_statistics(self.statistics()),
            None => Ok(None),
        }
    }

    /// The rows of the neighbours that `conv` reads, in place of the zeros that it has around the whole image.
    pub(super) fn halo(&self, conv: Conv) -> Result<Halo<B>> {
        match [conv.pad_before, conv.pad_after] {
            rows if self.band.is_some() && rows != [0, 0] => self.pixels.halo_rows(rows.map(|rows| rows * self.width)),
            _ => Ok(Halo::default()),
        }
    }
}
