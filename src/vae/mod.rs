//! The VAE: latents to pixels, and pixels to latents.
//!
//! A row is a pixel and a column a channel, so a 1 x 1 convolution is a `linear` and the attention of the middle block
//! needs no transpose. Nothing here knows prompts or the sampler. Start with [`Decoder`].
//!
//! With several devices for one image, each has a band of rows of pixels. Convolutions read rows beyond the band from
//! the neighbours, group norms combine statistics of all devices, and attention reads all rows.

mod config;
mod decoder;
mod down_block;
mod encoder;
mod grid;
mod image_decoder;
mod latent_statistics;
mod layers;
mod mid_block;
pub mod preview;
mod resnet_block;
mod tiny_decoder;
mod tiny_file;
mod tiny_layers;

pub use config::VaeConfig;
pub use decoder::Decoder;
pub use down_block::DownBlock;
pub use encoder::Encoder;
pub use grid::{Band, Grid};
pub use image_decoder::ImageDecoder;
pub use mid_block::MidBlock;
pub use resnet_block::ResnetBlock;
pub use tiny_decoder::TinyDecoder;
pub use tiny_file::TinyDecoderFile;
pub use tiny_layers::TinyDecoderSizes;

use crate::error::Result;
use crate::files::{ModelFiles, Role, TensorFiles};
use latent_statistics::LatentStatistics;

/// Opens the VAE's files.
pub fn open(dir: &ModelFiles) -> Result<TensorFiles> {
    dir.component(Role::Vae).tensors()
}
