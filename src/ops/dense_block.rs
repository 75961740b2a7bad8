//! The residual dense block of ESRGAN: convolutions that read the results of all earlier ones.

use crate::backend::Backend;
use crate::error::Result;
use crate::nn::ConvKernel;
use crate::ops::{Conv, Conv2d};
use crate::tensor::{Tensor, expect, expect_activations};

/// The convolutions of a residual dense block, and the size of the image.
pub struct DenseBlock<'a, B: Backend> {
    /// Weight [out, in, k, k] and bias [1, out] of each convolution. It reads the input and the results of the earlier
    /// ones, side by side. All except the last have the same number of outputs.
    pub convs: &'a [(ConvKernel<B>, Tensor<B>)],
    /// [1, out]: the slope of the leaky ReLU after each convolution except the last.
    pub slope: &'a Tensor<B>,
    /// Rows of pixels.
    pub height: usize,
    /// Columns of pixels.
    pub width: usize,
}

impl<B: Backend> DenseBlock<'_, B> {
    /// Returns the geometry of a convolution.
    pub(crate) fn conv(&self, weight: &ConvKernel<B>) -> Conv {
        Conv::same(self.height, self.width, weight.side())
    }

    /// Returns the number of channels that the last convolution reads.
    pub(crate) fn widest(&self) -> usize {
        self.convs.last().map_or(0, |(weight, _)| weight.channels())
    }
}

impl<B: Backend> Tensor<B> {
    /// Adds the result of a residual dense block: each convolution reads the input and the results of the earlier ones,
    /// and the result of the last one is added to the input.
    ///
    /// self [height * width, channels] -> [height * width, channels].
    ///
    /// Errors if the shapes do not fit.
    /// Source: BasicSR `ResidualDenseBlock`, with the last weight and bias multiplied by the block's scale.
    pub fn dense_block(self, block: &DenseBlock<'_, B>) -> Result<Self> {
        self.check_block("dense_block", block)?;
        let b = self.backend().clone();
        b.dense_block(self, block)
    }

    /// Computes `x + scale * z`, where z is the result of several dense blocks, one after the other.
    ///
    /// self [height * width, channels], scale [1, channels] -> [height * width, channels].
    ///
    /// Errors as [`Tensor::dense_block`] and [`Tensor::gated_add`].
    /// Source: BasicSR `RRDB`.
    pub fn dense_block_sum(self, blocks: &[DenseBlock<'_, B>], scale: &Self) -> Result<Self> {
        expect_activations("dense_block_sum", &[&self, scale])?;
        blocks.iter().try_for_each(|block| self.check_block("dense_block_sum", block))?;
        let b = self.backend().clone();
        b.dense_block_sum(self, blocks, scale)
    }

    /// Errors as `op` if the shapes do not fit.
    fn check_block(&self, op: &'static str, block: &DenseBlock<'_, B>) -> Result<()> {
        expect_activations(op, &[self, block.slope])?;
        let mut channels = self.cols();
        let mut fits = !block.convs.is_empty() && block.height.checked_mul(block.width) == Some(self.rows());
        for (i, (weight, bias)) in block.convs.iter().enumerate() {
            expect_activations(op, &[self, bias])?;
            let is_last = i + 1 == block.convs.len();
            let outs = if is_last { self.cols() } else { block.slope.cols() };
            fits &= (weight.channels(), weight.rows()) == (channels, outs) && !weight.side().is_multiple_of(2);
            fits &= (bias.rows(), bias.cols()) == (1, outs);
            channels += outs;
        }
        expect(fits && block.slope.rows() == 1, op, || {
            format!("the convolutions do not fit x [{}, {}]", self.rows(), self.cols())
        })
    }
}

/// Defines several dense blocks and the sum.
pub fn compose_sum<B: Backend>(
    b: &B,
    x: Tensor<B>,
    blocks: &[DenseBlock<'_, B>],
    scale: &Tensor<B>,
) -> Result<Tensor<B>> {
    let whole = x.row_view(0..x.rows());
    let z = blocks.iter().try_fold(whole, |z, block| b.dense_block(z, block))?;
    x.gated_add(scale, &z)
}

/// Defines a dense block by convolutions and concatenation.
pub fn compose<B: Backend>(b: &B, x: Tensor<B>, block: &DenseBlock<'_, B>) -> Result<Tensor<B>> {
    let mut seen = vec![x];
    for (i, (weight, bias)) in block.convs.iter().enumerate() {
        let input = match &seen[..] {
            [only] => only.row_view(0..only.rows()),
            all => b.concat_cols(&all.iter().collect::<Vec<_>>())?,
        };
        let conv2d = Conv2d::new(input, weight, bias, block.conv(weight));
        if i + 1 == block.convs.len() {
            let x = seen.swap_remove(0);
            drop(seen);
            return Ok(b.conv2d(Conv2d { residual: Some(x), ..conv2d })?.pixels);
        }
        seen.push(b.leaky_relu(b.conv2d(conv2d)?.pixels, block.slope)?);
    }
    Ok(seen.swap_remove(0))
}
