//! `trait Backend`: where tensors live and ops run.
//!
//! The primitives are required: every backend writes them. The fused ops are provided: their body is
//! the mathematics, in primitives. [`cpu::Cpu`] inherits most of them; [`cuda::Cuda`] replaces them with kernels
//! that are tested against that body. Callers go through the methods of [`Tensor`], which check shapes
//! once; a backend relies on it.

pub mod cpu;
pub mod cuda;
mod graph_cache;

pub use graph_cache::{GraphCache, RepeatedWork};

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::ops::{self, Adaln, Conv, GroupNorm, Heads, Joint, Mask, Projection, QkNorm, Rope};
use crate::tensor::{Dtype, Tensor};
use crate::weights::WeightView;

/// What a backend holds and did. Host-only backends report zeros for what they do not have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Bytes of device memory in use now.
    pub memory_bytes: u64,
    /// The most that was in use at once.
    pub peak_memory_bytes: u64,
    /// Kernels, library calls and copies on the device enqueued.
    pub launches: u64,
    /// Times the host waited for the device.
    pub waits: u64,
    /// Copies between host and device.
    pub copies: u64,
    /// Device allocations.
    pub allocations: u64,
    /// Fused ops that ran as their composition because no kernel covers the shape.
    pub composed: u64,
    /// Launches of captured work as a whole; what is in it counts nowhere else.
    pub graph_launches: u64,
    /// Pieces of work that could not be captured; [`Backend::remarks`] says why.
    pub uncaptured: u64,
}

/// Something that the user may want to know of how a backend works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// For the curious.
    Detail(String),
    /// For everybody.
    Warning(String),
}

/// A place where tensors live and ops run.
///
/// A backend is a cheap handle: clones share one device. Work is enqueued in program order; only
/// [`Backend::download`], [`Backend::take_rgb8`] and [`Backend::wait`] wait for it.
pub trait Backend: Clone + Send + Sync + Sized + 'static {
    /// Memory that tensors view.
    type Buffer: Send + Sync;
    /// A point in the order of enqueued work.
    type Event;
    /// Pixels on their way to the host.
    type Rgb8;
    /// A piece of work that is launched as a whole by [`Backend::run_graph`]; the default is none yet.
    type Graph: Default + Send;

    /// The type of the values in `buffer`.
    fn dtype(buffer: &Self::Buffer) -> Dtype;
    /// The type of activations.
    fn activation_dtype(&self) -> Dtype;
    /// Whether `other` is a handle to the same device, so that tensors of both may be operands of one op.
    fn is_same_device(&self, other: &Self) -> bool;

    /// One line for the user: device name and how it computes.
    fn describe(&self) -> String;
    /// Counters since the backend was made.
    fn stats(&self) -> Stats;
    /// Bytes of one value of an activation.
    fn element_bytes(&self) -> u64;
    /// Bytes that may still be allocated; `u64::MAX` where nobody counts.
    fn available_bytes(&self) -> u64;
    /// The most values that a tensor may have, so that every op computes it right; `u64::MAX` where memory alone bounds
    /// it.
    fn max_tensor_values(&self) -> u64 {
        u64::MAX
    }
    /// Bytes that a weight of `elements` elements takes in memory of this backend: zero where the mapped file serves.
    fn weight_bytes(&self, elements: u64) -> u64;
    /// The most that [`Tensor::norm_conv2d`] takes beside its input and output, where what lies between is of `whole`
    /// bytes.
    fn norm_conv2d_bytes(&self, whole: u64) -> u64 {
        whole
    }
    /// As [`Backend::weight_bytes`], of a [`Backend::narrow_weight`].
    fn narrow_weight_bytes(&self, elements: u64) -> u64 {
        self.weight_bytes(elements)
    }

    /// Runs `work`, which loads weights and computes nothing with them: what it loads may be on its way until this
    /// returns. `report` hears how many elements went.
    fn load<T>(&self, work: impl FnOnce() -> Result<T>, _report: &mut dyn FnMut(u64)) -> Result<T> {
        work()
    }
    /// Does what the first op would do before it starts; may run while weights are loaded.
    fn warm_up(&self) -> Result<()> {
        Ok(())
    }
    /// `work(reads, inputs)`, which may be captured as a graph and from then on launched as a whole.
    ///
    /// `graph` belongs to this piece of work: each time it does the same, with inputs of the same shapes. All else that
    /// the work reads is in `reads`, which the graph holds as long as it lives, and which nobody writes meanwhile. The
    /// work computes on the device only: no upload, download or event. The result is a tensor of its own.
    ///
    /// Errors as the work does, and when a captured graph gets inputs of other shapes, or other `reads`. Work that ends
    /// as [`Kind::Cancelled`](crate::error::Kind::Cancelled) says nothing about whether it can be captured: the next
    /// call tries again.
    fn run_graph<R: Send + Sync + 'static, const N: usize>(
        &self,
        _graph: &mut Self::Graph,
        reads: &Arc<R>,
        inputs: [&Tensor<Self>; N],
        work: impl Fn(&R, [&Tensor<Self>; N]) -> Result<Tensor<Self>>,
    ) -> Result<Tensor<Self>> {
        work(reads, inputs)
    }
    /// Lets go of what loading left behind, without waiting for it.
    fn settle(&self) -> Result<()> {
        Ok(())
    }
    /// What the user may want to know of how the backend works here.
    fn remarks(&self) -> Vec<Remark> {
        Vec::new()
    }

    /// An event behind all work enqueued so far.
    fn event(&self) -> Result<Self::Event>;
    /// Whether the work before `event` is done; does not wait.
    fn is_done(&self, event: &Self::Event) -> Result<bool>;
    /// Waits for the work before `event`.
    fn wait(&self, event: &Self::Event) -> Result<()>;
    /// Time from one event to another; both are done.
    fn elapsed(&self, from: &Self::Event, to: &Self::Event) -> Result<Duration>;

    /// Host values as activations, [rows, cols].
    fn upload(&self, values: &[f32], rows: usize, cols: usize) -> Result<Tensor<Self>>;
    /// Host values that stay float32 on every backend: rope tables, latent statistics.
    fn upload_f32(&self, values: &[f32], rows: usize, cols: usize) -> Result<Tensor<Self>>;
    /// A weight matrix of the parts' rows, one part under the other; all parts have the same columns.
    fn weight(&self, parts: &[WeightView]) -> Result<Tensor<Self>>;
    /// As [`Backend::weight`], for a product so large that a backend may keep and multiply it in fewer bits.
    fn narrow_weight(&self, parts: &[WeightView]) -> Result<Tensor<Self>> {
        self.weight(parts)
    }
    /// Rows `ids` of a table [rows, cols] that stays on the host, as activations [ids, cols]. The ids are inside the
    /// table.
    fn embedding(&self, table: &WeightView, ids: &[usize]) -> Result<Tensor<Self>>;
    /// A convolution weight [out, in, k, k] as a matrix [out, k * k * in], columns ordered (ky, kx, in).
    fn conv_weight(&self, view: &WeightView) -> Result<Tensor<Self>>;
    /// Activations as host values, row-major and dense. Waits.
    fn download(&self, x: &Tensor<Self>) -> Result<Vec<f32>>;
    /// Pixels [height * width, 3] in -1..1 as RGB bytes: `round_half_even(255 * clamp(x / 2 + 1 / 2))`.
    fn rgb8(&self, x: &Tensor<Self>) -> Result<Self::Rgb8>;
    /// The bytes. Waits for them, and not for work that was enqueued behind them.
    ///
    /// Errors when a pixel is not a number, which damaged weights lead to.
    fn take_rgb8(&self, rgb: Self::Rgb8) -> Result<Vec<u8>>;

    /// See [`Tensor::linear`].
    fn linear(&self, x: &Tensor<Self>, weight: &Tensor<Self>, bias: Option<&Tensor<Self>>) -> Result<Tensor<Self>>;
    /// See [`Tensor::linear_rows`].
    fn linear_rows(&self, parts: &[(&Tensor<Self>, &Tensor<Self>)]) -> Result<Tensor<Self>>;
    /// See [`Tensor::linear_concat`].
    fn linear_concat(&self, parts: &[&Tensor<Self>], weight: &Tensor<Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::conv2d`].
    fn conv2d(&self, x: &Tensor<Self>, weight: &Tensor<Self>, bias: &Tensor<Self>, conv: Conv) -> Result<Tensor<Self>>;
    /// See [`Tensor::attention`].
    fn attention(
        &self,
        q: Tensor<Self>,
        k: &Tensor<Self>,
        v: &Tensor<Self>,
        head_dim: usize,
        joint: Joint,
        mask: Mask,
    ) -> Result<Tensor<Self>>;
    /// See [`Tensor::layer_norm`].
    fn layer_norm(&self, x: &Tensor<Self>, eps: f32) -> Result<Tensor<Self>>;
    /// See [`Tensor::rms_norm`].
    fn rms_norm(&self, x: &Tensor<Self>, weight: &Tensor<Self>, eps: f32) -> Result<Tensor<Self>>;
    /// See [`Tensor::group_norm`].
    fn group_norm(
        &self,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        bias: &Tensor<Self>,
        groups: usize,
        eps: f32,
    ) -> Result<Tensor<Self>>;
    /// See [`Tensor::rope`].
    fn rope(&self, x: Tensor<Self>, rope: &Rope<Self>, joint: Joint) -> Result<Tensor<Self>>;
    /// See [`Tensor::silu`].
    fn silu(&self, x: Tensor<Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::add`].
    fn add(&self, x: Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::mul`].
    fn mul(&self, x: Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::scale_shift`].
    fn scale_shift(&self, x: Tensor<Self>, scale: &Tensor<Self>, shift: &Tensor<Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::concat_rows`].
    fn concat_rows(&self, parts: &[&Tensor<Self>]) -> Result<Tensor<Self>>;
    /// See [`Tensor::concat_cols`].
    fn concat_cols(&self, parts: &[&Tensor<Self>]) -> Result<Tensor<Self>>;
    /// See [`Tensor::upsample`].
    fn upsample(&self, x: &Tensor<Self>, height: usize, width: usize) -> Result<Tensor<Self>>;
    /// See [`Tensor::unpatchify`].
    fn unpatchify(
        &self,
        latents: &Tensor<Self>,
        mean: &Tensor<Self>,
        std: &Tensor<Self>,
        height: usize,
        width: usize,
    ) -> Result<Tensor<Self>>;
    /// See [`Tensor::euler_step`].
    fn euler_step(&self, latents: Tensor<Self>, velocity: &Tensor<Self>, dt: &Tensor<Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::guide`].
    fn guide(&self, positive: &Tensor<Self>, negative: &Tensor<Self>, guidance: f32) -> Result<Tensor<Self>>;

    /// See [`Tensor::linear_add`].
    fn linear_add(&self, x: &Tensor<Self>, weight: &Tensor<Self>, residual: Tensor<Self>) -> Result<Tensor<Self>> {
        ops::linear::compose_add(self, x, weight, residual)
    }
    /// See [`Tensor::adaln`].
    fn adaln(&self, x: &Tensor<Self>, shift: &Tensor<Self>, scale: &Tensor<Self>, eps: f32) -> Result<Tensor<Self>> {
        ops::adaln::compose(self, x, shift, scale, eps)
    }
    /// See [`Tensor::gated_add`].
    fn gated_add(&self, x: Tensor<Self>, gate: &Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>> {
        ops::gated_add::compose(self, x, gate, y)
    }
    /// See [`Tensor::gated_add_adaln`].
    fn gated_add_adaln(
        &self,
        x: Tensor<Self>,
        gates: [&Tensor<Self>; 2],
        y: &Tensor<Self>,
        norms: [(&Tensor<Self>, &Tensor<Self>); 2],
        adaln: Adaln,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        ops::gated_add_adaln::compose(self, x, gates, y, norms, adaln)
    }
    /// See [`Tensor::swiglu`].
    fn swiglu(&self, gate: Tensor<Self>, up: &Tensor<Self>) -> Result<Tensor<Self>> {
        ops::swiglu::compose(self, gate, up)
    }
    /// See [`Tensor::swiglu_linear`].
    fn swiglu_linear(
        &self,
        gate: Tensor<Self>,
        up: &Tensor<Self>,
        beside: Option<&Tensor<Self>>,
        weight: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        ops::swiglu::compose_linear(self, gate, up, beside, weight)
    }
    /// See [`Tensor::swiglu_linear_rows`].
    fn swiglu_linear_rows(
        &self,
        gate: Tensor<Self>,
        up: &Tensor<Self>,
        weights: [&Tensor<Self>; 2],
        first: usize,
    ) -> Result<Tensor<Self>> {
        ops::swiglu::compose_linear_rows(self, gate, up, weights, first)
    }
    /// See [`Tensor::project`].
    fn project(
        &self,
        parts: &[(&Tensor<Self>, &Tensor<Self>)],
        heads: Option<&Heads<'_, Self>>,
    ) -> Result<Projection<Self>> {
        ops::projection::compose(self, parts, heads)
    }
    /// See [`Tensor::qk_norm_rope`].
    fn qk_norm_rope(
        &self,
        q: Tensor<Self>,
        k: Tensor<Self>,
        norm: [&QkNorm<Self>; 2],
        rope: &Rope<Self>,
        joint: Joint,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        ops::qk_norm_rope::compose(self, q, k, norm, rope, joint)
    }
    /// See [`Tensor::group_norm_silu`].
    fn group_norm_silu(
        &self,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        bias: &Tensor<Self>,
        groups: usize,
        eps: f32,
    ) -> Result<Tensor<Self>> {
        ops::group_norm::compose_silu(self, x, weight, bias, groups, eps)
    }
    /// See [`Tensor::conv2d_add`].
    fn conv2d_add(
        &self,
        x: &Tensor<Self>,
        weight: &Tensor<Self>,
        bias: &Tensor<Self>,
        conv: Conv,
        residual: Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        ops::conv2d::compose_add(self, x, weight, bias, conv, residual)
    }
    /// See [`Tensor::conv2d_over`].
    fn conv2d_over(
        &self,
        x: Tensor<Self>,
        weight: &Tensor<Self>,
        bias: &Tensor<Self>,
        conv: Conv,
    ) -> Result<Tensor<Self>> {
        ops::conv2d::compose_over(self, x, weight, bias, conv)
    }
    /// See [`Tensor::norm_conv2d`].
    fn norm_conv2d(
        &self,
        x: &Tensor<Self>,
        norm: &GroupNorm<'_, Self>,
        weight: &Tensor<Self>,
        bias: &Tensor<Self>,
        conv: Conv,
    ) -> Result<Tensor<Self>> {
        ops::norm_conv2d::compose(self, x, norm, weight, bias, conv)
    }
    /// See [`Tensor::norm_conv2d_add`].
    fn norm_conv2d_add(
        &self,
        x: Tensor<Self>,
        norm: &GroupNorm<'_, Self>,
        weight: &Tensor<Self>,
        bias: &Tensor<Self>,
        conv: Conv,
        residual: Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        ops::norm_conv2d::compose_add(self, x, norm, weight, bias, conv, residual)
    }
    /// See [`Tensor::upsample_conv2d`].
    fn upsample_conv2d(
        &self,
        x: Tensor<Self>,
        weight: &Tensor<Self>,
        bias: &Tensor<Self>,
        height: usize,
        width: usize,
    ) -> Result<Tensor<Self>> {
        ops::conv2d::compose_upsample(self, x, weight, bias, height, width)
    }
}

/// An image of which some pixel is NaN.
fn not_a_number() -> Error {
    Error::new("the model computed pixels that are not numbers").hint("the weights are damaged: fetch the model again")
}
