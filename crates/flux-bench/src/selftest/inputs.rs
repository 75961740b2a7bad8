//! Seeded inputs that every backend can represent exactly.

use std::sync::Arc;

use half::bf16;

use flux::backend::{Backend, Storage};
use flux::error::{Error, Result};
use flux::files::{Bytes, Format, Scales, TensorView, quantize};
use flux::nn::{ConvKernel, Linear};
use flux::ops::{Pairs, Rope};
use flux::tensor::Tensor;

/// Returns `n` values of variance 1 without a pattern. They are multiples of 1/64 between -1.74 and 1.74, exact in bf16
/// and fp16.
pub fn values(seed: u64, n: usize) -> Vec<f32> {
    let value = |i: usize| {
        // splitmix64, which needs no previous index.
        let mut z =
            seed.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add((i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let unit = ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32;
        ((unit - 0.5) * 3.464 * 64.0).round() / 64.0
    };
    (0..n).map(value).collect()
}

/// Returns a matrix of seeded values.
pub fn matrix<B: Backend>(b: &B, seed: u64, [rows, cols]: [usize; 2]) -> Result<Tensor<B>> {
    b.upload(&values(seed, rows * cols), rows, cols)
}

/// Returns a vector of seeded values.
pub fn vector<B: Backend>(b: &B, seed: u64, cols: usize) -> Result<Tensor<B>> {
    matrix(b, seed, [1, cols])
}

/// Returns the values of a weight [rows, terms], scaled so that matrix multiplications with values of variance 1 give
/// about 1. The scale is a power of two, which keeps the values exact.
pub fn weight_values(seed: u64, [rows, terms]: [usize; 2]) -> Vec<f32> {
    let scale = (terms as f32).sqrt().log2().round().exp2();
    values(seed, rows * terms).iter().map(|value| value / scale).collect()
}

/// Returns a seeded weight as a bf16 tensor of a file.
fn file(seed: u64, shape: &[usize]) -> Result<TensorView> {
    let [rows, terms] = [shape[0], shape[1..].iter().product()];
    let bytes: Vec<u8> =
        weight_values(seed, [rows, terms]).iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect();
    let len = bytes.len();
    TensorView::new(Arc::new(Bytes::Owned(bytes)), 0..len, Format::Bf16, shape.to_vec(), Scales::None)
        .map_err(Error::new)
}

/// Returns a weight [rows, cols] in a file format.
pub fn view(seed: u64, shape: [usize; 2], format: Format) -> Result<TensorView> {
    let file = file(seed, &shape)?;
    if format == Format::Bf16 { Ok(file) } else { quantize::quantize(&[file], format).map_err(Error::new) }
}

/// Returns a linear layer [rows, cols].
pub fn linear<B: Backend>(b: &B, seed: u64, shape: [usize; 2], format: Format) -> Result<Linear<B>> {
    Linear::load(b, "selftest", &[view(seed, shape, format)?], Storage::Native)
}

/// Returns a convolution.
pub fn convolution<B: Backend>(b: &B, seed: u64, [cin, cout]: [usize; 2], kernel: usize) -> Result<ConvKernel<B>> {
    ConvKernel::load(b, &file(seed, &[cout, cin, kernel, kernel])?)
}

/// Returns rotation tables with seeded angles.
pub fn rope<B: Backend>(b: &B, tokens: usize, head_dim: usize) -> Result<Rope<B>> {
    let angles: Vec<f32> = values(9, tokens * head_dim / 2).iter().map(|value| value * 3.0).collect();
    let table = |f: fn(f32) -> f32| {
        b.upload_f32(&angles.iter().map(|angle| f(*angle)).collect::<Vec<_>>(), tokens, head_dim / 2)
    };
    Ok(Rope { cos: table(f32::cos)?, sin: table(f32::sin)?, pairs: Pairs::Interleaved })
}
