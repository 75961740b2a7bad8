//! Latents and noise that replace those of a seed, or that a caller saves.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::files::{Array, ArrayFile, encode_arrays};
use crate::pipeline::request::source::ValueOrigin;
use crate::sampler::noise::unpack;
use crate::sampler::{Noise, Start};

/// The name of the tensor, equal to the argument name of the reference.
const NAME: &str = "latents";

/// Latents or noise of one or several images: float32 [images, channels, height, width]. A position is 16 x 16
/// pixels, and a channel is one of the 4 * latent channels of the VAE: patches are packed and normalized by its
/// statistics, as in the sampler. The layout equals `latents` in the reference's pipeline. Their file is safetensors
/// with a single tensor, or with a tensor named `latents`.
#[derive(Debug, Clone, PartialEq)]
pub struct Latents {
    array: Arc<Array>,
    /// Range of images in the array.
    images: Range<usize>,
    source: ValueOrigin,
}

impl Latents {
    /// Creates latents from [channels, height, width] of one image, or [images, channels, height, width].
    ///
    /// Errors if the shape is different, or an axis is 0.
    pub fn new(array: Array) -> Result<Self> {
        let Array { mut shape, values } = array;
        if shape.len() == 3 {
            shape.insert(0, 1);
        }
        if shape.len() != 4 || shape.contains(&0) {
            return Err(Error::usage(format!(
                "latents have shape {shape:?}, expected [images, channels, height, width]"
            ))
            .hint("use 128 channels for a klein model, and a height and width of a sixteenth of the pixels"));
        }
        let images = 0..shape[0];
        Ok(Self { array: Arc::new(Array { shape, values }), images, source: ValueOrigin::default() })
    }

    /// Reads latents from a file.
    ///
    /// Errors if the file cannot be read, or as [`Latents::new`].
    pub fn read(path: &Path) -> Result<Self> {
        Self::from_file(&ArrayFile::read(path)?)
    }

    /// Reads latents from a file in memory.
    ///
    /// Errors as [`Latents::read`].
    pub fn from_file(file: &ArrayFile) -> Result<Self> {
        let read = Self::new(file.get_or_only(NAME)?).map_err(|e| e.at_path(file.path()))?;
        Ok(Self { source: file.path().into(), ..read })
    }

    /// Returns the bytes of a file with the latents.
    ///
    /// Errors never for latents that were created.
    pub fn encode(&self) -> Result<Vec<u8>> {
        encode_arrays(&[(NAME, &self.to_array())], HashMap::new())
    }

    /// Creates the latents of one image from tokens [height * width, channels].
    pub(crate) fn from_tokens(tokens: &[f32], channels: usize, [height, width]: [usize; 2]) -> Self {
        let array = Array { shape: vec![1, channels, height, width], values: unpack(tokens, channels) };
        Self { array: Arc::new(array), images: 0..1, source: ValueOrigin::default() }
    }

    /// Draws noise for one image of this shape: channels, height, width.
    pub(crate) fn drawn(start: Start<'_>, [channels, height, width]: [usize; 3]) -> Self {
        let mut noise = Noise::default();
        noise.fill(&[start], channels, height, width);
        Self::from_tokens(noise.values(), channels, [height, width])
    }

    /// Returns `share` of these latents plus the rest of `other`, which has the same number of images and shape.
    pub(crate) fn mixed(&self, other: &Self, share: f32) -> Self {
        let values = self.values().iter().zip(other.values()).map(|(own, other)| share * own + (1.0 - share) * other);
        let [channels, height, width] = self.shape();
        let array = Array { shape: vec![self.images(), channels, height, width], values: values.collect() };
        Self { array: Arc::new(array), images: 0..self.images(), source: ValueOrigin::default() }
    }

    /// Returns the file that the values were read from, if any.
    pub fn path(&self) -> Option<&Path> {
        self.source.path()
    }

    /// Returns the number of images.
    pub fn images(&self) -> usize {
        self.images.len()
    }

    /// Returns channels, height and width of an image.
    pub fn shape(&self) -> [usize; 3] {
        let shape = &self.array.shape;
        [shape[1], shape[2], shape[3]]
    }

    /// Returns the values [images, channels, height, width].
    pub fn values(&self) -> &[f32] {
        let image: usize = self.shape().iter().product();
        &self.array.values[self.images.start * image..self.images.end * image]
    }

    /// Returns the values as an array, to write to a file.
    pub fn to_array(&self) -> Array {
        let [channels, height, width] = self.shape();
        Array { shape: vec![self.images(), channels, height, width], values: self.values().to_vec() }
    }

    /// Returns a range of the images, clamped to the images that exist.
    pub(crate) fn part(&self, images: Range<usize>) -> Self {
        let place = |image: usize| self.images.start.saturating_add(image).min(self.images.end);
        Self { images: place(images.start)..place(images.end), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_has_three_or_four_axes() {
        let of =
            |shape: &[usize]| Latents::new(Array { shape: shape.to_vec(), values: vec![0.0; shape.iter().product()] });
        assert_eq!(of(&[4, 2, 3]).unwrap(), of(&[1, 4, 2, 3]).unwrap());
        let two = of(&[2, 4, 2, 3]).unwrap();
        assert_eq!((two.images(), two.shape(), two.values().len()), (2, [4, 2, 3], 48));
        assert_eq!([0..2, 1..2, 1..9, 3..4].map(|images| two.part(images).images()), [2, 1, 1, 0]);
        assert_eq!(two.part(0..2).part(1..2).values(), two.part(1..2).values());
        for shape in [&[][..], &[6], &[2, 3], &[1, 1, 4, 2, 3], &[0, 4, 2, 3], &[4, 0, 3]] {
            let error = of(shape).unwrap_err().to_string();
            assert!(error.contains("[images, channels, height, width]"), "{error}");
        }
    }
}
