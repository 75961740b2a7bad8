//! Latents and noise that a caller gives or gets.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::files::{Array, ArrayFile};
use crate::pipeline::request::source::ValueOrigin;
use crate::sampler::noise::unpack;
use crate::sampler::{Noise, Rng, Start};

/// Latents or noise of one or several images: float32 [images, channels, height, width], where a place is 16 x 16
/// pixels and a channel one of the 4 * latent channels of the VAE, patches packed and normalised by its statistics, as
/// the sampler computes with them. It is the layout of `latents` in the reference's pipeline. A file of them is
/// safetensors with one tensor, or with one that is named `latents`.
#[derive(Debug, Clone, PartialEq)]
pub struct Latents {
    array: Arc<Array>,
    /// Those of the array that these are.
    images: Range<usize>,
    source: ValueOrigin,
}

impl Latents {
    /// Latents [channels, height, width] of one image, or [images, channels, height, width].
    ///
    /// Errors when the shape is another one, or an axis is 0.
    pub fn new(array: Array) -> Result<Self> {
        let Array { mut shape, values } = array;
        if shape.len() == 3 {
            shape.insert(0, 1);
        }
        if shape.len() != 4 || shape.contains(&0) {
            return Err(Error::usage(format!("latents are {shape:?}, expected [images, channels, height, width]"))
                .hint("channels are 128 in a klein model, height and width a sixteenth of the pixels"));
        }
        let images = 0..shape[0];
        Ok(Self { array: Arc::new(Array { shape, values }), images, source: ValueOrigin::default() })
    }

    /// Reads a file.
    ///
    /// Errors when it cannot be read, or as [`Latents::new`].
    pub fn read(path: &Path) -> Result<Self> {
        let array = ArrayFile::read(path)?.get_or_only("latents")?;
        let read = Self::new(array).map_err(|e| e.at_path(path))?;
        Ok(Self { source: path.into(), ..read })
    }

    /// Those of one image from tokens [height * width, channels].
    pub(crate) fn of_tokens(tokens: &[f32], channels: usize, [height, width]: [usize; 2]) -> Self {
        let array = Array { shape: vec![1, channels, height, width], values: unpack(tokens, channels) };
        Self { array: Arc::new(array), images: 0..1, source: ValueOrigin::default() }
    }

    /// The noise of a seed for one image of such a shape: channels, height, width.
    pub(crate) fn drawn(rng: Rng, seed: u64, [channels, height, width]: [usize; 3]) -> Self {
        let mut noise = Noise::default();
        noise.fill(&[Start::Seed(rng, seed)], channels, height, width);
        Self::of_tokens(noise.values(), channels, [height, width])
    }

    /// A part `share` of these, and the rest of `other`; of as many images of the same shape.
    pub(crate) fn mixed(&self, other: &Self, share: f32) -> Self {
        let values = self.values().iter().zip(other.values()).map(|(own, other)| share * own + (1.0 - share) * other);
        let [channels, height, width] = self.shape();
        let array = Array { shape: vec![self.images(), channels, height, width], values: values.collect() };
        Self { array: Arc::new(array), images: 0..self.images(), source: ValueOrigin::default() }
    }

    /// The file that they were read from, if any.
    pub fn path(&self) -> Option<&Path> {
        self.source.path()
    }

    /// Images.
    pub fn images(&self) -> usize {
        self.images.len()
    }

    /// Channels, height and width of an image.
    pub fn shape(&self) -> [usize; 3] {
        let shape = &self.array.shape;
        [shape[1], shape[2], shape[3]]
    }

    /// The values [images, channels, height, width].
    pub fn values(&self) -> &[f32] {
        let image: usize = self.shape().iter().product();
        &self.array.values[self.images.start * image..self.images.end * image]
    }

    /// As an array, to be written to a file.
    pub fn to_array(&self) -> Array {
        let [channels, height, width] = self.shape();
        Array { shape: vec![self.images(), channels, height, width], values: self.values().to_vec() }
    }

    /// Those of some of the images, as far as there are so many.
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
            assert!(error.contains("expected [images, channels, height, width]"), "{error}");
        }
    }
}
