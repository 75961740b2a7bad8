//! Previews: the images that the steps so far lead to.

use std::sync::Arc;

use crate::backend::{Backend, NOT_NUMBERS};
use crate::error::Result;
use crate::rgb::Rgb;
use crate::tensor::Tensor;
use crate::vae::TinyDecoder;
use crate::vae::preview::PreviewMap;

/// Maximum side of previews of the tiny decoder, for images up to 16 times as long.
const LONGEST: usize = 512;
const MAX_REDUCED: usize = 16;

/// The source of previews.
pub(crate) enum Previewer<B: Backend> {
    /// A linear map, on the host.
    Map(Arc<PreviewMap>),
    /// The tiny decoder, on the device.
    Decoder(Arc<TinyDecoder<B>>),
}

/// Enqueued previews of each image of a batch.
pub(crate) enum Previews<B: Backend> {
    /// Packed latents [images * tokens, channels] on their way to the host.
    Latents(B::Download),
    /// Pixels on their way to the host, and their height and width.
    Pixels(Vec<(B::Rgb8, [usize; 2])>),
}

impl<B: Backend> Previewer<B> {
    /// Enqueues the device's work for previews of packed `latents` [images * height * width, channels]. Does not
    /// wait.
    ///
    /// Errors if memory runs out.
    pub(crate) fn begin(&self, backend: &B, latents: Tensor<B>, [height, width]: [usize; 2]) -> Result<Previews<B>> {
        let Self::Decoder(decoder) = self else { return backend.download_soon(latents).map(Previews::Latents) };
        let tokens = height * width;
        let pixels = (0..latents.rows() / tokens).map(|image| {
            let latents = latents.row_view(image * tokens..(image + 1) * tokens);
            let pixels = decoder.forward(latents, [height, width])?;
            Ok((backend.rgb8(&pixels.pixels)?, [pixels.height, pixels.width]))
        });
        pixels.collect::<Result<_>>().map(Previews::Pixels)
    }

    /// Returns the preview of each image; `None` if its pixels are not numbers. Waits for the device, but not for
    /// work enqueued after [`Previewer::begin`].
    ///
    /// Errors as [`Memory::take_download`](crate::backend::Memory::take_download) does, and as
    /// [`Memory::take_rgb8`](crate::backend::Memory::take_rgb8) does otherwise.
    pub(crate) fn finish(
        &self,
        backend: &B,
        previews: Previews<B>,
        [height, width]: [usize; 2],
        channels: usize,
    ) -> Result<Vec<Option<Rgb>>> {
        match (self, previews) {
            (Self::Map(map), Previews::Latents(latents)) => {
                let latents = backend.take_download(latents)?;
                let images = latents.chunks_exact(height * width * channels);
                Ok(images.map(|latents| Some(map.apply(latents, [height, width]))).collect())
            }
            (_, Previews::Latents(_)) => Ok(Vec::new()),
            (_, Previews::Pixels(pixels)) => pixels.into_iter().map(|(rgb, size)| taken(backend, rgb, size)).collect(),
        }
    }
}

/// Takes a preview of the tiny decoder.
fn taken<B: Backend>(backend: &B, rgb: B::Rgb8, [height, width]: [usize; 2]) -> Result<Option<Rgb>> {
    match backend.take_rgb8(rgb) {
        Ok(bytes) => Ok(Some(reduced(Rgb { width, height, bytes }))),
        // The final image reports this error.
        Err(error) if error.what() == NOT_NUMBERS => Ok(None),
        Err(error) => Err(error),
    }
}

/// Downscales the image by the smallest power of two that makes its sides at most [`LONGEST`], with means over
/// squares of pixels.
fn reduced(image: Rgb) -> Rgb {
    let Rgb { width, height, .. } = image;
    let fits = |side: &usize| width.max(height) / side <= LONGEST || *side == MAX_REDUCED;
    let side = (0..).map(|power| 1 << power).find(fits).unwrap_or(1);
    if side == 1 || width % side != 0 || height % side != 0 {
        return image;
    }
    let mut bytes = Vec::with_capacity(width / side * (height / side) * 3);
    let half = side * side / 2;
    for rows in image.bytes.chunks_exact(3 * width * side) {
        let mut sums = vec![half; 3 * width / side];
        for row in rows.chunks_exact(3 * width) {
            for (sums, pixels) in sums.chunks_exact_mut(3).zip(row.chunks_exact(3 * side)) {
                let add = |pixel: &[u8]| sums.iter_mut().zip(pixel).for_each(|(sum, byte)| *sum += usize::from(*byte));
                pixels.chunks_exact(3).for_each(add);
            }
        }
        bytes.extend(sums.iter().map(|sum| (sum / (side * side)) as u8));
    }
    Rgb { width: width / side, height: height / side, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_previews_are_means_of_squares() {
        let image = |width: usize, height: usize| {
            let pixel = |x: usize, y: usize| [(x % 200) as u8, (y % 100) as u8, ((x + y) % 2 * 255) as u8];
            let bytes = (0..height).flat_map(|y| (0..width).flat_map(move |x| pixel(x, y))).collect();
            Rgb { width, height, bytes }
        };
        assert_eq!(reduced(image(512, 16)), image(512, 16));
        let half = reduced(image(1024, 32));
        assert_eq!((half.width, half.height), (512, 16));
        // Pixels (2, 4) to (3, 5): means of 2 and 3, of 4 and 5, and of two of each color, rounded up.
        assert_eq!(half.bytes[3 * (2 * 512 + 1)..][..3], [3, 5, 128]);
        let quarter = reduced(image(16, 2048));
        assert_eq!((quarter.width, quarter.height), (4, 512));
        assert_eq!(reduced(image(16 * 1024, 16)).width, 1024, "at most that");
    }
}
