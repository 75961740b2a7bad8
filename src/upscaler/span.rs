//! SPAN: six blocks at the size of the image, each multiplied by an attention that has no weights, then squares of
//! pixels.
//!
//! ```text
//! block(x): m = silu(c1(x)); h = c3(silu(c2(m))); (h + x) * (sigmoid(h) - 1/2)
//! first = conv_1(x); y_1 .. y_6 = blocks; pixel_shuffle(upsampler(conv_cat(first, conv_2(y_6), y_1, m_6)))
//! ```
//!
//! A convolution is stored as the three that it was trained as, and a skip: 1 x 1, 3 x 3, 1 x 1. They are summed in
//! float64 when the network is loaded. Source: SPAN `span_arch.py`; m_6 is what its in-place SiLU leaves of c1.

use std::sync::Arc;

use super::Step;
use super::layers::{ConvLayer, PLAIN, TO_PIXELS};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::files::{Bytes, Format, Scales, TensorView};
use crate::nn::Weights;
use crate::tensor::Tensor;

const BLOCKS: usize = 6;
/// The mean colour that is subtracted, and the factor of the difference.
const MEAN: [f32; 3] = [0.4488, 0.4371, 0.4040];
const RANGE: f32 = 255.0;
/// `sigmoid(x) - 1/2 = tanh(x / 2) / 2`, a soft cap of 2 divided by 4.
const CAP: f32 = 2.0;
const SHARE: f32 = 0.25;

/// The sizes of a network, as its shapes tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpanSizes {
    pub features: usize,
    pub scale: usize,
    /// `true` if the mean colour is subtracted.
    pub has_norm: bool,
}

pub(super) struct Span<B: Backend> {
    first: ConvLayer<B>,
    blocks: Vec<[ConvLayer<B>; 3]>,
    second: ConvLayer<B>,
    joined: ConvLayer<B>,
    last: ConvLayer<B>,
    scale: usize,
    /// [1, 3]: map 0..1 to the range that the network reads; `None` if it reads 0..1.
    norm: Option<[Tensor<B>; 2]>,
    /// [1, features]
    share: Tensor<B>,
}

impl<B: Backend> Span<B> {
    pub(super) fn load(weights: &Weights<'_, B>, sizes: SpanSizes) -> Result<Self> {
        let SpanSizes { features, scale, has_norm } = sizes;
        let block = |block: usize| {
            let [a, b, c] =
                ["c1_r", "c2_r", "c3_r"].map(|conv| fused(weights, &format!("block_{block}.{conv}"), [features; 2]));
            Ok([a?, b?, c?])
        };
        let backend = weights.backend();
        let norm =
            || Ok([backend.upload(&[RANGE - 1.0; 3], 1, 3)?, backend.upload(&MEAN.map(|mean| -RANGE * mean), 1, 3)?]);
        Ok(Self {
            first: fused(weights, "conv_1", [3, features])?,
            blocks: (1..=BLOCKS).map(block).collect::<Result<_>>()?,
            second: fused(weights, "conv_2", [features; 2])?,
            joined: ConvLayer::load(weights, "conv_cat", [4 * features, features, 1], true, PLAIN)?,
            last: ConvLayer::load(weights, "upsampler.0", [features, 3 * scale * scale, 3], true, TO_PIXELS)?,
            scale,
            norm: has_norm.then(norm).transpose()?,
            share: backend.upload(&vec![SHARE; features], 1, features)?,
        })
    }

    pub(super) fn parts(&self) -> usize {
        self.blocks.len()
    }

    /// Computes pixels in -1..1 from x [height * width, 3] in 0..1.
    pub(super) fn forward(&self, x: Tensor<B>, size: [usize; 2], step: &mut Step<'_>) -> Result<Tensor<B>> {
        let x = match &self.norm {
            Some([scale, shift]) => x.scale_shift(scale, shift)?,
            None => x,
        };
        let first = self.first.forward(&x, size)?;
        drop(x);
        let whole = |x: &Tensor<B>| x.row_view(0..x.rows());
        let (mut y, mut kept) = (whole(&first), Vec::new());
        for (i, [c1, c2, c3]) in self.blocks.iter().enumerate() {
            step.next()?;
            let inner = c1.forward(&y, size)?.silu()?;
            let h = c3.forward(&c2.forward(&inner, size)?.silu()?, size)?;
            let attention = whole(&h).softcap(CAP)?.mul(&self.share)?;
            y = h.add(&y)?.mul(&attention)?;
            if i == 0 {
                kept.push(whole(&y));
            }
            if i + 1 == BLOCKS {
                kept.push(inner);
            }
        }
        let second = self.second.forward(&y, size)?;
        let parts: Vec<_> = [&first, &second].into_iter().chain(&kept).collect();
        let joined = self.joined.forward(&Tensor::concat_cols(&parts)?, size)?;
        self.last.forward(&joined, size)?.pixel_shuffle(None, self.scale, size[1])
    }
}

/// Loads one 3 x 3 convolution that equals a 1 x 1, a 3 x 3 and a 1 x 1 convolution, plus a 1 x 1 skip.
fn fused<B: Backend>(weights: &Weights<'_, B>, name: &str, [cin, cout]: [usize; 2]) -> Result<ConvLayer<B>> {
    let read = |part: &str, shape: &[usize]| -> Result<Vec<f64>> {
        Ok(weights.view(&format!("{name}.{part}"), shape)?.to_f32().into_iter().map(f64::from).collect())
    };
    let (wide, inner, taps) = (2 * cin, 2 * cout, 9);
    let (w1, b1) = (read("conv.0.weight", &[wide, cin, 1, 1])?, read("conv.0.bias", &[wide])?);
    let (w2, b2) = (read("conv.1.weight", &[inner, wide, 3, 3])?, read("conv.1.bias", &[inner])?);
    let (w3, b3) = (read("conv.2.weight", &[cout, inner, 1, 1])?, read("conv.2.bias", &[cout])?);
    let (skip, skip_bias) = (read("sk.weight", &[cout, cin, 1, 1])?, read("sk.bias", &[cout])?);
    // [inner, cin, taps], then [cout, cin, taps].
    let mut middle = vec![0.0; inner * cin * taps];
    let mut middle_bias = b2;
    for (o, h, tap) in (0..inner).flat_map(|o| (0..wide).flat_map(move |h| (0..taps).map(move |tap| (o, h, tap)))) {
        let weight = w2[(o * wide + h) * taps + tap];
        middle_bias[o] += weight * b1[h];
        for i in 0..cin {
            middle[(o * cin + i) * taps + tap] += weight * w1[h * cin + i];
        }
    }
    let mut whole = vec![0.0; cout * cin * taps];
    let mut bias = b3;
    for (o, h) in (0..cout).flat_map(|o| (0..inner).map(move |h| (o, h))) {
        let weight = w3[o * inner + h];
        bias[o] += weight * middle_bias[h];
        let (from, to) = (&middle[h * cin * taps..][..cin * taps], &mut whole[o * cin * taps..][..cin * taps]);
        to.iter_mut().zip(from).for_each(|(to, from)| *to += weight * from);
    }
    for o in 0..cout {
        bias[o] += skip_bias[o];
        (0..cin).for_each(|i| whole[(o * cin + i) * taps + taps / 2] += skip[o * cin + i]);
    }
    let values: Vec<f32> = whole.into_iter().map(|value| value as f32).collect();
    let (bytes, shape) = (0..4 * values.len(), vec![cout, cin, 3, 3]);
    let view = TensorView::new(Arc::new(Bytes::Computed(values)), bytes, Format::F32, shape, Scales::None);
    let bias: Vec<f32> = bias.into_iter().map(|value| value as f32).collect();
    Ok(ConvLayer {
        weight: weights.conv_of(&view.map_err(Error::new)?)?,
        bias: weights.backend().upload(&bias, 1, cout)?,
    })
}
