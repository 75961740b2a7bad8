//! RRDBNet: ESRGAN, Real-ESRGAN and BSRGAN, three residual dense blocks in each of many blocks.
//!
//! ```text
//! first = conv_first(x); y = first
//! blocks: y += 0.2 * rdb3(rdb2(rdb1(y))); rdb(x) = x + 0.2 * conv5(x, and the results of convs 1 to 4)
//! y = first + conv_body(y); per doubling: y = lrelu(conv_up(nearest x2)); conv_last(lrelu(conv_hr(y)))
//! ```
//!
//! Source: BasicSR `RRDBNet`; ESRGAN+ `ResidualDenseBlock_5C` with `conv1x1`.

use super::Step;
use super::layers::{Affine, ConvLayer, PLAIN, TO_PIXELS, slope};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{ConvKernel, Weights};
use crate::ops::{Conv, DenseBlock};
use crate::tensor::Tensor;

/// The slope of every leaky ReLU, and the scale of residuals.
const SLOPE: f32 = 0.2;
const RESIDUAL: f32 = 0.2;
/// Convolutions of a dense block, and dense blocks of a block.
const CONVS: usize = 5;
const DENSE: usize = 3;

/// The sizes of a network, as its shapes tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RrdbSizes {
    pub keys: Keys,
    /// Channels of the input: 3, 12 or 48.
    pub channels: usize,
    /// Channels between blocks.
    pub features: usize,
    /// Channels that each convolution of a dense block adds.
    pub grown: usize,
    pub blocks: usize,
    /// Doublings of the size.
    pub ups: usize,
    /// `true` for ESRGAN+, with a 1 x 1 convolution in each dense block.
    pub plus: bool,
}

/// The names of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    /// ESRGAN: `model.1.sub.0.RDB1.conv1.0`
    Old,
    /// Real-ESRGAN and BasicSR: `body.0.rdb1.conv1`
    New,
    /// BSRGAN: `RRDB_trunk.0.RDB1.conv1`
    Bsrgan,
}

impl Keys {
    /// Returns the name of a dense block, counted from 1.
    pub(super) fn dense(self, block: usize, dense: usize) -> String {
        match self {
            Self::Old => format!("model.1.sub.{block}.RDB{dense}"),
            Self::New => format!("body.{block}.rdb{dense}"),
            Self::Bsrgan => format!("RRDB_trunk.{block}.RDB{dense}"),
        }
    }

    /// Returns the name of a convolution of a dense block, counted from 1.
    pub(super) fn conv(self, block: usize, dense: usize, conv: usize) -> String {
        let end = if self == Self::Old { ".0" } else { "" };
        format!("{}.conv{conv}{end}", self.dense(block, dense))
    }

    pub(super) fn first(self) -> &'static str {
        if self == Self::Old { "model.0" } else { "conv_first" }
    }

    /// Returns the name of the convolution after all `blocks`.
    pub(super) fn body(self, blocks: usize) -> String {
        match self {
            Self::Old => format!("model.1.sub.{blocks}"),
            Self::New => "conv_body".to_string(),
            Self::Bsrgan => "trunk_conv".to_string(),
        }
    }

    /// Returns the name of the convolution of a doubling, counted from 0.
    pub(super) fn up(self, up: usize) -> String {
        match self {
            Self::Old => format!("model.{}", 3 + 3 * up),
            Self::New => format!("conv_up{}", up + 1),
            Self::Bsrgan => format!("upconv{}", up + 1),
        }
    }

    /// Returns the names of the last two convolutions.
    pub(super) fn ends(self, ups: usize) -> [String; 2] {
        match self {
            Self::Old => [2 + 3 * ups, 4 + 3 * ups].map(|i| format!("model.{i}")),
            Self::New => ["conv_hr", "conv_last"].map(String::from),
            Self::Bsrgan => ["HRconv", "conv_last"].map(String::from),
        }
    }
}

pub(super) struct Rrdb<B: Backend> {
    first: ConvLayer<B>,
    blocks: Vec<[Dense<B>; DENSE]>,
    body: ConvLayer<B>,
    ups: Vec<ConvLayer<B>>,
    hr: ConvLayer<B>,
    last: ConvLayer<B>,
    /// [1, grown] and [1, features]
    grown_slope: Tensor<B>,
    slope: Tensor<B>,
    /// [1, features]: the scale of the residual of a block.
    scale: Tensor<B>,
}

/// A dense block, whose last weight has the scale of the residual.
struct Dense<B: Backend> {
    convs: Vec<(ConvKernel<B>, Tensor<B>)>,
    /// The extra 1 x 1 convolution of ESRGAN+.
    one: Option<ConvLayer<B>>,
}

impl<B: Backend> Rrdb<B> {
    pub(super) fn load(weights: &Weights<'_, B>, sizes: RrdbSizes) -> Result<Self> {
        let RrdbSizes { keys, channels, features, grown, blocks, ups, .. } = sizes;
        let conv = |name: &str, cin, cout, affine| ConvLayer::load(weights, name, [cin, cout, 3], true, affine);
        let [hr, last] = keys.ends(ups);
        let block = |block: usize| {
            let [a, b, c] = [1, 2, 3].map(|dense| Dense::load(weights, &sizes, block, dense));
            Ok([a?, b?, c?])
        };
        let backend = weights.backend();
        Ok(Self {
            first: conv(keys.first(), channels, features, PLAIN)?,
            blocks: (0..blocks).map(block).collect::<Result<_>>()?,
            body: conv(&keys.body(blocks), features, features, PLAIN)?,
            ups: (0..ups).map(|up| conv(&keys.up(up), features, features, PLAIN)).collect::<Result<_>>()?,
            hr: conv(&hr, features, features, PLAIN)?,
            last: conv(&last, features, 3, TO_PIXELS)?,
            grown_slope: slope(backend, SLOPE, grown)?,
            slope: slope(backend, SLOPE, features)?,
            scale: slope(backend, RESIDUAL, features)?,
        })
    }

    pub(super) fn parts(&self) -> usize {
        self.blocks.len() + self.ups.len() + 1
    }

    /// Computes pixels in -1..1 from x [height * width, channels] in 0..1.
    pub(super) fn forward(&self, x: Tensor<B>, size: [usize; 2], step: &mut Step<'_>) -> Result<Tensor<B>> {
        let first = self.first.forward(&x, size)?;
        drop(x);
        let mut y = first.row_view(0..first.rows());
        for block in &self.blocks {
            step.next()?;
            y = self.block(y, block, size)?;
        }
        y = self.body.forward_add(&y, size, first)?;
        let [mut height, mut width] = size;
        for up in &self.ups {
            step.next()?;
            y = y.upsample_conv2d_leaky_relu(&up.weight, &up.bias, [height, width], &self.slope)?.pixels;
            (height, width) = (2 * height, 2 * width);
        }
        step.next()?;
        y = self.hr.forward_leaky(&y, [height, width], &self.slope)?;
        self.last.forward(&y, [height, width])
    }

    /// Computes `y + 0.2 * rdb3(rdb2(rdb1(y)))`.
    fn block(&self, y: Tensor<B>, block: &[Dense<B>; DENSE], size @ [height, width]: [usize; 2]) -> Result<Tensor<B>> {
        let slope = &self.grown_slope;
        if block.iter().all(|dense| dense.one.is_none()) {
            let blocks = block.each_ref().map(|dense| DenseBlock { convs: &dense.convs, slope, height, width });
            return y.dense_block_sum(&blocks, &self.scale);
        }
        let whole = y.row_view(0..y.rows());
        let z = block.iter().try_fold(whole, |z, dense| dense.forward_plus(z, size, slope))?;
        y.gated_add(&self.scale, &z)
    }
}

impl<B: Backend> Dense<B> {
    fn load(weights: &Weights<'_, B>, sizes: &RrdbSizes, block: usize, dense: usize) -> Result<Self> {
        let &RrdbSizes { keys, features, grown, plus, .. } = sizes;
        let conv = |conv: usize| {
            let is_last = conv == CONVS;
            let affine = if is_last { Affine { factor: RESIDUAL, offset: 0.0 } } else { PLAIN };
            let shape = [features + (conv - 1) * grown, if is_last { features } else { grown }, 3];
            let layer = ConvLayer::load(weights, &keys.conv(block, dense, conv), shape, true, affine)?;
            Ok((layer.weight, layer.bias))
        };
        let one = || {
            ConvLayer::load(
                weights,
                &format!("{}.conv1x1", keys.dense(block, dense)),
                [features, grown, 1],
                false,
                PLAIN,
            )
        };
        Ok(Self { convs: (1..=CONVS).map(conv).collect::<Result<_>>()?, one: plus.then(one).transpose()? })
    }

    /// Computes a dense block of ESRGAN+: the 1 x 1 convolution of x is added to the second result, and the second
    /// result to the fourth.
    fn forward_plus(&self, x: Tensor<B>, size: [usize; 2], slope: &Tensor<B>) -> Result<Tensor<B>> {
        let conv = Conv::same(size[0], size[1], 3);
        let mut seen = vec![x];
        for (i, (weight, bias)) in self.convs.iter().enumerate() {
            let input = Tensor::concat_cols(&seen.iter().collect::<Vec<_>>())?;
            if i + 1 == CONVS {
                let x = seen.swap_remove(0);
                return Ok(input.conv2d_add(weight, bias, conv, x)?.pixels);
            }
            let made = input.conv2d_leaky_relu(weight, bias, conv, slope)?.pixels;
            seen.push(match (i, &self.one) {
                (1, Some(one)) => made.add(&one.forward(&seen[0], size)?)?,
                (3, _) => made.add(&seen[2])?,
                _ => made,
            });
        }
        Ok(seen.swap_remove(0))
    }
}
