//! `trait Backend`: where tensors live and ops run.
//!
//! The primitives are required: every backend writes them. The fused ops are provided: their body is the mathematics,
//! in primitives. [`cpu::Cpu`] inherits most of them; [`cuda::Cuda`] replaces them with kernels that are tested against
//! that body. Callers go through the methods of [`Tensor`], which check shapes once; backends rely on these checks.

pub mod cpu;
pub mod cuda;
mod gpu_costs;
mod graph_cache;
mod group;
mod turns;

pub use gpu_costs::{Bands, GEMM_WORKSPACE_BYTES, GpuCosts, IM2COL_BYTES};
pub use graph_cache::{GraphCache, RepeatedWork};

pub use turns::{SLABS, Turns, slab_bytes, slab_of};

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::files::TensorView;
use crate::nn::{ConvKernel, Linear, LowRank, Operand};
use crate::ops::{
    self, Adaln, Conv, Convolved, GroupNorm, Halo, Heads, KeyValues, Mask, Norm, Projection, QkNorm, Rope, RowSplit,
    TokenLayout, TokenSplit,
};
use crate::tensor::{Dtype, Tensor};

/// The memory that a backend holds, and counts of what it did. Backends on the host report zeros.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Bytes of device memory in use now.
    pub memory_bytes: u64,
    /// The most that was in use at once.
    pub peak_memory_bytes: u64,
    /// Kernels, library calls and copies on the device that were enqueued.
    pub launches: u64,
    /// Times the host waited for the device.
    pub waits: u64,
    /// Copies between host and device.
    pub copies: u64,
    /// Device allocations.
    pub allocations: u64,
    /// Fused ops that ran as their composition because no kernel covers the shape.
    pub composed: u64,
    /// Launches of graphs; the work inside a graph is counted nowhere else.
    pub graph_launches: u64,
    /// Pieces of work that could not be captured; [`Backend::remarks`] says why.
    pub uncaptured: u64,
}

/// Which ranks of a group do a piece of work. A backend that is in no group is all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doers {
    /// All, at the same time: it may have collectives.
    All,
    /// One alone.
    One,
}

/// How often the blocks of a component are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passes {
    /// For a new prompt.
    Seldom,
    /// At every step of an image.
    Often,
}

/// How a backend stores the weight of a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Storage {
    /// As the file has it, or in the type in which the backend computes.
    Native,
    /// e4m3 with a float32 scale for each output feature.
    Fp8,
}

/// Something about how a backend works that the user may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// For the curious.
    Detail(String),
    /// For everybody.
    Warning(String),
}

/// A place where tensors live and ops run.
///
/// A backend is a cheap handle: clones share one device. Work is enqueued in program order. Only [`Backend::download`],
/// [`Backend::take_rgb8`] and [`Backend::wait`] wait for it, and an allocation when it has to collect freed memory.
pub trait Backend: Clone + Send + Sync + Sized + 'static {
    /// Memory that tensors view.
    type Buffer: Send + Sync;
    /// The weight of a linear layer, in the form in which products read it.
    type Weight: Send + Sync;
    /// Memory in which weights of blocks take turns, and where they come from.
    type BlockStream: Default + Send + Sync;
    /// The weight of a convolution, in the form in which convolutions read it.
    type ConvWeight: Send + Sync;
    /// Means and variances of a tensor's channels, where the op that made the tensor computed them as well.
    type ChannelStatistics: Send + Sync;
    /// A point in the order of enqueued work.
    type Event;
    /// Pixels on their way to the host.
    type Rgb8;
    /// A piece of work that [`Backend::run_graph`] captures and then launches as a whole; the default has captured
    /// nothing.
    type Graph: Default + Send;

    /// The type of the values in `buffer`.
    fn dtype(buffer: &Self::Buffer) -> Dtype;
    /// The type of activations.
    fn activation_dtype(&self) -> Dtype;
    /// Whether `other` is a handle to the same device, so that tensors of both may be operands of one op.
    fn is_same_device(&self, other: &Self) -> bool;

    /// Which device of its group this is, from 0.
    fn rank(&self) -> usize {
        0
    }
    /// Devices of its group, which make one image together: each has a part of the tokens or pixels, and the whole
    /// weights. All of them call the same collectives in the same order.
    fn world(&self) -> usize {
        1
    }
    /// Gives each rank its parcel of `sent`, and returns what each rank gave this one, in the order of ranks: what all
    /// collectives are made of. What a rank gives itself comes back. `op` names the collective.
    ///
    /// What is given may be views, and parcels may be empty or of tensors without rows. It may be dropped at once; what
    /// comes is for reading, as long as it is held.
    ///
    /// Errors when another rank fails, is gone, does not come in time, or is in another collective.
    fn exchange(&self, op: &'static str, sent: Vec<Vec<Tensor<Self>>>) -> Result<Vec<Vec<Tensor<Self>>>> {
        if self.world() == 1 {
            return Ok(sent);
        }
        Err(Error::new(format!("{} passes nothing to other devices", self.describe())).at(format!("op `{op}`")))
    }
    /// What the host of each rank gives, in the order of ranks. It waits longer than collectives do, because ranks may
    /// be loading weights before it; `what` says what for. It does not wait for the device.
    ///
    /// Errors as [`Backend::exchange`].
    fn gather_host<T: Clone + Send + 'static>(&self, _what: &'static str, value: T) -> Result<Vec<T>> {
        Ok(vec![value])
    }
    /// As [`Backend::gather_host`], between ranks of which none loads anything: it waits no longer than collectives do.
    ///
    /// Errors as [`Backend::exchange`].
    fn gather_soon(&self, _what: &'static str, value: u64) -> Result<Vec<u64>> {
        Ok(vec![value])
    }
    /// Ends the collectives of all ranks, those that wait and those to come, with `cause`, which ended the work of this
    /// rank.
    fn abort_collectives(&self, _cause: &Error) {}
    /// Undoes [`Backend::abort_collectives`], and forgets what was given and not taken. No rank is in a collective
    /// meanwhile.
    ///
    /// Errors when the group is of no more use.
    fn restore_collectives(&self) -> Result<()> {
        Ok(())
    }

    /// One line for the user: device name and how it computes.
    fn describe(&self) -> String;
    /// Counters since the backend was made.
    fn stats(&self) -> Stats;
    /// Bytes of one value of an activation.
    fn element_bytes(&self) -> u64;
    /// Bytes that may still be allocated; `u64::MAX` where the amount is unknown.
    fn available_bytes(&self) -> u64;
    /// The largest number of values with which every op takes a tensor; `u64::MAX` where only memory limits it.
    fn max_tensor_values(&self) -> u64 {
        u64::MAX
    }
    /// How the weights of large products are to be stored; see [`WeightPolicy`](crate::nn::WeightPolicy).
    fn product_storage(&self) -> Storage {
        Storage::Native
    }
    /// Bytes that a weight of `elements` elements takes in memory of this backend: zero where it is used in the mapped
    /// file.
    fn weight_bytes(&self, elements: u64, storage: Storage) -> u64;
    /// Bytes that ops take beside their operands and results, and that memory in pieces does not serve.
    fn workspace_bytes(&self) -> u64 {
        0
    }
    /// The most bytes that [`Tensor::norm_conv2d`] allocates beside its input and output, when the whole normed image
    /// is `whole` bytes and it is made in `bands`.
    fn norm_conv2d_bytes(&self, whole: u64, _bands: Bands) -> u64 {
        whole
    }
    /// Has images normed in such bands from here on, where the backend makes them in bands.
    fn use_bands(&self, _bands: Bands) {}
    /// Runs `work`, which loads weights and computes nothing with them: their upload may still be under way until this
    /// returns. `report` is called with the number of elements that were uploaded.
    fn load<T>(&self, work: impl FnOnce() -> Result<T>, _report: &mut dyn FnMut(u64)) -> Result<T> {
        work()
    }
    /// Has this device copy the weights that it loads from here on out of the memory of `other`, where that one has them
    /// by then, instead of reading them from files. Returns whether it does: where both compute alike and are linked. A link
    /// that cannot be used is told by [`Backend::remarks`].
    ///
    /// Errors when the user's wish about links is none.
    fn copy_weights_from(&self, _other: &Self) -> Result<bool> {
        Ok(false)
    }
    /// Does the preparations that the first op would otherwise make; may run while weights are loaded.
    fn warm_up(&self) -> Result<()> {
        Ok(())
    }
    /// Runs `work(reads, inputs)`, which may be captured as a graph and from then on launched as a whole.
    ///
    /// `graph` belongs to this piece of work, which does the same each time, with inputs of the same shapes. Everything
    /// else that the work reads is in `reads`: the graph holds it as long as it lives, and nothing writes to it
    /// meanwhile. The work computes on the device only: no upload, download or event. The result owns its memory. `doers`
    /// says which ranks of a group do the work.
    ///
    /// Errors as the work does, and when a captured graph gets inputs of other shapes, or other `reads`. Work that ends
    /// as [`Kind::Cancelled`](crate::error::Kind::Cancelled) says nothing about whether it can be captured: the next
    /// call tries again.
    fn run_graph<R: Send + Sync + 'static, const N: usize>(
        &self,
        _graph: &mut Self::Graph,
        _doers: Doers,
        reads: &Arc<R>,
        inputs: [&Tensor<Self>; N],
        work: impl Fn(&R, [&Tensor<Self>; N]) -> Result<Tensor<Self>>,
    ) -> Result<Tensor<Self>> {
        work(reads, inputs)
    }
    /// Releases what loading left behind, without waiting for the device.
    fn settle(&self) -> Result<()> {
        Ok(())
    }
    /// What the user may want to know about how the backend works on this machine.
    fn remarks(&self) -> Vec<Remark> {
        Vec::new()
    }

    /// An event after all work enqueued so far.
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
    /// A weight matrix whose rows are the parts' rows, one part under the other; all parts have the same number of
    /// columns.
    ///
    /// Errors when this backend does not multiply weights of this storage, or memory runs out.
    fn load_weight(&self, parts: &[TensorView], storage: Storage) -> Result<Self::Weight>;
    /// As [`Backend::load_weight`], of a block that is streamed: its values are there between [`Backend::enter_block`] of
    /// its turn and [`Backend::leave_block`]. All weights come before [`Backend::allocate_stream`].
    ///
    /// Errors as [`Backend::load_weight`].
    fn stream_weight(
        &self,
        _stream: &Self::BlockStream,
        _turn: usize,
        parts: &[TensorView],
        storage: Storage,
    ) -> Result<Self::Weight> {
        self.load_weight(parts, storage)
    }
    /// Makes the memory in which the blocks of `stream` take turns, which are copied there so often.
    ///
    /// Errors when memory runs out.
    fn allocate_stream(&self, _stream: &Self::BlockStream, _passes: Passes) -> Result<()> {
        Ok(())
    }
    /// Work that is enqueued from here on finds the weights of block `turn` in their place.
    ///
    /// Errors when they cannot be copied there. Only one thread at a time is between this and [`Backend::leave_block`].
    fn enter_block(&self, _stream: &Self::BlockStream, _turn: usize) -> Result<()> {
        Ok(())
    }
    /// No work that is enqueued from here on reads the weights of block `turn`.
    fn leave_block(&self, _stream: &Self::BlockStream, _turn: usize) -> Result<()> {
        Ok(())
    }
    /// The weight of `base`, which is not quantised, with `up down` added: summed in float32, rounded once, and then
    /// stored as `storage` says. None where this backend computes the low-rank product beside that of the weight, and for
    /// a weight that is streamed, or in few bits in its file.
    ///
    /// Errors when memory runs out.
    fn merge_weight(
        &self,
        _base: &Linear<Self>,
        _low_rank: &LowRank<Self>,
        _storage: Storage,
    ) -> Result<Option<Self::Weight>> {
        Ok(None)
    }
    /// The weight [out, in, k, k] of a convolution.
    fn load_conv_weight(&self, view: &TensorView) -> Result<Self::ConvWeight>;
    /// Rows `ids` of a table [rows, cols] that stays on the host, as activations [ids, cols]. The ids are inside the
    /// table.
    fn embedding(&self, table: &TensorView, ids: &[usize]) -> Result<Tensor<Self>>;
    /// Activations as host values, row-major and dense. Waits.
    fn download(&self, x: &Tensor<Self>) -> Result<Vec<f32>>;
    /// Pixels [height * width, 3] in -1..1 as RGB bytes: `round_half_even(255 * clamp(x / 2 + 1 / 2))`.
    fn rgb8(&self, x: &Tensor<Self>) -> Result<Self::Rgb8>;
    /// RGB bytes of an image, three a pixel, as pixels [height * width, 3]: `2 * (byte / 255) - 1`, computed in float32.
    ///
    /// Errors when the bytes are not three for each pixel.
    fn upload_rgb8(&self, bytes: &[u8], height: usize, width: usize) -> Result<Tensor<Self>>;
    /// The bytes. Waits for them, but not for work that was enqueued after them.
    ///
    /// Errors when a pixel is not a number, which damaged weights lead to.
    fn take_rgb8(&self, rgb: Self::Rgb8) -> Result<Vec<u8>>;

    /// See [`Tensor::linear`].
    fn linear(&self, x: &Tensor<Self>, weight: &Linear<Self>, bias: Option<&Tensor<Self>>) -> Result<Tensor<Self>>;
    /// See [`Tensor::linear_rows`].
    fn linear_rows(&self, parts: &[(&Tensor<Self>, &Linear<Self>)]) -> Result<Tensor<Self>>;
    /// See [`Tensor::linear_concat`].
    fn linear_concat(&self, parts: &[&Tensor<Self>], weight: &Linear<Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::conv2d`].
    fn conv2d(
        &self,
        x: &Tensor<Self>,
        weight: &ConvKernel<Self>,
        bias: &Tensor<Self>,
        conv: Conv,
        halo: &Halo<Self>,
    ) -> Result<Convolved<Self>>;
    /// See [`Tensor::attention`].
    fn attention(
        &self,
        q: Tensor<Self>,
        k: &Tensor<Self>,
        v: &Tensor<Self>,
        head_dim: usize,
        layout: TokenLayout,
        mask: Mask,
    ) -> Result<Tensor<Self>>;
    /// See [`Tensor::layer_norm`].
    fn layer_norm(&self, x: &Tensor<Self>, eps: f32) -> Result<Tensor<Self>>;
    /// See [`Tensor::rms_norm`].
    fn rms_norm(&self, x: &Tensor<Self>, weight: &Tensor<Self>, eps: f32) -> Result<Tensor<Self>>;
    /// See [`Tensor::group_norm`].
    fn group_norm(&self, x: &Tensor<Self>, norm: &GroupNorm<'_, Self>) -> Result<Tensor<Self>>;
    /// See [`Tensor::rope`].
    fn rope(&self, x: Tensor<Self>, rope: &Rope<Self>, layout: TokenLayout) -> Result<Tensor<Self>>;
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
    /// See [`Tensor::patchify`].
    fn patchify(
        &self,
        x: &Tensor<Self>,
        mean: &Tensor<Self>,
        std: &Tensor<Self>,
        height: usize,
        width: usize,
    ) -> Result<Tensor<Self>>;
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
    /// See [`Tensor::inpaint_blend`].
    fn inpaint_blend(
        &self,
        x: Tensor<Self>,
        noise: &Tensor<Self>,
        image: &Tensor<Self>,
        mask: &Tensor<Self>,
        sigma: &Tensor<Self>,
    ) -> Result<Tensor<Self>>;
    /// See [`Tensor::guide`].
    fn guide(&self, positive: &Tensor<Self>, negative: &Tensor<Self>, guidance: f32) -> Result<Tensor<Self>>;

    /// See [`Tensor::attention_cached`].
    fn attention_cached(
        &self,
        q: Tensor<Self>,
        k: &Tensor<Self>,
        v: &Tensor<Self>,
        cached: &KeyValues<Self>,
        head_dim: usize,
        layout: TokenLayout,
    ) -> Result<Tensor<Self>> {
        ops::attention::compose_cached(self, q, k, v, cached, head_dim, layout)
    }
    /// See [`Tensor::linear_add`].
    fn linear_add(&self, x: &Tensor<Self>, weight: &Linear<Self>, residual: Tensor<Self>) -> Result<Tensor<Self>> {
        ops::linear::compose_add(self, x, weight, residual)
    }
    /// See [`Tensor::low_rank`].
    fn low_rank(&self, parts: &[(&Tensor<Self>, &Linear<Self>)]) -> Result<Tensor<Self>> {
        ops::low_rank::compose(self, parts)
    }
    /// See [`Tensor::low_rank_concat`].
    fn low_rank_concat(&self, parts: &[&Tensor<Self>], weight: &Linear<Self>) -> Result<Tensor<Self>> {
        ops::low_rank::compose_concat(self, parts, weight)
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
        norms: [Norm<'_, Self>; 2],
        adaln: Adaln,
    ) -> Result<(Tensor<Self>, Operand<Self>)> {
        ops::gated_add_adaln::compose(self, x, gates, y, norms, adaln)
    }
    /// See [`Tensor::swiglu`].
    fn swiglu(&self, gate: Tensor<Self>, up: &Tensor<Self>) -> Result<Tensor<Self>> {
        ops::swiglu::compose(self, gate, up)
    }
    /// See [`Tensor::project`].
    fn project(
        &self,
        parts: &[(&Operand<Self>, &Linear<Self>)],
        heads: Option<&Heads<'_, Self>>,
    ) -> Result<Projection<Self>> {
        ops::project::compose(self, parts, heads)
    }
    /// See [`Tensor::qk_norm_rope`].
    fn qk_norm_rope(
        &self,
        q: Tensor<Self>,
        k: Tensor<Self>,
        norm: [&QkNorm<Self>; 2],
        rope: &Rope<Self>,
        layout: TokenLayout,
    ) -> Result<(Tensor<Self>, Tensor<Self>)> {
        ops::qk_norm_rope::compose(self, q, k, norm, rope, layout)
    }
    /// See [`Tensor::group_norm_silu`].
    fn group_norm_silu(&self, x: &Tensor<Self>, norm: &GroupNorm<'_, Self>) -> Result<Tensor<Self>> {
        ops::group_norm::compose_silu(self, x, norm)
    }
    /// See [`Tensor::conv2d_add`].
    fn conv2d_add(
        &self,
        x: &Tensor<Self>,
        weight: &ConvKernel<Self>,
        bias: &Tensor<Self>,
        conv: Conv,
        residual: Tensor<Self>,
    ) -> Result<Convolved<Self>> {
        ops::conv2d::compose_add(self, x, weight, bias, conv, residual)
    }
    /// See [`Tensor::conv2d_over`].
    fn conv2d_over(
        &self,
        x: Tensor<Self>,
        weight: &ConvKernel<Self>,
        bias: &Tensor<Self>,
        conv: Conv,
    ) -> Result<Convolved<Self>> {
        ops::conv2d::compose_over(self, x, weight, bias, conv)
    }
    /// See [`Tensor::norm_conv2d`].
    fn norm_conv2d(
        &self,
        x: &Tensor<Self>,
        norm: &GroupNorm<'_, Self>,
        weight: &ConvKernel<Self>,
        bias: &Tensor<Self>,
        conv: Conv,
        halo: &Halo<Self>,
    ) -> Result<Convolved<Self>> {
        ops::norm_conv2d::compose(self, x, norm, weight, bias, conv, halo)
    }
    /// See [`Tensor::norm_conv2d_add`].
    fn norm_conv2d_add(
        &self,
        x: Tensor<Self>,
        norm: &GroupNorm<'_, Self>,
        weight: &ConvKernel<Self>,
        bias: &Tensor<Self>,
        conv: (Conv, &Halo<Self>),
        residual: Tensor<Self>,
    ) -> Result<Convolved<Self>> {
        ops::norm_conv2d::compose_add(self, x, norm, weight, bias, conv, residual)
    }
    /// See [`Tensor::upsample_conv2d`].
    fn upsample_conv2d(
        &self,
        x: Tensor<Self>,
        weight: &ConvKernel<Self>,
        bias: &Tensor<Self>,
        size: [usize; 2],
        halo: &Halo<Self>,
    ) -> Result<Convolved<Self>> {
        ops::upsample_conv2d::compose(self, x, weight, bias, size, halo)
    }
    /// See [`Tensor::all_to_all_heads`].
    fn all_to_all_heads(&self, kvq: [Tensor<Self>; 3], split: &TokenSplit) -> Result<[Tensor<Self>; 3]> {
        ops::all_to_all::compose_heads(self, kvq, split)
    }
    /// See [`Tensor::all_to_all_rows`].
    fn all_to_all_rows(&self, x: Tensor<Self>, split: &TokenSplit) -> Result<Tensor<Self>> {
        ops::all_to_all::compose_rows(self, x, split)
    }
    /// See [`Tensor::all_gather_rows`].
    fn all_gather_rows(&self, x: Tensor<Self>, rows: &RowSplit) -> Result<Tensor<Self>> {
        ops::all_gather::compose(self, x, rows)
    }
    /// See [`Tensor::swap_halves`].
    fn swap_halves(&self, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        ops::swap::compose(self, x)
    }
    /// See [`Tensor::halo_rows`].
    fn halo_rows(&self, x: &Tensor<Self>, halo: [usize; 2]) -> Result<Halo<Self>> {
        ops::halo::compose(self, x, halo)
    }
    /// See [`Tensor::all_reduce_statistics`].
    fn all_reduce_statistics(
        &self,
        _x: &Tensor<Self>,
        _own: Option<&Self::ChannelStatistics>,
    ) -> Result<Option<Self::ChannelStatistics>> {
        ops::all_reduce::compose(self)
    }
    /// See [`Tensor::broadcast`].
    fn broadcast(&self, x: Option<Tensor<Self>>, shape: [usize; 2]) -> Result<Tensor<Self>> {
        ops::broadcast::compose(self, x, shape)
    }
}

/// What is wrong with an image that has a pixel that is NaN.
pub const NOT_NUMBERS: &str = "the model computed pixels that are not numbers";

/// The error for such an image.
fn not_a_number() -> Error {
    Error::new(NOT_NUMBERS).hint("the weights are damaged: fetch the model again")
}

/// Errors unless `bytes` are three for each pixel.
fn expect_rgb8(bytes: &[u8], height: usize, width: usize) -> Result<()> {
    if height.checked_mul(width).and_then(|pixels| pixels.checked_mul(3)) == Some(bytes.len()) {
        return Ok(());
    }
    Err(Error::new(format!("{} bytes do not make {height} x {width} pixels of RGB", bytes.len()))
        .at("op `upload_rgb8`"))
}

/// The error for host values whose number does not fit their shape.
fn wrong_length(len: usize, rows: usize, cols: usize) -> Error {
    Error::new(format!("{len} values do not make [{rows}, {cols}]")).at("op `upload`")
}
