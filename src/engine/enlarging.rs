//! Images to enlarge: read from a file, and written with the metadata of the original. [`Job::enlarging`] enlarges one
//! on a device of an engine.
//!
//! [`Job::enlarging`]: super::Job::enlarging

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use serde_json::{Value, json};

use super::upscaling::{self, EnlargedSize};
use crate::error::Result;
use crate::input::{Region, bilinear, read_alpha};
use crate::metadata::{DigitalSource, Metadata, Said, said_by};
use crate::output::{ImageFormat, encode, encode_alpha, encode_jpeg};
use crate::rgb::Rgb;
use crate::upscaler::UpscalerFile;

/// The keyword of a PNG's text that states how the image was enlarged.
const KEYWORD: &str = "flux-upscale";
/// Multiplications of a network that take about as long as a token of FLUX.2-klein-4B: a token has four times as many,
/// but convolutions reach a quarter of the speed.
const MULTIPLICATIONS_OF_A_TOKEN: u64 = 1_000_000_000;

/// An image to enlarge, by a network or the Lanczos filter.
pub struct Enlarging {
    image: Rgb,
    alpha: Option<Vec<u8>>,
    said: Said,
    pub(super) upscaler: Option<Arc<UpscalerFile>>,
    to: [usize; 2],
    /// `true` if the result contains neither the recipe nor the settings of the image.
    no_recipe: bool,
}

impl Debug for Enlarging {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enlarging").field("from", &self.from()).field("to", &self.to).finish_non_exhaustive()
    }
}

impl Enlarging {
    /// Reads an image with its alpha and its metadata. Without an upscaler, the Lanczos filter enlarges it.
    ///
    /// Errors if the image cannot be read, and as [`EnlargedSize::resolve`].
    pub fn read(file: &[u8], size: EnlargedSize, upscaler: Option<Arc<UpscalerFile>>) -> Result<Self> {
        let (mut image, mut alpha) = read_alpha(file)?;
        let from = [image.width, image.height];
        let to = size.resolve(from, upscaler.as_deref().map_or(1, UpscalerFile::scale))?;
        if let Some(part) = size.part(from) {
            image = Rgb { width: part.width, height: part.height, bytes: part.cut(&image.bytes, from[0], 3) };
            alpha = alpha.map(|alpha| part.cut(&alpha, from[0], 1));
        }
        Ok(Self { image, alpha, said: said_by(file)?, upscaler, to, no_recipe: false })
    }

    /// Keeps the recipe and the settings of the image out of the result.
    pub fn without_recipe(self) -> Self {
        Self { no_recipe: true, ..self }
    }

    /// Returns the pixels of the image.
    pub fn image(&self) -> &Rgb {
        &self.image
    }

    /// Returns width and height of the image.
    pub fn from(&self) -> [usize; 2] {
        [self.image.width, self.image.height]
    }

    /// Returns width and height of the result.
    pub fn to(&self) -> [usize; 2] {
        self.to
    }

    /// Returns `true` if a part of the image is transparent.
    pub fn has_alpha(&self) -> bool {
        self.alpha.is_some()
    }

    /// Returns the bytes of the image.
    pub fn bytes(&self) -> usize {
        self.image.bytes.len() + self.alpha.as_ref().map_or(0, Vec::len)
    }

    /// Returns the largest number of pixels that the network makes, which may exceed that of the result.
    pub fn max_pixels(&self) -> usize {
        let scale = self.scale();
        let made = self.passes().map(|[width, height]| width.saturating_mul(height).saturating_mul(scale * scale));
        made.chain([self.to[0].saturating_mul(self.to[1])]).max().unwrap_or_default()
    }

    fn scale(&self) -> usize {
        self.upscaler.as_deref().map_or(1, UpscalerFile::scale)
    }

    /// Returns the sizes of the images that the network reads, one after the other.
    fn passes(&self) -> impl Iterator<Item = [usize; 2]> {
        let passes = self.upscaler.is_some().then(|| upscaling::passes(self.from(), self.to, self.scale()));
        passes.into_iter().flatten()
    }

    /// Returns the cost of the image, in tokens of a step.
    pub(super) fn tokens(&self) -> usize {
        let pixels: u64 = self.passes().map(|[width, height]| (width as u64).saturating_mul(height as u64)).sum();
        let each = self.upscaler.as_deref().map_or(0, UpscalerFile::multiplications);
        (pixels.saturating_mul(each) / MULTIPLICATIONS_OF_A_TOKEN).max(1) as usize
    }

    /// Encodes the result. The settings for other programs and the mark of generated images stay. The recipe does not
    /// reproduce the larger image, so it moves into a text of its own.
    ///
    /// Errors as [`encode_alpha`] if the image is transparent.
    pub fn encode(&self, result: &Rgb, format: ImageFormat, quality: Option<u8>) -> Result<Vec<u8>> {
        let source = DigitalSource::read(&self.said);
        let metadata = match self.no_recipe {
            true => Metadata { source, ..Metadata::default() },
            false => Metadata {
                texts: vec![(KEYWORD, self.recipe().to_string())],
                parameters: self.said.parameters.clone(),
                source,
                ..Metadata::default()
            },
        };
        match (&self.alpha, quality) {
            (Some(alpha), _) => {
                let alpha = bilinear::resize(alpha, self.from(), self.to);
                encode_alpha(result, &alpha, format, &metadata)
            }
            (None, Some(quality)) => encode_jpeg(result, quality, &metadata),
            (None, None) => encode(result, format, &metadata),
        }
    }

    /// Returns the upscaler, the sizes, and the recipe of the image.
    pub fn recipe(&self) -> Value {
        let name = match &self.upscaler {
            Some(file) => file.path().file_name().unwrap_or_default().to_string_lossy().into_owned(),
            None => "lanczos".to_string(),
        };
        let recipe = self.said.recipe.as_deref().and_then(|recipe| serde_json::from_str(recipe).ok());
        json!({"upscaler": name, "from": self.from(), "to": self.to, "recipe": recipe.unwrap_or(Value::Null)})
    }

    /// Returns the settings of the image for other programs.
    pub fn parameters(&self) -> Option<&str> {
        self.said.parameters.as_deref()
    }
}

impl EnlargedSize {
    /// Returns the part of an image that is enlarged, if it is not the whole one.
    fn part(self, [width, height]: [usize; 2]) -> Option<Region> {
        let Self::Cover(to) = self else { return None };
        let side = |side: usize, by: usize, of: usize| ((side as f64 * by as f64 / of as f64).round() as usize).max(1);
        let inner = [width.min(side(height, to[0], to[1])), height.min(side(width, to[1], to[0]))];
        (inner != [width, height]).then(|| Region::middle([width, height], inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Metadata;

    fn file(width: usize, height: usize) -> Vec<u8> {
        let image = Rgb { width, height, bytes: (0..3 * width * height).map(|i| (i % 251) as u8).collect() };
        encode(&image, ImageFormat::Png, &Metadata::default()).unwrap()
    }

    #[test]
    fn the_middle_of_an_image_covers_another_ratio() {
        for (size, from) in [
            (EnlargedSize::Cover([8, 8]), [4, 4]),
            (EnlargedSize::Cover([20, 4]), [6, 1]),
            (EnlargedSize::Cover([12, 8]), [6, 4]),
            (EnlargedSize::To([8, 8]), [6, 4]),
        ] {
            let enlarging = Enlarging::read(&file(6, 4), size, None).unwrap();
            assert_eq!((enlarging.from(), enlarging.image().bytes.len()), (from, 3 * from[0] * from[1]), "{size:?}");
        }
    }

    #[test]
    fn a_network_costs_more_than_the_filter_and_more_for_larger_images() {
        let upscaler = Arc::new(UpscalerFile::open("tests/upscaler/rrdb-old-4x.legacy.pth".as_ref()).unwrap());
        let cost = |size, upscaler: Option<&Arc<UpscalerFile>>| {
            let enlarging = Enlarging::read(&file(60, 40), size, upscaler.cloned()).unwrap();
            (enlarging.passes().count(), enlarging.max_pixels())
        };
        assert_eq!(cost(EnlargedSize::By(2.0), None), (0, 9600));
        assert_eq!(
            cost(EnlargedSize::By(2.0), Some(&upscaler)),
            (1, 16 * 2400),
            "the network makes four times as much"
        );
        assert_eq!(cost(EnlargedSize::By(5.0), Some(&upscaler)), (2, 256 * 2400));
        assert_eq!(cost(EnlargedSize::By(0.5), Some(&upscaler)), (0, 600));
    }
}
