//! The CUDA backend: tensors of bf16, or of fp16 on GPUs without bf16 ([`element`]), in device memory, float32 inside
//! every op, and one rounding at its end.
//!
//! With [`Precision::Fp8`], matrix multiplications with weights in [`Storage::Fp8`](crate::backend::Storage::Fp8)
//! multiply e4m3 by e4m3, with a scale for each row of either, accumulate in the precision of the tensor cores (less
//! than float32), and return bf16; see [`quantize`] and [`gemm`]. With [`Precision::Int8`], those in
//! [`Storage::Int8`](crate::backend::Storage::Int8) multiply 8-bit integers in the same way, with exact sums. They have
//! their own kernel, as has e4m3 on GPUs without e4m3 in cuBLASLt.
//!
//! The backend knows nothing about models. To start reading: [`device`] opens a GPU, [`ops`] has a launcher for every
//! op, and [`launch`] starts the kernels of cuda/*.cu that build.rs compiled into [`kernels`].
//! - Setup: [`library`] finds the driver, [`driver`] queries it, [`survey`](mod@survey) reports all GPUs.
//! - Memory: [`buffer`] allocates under the budget of [`memory`]; [`transfer`] moves values and images through
//!   [`staging`] buffers.
//! - Weights: [`upload`] loads them from files, [`stored`] keeps them in a file's format, [`block_stream`] streams
//!   blocks, and [`weight_source`] decides if one GPU copies the weights of another.
//! - Matrix multiplications: [`gemm`] calls cuBLASLt. Launchers of Hopper kernels share [`hopper`], and ops leave
//!   [`channel_statistics`] for a later norm.
//! - Groups: GPUs that generate one image together are ranks of a [`group`]. They write to each other's memory
//!   ([`peers`]) in an [`exchange`] of [`pieces`], or to a [`host_staging_buffer`] in a [`host_exchange`].
//! - Order: work runs on one stream in program order, or beside it as in [`fork`]. [`capture`] lets one thread at a
//!   time enqueue, [`captures`] prevents calls that would break a capture, and [`graph`] launches captured work as a
//!   whole. Only downloads, [`Device::wait`](crate::backend::Device::wait), the timing of algorithms and allocations
//!   that have to collect freed memory wait.
#![allow(unsafe_code)]

mod backend;
mod block_stream;
mod buffer;
mod capability;
mod capture;
mod captures;
mod channel_statistics;
mod counters;
mod destination;
mod device;
mod driver;
mod element;
mod event;
mod exchange;
mod fork;
mod gemm;
mod graph;
mod group;
mod hopper;
mod host_exchange;
mod host_staging_buffer;
mod kernels;
mod launch;
mod layout;
mod library;
mod memory;
mod merge;
mod ops;
mod peers;
mod pieces;
mod pools;
mod resident;
#[cfg(test)]
mod resources;
mod saturation;
mod slabs;
mod staging;
mod stored;
mod survey;
mod transfer;
mod upload;
mod weight;
mod weight_source;

use std::ffi::OsStr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::thread;

use parking_lot::Mutex;

pub use block_stream::BlockStream;
pub use buffer::Buffer;
pub use channel_statistics::ChannelStatistics;
pub use driver::count_gpus;
pub use event::Event;
pub use gemm::GemmCache;
pub use graph::Graph;
pub use group::{GroupOptions, Link, are_linked};
pub use kernels::{KernelsBuilt, built as kernels_built};
pub use survey::{GpuFacts, Identity, Survey, free_bytes, is_hopper, survey};
pub use upload::Uploads;
pub use weight::{ConvWeight, Weight};

use crate::backend::Bands;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use device::Device;
use element::Element;
use gemm::Gemm;
use group::Rank;
use launch::Launch;
use ops::{attention_e4m3, attention_int8, quantize};
use staging::StagingBuffers;
use transfer::{RESULT_BUFFERS, VALUE_BUFFERS};
use upload::Uploader;

/// The precision of large matrix multiplications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// As all other ops: bf16, or fp16 on GPUs without bf16.
    Bf16,
    /// e4m3 with a scale for each row of both operands: half the weight memory, and twice the tensor-core rate. Hopper,
    /// Ada and Blackwell 12.x.
    Fp8,
    /// 8-bit integers with a scale for each row of both operands and rotated columns; see [`crate::files::int8`]. Half
    /// the weight memory, and twice the tensor-core rate, on any GPU.
    Int8,
    /// Int8 with 4-bit weights; see [`crate::files::w4a8`].
    W4a8,
}

/// The configurable precision of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arithmetic {
    /// The precision of large matrix multiplications.
    pub products: Precision,
    /// The precision of long attention without a mask; `None` selects by GPU.
    pub attention: Option<AttentionPrecision>,
}

/// The precision of long attention without a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionPrecision {
    /// As all other ops: bf16, or fp16 on GPUs without bf16.
    Bf16,
    /// Queries, keys, weights and values in e4m3. Hopper.
    Fp8,
    /// Queries and keys in 8-bit integers, weights and values in f16. GPUs with bf16.
    Int8,
}

impl Arithmetic {
    /// Errors if a GPU doesn't support this.
    fn check(self, device: &Device) -> Result<()> {
        quantize::check(self.products, device)?;
        match self.attention {
            None | Some(AttentionPrecision::Bf16) => Ok(()),
            Some(AttentionPrecision::Fp8) => attention_e4m3::check(device),
            Some(AttentionPrecision::Int8) => attention_int8::check(device),
        }
    }

    /// Returns the precision of attention. If the matrix multiplications are quantized, it is the fastest one that adds
    /// no measurable error to theirs: e4m3 next to e4m3 on Hopper, and int8 on GPUs that multiply it faster.
    fn attention_on(self, device: &Device) -> AttentionPrecision {
        self.attention.unwrap_or_else(|| match self.products {
            Precision::Fp8 if attention_e4m3::check(device).is_ok() => AttentionPrecision::Fp8,
            Precision::Fp8 | Precision::Int8 | Precision::W4a8 if attention_int8::is_faster(device.capability) => {
                AttentionPrecision::Int8
            }
            _ => AttentionPrecision::Bf16,
        })
    }
}

impl From<Precision> for Arithmetic {
    fn from(products: Precision) -> Self {
        Self { products, attention: None }
    }
}

/// One NVIDIA GPU. Clones share it.
#[derive(Clone)]
pub struct Cuda(Arc<Inner>);

struct Inner {
    gemm: OnceLock<Gemm>,
    opening_gemm: Mutex<()>,
    gemm_cache: GemmCache,
    uploader: Uploader,
    /// For values computed on the host, and for results.
    value_buffers: StagingBuffers,
    result_buffers: StagingBuffers,
    /// Held while work is enqueued that launches a graph.
    graph_order: Mutex<()>,
    /// The reason that some work could not be captured.
    uncaptured: Mutex<Option<String>>,
    products: Precision,
    attention: AttentionPrecision,
    /// See [`Cuda::limit_bands`].
    band_bytes: AtomicUsize,
    /// `None` for a single GPU.
    rank: Option<Rank>,
    device: Arc<Device>,
}

impl Cuda {
    /// Opens GPU `ordinal`, numbered as by `nvidia-smi -L`. It uses at most `memory_cap` bytes of its memory, or 80% of
    /// the bytes that are free now. Algorithms are chosen by timing if the environment enables it, see
    /// [`GemmCache::from_environment`].
    ///
    /// Errors if this program has no kernels, the machine has no driver or cuBLASLt, or the GPU is missing or older
    /// than Turing. A cuBLASLt that is installed and can't be loaded is an error of the first matrix multiplication.
    pub fn new(ordinal: usize, memory_cap: Option<u64>) -> Result<Self> {
        Self::with(ordinal, memory_cap, Precision::Bf16, &GemmCache::from_environment())
    }

    /// As [`Cuda::new`], with the given `arithmetic`, and with the choices of algorithms kept in `gemm_cache`.
    ///
    /// Errors as [`Cuda::new`], and if the GPU doesn't support the arithmetic.
    pub fn with(
        ordinal: usize,
        memory_cap: Option<u64>,
        arithmetic: impl Into<Arithmetic>,
        gemm_cache: &GemmCache,
    ) -> Result<Self> {
        let arithmetic = arithmetic.into();
        let device = open_all(&[ordinal], memory_cap, arithmetic)?.remove(0);
        Ok(Self::from_device(device, arithmetic, gemm_cache, None))
    }

    /// Opens the ranks of a group of GPUs that generate one image together, in this order; otherwise as [`Cuda::with`].
    /// Use each from its own thread: hosts and GPUs wait for each other, at most the timeout of the options in a
    /// collective, and hosts 60 times as long if one of them may be loading weights.
    ///
    /// Errors as [`Cuda::with`], and if a GPU is listed twice.
    pub fn group(
        ordinals: &[usize],
        memory_cap: Option<u64>,
        arithmetic: impl Into<Arithmetic>,
        gemm_cache: &GemmCache,
        options: GroupOptions,
    ) -> Result<Vec<Self>> {
        if let Some((_, twice)) = ordinals.iter().enumerate().find(|(i, ordinal)| ordinals[..*i].contains(ordinal)) {
            return Err(Error::usage(format!("GPU {twice} is listed twice")).hint("list each GPU once"));
        }
        Self::ranks(ordinals, memory_cap, arithmetic.into(), gemm_cache, options)
    }

    /// As [`Cuda::group`], with `world` ranks that share GPU `ordinal`, each with `memory_cap` bytes. It computes the
    /// results of a group on a single GPU, without any speedup.
    ///
    /// Errors as [`Cuda::group`].
    pub fn group_on_one(
        ordinal: usize,
        world: usize,
        memory_cap: u64,
        arithmetic: impl Into<Arithmetic>,
        options: GroupOptions,
    ) -> Result<Vec<Self>> {
        Self::ranks(&vec![ordinal; world], Some(memory_cap), arithmetic.into(), &GemmCache::Off, options)
    }

    fn ranks(
        ordinals: &[usize],
        memory_cap: Option<u64>,
        arithmetic: Arithmetic,
        gemm_cache: &GemmCache,
        options: GroupOptions,
    ) -> Result<Vec<Self>> {
        match ordinals {
            [] => Err(Error::usage("a group of 0 GPUs cannot generate images")),
            [alone] => Ok(vec![Self::with(*alone, memory_cap, arithmetic, gemm_cache)?]),
            _ => {
                let devices = open_all(ordinals, memory_cap, arithmetic)?;
                let ranks = Rank::group(&devices.iter().collect::<Vec<_>>(), options)?;
                let made = devices.into_iter().zip(ranks);
                Ok(made.map(|(device, rank)| Self::from_device(device, arithmetic, gemm_cache, Some(rank))).collect())
            }
        }
    }

    fn from_device(device: Arc<Device>, arithmetic: Arithmetic, gemm_cache: &GemmCache, rank: Option<Rank>) -> Self {
        let uploader = Uploader::new(&device);
        Self(Arc::new(Inner {
            gemm: OnceLock::new(),
            opening_gemm: Mutex::new(()),
            gemm_cache: gemm_cache.clone(),
            uploader,
            value_buffers: StagingBuffers::new(VALUE_BUFFERS),
            result_buffers: StagingBuffers::new(RESULT_BUFFERS),
            graph_order: Mutex::default(),
            uncaptured: Mutex::default(),
            products: arithmetic.products,
            attention: arithmetic.attention_on(&device),
            band_bytes: AtomicUsize::new(Bands::Wide.bytes()),
            rank,
            device,
        }))
    }

    /// Returns a note for the user about the work so far: the cached choices of algorithms were unusable, or can't be
    /// saved.
    pub fn note(&self) -> Option<String> {
        self.0.gemm.get().and_then(Gemm::note)
    }

    /// Returns `true` if activations and weights are bf16; otherwise they are fp16.
    pub fn computes_in_bf16(&self) -> bool {
        self.element() == Element::Bf16
    }

    /// Returns the bytes of device memory that the driver holds for this handle, in use or not, without its context and
    /// the code of kernels.
    pub fn reserved_bytes(&self) -> Result<u64> {
        self.device().reserved_bytes()
    }

    /// Returns its rank in its group; `None` for a single GPU.
    fn group_rank(&self) -> Option<&Rank> {
        self.0.rank.as_ref()
    }

    /// Checks the group after a wait for the device: results computed after the collectives were ended are invalid.
    ///
    /// Errors if they were ended.
    fn check_group(&self, what: &str) -> Result<()> {
        self.group_rank().map_or(Ok(()), |rank| rank.member.check(what))
    }

    fn device(&self) -> &Arc<Device> {
        &self.0.device
    }

    /// Returns the type of activations and weights.
    fn element(&self) -> Element {
        self.device().element()
    }

    /// Returns cuBLASLt, opened by the first matrix multiplication.
    fn gemm(&self) -> Result<&Gemm> {
        if let Some(gemm) = self.0.gemm.get() {
            return Ok(gemm);
        }
        let _opening = self.0.opening_gemm.lock();
        if let Some(gemm) = self.0.gemm.get() {
            return Ok(gemm);
        }
        let gemm = Gemm::new(self.device(), &self.0.gemm_cache)?;
        Ok(self.0.gemm.get_or_init(|| gemm))
    }

    fn launch(&self, file: &'static str, name: &'static str) -> Result<Launch<'_>> {
        self.device().launch(file, name)
    }

    /// Allocates a dense, uninitialized tensor.
    fn empty(&self, rows: usize, cols: usize) -> Result<Tensor<Cuda>> {
        let buffer = Buffer::new(self.device(), self.element().kind(), rows * cols)?;
        Ok(Tensor::from_buffer(self, buffer, rows, cols))
    }

    /// Allocates as [`Cuda::empty`] for the output of a convolution, which is in host memory if it is large and
    /// [`Device::with_max_resident`](crate::backend::Device::with_max_resident) says so.
    fn empty_output(&self, rows: usize, cols: usize) -> Result<Tensor<Cuda>> {
        let kind = self.element().kind();
        if !resident::is_exceeded(rows.saturating_mul(cols).saturating_mul(kind.size())) {
            return self.empty(rows, cols);
        }
        self.expect_no_capture("an output in host memory")?;
        let buffer = Buffer::on_host(self.device(), kind, rows * cols)?;
        Ok(Tensor::from_buffer(self, buffer, rows, cols))
    }

    /// Returns a new tensor of the shape of `x` for the result of an op that consumes `x`; `None` if the result may
    /// overwrite `x`.
    fn unless_writable(&self, x: &Tensor<Cuda>) -> Result<Option<Tensor<Cuda>>> {
        if x.writable() { Ok(None) } else { self.empty(x.rows(), x.cols()).map(Some) }
    }
}

/// Parses `value` of `variable` as one of two values; `rule` is the default.
fn one_of(variable: &str, value: Option<&OsStr>, [no, yes]: [&str; 2], rule: bool) -> Result<bool> {
    match value.map(OsStr::to_string_lossy).as_deref() {
        None | Some("") => Ok(rule),
        Some(value) if value == no => Ok(false),
        Some(value) if value == yes => Ok(true),
        Some(other) => Err(Error::usage(format!("`{other}` is neither {no} nor {yes}")).at(variable)),
    }
}

/// Opens all these GPUs concurrently, if cuBLASLt is installed.
fn open_all(ordinals: &[usize], memory_cap: Option<u64>, arithmetic: Arithmetic) -> Result<Vec<Arc<Device>>> {
    let (devices, library) = thread::scope(|scope| {
        let library = scope.spawn(library::find_cublaslt);
        let open = |ordinal: &usize| {
            let ordinal = *ordinal;
            scope.spawn(move || Device::open(ordinal, memory_cap))
        };
        let devices: Vec<_> = ordinals.iter().map(open).collect();
        (devices.into_iter().map(|device| device.join()).collect::<Vec<_>>(), library.join())
    });
    let panicked = || Error::new("a thread that opens a GPU panicked");
    let devices: Vec<_> =
        devices.into_iter().map(|device| device.unwrap_or_else(|_| Err(panicked()))).collect::<Result<_>>()?;
    devices.iter().try_for_each(|device| arithmetic.check(device))?;
    library.unwrap_or_else(|_| Err(panicked()))?;
    Ok(devices)
}

impl Tensor<Cuda> {
    /// Returns the device address of the first cell.
    fn address(&self) -> u64 {
        self.buffer().address() + (self.offset() * self.buffer().kind().size()) as u64
    }

    /// Returns `true` if its values are activations, not tables or quantized rows.
    fn is_activation(&self) -> bool {
        self.buffer().kind() == self.backend().element().kind()
    }

    /// Returns `true` if every row starts at a multiple of 16 bytes and, for activations, is a multiple of 16 bytes
    /// long.
    fn aligned(&self) -> bool {
        let size = self.buffer().kind().size();
        let whole = |elements: usize| (elements * size).is_multiple_of(16);
        self.address().is_multiple_of(16) && (self.rows() <= 1 || whole(self.stride())) && whole(self.cols())
    }
}

/// Returns `true` if kernels that move 16 bytes at once support all these tensors.
fn all_aligned(tensors: &[&Tensor<Cuda>]) -> bool {
    tensors.iter().all(|tensor| tensor.aligned())
}

impl Launch<'_> {
    /// Enqueues a kernel that uses `for_each_run` over [rows, cols], 8 columns at a time if `wide`.
    ///
    /// # Safety
    /// As for [`Launch::run`].
    unsafe fn run_rows(self, rows: usize, cols: usize, wide: bool) -> Result<()> {
        let (grid, block) = launch::row_tiles(rows, if wide { cols / 8 } else { cols });
        // SAFETY: as the caller promises.
        unsafe { self.run(grid, block) }
    }
}
