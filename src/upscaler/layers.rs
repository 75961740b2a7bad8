//! A convolution of a network.

use std::sync::Arc;

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::files::{Bytes, Format, Scales, TensorView};
use crate::nn::{ConvKernel, Weights};
use crate::ops::Conv;
use crate::tensor::Tensor;

/// The factor of values and the number that is added to them.
#[derive(Clone, Copy)]
pub(super) struct Affine {
    pub factor: f32,
    pub offset: f32,
}

/// Leaves values as they are.
pub(super) const PLAIN: Affine = Affine { factor: 1.0, offset: 0.0 };
/// Maps 0..1 to -1..1, the range of pixels in the rest of the library.
pub(super) const TO_PIXELS: Affine = Affine { factor: 2.0, offset: -1.0 };

/// A convolution, whose output has the size of its input.
pub(super) struct ConvLayer<B: Backend> {
    pub weight: ConvKernel<B>, // [out, in, k, k]
    pub bias: Tensor<B>,       // [1, out]
}

impl<B: Backend> ConvLayer<B> {
    /// Loads `<name>.weight` [out, in, side, side] and `<name>.bias`, or no bias, and applies `affine` to the output.
    pub(super) fn load(
        weights: &Weights<'_, B>,
        name: &str,
        [cin, cout, side]: [usize; 3],
        has_bias: bool,
        Affine { factor, offset }: Affine,
    ) -> Result<Self> {
        let view = weights.view(&format!("{name}.weight"), &[cout, cin, side, side])?;
        let view = if factor == 1.0 { view } else { multiplied(&view, factor)? };
        let bias = match has_bias {
            true => weights.view(&format!("{name}.bias"), &[cout])?.to_f32(),
            false => vec![0.0; cout],
        };
        let bias: Vec<_> = bias.into_iter().map(|value| value * factor + offset).collect();
        Ok(Self { weight: weights.conv_of(&view)?, bias: weights.backend().upload(&bias, 1, cout)? })
    }

    /// Returns the geometry for an image.
    pub(super) fn same(&self, [height, width]: [usize; 2]) -> Conv {
        Conv::same(height, width, self.weight.side())
    }

    pub(super) fn forward(&self, x: &Tensor<B>, size: [usize; 2]) -> Result<Tensor<B>> {
        Ok(x.conv2d(&self.weight, &self.bias, self.same(size))?.pixels)
    }

    /// Computes `forward(x) + residual`, which may overwrite the residual.
    pub(super) fn forward_add(&self, x: &Tensor<B>, size: [usize; 2], residual: Tensor<B>) -> Result<Tensor<B>> {
        Ok(x.conv2d_add(&self.weight, &self.bias, self.same(size), residual)?.pixels)
    }

    /// Computes `leaky_relu(forward(x), slope)`.
    pub(super) fn forward_leaky(&self, x: &Tensor<B>, size: [usize; 2], slope: &Tensor<B>) -> Result<Tensor<B>> {
        Ok(x.conv2d_leaky_relu(&self.weight, &self.bias, self.same(size), slope)?.pixels)
    }
}

/// Returns a tensor times a number, in float32.
fn multiplied(view: &TensorView, factor: f32) -> Result<TensorView> {
    let values: Vec<_> = view.to_f32().into_iter().map(|value| value * factor).collect();
    let (bytes, shape) = (0..4 * values.len(), view.shape().to_vec());
    TensorView::new(Arc::new(Bytes::Computed(values)), bytes, Format::F32, shape, Scales::None).map_err(Error::new)
}

/// Uploads one slope for all columns.
pub(super) fn slope<B: Backend>(backend: &B, slope: f32, cols: usize) -> Result<Tensor<B>> {
    backend.upload(&vec![slope; cols], 1, cols)
}
