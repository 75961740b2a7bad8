//! 2D convolution. Pixels are rows of a tensor.

use super::group_norm::{GroupNorm, expect_groups};
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
    /// Creates a convolution that keeps the size: odd kernel, stride 1.
    pub fn same(height: usize, width: usize, kernel: usize) -> Self {
        Self { height, width, kernel, stride: 1, pad_before: kernel / 2, pad_after: kernel / 2 }
    }

    /// Creates a convolution that halves the size: 3 x 3, stride 2, zeros only after the last row and column.
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

/// The result of a convolution.
pub struct Convolved<B: Backend> {
    /// [out_height * out_width, out]
    pub pixels: Tensor<B>,
    /// Channel statistics of `pixels`, if the backend computed them as well. They hold for these values only: an op
    /// that overwrites the pixels drops them.
    pub statistics: Option<B::ChannelStatistics>,
}

impl<B: Backend> From<Tensor<B>> for Convolved<B> {
    fn from(pixels: Tensor<B>) -> Self {
        Self { pixels, statistics: None }
    }
}

/// The activation after a convolution.
pub enum Activation<'a, B: Backend> {
    /// `max(x, 0)`
    Relu,
    /// [`Tensor::leaky_relu`] with a slope [1, out].
    LeakyRelu(&'a Tensor<B>),
}

impl<B: Backend> Clone for Activation<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Activation<'_, B> {}

/// A convolution, with the ops before and after it.
pub struct Conv2d<'a, B: Backend> {
    /// [height * width, in]. The result may overwrite it.
    pub x: Tensor<B>,
    /// Group norm and silu on x first: `silu(group_norm(x))`.
    pub norm: Option<&'a GroupNorm<'a, B>>,
    /// Doubles x in height and width before the convolution: every pixel becomes a square of two by two. The output
    /// has four times the pixels of `conv`.
    pub upsample: bool,
    /// [out, in, k, k]
    pub weight: &'a ConvKernel<B>,
    /// [1, out]
    pub bias: &'a Tensor<B>,
    /// The geometry of x.
    pub conv: Conv,
    /// Rows above and below x, instead of zeros; normed and doubled like x. Not empty.
    pub halo: Option<&'a Halo<B>>,
    /// [output pixels, out], added to the output. The result may overwrite it.
    pub residual: Option<Tensor<B>>,
    /// Applied after the residual.
    pub activation: Option<Activation<'a, B>>,
}

impl<'a, B: Backend> Conv2d<'a, B> {
    /// Creates a plain convolution.
    pub fn new(x: Tensor<B>, weight: &'a ConvKernel<B>, bias: &'a Tensor<B>, conv: Conv) -> Self {
        Self { x, norm: None, upsample: false, weight, bias, conv, halo: None, residual: None, activation: None }
    }

    /// Returns the number of output pixels.
    pub fn outputs(&self) -> usize {
        self.conv.out_height() * self.conv.out_width() * if self.upsample { 4 } else { 1 }
    }

    /// Creates a plain convolution that only reads x.
    pub(super) fn from_view(x: &Tensor<B>, weight: &'a ConvKernel<B>, bias: &'a Tensor<B>, conv: Conv) -> Self {
        Self::new(x.row_view(0..x.rows()), weight, bias, conv)
    }

    /// Checks the operands of the op named `op`, and runs it.
    pub(super) fn run(self, op: &str) -> Result<Convolved<B>> {
        let Self { x, norm, weight, bias, conv, residual, .. } = &self;
        let halo = self.halo.filter(|halo| !halo.is_empty());
        norm.map_or(Ok(()), |norm| expect_groups(op, x, norm))?;
        expect_conv(op, x, weight, bias, *conv)?;
        halo.map_or(Ok(()), |halo| expect_halo(op, x, *conv, halo))?;
        expect(halo.is_none() || norm.is_none_or(|norm| norm.statistics.is_some()), op, || {
            "a norm of a band with a halo requires the statistics of the whole image".to_string()
        })?;
        if let Some(residual) = residual {
            let (rows, cols) = (self.outputs(), weight.rows());
            expect_activations(op, &[x, residual])?;
            expect((residual.rows(), residual.cols()) == (rows, cols), op, || {
                format!("residual has shape [{}, {}], expected [{rows}, {cols}]", residual.rows(), residual.cols())
            })?;
        }
        if let Some(Activation::LeakyRelu(slope)) = self.activation {
            expect_activations(op, &[x, slope])?;
            expect((slope.rows(), slope.cols()) == (1, weight.rows()), op, || {
                format!("slope has shape [{}, {}], expected [1, {}]", slope.rows(), slope.cols(), weight.rows())
            })?;
        }
        let backend = x.backend().clone();
        backend.conv2d(Self { halo, ..self })
    }
}

impl<B: Backend> Tensor<B> {
    /// Convolves with a bias.
    ///
    /// self [height * width, in], weight [out, in, k, k], bias [1, out] -> [out_height * out_width, out].
    ///
    /// Errors if the shapes do not fit `conv`, or `conv` has a stride or a kernel of 0, or a kernel larger than the
    /// padded image.
    pub fn conv2d(&self, weight: &ConvKernel<B>, bias: &Self, conv: Conv) -> Result<Convolved<B>> {
        Conv2d::from_view(self, weight, bias, conv).run("conv2d")
    }

    /// `conv2d` of a band of an image, with a halo instead of zeros.
    ///
    /// Errors as [`Tensor::conv2d`], and if the halo does not have as many rows as `conv` has zeros.
    pub fn conv2d_band(&self, weight: &ConvKernel<B>, bias: &Self, conv: Conv, halo: &Halo<B>) -> Result<Convolved<B>> {
        Conv2d { halo: Some(halo), ..Conv2d::from_view(self, weight, bias, conv) }.run("conv2d")
    }

    /// As `conv2d`, but may overwrite `self`.
    ///
    /// Errors as [`Tensor::conv2d`].
    pub fn conv2d_over(self, weight: &ConvKernel<B>, bias: &Self, conv: Conv) -> Result<Convolved<B>> {
        Conv2d::new(self, weight, bias, conv).run("conv2d_over")
    }

    /// Computes `relu(conv2d(self))`.
    ///
    /// Errors as [`Tensor::conv2d`].
    pub fn conv2d_relu(&self, weight: &ConvKernel<B>, bias: &Self, conv: Conv) -> Result<Convolved<B>> {
        Conv2d { activation: Some(Activation::Relu), ..Conv2d::from_view(self, weight, bias, conv) }.run("conv2d_relu")
    }

    /// Computes `leaky_relu(conv2d(self), slope)`.
    ///
    /// Errors as [`Tensor::conv2d`], and if `slope` is not [1, out].
    pub fn conv2d_leaky_relu(
        &self,
        weight: &ConvKernel<B>,
        bias: &Self,
        conv: Conv,
        slope: &Self,
    ) -> Result<Convolved<B>> {
        let activation = Some(Activation::LeakyRelu(slope));
        Conv2d { activation, ..Conv2d::from_view(self, weight, bias, conv) }.run("conv2d_leaky_relu")
    }

    /// Computes `conv2d(self) + residual`. The result may overwrite `residual`.
    ///
    /// Errors as [`Tensor::conv2d`], and if `residual` differs from the output in shape.
    pub fn conv2d_add(&self, weight: &ConvKernel<B>, bias: &Self, conv: Conv, residual: Self) -> Result<Convolved<B>> {
        Conv2d { residual: Some(residual), ..Conv2d::from_view(self, weight, bias, conv) }.run("conv2d_add")
    }

    /// Computes `relu(conv2d(self) + residual)`. The result may overwrite `residual`.
    ///
    /// Errors as [`Tensor::conv2d_add`].
    pub fn conv2d_add_relu(
        &self,
        weight: &ConvKernel<B>,
        bias: &Self,
        conv: Conv,
        residual: Self,
    ) -> Result<Convolved<B>> {
        let conv2d = Conv2d::from_view(self, weight, bias, conv);
        Conv2d { residual: Some(residual), activation: Some(Activation::Relu), ..conv2d }.run("conv2d_add_relu")
    }
}

fn expect_conv<B: Backend>(
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

/// Errors unless the halo has no rows, or as many as `conv` has zeros, on each side.
fn expect_halo<B: Backend>(op: &str, x: &Tensor<B>, conv: Conv, halo: &Halo<B>) -> Result<()> {
    for (rows, zeros) in [(&halo.above, conv.pad_before), (&halo.below, conv.pad_after)] {
        let Some(rows) = rows else { continue };
        expect_activations(op, &[x, rows])?;
        expect((rows.rows(), rows.cols()) == (zeros * conv.width, x.cols()), op, || {
            format!("a halo of [{}, {}] does not fit {conv:?} of {} channels", rows.rows(), rows.cols(), x.cols())
        })?;
    }
    Ok(())
}

/// Defines a convolution by plain ones: without a halo, a norm, upsampling, a residual or an activation. Backends must
/// implement the plain ones.
pub fn compose<B: Backend>(b: &B, mut conv2d: Conv2d<'_, B>) -> Result<Convolved<B>> {
    match conv2d.activation.take() {
        None => {}
        Some(Activation::Relu) => return b.relu(b.conv2d(conv2d)?.pixels).map(Convolved::from),
        Some(Activation::LeakyRelu(slope)) => {
            return b.leaky_relu(b.conv2d(conv2d)?.pixels, slope).map(Convolved::from);
        }
    }
    if conv2d.norm.is_some() && conv2d.halo.is_none() {
        return compose_norm(b, conv2d);
    }
    if conv2d.upsample && conv2d.halo.is_none() {
        return compose_upsample(b, conv2d);
    }
    let residual = conv2d.residual.take();
    let made = match conv2d.halo.take() {
        Some(halo) => compose_band(b, conv2d, halo)?,
        None => b.conv2d(conv2d)?,
    };
    match residual {
        Some(residual) => b.add(residual, &made.pixels).map(Convolved::from),
        None => Ok(made),
    }
}

/// Defines a convolution of a normed image.
fn compose_norm<B: Backend>(b: &B, conv2d: Conv2d<'_, B>) -> Result<Convolved<B>> {
    let Some(norm) = conv2d.norm else { return b.conv2d(conv2d) };
    let Conv2d { x, upsample, weight, bias, conv, halo, residual, activation, .. } = conv2d;
    let normed = b.group_norm_silu(&x, norm)?;
    // Frees memory for the output, which may need a buffer of its own.
    drop(x);
    b.conv2d(Conv2d { x: normed, norm: None, upsample, weight, bias, conv, halo, residual, activation })
}

/// Defines a convolution of an upsampled image.
fn compose_upsample<B: Backend>(b: &B, conv2d: Conv2d<'_, B>) -> Result<Convolved<B>> {
    let Conv2d { x, conv, .. } = conv2d;
    let upsampled = b.upsample(&x, conv.height, conv.width)?;
    // The small image is dropped before the convolution allocates its result.
    drop(x);
    let conv = Conv::same(2 * conv.height, 2 * conv.width, 3);
    b.conv2d(Conv2d { x: upsampled, conv, upsample: false, ..conv2d })
}

/// Defines a convolution of a band: that of the band within its halo, without the outputs of the halo.
fn compose_band<B: Backend>(b: &B, band: Conv2d<'_, B>, halo: &Halo<B>) -> Result<Convolved<B>> {
    let (conv, scale) = (band.conv, if band.upsample { 2 } else { 1 });
    let [above, below] = halo.rows().map(|rows| rows / conv.width);
    let (x, around) = (halo.around(&band.x)?, Conv { height: above + conv.height + below, ..conv });
    let made = b.conv2d(Conv2d { x, conv: around, ..band })?;
    let (width, first) = (scale * conv.out_width(), scale * above / conv.stride);
    Ok(made.pixels.row_view(first * width..(first + scale * conv.out_height()) * width).into())
}
