//! The decoder of final images: the VAE's, or a tiny one.

use std::sync::Arc;

use super::{Band, Decoder, Grid, TinyDecoder};
use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::Tensor;

/// The VAE's decoder, or a tiny decoder instead.
pub enum ImageDecoder<B: Backend> {
    /// The VAE's decoder.
    Whole(Arc<Decoder<B>>),
    /// The decoder of TAEF2.
    Tiny(Arc<TinyDecoder<B>>),
}

impl<B: Backend> ImageDecoder<B> {
    /// Returns `true` if both are the same decoder.
    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Whole(own), Self::Whole(other)) => Arc::ptr_eq(own, other),
            (Self::Tiny(own), Self::Tiny(other)) => Arc::ptr_eq(own, other),
            _ => false,
        }
    }

    /// Decodes the sampler's packed latents [height * width, 4 * latent_channels] -> pixels [16 height * 16 width, 3]
    /// in about -1..1. Each of several devices decodes its band of rows and returns all rows; a tiny decoder decodes
    /// all rows on each device.
    ///
    /// Errors as [`Decoder::forward`] and [`TinyDecoder::forward`].
    pub fn forward(
        &self,
        latents: &Tensor<B>,
        [height, width]: [usize; 2],
        band: Option<Band>,
        mut done: impl FnMut(usize) -> Result<()>,
    ) -> Result<Grid<B>> {
        match self {
            Self::Whole(decoder) => decoder.forward(decoder.unpack(latents, height, width, band)?, done),
            Self::Tiny(decoder) => {
                let pixels = decoder.forward(latents.row_view(0..latents.rows()), [height, width])?;
                done(self.stages())?;
                Ok(pixels)
            }
        }
    }

    /// Returns the number of stages that [`ImageDecoder::forward`] reports.
    pub fn stages(&self) -> usize {
        match self {
            Self::Whole(decoder) => decoder.stages(),
            Self::Tiny(_) => 1,
        }
    }
}
