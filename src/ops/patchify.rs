//! VAE latents to packed latents.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations, expect_f32};

/// The operands of [`Tensor::patchify`] and [`Tensor::unpatchify`].
pub struct Patches<'a, B: Backend> {
    /// VAE latents, or packed ones.
    pub x: &'a Tensor<B>,
    /// [1, 4 * channels] in float32
    pub mean: &'a Tensor<B>,
    /// [1, 4 * channels] in float32
    pub std: &'a Tensor<B>,
    /// Rows of packed latents.
    pub height: usize,
    /// Columns of packed latents.
    pub width: usize,
}

impl<B: Backend> Tensor<B> {
    /// Converts VAE latents to packed latents: channel c of pixel (2 y + dy, 2 x + dx) becomes channel `4 c + 2 dy +
    /// dx` of token (y, x), then `(x - mean) / std`. Undoes [`Tensor::unpatchify`].
    ///
    /// self [2 * height * 2 * width, channels], mean and std [1, 4 * channels] in float32 -> [height * width, 4 *
    /// channels].
    ///
    /// Errors if the shapes do not fit.
    /// Source: FLUX.2 reference `_patchify_latents` and the batch-norm statistics of its VAE.
    pub fn patchify(&self, mean: &Self, std: &Self, height: usize, width: usize) -> Result<Self> {
        expect_activations("patchify", &[self])?;
        expect_f32("patchify", self.backend(), &[mean, std])?;
        let packed = 4 * self.cols();
        let fits = self.rows() == 4 * height * width && [mean, std].iter().all(|x| (x.rows(), x.cols()) == (1, packed));
        expect(fits, "patchify", || {
            format!(
                "x has shape [{}, {}], mean [{}, {}], std [{}, {}], expected 2 * {height} x 2 * {width} rows and \
                 vectors of {packed}",
                self.rows(),
                self.cols(),
                mean.rows(),
                mean.cols(),
                std.rows(),
                std.cols()
            )
        })?;
        self.backend().patchify(Patches { x: self, mean, std, height, width })
    }
}

#[cfg(test)]
mod tests {
    use crate::backend::Memory;
    use crate::backend::cpu::{Cpu, Precision};

    #[test]
    fn patchify_undoes_unpatchify() {
        let b = Cpu::new(Precision::F32);
        let (height, width, packed) = (3, 5, 8);
        // Multiples of an eighth, so nothing rounds.
        let numbers = |n: usize| (0..n).map(|i| (i * 37 % 101) as f32 / 8.0).collect::<Vec<_>>();
        let mean = b.upload_f32(&numbers(packed), 1, packed).unwrap();
        let std = b.upload_f32(&(0..8).map(|i| 0.25 * (1 << (i % 3)) as f32).collect::<Vec<_>>(), 1, packed).unwrap();
        let values = numbers(height * width * packed);
        let latents = b.upload(&values, height * width, packed).unwrap();
        let pixels = latents.unpatchify(&mean, &std, height, width).unwrap();
        assert_eq!((pixels.rows(), pixels.cols()), (4 * height * width, packed / 4));
        let back = pixels.patchify(&mean, &std, height, width).unwrap();
        assert_eq!(b.download(&back).unwrap(), values);

        assert!(pixels.patchify(&mean, &std, height, width + 1).is_err(), "too few pixels");
        let short = b.upload_f32(&[0.0; 4], 1, 4).unwrap();
        assert!(pixels.patchify(&short, &std, height, width).is_err() && pixels.patchify(&mean, &short, 3, 5).is_err());
    }
}
