//! The CPU backend: float32 between ops, all cores, and the reference for every other backend.
//!
//! Weights stay where they are: a matrix is a list of row ranges of mapped files, read in place by [`gemm`]. The CPU
//! runs the definition of most fused ops. It replaces some of the VAE, whose activations no cache holds, to save a pass
//! over them. These round as their definition does, except for the convolution of an upsampled image in bfloat16
//! ([`Tensor::upsample_conv2d`]).

pub mod amx;
mod attention;
mod attention_tiles;
mod conv;
mod conv_tiles;
mod elementwise;
mod gemm;
mod group;
pub mod math;
pub mod memory;
mod norm;
mod pixels;
mod pool;
mod split_weights;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use norm::ChannelStatistics;
pub use pool::Values;
use rayon::prelude::*;

use super::group::Member;
use super::{Backend, Stats, Storage};
use crate::error::{Error, Result};
use crate::files::TensorView;
use crate::nn::{ConvKernel, Linear};
use crate::ops::{self, Conv, Convolved, GroupNorm, Halo, Mask, Rope, TokenLayout};
use crate::tensor::{Dtype, Tensor};

/// How matrix products are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// As accurate as float32 throughout; products of weights in fewer than 16 bits are off by 4e-6 on tiles that
    /// multiply bfloat16.
    F32,
    /// Activations, and weights in fewer than 16 bits, rounded to bfloat16 at each product and convolution, where the
    /// processor multiplies bfloat16; otherwise as `F32`.
    Bf16,
}

/// The host's cores. A cheap handle.
#[derive(Debug, Clone)]
pub struct Cpu {
    precision: Precision,
    /// None where it is alone.
    member: Option<Arc<Member>>,
}

/// A weight matrix: the rows of these parts, one under the other, in the mapped file.
pub struct Weight(Vec<TensorView>);

/// Rows of float32 in host memory, `stride` elements apart.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a> Rows<'a> {
    fn of(x: &'a Tensor<Cpu>) -> Self {
        // A view without rows may begin past the end.
        let data = x.buffer().get(x.offset()..).unwrap_or_default();
        Self { data, rows: x.rows(), cols: x.cols(), stride: x.stride() }
    }

    fn row(&self, row: usize) -> &'a [f32] {
        &self.data[row * self.stride..][..self.cols]
    }
}

/// Elements in the block of rows of one task: enough that starting the task costs nothing beside it.
const TASK_ELEMENTS: usize = 1 << 16;

impl Cpu {
    /// All cores, at the given precision.
    pub fn new(precision: Precision) -> Self {
        Self { precision, member: None }
    }

    /// A note for the user where the requested precision is not the one that runs.
    pub fn note(&self) -> Option<&'static str> {
        (self.precision == Precision::Bf16 && !amx::available())
            .then_some("this processor has no AMX-BF16, so products are computed in float32; bf16 gains nothing here")
    }

    fn tensor(&self, values: Vec<f32>, rows: usize, cols: usize) -> Tensor<Self> {
        debug_assert_eq!(values.len(), rows * cols);
        Tensor::from_buffer(self, values.into(), rows, cols)
    }

    /// The values of `x` in memory of their own: that of `x` when it may be overwritten, else a copy.
    fn take(x: Tensor<Self>) -> Vec<f32> {
        match x.into_buffer() {
            Ok(values) => values.into_vec(),
            Err(view) => Self::copy(Rows::of(&view)),
        }
    }

    fn copy(x: Rows<'_>) -> Vec<f32> {
        let mut values = pool::values(x.rows * x.cols);
        for_rows(&mut values, x.cols, |row, out| out.copy_from_slice(x.row(row)));
        values
    }

    /// Overwrites each row of `x` by `f(row index, row)`.
    fn map_rows(&self, x: Tensor<Self>, f: impl Fn(usize, &mut [f32]) + Sync) -> Tensor<Self> {
        let (rows, cols) = (x.rows(), x.cols());
        let mut values = Self::take(x);
        for_rows(&mut values, cols, f);
        self.tensor(values, rows, cols)
    }

    /// A new tensor; `f(row index, row)` writes every value of a row.
    fn make_rows(&self, rows: usize, cols: usize, f: impl Fn(usize, &mut [f32]) + Sync) -> Tensor<Self> {
        let mut values = pool::values(rows * cols);
        for_rows(&mut values, cols, f);
        self.tensor(values, rows, cols)
    }
}

/// Calls `f(row index, row)` for each row of a dense matrix, blocks of rows in parallel.
fn for_rows(values: &mut [f32], cols: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    if values.is_empty() {
        return;
    }
    let block = (TASK_ELEMENTS / cols).max(1);
    values.par_chunks_mut(block * cols).enumerate().for_each(|(task, rows)| {
        for (i, row) in rows.chunks_exact_mut(cols).enumerate() {
            f(task * block + i, row);
        }
    });
}

impl Backend for Cpu {
    type Buffer = Values;
    type Weight = Weight;
    /// Weights stay in the mapped files.
    type BlockStream = ();
    type ConvWeight = conv::Weight;
    /// In groups only; alone the norms compute their statistics themselves.
    type ChannelStatistics = ChannelStatistics;
    type Event = Instant;
    /// None where a pixel is not a number.
    type Rgb8 = Option<Vec<u8>>;
    type Graph = ();

    fn dtype(_buffer: &Values) -> Dtype {
        Dtype::F32
    }

    fn activation_dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn is_same_device(&self, other: &Self) -> bool {
        match (&self.member, &other.member) {
            (None, None) => true,
            (Some(own), Some(other)) => own.is(other),
            _ => false,
        }
    }

    fn rank(&self) -> usize {
        self.member.as_ref().map_or(0, |member| member.rank())
    }

    fn world(&self) -> usize {
        self.member.as_ref().map_or(1, |member| member.world())
    }

    fn exchange(&self, op: &'static str, sent: Vec<Vec<Tensor<Self>>>) -> Result<Vec<Vec<Tensor<Self>>>> {
        self.exchange_views(op, sent)
    }

    fn gather_host<T: Clone + Send + 'static>(&self, what: &'static str, value: T) -> Result<Vec<T>> {
        match &self.member {
            Some(member) => member.exchange_patiently(what, vec![value; member.world()]),
            None => Ok(vec![value]),
        }
    }

    fn gather_soon(&self, what: &'static str, value: u64) -> Result<Vec<u64>> {
        match &self.member {
            Some(member) => member.exchange(what, vec![value; member.world()]),
            None => Ok(vec![value]),
        }
    }

    fn abort_collectives(&self, cause: &Error) {
        self.member.iter().for_each(|member| member.abort(cause));
    }

    fn restore_collectives(&self) -> Result<()> {
        self.member.as_ref().map_or(Ok(()), |member| member.restore())
    }

    fn all_reduce_statistics(
        &self,
        x: &Tensor<Self>,
        own: Option<&ChannelStatistics>,
    ) -> Result<Option<ChannelStatistics>> {
        let Some(member) = &self.member else { return Ok(None) };
        let own = own.cloned().unwrap_or_else(|| ChannelStatistics::of(Rows::of(x)));
        let all = member.exchange("all_reduce_statistics", vec![own; member.world()])?;
        ChannelStatistics::combine(&all).map(Some)
    }

    fn describe(&self) -> String {
        let rank = self.member.as_ref().map_or(String::new(), |member| format!(" {member:?}"));
        format!("CPU{rank}, {} threads, {}", rayon::current_num_threads(), gemm::describe(self.precision))
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }

    fn element_bytes(&self) -> u64 {
        4
    }

    fn available_bytes(&self) -> u64 {
        // Memory that one image leaves in the pool is available to the next. The ranks of a group share it.
        memory::available_bytes().saturating_add(pool::pooled_bytes()) / self.world() as u64
    }

    fn weight_bytes(&self, _elements: u64, _storage: Storage) -> u64 {
        0
    }

    fn event(&self) -> Result<Instant> {
        Ok(Instant::now())
    }

    fn is_done(&self, _event: &Instant) -> Result<bool> {
        Ok(true)
    }

    fn wait(&self, _event: &Instant) -> Result<()> {
        Ok(())
    }

    fn elapsed(&self, from: &Instant, to: &Instant) -> Result<Duration> {
        Ok(to.duration_since(*from))
    }

    fn upload(&self, values: &[f32], rows: usize, cols: usize) -> Result<Tensor<Self>> {
        if rows.checked_mul(cols) != Some(values.len()) {
            return Err(super::wrong_length(values.len(), rows, cols));
        }
        Ok(self.tensor(values.to_vec(), rows, cols))
    }

    fn upload_f32(&self, values: &[f32], rows: usize, cols: usize) -> Result<Tensor<Self>> {
        self.upload(values, rows, cols)
    }

    fn load_weight(&self, parts: &[TensorView], storage: Storage) -> Result<Weight> {
        match storage {
            Storage::Native => Ok(Weight(parts.to_vec())),
            Storage::Fp8 => Err(Error::new("the CPU does not multiply weights in fp8")),
        }
    }

    fn load_conv_weight(&self, view: &TensorView) -> Result<conv::Weight> {
        Ok(conv::Weight::new(view.clone()))
    }

    fn embedding(&self, table: &TensorView, ids: &[usize]) -> Result<Tensor<Self>> {
        let rows = |row: usize, out: &mut [f32]| out.copy_from_slice(&table.row_range(ids[row]..ids[row] + 1).to_f32());
        Ok(self.make_rows(ids.len(), table.cols(), rows))
    }

    fn download(&self, x: &Tensor<Self>) -> Result<Vec<f32>> {
        Ok(Self::copy(Rows::of(x)))
    }

    fn rgb8(&self, x: &Tensor<Self>) -> Result<Option<Vec<u8>>> {
        Ok(pixels::rgb8(Rows::of(x)))
    }

    fn upload_rgb8(&self, bytes: &[u8], height: usize, width: usize) -> Result<Tensor<Self>> {
        super::expect_rgb8(bytes, height, width)?;
        Ok(self.make_rows(height * width, 3, |row, out| pixels::from_rgb8(&bytes[3 * row..3 * row + 3], out)))
    }

    fn take_rgb8(&self, rgb: Option<Vec<u8>>) -> Result<Vec<u8>> {
        rgb.ok_or_else(super::not_a_number)
    }

    fn linear(&self, x: &Tensor<Self>, weight: &Linear<Self>, bias: Option<&Tensor<Self>>) -> Result<Tensor<Self>> {
        let mut out = pool::values(x.rows() * weight.rows());
        gemm::linear(self.precision, &[Rows::of(x)], weight, &mut out);
        if let Some(bias) = bias {
            let bias = Rows::of(bias).row(0);
            for_rows(&mut out, weight.rows(), |_, row| elementwise::add(row, bias));
        }
        Ok(self.tensor(out, x.rows(), weight.rows()))
    }

    fn linear_rows(&self, parts: &[(&Tensor<Self>, &Linear<Self>)]) -> Result<Tensor<Self>> {
        let cols = parts[0].1.rows();
        let rows = parts.iter().map(|(x, _)| x.rows()).sum::<usize>();
        let mut out = pool::values(rows * cols);
        let mut rest = out.as_mut_slice();
        for (x, weight) in parts {
            let (part, below) = rest.split_at_mut(x.rows() * cols);
            gemm::linear(self.precision, &[Rows::of(x)], weight, part);
            rest = below;
        }
        Ok(self.tensor(out, rows, cols))
    }

    fn linear_concat(&self, parts: &[&Tensor<Self>], weight: &Linear<Self>) -> Result<Tensor<Self>> {
        let rows = parts[0].rows();
        let parts: Vec<_> = parts.iter().map(|x| Rows::of(x)).collect();
        let mut out = pool::values(rows * weight.rows());
        gemm::linear(self.precision, &parts, weight, &mut out);
        Ok(self.tensor(out, rows, weight.rows()))
    }

    fn conv2d(
        &self,
        x: &Tensor<Self>,
        weight: &ConvKernel<Self>,
        bias: &Tensor<Self>,
        conv: Conv,
        halo: &Halo<Self>,
    ) -> Result<Convolved<Self>> {
        if !halo.is_empty() {
            return ops::conv2d::compose_band(self, x, weight, bias, conv, halo);
        }
        let rows = conv.out_height() * conv.out_width();
        let mut out = pool::values(rows * weight.rows());
        let (x, kernel, bias) = (Rows::of(x), weight.weight(), Rows::of(bias).row(0));
        match gemm::terms(self.precision, &kernel.view) {
            Some(terms) => conv_tiles::conv2d(conv_tiles::TILES, terms, x, kernel, bias, conv, &mut out, false),
            None => conv::conv2d(x, kernel, bias, conv, &mut out),
        }
        Ok(self.tensor(out, rows, weight.rows()).into())
    }

    fn conv2d_add(
        &self,
        x: &Tensor<Self>,
        weight: &ConvKernel<Self>,
        bias: &Tensor<Self>,
        conv: Conv,
        residual: Tensor<Self>,
    ) -> Result<Convolved<Self>> {
        let kernel = weight.weight();
        let Some(terms) = gemm::terms(self.precision, &kernel.view) else {
            return ops::conv2d::compose_add(self, x, weight, bias, conv, residual);
        };
        let (rows, cols) = (residual.rows(), residual.cols());
        let mut out = Self::take(residual);
        let bias = Rows::of(bias).row(0);
        conv_tiles::conv2d(conv_tiles::TILES, terms, Rows::of(x), kernel, bias, conv, &mut out, true);
        Ok(self.tensor(out, rows, cols).into())
    }

    fn upsample_conv2d(
        &self,
        x: Tensor<Self>,
        weight: &ConvKernel<Self>,
        bias: &Tensor<Self>,
        [height, width]: [usize; 2],
        halo: &Halo<Self>,
    ) -> Result<Convolved<Self>> {
        let kernel = weight.weight();
        // Sums of weights are rounded to bfloat16, so this is only for activations that are rounded too.
        if !halo.is_empty() || gemm::terms(self.precision, &kernel.view) != Some(1) {
            return ops::upsample_conv2d::compose(self, x, weight, bias, [height, width], halo);
        }
        let rows = 4 * x.rows();
        let mut out = pool::values(rows * weight.rows());
        let bias = Rows::of(bias).row(0);
        conv_tiles::upsample_conv2d(conv_tiles::TILES, Rows::of(&x), kernel, bias, height, width, &mut out);
        Ok(self.tensor(out, rows, weight.rows()).into())
    }

    fn attention(
        &self,
        q: Tensor<Self>,
        k: &Tensor<Self>,
        v: &Tensor<Self>,
        head_dim: usize,
        layout: TokenLayout,
        mask: Mask,
    ) -> Result<Tensor<Self>> {
        let (q_rows, k_rows, v_rows) = (Rows::of(&q), Rows::of(k), Rows::of(v));
        let out = if self.precision == Precision::Bf16 && amx::available() && mask == Mask::None {
            attention_tiles::attention(amx::multiply, q_rows, k_rows, v_rows, head_dim, layout)
        } else {
            attention::attention(q_rows, k_rows, v_rows, head_dim, layout, mask)
        };
        Ok(self.tensor(out, q.rows(), q.cols()))
    }

    fn layer_norm(&self, x: &Tensor<Self>, eps: f32) -> Result<Tensor<Self>> {
        let x = Rows::of(x);
        Ok(self.make_rows(x.rows, x.cols, |row, out| norm::layer_norm(x.row(row), eps, out)))
    }

    fn rms_norm(&self, x: &Tensor<Self>, weight: &Tensor<Self>, eps: f32) -> Result<Tensor<Self>> {
        let (x, weight) = (Rows::of(x), Rows::of(weight).row(0));
        Ok(self.make_rows(x.rows, x.cols, |row, out| norm::rms_norm(x.row(row), weight, eps, out)))
    }

    fn group_norm(&self, x: &Tensor<Self>, norm: &GroupNorm<'_, Self>) -> Result<Tensor<Self>> {
        let (x, (scale, shift)) = (Rows::of(x), norm::group_norm_affine(Rows::of(x), norm));
        Ok(self.make_rows(x.rows, x.cols, |row, out| elementwise::affine(x.row(row), &scale, &shift, out)))
    }

    fn group_norm_silu(&self, x: &Tensor<Self>, norm: &GroupNorm<'_, Self>) -> Result<Tensor<Self>> {
        let (x, (scale, shift)) = (Rows::of(x), norm::group_norm_affine(Rows::of(x), norm));
        Ok(self.make_rows(x.rows, x.cols, |row, out| math::affine_silu(x.row(row), &scale, &shift, out)))
    }

    fn rope(&self, x: Tensor<Self>, rope: &Rope<Self>, layout: TokenLayout) -> Result<Tensor<Self>> {
        let (cos, sin, pairs) = (Rows::of(&rope.cos), Rows::of(&rope.sin), rope.pairs);
        Ok(self.map_rows(x, |row, values| {
            let token = layout.token(row);
            elementwise::rope(values, cos.row(token), sin.row(token), pairs);
        }))
    }

    fn silu(&self, x: Tensor<Self>) -> Result<Tensor<Self>> {
        Ok(self.map_rows(x, |_, row| math::silu(row)))
    }

    fn add(&self, x: Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>> {
        let y = Rows::of(y);
        Ok(self.map_rows(x, |row, out| elementwise::add(out, y.row(row))))
    }

    fn mul(&self, x: Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>> {
        let y = Rows::of(y);
        Ok(self.map_rows(x, |row, out| elementwise::mul(out, y.row(if y.rows == 1 { 0 } else { row }))))
    }

    fn scale_shift(&self, x: Tensor<Self>, scale: &Tensor<Self>, shift: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (scale, shift) = (Rows::of(scale).row(0), Rows::of(shift).row(0));
        Ok(self.map_rows(x, |_, row| elementwise::scale_shift(row, scale, shift)))
    }

    fn concat_rows(&self, parts: &[&Tensor<Self>]) -> Result<Tensor<Self>> {
        let cols = parts[0].cols();
        let rows = parts.iter().map(|part| part.rows()).sum::<usize>();
        let mut values = pool::values(rows * cols);
        let mut rest = values.as_mut_slice();
        for part in parts {
            let part = Rows::of(part);
            let (own, below) = rest.split_at_mut(part.rows * cols);
            for_rows(own, cols, |row, out| out.copy_from_slice(part.row(row)));
            rest = below;
        }
        Ok(self.tensor(values, rows, cols))
    }

    fn concat_cols(&self, parts: &[&Tensor<Self>]) -> Result<Tensor<Self>> {
        let cols = parts.iter().map(|part| part.cols()).sum();
        let parts: Vec<_> = parts.iter().map(|part| Rows::of(part)).collect();
        Ok(self.make_rows(parts[0].rows, cols, |row, out| {
            let mut start = 0;
            for part in &parts {
                out[start..start + part.cols].copy_from_slice(part.row(row));
                start += part.cols;
            }
        }))
    }

    fn upsample(&self, x: &Tensor<Self>, _height: usize, width: usize) -> Result<Tensor<Self>> {
        let x = Rows::of(x);
        Ok(self.make_rows(4 * x.rows, x.cols, |row, out| {
            let (py, px) = (row / (2 * width), row % (2 * width));
            out.copy_from_slice(x.row(py / 2 * width + px / 2));
        }))
    }

    fn patchify(
        &self,
        x: &Tensor<Self>,
        mean: &Tensor<Self>,
        std: &Tensor<Self>,
        _height: usize,
        width: usize,
    ) -> Result<Tensor<Self>> {
        let (x, mean, std) = (Rows::of(x), Rows::of(mean).row(0), Rows::of(std).row(0));
        Ok(self.make_rows(x.rows / 4, 4 * x.cols, |row, out| pixels::patchify(x, mean, std, width, row, out)))
    }

    fn unpatchify(
        &self,
        latents: &Tensor<Self>,
        mean: &Tensor<Self>,
        std: &Tensor<Self>,
        _height: usize,
        width: usize,
    ) -> Result<Tensor<Self>> {
        let (x, mean, std) = (Rows::of(latents), Rows::of(mean).row(0), Rows::of(std).row(0));
        Ok(self.make_rows(4 * x.rows, x.cols / 4, |row, out| pixels::unpatchify(x, mean, std, width, row, out)))
    }

    fn euler_step(&self, latents: Tensor<Self>, velocity: &Tensor<Self>, dt: &Tensor<Self>) -> Result<Tensor<Self>> {
        let (velocity, dt) = (Rows::of(velocity), Rows::of(dt).row(0)[0]);
        Ok(self.map_rows(latents, |row, out| {
            for (x, v) in out.iter_mut().zip(velocity.row(row)) {
                *x += dt * v;
            }
        }))
    }

    fn inpaint_blend(
        &self,
        x: Tensor<Self>,
        noise: &Tensor<Self>,
        image: &Tensor<Self>,
        mask: &Tensor<Self>,
        sigma: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        let (noise, image, mask) = (Rows::of(noise), Rows::of(image), Rows::of(mask));
        let sigma = Rows::of(sigma).row(0)[0];
        Ok(self.map_rows(x, |row, out| {
            let repainted = mask.row(row)[0];
            for ((x, noise), image) in out.iter_mut().zip(noise.row(row)).zip(image.row(row)) {
                let noisy = sigma * noise + (1.0 - sigma) * image;
                *x = repainted * *x + (1.0 - repainted) * noisy;
            }
        }))
    }

    fn guide(&self, positive: &Tensor<Self>, negative: &Tensor<Self>, guidance: f32) -> Result<Tensor<Self>> {
        let (positive, negative) = (Rows::of(positive), Rows::of(negative));
        Ok(self.make_rows(positive.rows, positive.cols, |row, out| {
            for ((out, p), n) in out.iter_mut().zip(positive.row(row)).zip(negative.row(row)) {
                *out = n + guidance * (p - n);
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    /// Values of -2 to 2 without a pattern.
    pub(super) fn values(seed: u64, n: usize) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 22) as f32 - 2.0
        };
        (0..n).map(|_| next()).collect()
    }
}
