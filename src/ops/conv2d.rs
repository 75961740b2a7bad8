//! Convolution over pixels in rows.

use super::halo::Halo;
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::ConvKernel;
use crate::tensor::{Tensor, expect, expect_activations};

/// The geometry of a convolution; the padding is zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv {
    /// Input rows of pixels.
    pub height: usize,
    /// Input columns of pixels.
    pub width: usize,
    /// Side of the square kernel.
    pub kernel: usize,
    /// Pixels from one output to the next.
    pub stride: usize,
    /// Zeros before the first row and column.
    pub pad_before: usize,
    /// Zeros after the last row and column.
    pub pad_after: usize,
}

impl Conv {
    /// Same size out as in: odd kernel, stride 1.
    pub fn same(height: usize, width: usize, kernel: usize) -> Self {
        Self { height, width, kernel, stride: 1, pad_before: kernel / 2, pad_after: kernel / 2 }
    }

    /// Half the size: 3 x 3, stride 2, zeros only after the last row and column.
    /// Source: diffusers `Downsample2D` with `padding=0`, which pads (0, 1, 0, 1).
    pub fn halve(height: usize, width: usize) -> Self {
        Self { height, width, kernel: 3, stride: 2, pad_before: 0, pad_after: 1 }
    }

    /// Output rows of pixels.
    pub fn out_height(&self) -> usize {
        (self.height + self.pad_before + self.pad_after - self.kernel) / self.stride + 1
    }

    /// Output columns of pixels.
    pub fn out_width(&self) -> usize {
        (self.width + self.pad_before + self.pad_after - self.kernel) / self.stride + 1
    }
}

/// What a convolution makes.
pub struct Convolved<B: Backend> {
    /// [out_height * out_width, out]
    pub pixels: Tensor<B>,
    /// Channel statistics of `pixels`, where the backend computed them as well. They hold for these values only: an op
    /// that overwrites the pixels drops them.
    pub statistics: Option<B::ChannelStatistics>,
}

impl<B: Backend> From<Tensor<B>> for Convolved<B> {
    fn from(pixels: Tensor<B>) -> Self {
        Self { pixels, statistics: None }
    }
}

impl<B: Backend> Tensor<B> {
    /// Convolution with bias.
    ///
    /// self [height * width, in], weight [out, in, k, k], bias [1, out] -> [out_height * out_width, out].
    ///
    /// Errors when the shapes do not fit `conv`, or `conv` has a stride or a kernel of 0, or a kernel larger than the
    /// padded image.
    pub fn conv2d(&self, weight: &ConvKernel<B>, bias: &Self, conv: Conv) -> Result<Convolved<B>> {
        self.conv2d_band(weight, bias, conv, &Halo::default())
    }

    /// `conv2d` of a band of an image, with a halo in place of zeros.
    ///
    /// Errors as [`Tensor::conv2d`], and when the halo has not as many rows as `conv` has zeros.
    pub fn conv2d_band(&self, weight: &ConvKernel<B>, bias: &Self, conv: Conv, halo: &Halo<B>) -> Result<Convolved<B>> {
        expect_conv("conv2d", self, weight, bias, conv)?;
        expect_halo("conv2d", self, conv, halo)?;
        self.backend().conv2d(self, weight, bias, conv, halo)
    }

    /// `conv2d(self)`, which may overwrite `self`.
    ///
    /// Errors as [`Tensor::conv2d`].
    pub fn conv2d_over(self, weight: &ConvKernel<B>, bias: &Self, conv: Conv) -> Result<Convolved<B>> {
        expect_conv("conv2d_over", &self, weight, bias, conv)?;
        let backend = self.backend().clone();
        backend.conv2d_over(self, weight, bias, conv)
    }

    /// `conv2d(self) + residual`. The result may overwrite `residual`.
    ///
    /// Errors as [`Tensor::conv2d`], and when `residual` is not of the output's shape.
    pub fn conv2d_add(&self, weight: &ConvKernel<B>, bias: &Self, conv: Conv, residual: Self) -> Result<Convolved<B>> {
        expect_conv("conv2d_add", self, weight, bias, conv)?;
        expect_residual("conv2d_add", self, &residual, weight, conv)?;
        self.backend().conv2d_add(self, weight, bias, conv, residual)
    }
}

pub(super) fn expect_conv<B: Backend>(
    op: &str,
    x: &Tensor<B>,
    weight: &ConvKernel<B>,
    bias: &Tensor<B>,
    conv: Conv,
) -> Result<()> {
    expect_activations(op, &[x, bias])?;
    expect(x.backend().is_same_device(weight.backend()), op, || "the weight is on another device".to_string())?;
    let padded = conv.height.min(conv.width).saturating_add(conv.pad_before).saturating_add(conv.pad_after);
    let fits = conv.stride > 0
        && (1..=padded).contains(&conv.kernel)
        && conv.height.checked_mul(conv.width) == Some(x.rows())
        && (weight.channels(), weight.side()) == (x.cols(), conv.kernel)
        && bias.rows() == 1
        && bias.cols() == weight.rows();
    expect(fits, op, || {
        format!(
            "x [{}, {}], weight [{}, {}, {side}, {side}], bias [{}, {}] do not fit {conv:?}",
            x.rows(),
            x.cols(),
            weight.rows(),
            weight.channels(),
            bias.rows(),
            bias.cols(),
            side = weight.side()
        )
    })
}

/// Errors unless there are zeros in place of the halo, or as many rows as `conv` has zeros.
pub(super) fn expect_halo<B: Backend>(op: &str, x: &Tensor<B>, conv: Conv, halo: &Halo<B>) -> Result<()> {
    for (rows, zeros) in [(&halo.above, conv.pad_before), (&halo.below, conv.pad_after)] {
        let Some(rows) = rows else { continue };
        expect_activations(op, &[x, rows])?;
        expect((rows.rows(), rows.cols()) == (zeros * conv.width, x.cols()), op, || {
            format!("a halo of [{}, {}] does not fit {conv:?} of {} channels", rows.rows(), rows.cols(), x.cols())
        })?;
    }
    Ok(())
}

pub(super) fn expect_residual<B: Backend>(
    op: &str,
    x: &Tensor<B>,
    residual: &Tensor<B>,
    weight: &ConvKernel<B>,
    conv: Conv,
) -> Result<()> {
    let rows = conv.out_height() * conv.out_width();
    expect_activations(op, &[x, residual])?;
    expect(residual.rows() == rows && residual.cols() == weight.rows(), op, || {
        format!("residual is [{}, {}], expected [{rows}, {}]", residual.rows(), residual.cols(), weight.rows())
    })
}

/// What `conv2d` of a band with a halo means.
pub fn compose_band<B: Backend>(
    b: &B,
    x: &Tensor<B>,
    weight: &ConvKernel<B>,
    bias: &Tensor<B>,
    conv: Conv,
    halo: &Halo<B>,
) -> Result<Convolved<B>> {
    compose_any_band(x, (conv, halo), 1, |x, conv| b.conv2d(&x, weight, bias, conv, &Halo::default()))
}

/// What a convolution of a band means: that of the band between its halo, without the outputs of the halo. The output of
/// `convolve` is `scale / conv.stride` times as large as its input.
pub(super) fn compose_any_band<B: Backend>(
    x: &Tensor<B>,
    (conv, halo): (Conv, &Halo<B>),
    scale: usize,
    convolve: impl FnOnce(Tensor<B>, Conv) -> Result<Convolved<B>>,
) -> Result<Convolved<B>> {
    let [above, below] = halo.rows().map(|rows| rows / conv.width);
    let made = convolve(halo.around(x)?, Conv { height: above + conv.height + below, ..conv })?;
    let (width, first) = (scale * conv.out_width(), scale * above / conv.stride);
    Ok(made.pixels.row_view(first * width..(first + scale * conv.out_height()) * width).into())
}

/// What `conv2d_over` means.
pub fn compose_over<B: Backend>(
    b: &B,
    x: Tensor<B>,
    weight: &ConvKernel<B>,
    bias: &Tensor<B>,
    conv: Conv,
) -> Result<Convolved<B>> {
    b.conv2d(&x, weight, bias, conv, &Halo::default())
}

/// What `conv2d_add` means.
pub fn compose_add<B: Backend>(
    b: &B,
    x: &Tensor<B>,
    weight: &ConvKernel<B>,
    bias: &Tensor<B>,
    conv: Conv,
    residual: Tensor<B>,
) -> Result<Convolved<B>> {
    let out = b.conv2d(x, weight, bias, conv, &Halo::default())?;
    b.add(residual, &out.pixels).map(Convolved::from)
}
