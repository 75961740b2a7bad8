//! Convolution over pixels in rows.

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect};

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
    /// Zeros behind the last row and column.
    pub pad_after: usize,
}

impl Conv {
    /// Same size out as in: odd kernel, stride 1.
    pub fn same(height: usize, width: usize, kernel: usize) -> Self {
        Self { height, width, kernel, stride: 1, pad_before: kernel / 2, pad_after: kernel / 2 }
    }

    /// Half the size: 3 x 3, stride 2, zeros only behind the last row and column.
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

impl<B: Backend> Tensor<B> {
    /// Convolution with bias.
    ///
    /// self [height * width, in], weight [out, k * k * in] as [`Backend::conv_weight`] orders it, bias [1, out]
    /// -> [out_height * out_width, out].
    ///
    /// Errors when the shapes do not fit `conv`.
    pub fn conv2d(&self, weight: &Self, bias: &Self, conv: Conv) -> Result<Self> {
        expect_conv(self, weight, bias, conv)?;
        self.backend().conv2d(self, weight, bias, conv)
    }

    /// `conv2d(self)`, which may go over `self`.
    ///
    /// Errors as [`Tensor::conv2d`].
    pub fn conv2d_over(self, weight: &Self, bias: &Self, conv: Conv) -> Result<Self> {
        expect_conv(&self, weight, bias, conv)?;
        let backend = self.backend().clone();
        backend.conv2d_over(self, weight, bias, conv)
    }

    /// `conv2d(self) + residual`. The result may go over `residual`.
    ///
    /// Errors as [`Tensor::conv2d`], and when `residual` is not of the output's shape.
    pub fn conv2d_add(&self, weight: &Self, bias: &Self, conv: Conv, residual: Self) -> Result<Self> {
        expect_conv(self, weight, bias, conv)?;
        expect_residual("conv2d_add", &residual, weight, conv)?;
        self.backend().conv2d_add(self, weight, bias, conv, residual)
    }
}

pub(super) fn expect_conv<B: Backend>(x: &Tensor<B>, weight: &Tensor<B>, bias: &Tensor<B>, conv: Conv) -> Result<()> {
    let taps = conv.kernel * conv.kernel;
    expect(
        x.rows() == conv.height * conv.width
            && weight.cols() == taps * x.cols()
            && bias.rows() == 1
            && bias.cols() == weight.rows(),
        "conv2d",
        || {
            format!(
                "x [{}, {}], weight [{}, {}], bias [1, {}] do not fit {conv:?}",
                x.rows(),
                x.cols(),
                weight.rows(),
                weight.cols(),
                bias.cols()
            )
        },
    )
}

pub(super) fn expect_residual<B: Backend>(
    op: &str,
    residual: &Tensor<B>,
    weight: &Tensor<B>,
    conv: Conv,
) -> Result<()> {
    let rows = conv.out_height() * conv.out_width();
    expect(residual.rows() == rows && residual.cols() == weight.rows(), op, || {
        format!("residual is [{}, {}], expected [{rows}, {}]", residual.rows(), residual.cols(), weight.rows())
    })
}

/// What `conv2d_over` means.
pub fn compose_over<B: Backend>(
    b: &B,
    x: Tensor<B>,
    weight: &Tensor<B>,
    bias: &Tensor<B>,
    conv: Conv,
) -> Result<Tensor<B>> {
    b.conv2d(&x, weight, bias, conv)
}

/// What `conv2d_add` means.
pub fn compose_add<B: Backend>(
    b: &B,
    x: &Tensor<B>,
    weight: &Tensor<B>,
    bias: &Tensor<B>,
    conv: Conv,
    residual: Tensor<B>,
) -> Result<Tensor<B>> {
    let out = b.conv2d(x, weight, bias, conv)?;
    b.add(residual, &out)
}
