//! TAEF2 files, checked when they are opened.

use std::path::{Path, PathBuf};

use super::tiny_decoder::TinyDecoder;
use super::tiny_layers::{CONV_IN, ENCODER, LayerNames, LayerWeights, TinyDecoderSizes};
use crate::backend::Backend;
use crate::error::{Error, Field, Result};
use crate::files::{TensorFiles, is_pickle, open_weights};
use crate::nn::Weights;

const FETCH: &str = "fetch `taef2.safetensors` of huggingface.co/madebyollin/taef2";
/// `weights_only` keeps the pickle from running anything.
const CONVERT: &str = "fetch `taef2.safetensors` of huggingface.co/madebyollin/taef2, or convert the file: `python3 -c \
                       \"import torch, safetensors.torch as s; s.save_file(torch.load('taef2_decoder.pth', \
                       weights_only=True), 'taef2_decoder.safetensors')\"`";

/// An opened TAEF2 file, with a checked decoder.
pub struct TinyDecoderFile {
    path: PathBuf,
    files: TensorFiles,
    names: LayerNames,
    sizes: TinyDecoderSizes,
}

impl TinyDecoderFile {
    /// Opens a file of TAEF2, or of its decoder. The check loads weights to `host`, which should use them in the
    /// mapped file.
    ///
    /// Errors if the file holds no weights or no tiny autoencoder, or if a tensor is missing, unknown, no float, of
    /// another shape, or has a value that is not finite.
    pub fn open<B: Backend>(path: &Path, host: &B) -> Result<Self> {
        let open = || Self::from_file(path, TensorFiles::new(vec![open_weights(path)?])?, host);
        open().map_err(|e| {
            let e = if is_pickle(&e) { e.hint_instead(CONVERT) } else { e };
            e.at_path(path).hint(FETCH).for_field(Field::PreviewDecoder)
        })
    }

    /// Errors unless the decoder reads latents of `channels` channels.
    pub fn expect_latents(&self, channels: usize) -> Result<()> {
        if self.sizes.latent_channels == channels {
            return Ok(());
        }
        let error = wrong_model(&self.names.layer(CONV_IN), [self.sizes.latent_channels, channels]);
        Err(error.at_path(&self.path).for_field(Field::PreviewDecoder))
    }

    fn from_file<B: Backend>(path: &Path, files: TensorFiles, host: &B) -> Result<Self> {
        let names = LayerNames::find(&files).ok_or_else(|| none_of(&files))?;
        let sizes = TinyDecoderSizes::from_shapes(&files, names)?;
        let file = Self { path: path.to_path_buf(), files, names, sizes };
        file.check(host)?;
        Ok(file)
    }

    /// Errors unless the file has the tensors of the decoder and no others, apart from an encoder.
    fn check<B: Backend>(&self, host: &B) -> Result<()> {
        self.files.check_floats()?;
        TinyDecoder::load(&self.weights(Weights::new(host, &self.files)), &self.sizes)?;
        let is_known = |name: &str| !self.names.prefix.is_empty() && name.starts_with(ENCODER);
        if let Some(unread) = self.files.unread().iter().find(|unread| !is_known(unread.name)) {
            return Err(Error::new(format!("tensor `{}` does not belong to a tiny decoder of FLUX.2", unread.key)));
        }
        self.files.check_finite()
    }

    /// Returns the sizes of the decoder.
    pub fn sizes(&self) -> TinyDecoderSizes {
        self.sizes
    }

    /// Returns its tensors.
    pub fn files(&self) -> &TensorFiles {
        &self.files
    }

    /// Returns the argument of [`TinyDecoder::load`], from the `weights` of [`TinyDecoderFile::files`].
    pub fn weights<'a, B: Backend>(&self, weights: Weights<'a, B>) -> LayerWeights<'a, B> {
        LayerWeights { weights, names: self.names }
    }
}

/// The error for a decoder whose first layer reads latents of other channels than the model has.
fn wrong_model(layer: &str, [reads, has]: [usize; 2]) -> Error {
    Error::new(format!(
        "the tiny autoencoder is for another model: `{layer}.weight` reads latents of {reads} channels, but this model \
         has {has}"
    ))
    .hint(format!(
        "leave it out, or choose a FLUX.2-klein model with `{:#}`, because TAEF2 decodes only its latents",
        Field::Model
    ))
}

/// The error for a file without a tiny decoder.
fn none_of(files: &TensorFiles) -> Error {
    let is_encoder = ["encoder.layers.11.pool.0.weight", "encoder.11.pool.0.weight", "11.pool.0.weight"]
        .iter()
        .any(|name| files.shape(name).is_some());
    match is_encoder {
        true => Error::new("the file contains the encoder of a tiny autoencoder, not the decoder"),
        false => Error::new("the file is not a tiny autoencoder"),
    }
}
