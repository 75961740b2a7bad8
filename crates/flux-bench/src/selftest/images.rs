//! Cases of the VAE: convolutions, norms over pixels, and conversions between latents and pixels.

use super::case::Case;
use super::inputs::{convolution, matrix, values, vector, weight_values};
use super::loops::{self, Matrix, silu};
use flux::backend::Backend;
use flux::error::Result;
use flux::ops::{self, Conv, Conv2d, GroupNorm};
use flux::tensor::Tensor;

const EPS: f32 = 1e-6;

/// A convolution of an image.
pub struct Convolution {
    pub conv: Conv,
    pub channels: [usize; 2],
    pub kind: ConvKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConvKind {
    Plain,
    Residual,
    /// Applied to the normalized image.
    Normed,
    /// Applied to the image at twice its size.
    Upsampled,
}

impl Case for Convolution {
    fn name(&self) -> String {
        let (Conv { height, width, kernel, stride, .. }, [cin, cout]) = (self.conv, self.channels);
        let kind = match self.kind {
            ConvKind::Plain if stride == 2 => "conv2d, halved,",
            ConvKind::Plain => "conv2d",
            ConvKind::Residual => "conv2d_add",
            ConvKind::Normed => "norm_conv2d",
            ConvKind::Upsampled => "upsample_conv2d",
        };
        format!("{kind} {height}x{width} {cin} -> {cout}, {kernel}x{kernel}")
    }

    fn allowed(&self) -> (f32, f32) {
        // A library may round before it adds the bias. A preceding norm is rounded, too, and so are the sums of weights
        // in some upsampling kernels.
        if matches!(self.kind, ConvKind::Normed | ConvKind::Upsampled) { (3.0, 1.0) } else { (2.0, 1.0) }
    }

    fn with<B: Backend>(&self, b: &B, fused: bool) -> Result<Vec<Tensor<B>>> {
        let (conv, [cin, cout]) = (self.conv, self.channels);
        let (x, bias) = (matrix(b, 1, [conv.height * conv.width, cin])?, vector(b, 3, cout)?);
        let weight = convolution(b, 2, self.channels, conv.kernel)?;
        let residual = || matrix(b, 4, [conv.out_height() * conv.out_width(), cout]);
        let (scale, shift) = (vector(b, 5, cin)?, vector(b, 6, cin)?);
        let norm = GroupNorm { weight: &scale, bias: &shift, groups: 8, eps: EPS, statistics: None };
        let pixels = if fused {
            match self.kind {
                ConvKind::Plain => x.conv2d(&weight, &bias, conv)?,
                ConvKind::Residual => x.conv2d_add(&weight, &bias, conv, residual()?)?,
                ConvKind::Normed => x.norm_conv2d(&norm, &weight, &bias, conv)?,
                ConvKind::Upsampled => x.upsample_conv2d(&weight, &bias, conv.height, conv.width)?,
            }
        } else {
            let plain = Conv2d::new(x, &weight, &bias, conv);
            match self.kind {
                ConvKind::Plain => b.conv2d(plain)?,
                ConvKind::Residual => ops::conv2d::compose(b, Conv2d { residual: Some(residual()?), ..plain })?,
                ConvKind::Normed => ops::conv2d::compose(b, Conv2d { norm: Some(&norm), ..plain })?,
                ConvKind::Upsampled => ops::conv2d::compose(b, Conv2d { upsample: true, ..plain })?,
            }
        };
        Ok(vec![pixels.pixels])
    }

    fn by_loops(&self) -> Option<Vec<f32>> {
        let (conv, [cin, cout]) = (self.conv, self.channels);
        let terms = cin * conv.kernel * conv.kernel;
        if self.kind != ConvKind::Plain || conv.out_height() * conv.out_width() * cout * terms > 1 << 27 {
            return None;
        }
        let (x, weights) = (values(1, conv.height * conv.width * cin), weight_values(2, [cout, terms]));
        Some(loops::convolution(&Matrix { values: &x, cols: cin }, &weights, &values(3, cout), conv))
    }
}

/// An op on an image [height * width, channels].
pub struct OfImage(pub ImageOp, pub [usize; 3]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageOp {
    GroupNorm,
    GroupNormSilu,
    Upsample,
    Patchify,
    Unpatchify,
}

impl ImageOp {
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::GroupNorm, "group_norm"),
        (Self::GroupNormSilu, "group_norm_silu"),
        (Self::Upsample, "upsample"),
        (Self::Patchify, "patchify"),
        (Self::Unpatchify, "unpatchify"),
    ];
}

/// The number of channel groups.
const GROUPS: usize = 8;

impl Case for OfImage {
    fn name(&self) -> String {
        let Self(op, [height, width, channels]) = self;
        let name = ImageOp::ALL.iter().find(|(known, _)| known == op).map_or("", |(_, name)| *name);
        format!("{name} {height}x{width}x{channels}")
    }

    fn with<B: Backend>(&self, b: &B, fused: bool) -> Result<Vec<Tensor<B>>> {
        let Self(op, [height, width, channels]) = *self;
        let x = matrix(b, 1, [height * width, channels])?;
        let (scale, shift) = (vector(b, 5, channels)?, vector(b, 6, channels)?);
        let norm = GroupNorm { weight: &scale, bias: &shift, groups: GROUPS, eps: EPS, statistics: None };
        let statistics = |channels: usize| {
            let std: Vec<f32> = values(8, channels).iter().map(|value| value.abs() + 0.25).collect();
            Ok::<_, flux::Error>((b.upload_f32(&values(7, channels), 1, channels)?, b.upload_f32(&std, 1, channels)?))
        };
        Ok(vec![match op {
            ImageOp::GroupNorm => x.group_norm(&norm)?,
            ImageOp::GroupNormSilu if fused => x.group_norm_silu(&norm)?,
            ImageOp::GroupNormSilu => ops::group_norm::compose_silu(b, &x, &norm)?,
            ImageOp::Upsample => x.upsample(height, width)?,
            ImageOp::Patchify => {
                let (mean, std) = statistics(4 * channels)?;
                x.patchify(&mean, &std, height / 2, width / 2)?
            }
            ImageOp::Unpatchify => {
                let (mean, std) = statistics(channels)?;
                x.unpatchify(&mean, &std, height, width)?
            }
        }])
    }

    fn by_loops(&self) -> Option<Vec<f32>> {
        let Self(op, [height, width, channels]) = *self;
        let x = values(1, height * width * channels);
        let [scale, shift] = [5, 6].map(|seed| values(seed, channels));
        let normed = || {
            let normed = loops::group_norm(&Matrix { values: &x, cols: channels }, GROUPS, f64::from(EPS));
            let value = move |(i, x): (usize, f64)| x * f64::from(scale[i % channels]) + f64::from(shift[i % channels]);
            normed.into_iter().enumerate().map(value).collect::<Vec<_>>()
        };
        match op {
            ImageOp::GroupNorm => Some(normed().iter().map(|value| *value as f32).collect()),
            ImageOp::GroupNormSilu => Some(normed().iter().map(|value| silu(*value) as f32).collect()),
            ImageOp::Upsample => {
                let pixel = |i: usize| (i / (2 * width) / 2) * width + i % (2 * width) / 2;
                let pixels = (0..4 * height * width).map(pixel);
                Some(pixels.flat_map(|pixel| x[pixel * channels..][..channels].to_vec()).collect())
            }
            ImageOp::Patchify | ImageOp::Unpatchify => None,
        }
    }
}
