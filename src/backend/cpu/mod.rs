//! The CPU backend: float32 between ops, all cores, and the reference for every other backend.
//!
//! Weights are not copied: a matrix is a list of row ranges of mapped files, read in place by [`gemm`], except the
//! weights of [`int8`]. The CPU runs the composition of most fused ops. It replaces some of the VAE's, whose
//! activations exceed every cache, to save a pass over memory. These round as their composition does, except the
//! convolution of an upsampled image in bfloat16 ([`Tensor::upsample_conv2d`]). The backend knows nothing about models.
//! Start reading at [`gemm`].

mod attention;
mod attention_tiles;
mod conv;
mod conv_tiles;
mod elementwise;
mod gemm;
mod group;
mod host;
mod int8;
pub mod math;
mod norm;
mod ops;
mod pixels;
mod pool;
mod split_weights;
pub mod tiles;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use host::{HostFacts, host_facts};
pub use int8::Int8Weight;
pub use norm::ChannelStatistics;
pub use pool::Values;
use rayon::prelude::*;

use super::member::Member;
use super::{Costs, Device, Group, Memory, Reservations, Stats, Storage, WeightStore};
use crate::error::{Error, Result};
use crate::files::TensorView;
use crate::memory;
use crate::tensor::{Dtype, Tensor};

/// The precision of matrix multiplications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// As accurate as float32 throughout; matrix multiplications with weights in fewer than 16 bits have an error of
    /// 4e-6 on AMX tiles.
    F32,
    /// Activations, and weights in fewer than 16 bits, rounded to bfloat16 at each matrix multiplication and
    /// convolution, if the processor multiplies bfloat16; otherwise as `F32`.
    Bf16,
    /// As `Bf16`, or as `F32` if that is faster, with large matrix multiplications in 8-bit integers: see
    /// [`crate::files::int8`]. They are exact, so they equal those of GPUs.
    Int8,
    /// As `Int8`, with the 4-bit weights of GPUs: see [`crate::files::w4a8`].
    W4a8,
}

/// The host's cores. A cheap handle.
#[derive(Debug, Clone)]
pub struct Cpu {
    precision: Precision,
    max_tensor_values: u64,
    /// `None` for a single backend.
    member: Option<Arc<Member>>,
}

/// A weight matrix.
pub enum Weight {
    /// The concatenated rows of these parts, in the mapped file.
    Mapped(Vec<TensorView>),
    /// 8-bit integers in memory.
    Int8(Int8Weight),
}

/// Rows of float32 in host memory, `stride` elements apart.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a> Rows<'a> {
    fn new(x: &'a Tensor<Cpu>) -> Self {
        // A view without rows may begin past the end.
        let data = x.buffer().get(x.offset()..).unwrap_or_default();
        Self { data, rows: x.rows(), cols: x.cols(), stride: x.stride() }
    }

    fn row(&self, row: usize) -> &'a [f32] {
        &self.data[row * self.stride..][..self.cols]
    }
}

/// Elements in the block of rows of one task: enough to make the cost of starting the task negligible.
const TASK_ELEMENTS: usize = 1 << 16;

impl Cpu {
    /// Creates a backend for all cores, at the given precision.
    pub fn new(precision: Precision) -> Self {
        Self { precision, max_tensor_values: u64::MAX, member: None }
    }

    /// Limits the values of a tensor as GPUs do, see [`Costs::max_tensor_values`]. For tests.
    #[must_use]
    pub fn with_max_tensor_values(self, max_tensor_values: u64) -> Self {
        Self { max_tensor_values, ..self }
    }

    /// Returns `true` if this processor multiplies bfloat16 faster than float32.
    pub fn is_bf16_faster() -> bool {
        gemm::unit(Precision::Bf16).is_some_and(|unit| (unit.is_fast)())
    }

    /// Returns a note for the user if the requested precision is not the one that runs.
    pub fn note(&self) -> Option<&'static str> {
        (self.precision == Precision::Bf16 && gemm::unit(self.precision).is_none())
            .then_some("this processor has no bfloat16 instructions, so matrix multiplications run in float32")
    }

    fn tensor(&self, values: Vec<f32>, rows: usize, cols: usize) -> Tensor<Self> {
        debug_assert_eq!(values.len(), rows * cols);
        Tensor::from_buffer(self, values.into(), rows, cols)
    }

    /// Returns the values of `x`: its own memory if it may be overwritten, else a copy.
    fn take(x: Tensor<Self>) -> Vec<f32> {
        match x.into_buffer() {
            Ok(values) => values.into_vec(),
            Err(view) => Self::copy(Rows::new(&view)),
        }
    }

    fn copy(x: Rows<'_>) -> Vec<f32> {
        let mut values = pool::values(x.rows * x.cols);
        for_rows(&mut values, x.cols, |row, out| out.copy_from_slice(x.row(row)));
        values
    }

    /// Replaces each row of `x` by calling `f(row index, row)`.
    fn map_rows(&self, x: Tensor<Self>, f: impl Fn(usize, &mut [f32]) + Sync) -> Tensor<Self> {
        let (rows, cols) = (x.rows(), x.cols());
        let mut values = Self::take(x);
        for_rows(&mut values, cols, f);
        self.tensor(values, rows, cols)
    }

    /// Creates a tensor; `f(row index, row)` writes every value of a row.
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

impl Memory for Cpu {
    type Buffer = Values;
    /// `None` if a pixel is NaN.
    type Rgb8 = Option<Vec<u8>>;
    type Download = Vec<f32>;

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

    fn describe(&self) -> String {
        let rank = self.member.as_ref().map_or(String::new(), |member| format!(" {member:?}"));
        format!("CPU{rank}, {} threads, {}", rayon::current_num_threads(), gemm::describe(self.precision))
    }

    fn available_bytes(&self) -> u64 {
        // Memory that one image leaves in the pool is available to the next. The ranks of a group share it.
        memory::available_bytes().saturating_add(pool::pooled_bytes()) / self.world() as u64
    }

    fn reservations(&self) -> (Arc<Reservations>, usize) {
        // Each rank of a group may use its share of the memory, and has its own reservations.
        (Reservations::for_device(("cpu", self.rank())), 0)
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

    fn download(&self, x: &Tensor<Self>) -> Result<Vec<f32>> {
        Ok(Self::copy(Rows::new(x)))
    }

    fn download_soon(&self, x: Tensor<Self>) -> Result<Vec<f32>> {
        Ok(Self::take(x))
    }

    fn take_download(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        Ok(values)
    }

    fn rgb8(&self, x: &Tensor<Self>) -> Result<Option<Vec<u8>>> {
        Ok(pixels::rgb8(Rows::new(x)))
    }

    fn upload_rgb8(&self, bytes: &[u8], height: usize, width: usize) -> Result<Tensor<Self>> {
        super::expect_rgb8(bytes, height, width)?;
        Ok(self.make_rows(height * width, 3, |row, out| pixels::from_rgb8(&bytes[3 * row..3 * row + 3], out)))
    }

    fn take_rgb8(&self, rgb: Option<Vec<u8>>) -> Result<Vec<u8>> {
        rgb.ok_or_else(super::not_a_number)
    }
}

impl Device for Cpu {
    type Event = Instant;
    type Graph = ();

    fn stats(&self) -> Stats {
        Stats::default()
    }

    fn rounds_by_batch(&self) -> bool {
        false
    }

    fn machine(&self) -> String {
        format!("CPU, {}, {}", gemm::describe(self.precision), host::instructions().join(" "))
    }

    fn costs(&self) -> Costs {
        let products = match self.precision {
            Precision::F32 | Precision::Bf16 => Storage::Native,
            Precision::Int8 => Storage::Int8,
            Precision::W4a8 => Storage::W4a8,
        };
        let mut costs = Costs::host(products, self.world());
        costs.max_tensor_values = self.max_tensor_values;
        costs
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
}

impl Group for Cpu {
    fn member(&self) -> Option<&Member> {
        self.member.as_deref()
    }

    fn exchange(&self, op: &'static str, sent: Vec<Vec<Tensor<Self>>>) -> Result<Vec<Vec<Tensor<Self>>>> {
        self.exchange_views(op, sent)
    }

    fn restore_collectives(&self) -> Result<()> {
        self.member.as_ref().map_or(Ok(()), |member| member.restore())
    }
}

impl WeightStore for Cpu {
    type Weight = Weight;
    /// Weights stay in the mapped files.
    type BlockStream = ();
    type ConvWeight = conv::Weight;
    type Uploads = ();

    fn load<T>(&self, work: impl FnOnce(&()) -> Result<T>, _report: &mut dyn FnMut(u64)) -> Result<T> {
        work(&())
    }

    fn load_weight(&self, parts: &[TensorView], storage: Storage, _uploads: Option<&()>) -> Result<Weight> {
        match storage {
            Storage::Native => Ok(Weight::Mapped(parts.to_vec())),
            Storage::Int8 | Storage::W4a8 => Int8Weight::new(parts, storage).map(Weight::Int8),
            Storage::Fp8 => Err(Error::new("the CPU does not support fp8 weights")),
        }
    }

    fn load_conv_weight(&self, view: &TensorView, _uploads: Option<&()>) -> Result<conv::Weight> {
        Ok(conv::Weight::new(view.clone()))
    }

    fn embedding(&self, table: &TensorView, ids: &[usize]) -> Result<Tensor<Self>> {
        let rows = |row: usize, out: &mut [f32]| out.copy_from_slice(&table.row_range(ids[row]..ids[row] + 1).to_f32());
        Ok(self.make_rows(ids.len(), table.cols(), rows))
    }
}

#[cfg(test)]
mod tests {
    /// Returns pseudo-random values of -2 to 2.
    pub(super) fn values(seed: u64, n: usize) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 22) as f32 - 2.0
        };
        (0..n).map(|_| next()).collect()
    }
}
