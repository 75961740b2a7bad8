//! The CUDA backend: bf16 tensors in device memory, float32 inside every op, one rounding at its end.
//!
//! With [`Precision::Fp8`] products with weights in [`Storage::Fp8`](crate::backend::Storage::Fp8) take e4m3 on both sides, with a scale for each
//! row of either, sum in what the tensor cores keep of a float32, and give bf16; see [`quantise`] and [`gemm`].
//!
//! [`library`] finds the driver, [`driver`] asks it, [`device`] opens a GPU, [`buffer`] hands out its memory
//! under the budget of [`memory`], [`launch`] starts the kernels
//! of cuda/*.cu that build.rs compiled into [`kernels`], [`gemm`] asks cuBLASLt, [`transfer`] moves values and images
//! through [`staging`] buffers, [`upload`] weights out of files, [`stored`] says how those lie that stay in a file's format, [`block_stream`] those of blocks that take turns in
//! memory, [`graph`] launches captured work as a whole. What an op
//! learns of its result on the way, it leaves there as [`channel_statistics`]. Every op has a launcher in the file of
//! its name in [`ops`]; those for Hopper alone share [`hopper`]. All computing goes to one stream in program order, in
//! which [`capture`] lets one thread at a time enqueue, and [`captures`] keeps away what would break a capture; only downloads, [`Backend::wait`], the timing of algorithms and
//! allocations that have to gather freed memory wait.
#![allow(unsafe_code)]

mod backend;
mod block_stream;
mod buffer;
mod capture;
mod captures;
mod channel_statistics;
mod counters;
mod device;
mod driver;
mod event;
mod gemm;
mod graph;
mod hopper;
mod kernels;
mod launch;
mod library;
mod memory;
mod merge;
mod ops;
mod pools;
mod slabs;
mod staging;
mod stored;
mod transfer;
mod upload;
mod weight;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

pub use block_stream::BlockStream;
pub use buffer::Buffer;
pub use channel_statistics::ChannelStatistics;
pub use event::Event;
pub use gemm::GemmCache;
pub use graph::Graph;
pub use weight::{ConvWeight, Weight};

use crate::backend::Bands;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use buffer::Kind;
use device::Device;
use gemm::Gemm;
use launch::Launch;
use ops::quantise;
use staging::StagingBuffers;
use transfer::{RESULT_BUFFERS, VALUE_BUFFERS};
use upload::Uploader;

/// In what the large products are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// As everything else.
    Bf16,
    /// e4m3 with a scale for each row of either side: weights take half the memory, and the tensor cores do twice as
    /// much. Hopper only.
    Fp8,
}

/// One NVIDIA GPU. Clones share it.
#[derive(Clone)]
pub struct Cuda(Arc<Inner>);

struct Inner {
    gemm: OnceLock<Gemm>,
    opening_gemm: Mutex<()>,
    gemm_cache: GemmCache,
    uploader: Uploader,
    /// For values that the host computed, and for results.
    value_buffers: StagingBuffers,
    result_buffers: StagingBuffers,
    /// Held while launched as graphs work is enqueued.
    graph_order: Mutex<()>,
    /// Why some work could not be captured.
    uncaptured: Mutex<Option<String>>,
    precision: Precision,
    /// See [`Cuda::limit_bands`].
    band_bytes: AtomicUsize,
    device: Arc<Device>,
}

impl Cuda {
    /// Opens GPU `ordinal` as `nvidia-smi -L` counts. Of its memory at most `memory_cap` bytes are used, or 80% of what
    /// is free now. The choice of algorithms is timed where the environment says so, see
    /// [`GemmCache::from_environment`].
    ///
    /// Errors when this program holds no kernels, the machine no driver or cuBLASLt, or the GPU is missing or older
    /// than Ampere.
    pub fn new(ordinal: usize, memory_cap: Option<u64>) -> Result<Self> {
        Self::with(ordinal, memory_cap, Precision::Bf16, &GemmCache::from_environment())
    }

    /// As [`Cuda::new`], with large products in `precision`, and with the choice of algorithms kept in `gemm_cache`.
    ///
    /// Errors as [`Cuda::new`], and when the GPU does not compute in `precision`.
    pub fn with(ordinal: usize, memory_cap: Option<u64>, precision: Precision, gemm_cache: &GemmCache) -> Result<Self> {
        // cuBLASLt is half a gigabyte: it is loaded while the driver makes the context.
        let (device, library) = thread::scope(|scope| {
            let library = scope.spawn(library::require_cublaslt);
            (Device::open(ordinal, memory_cap), library.join())
        });
        let device = device?;
        quantise::check(precision, device.capability(), device.name())?;
        library.unwrap_or_else(|_| Err(Error::new("the thread that loads cuBLASLt panicked")))?;
        let uploader = Uploader::new(&device);
        Ok(Self(Arc::new(Inner {
            gemm: OnceLock::new(),
            opening_gemm: Mutex::new(()),
            gemm_cache: gemm_cache.clone(),
            uploader,
            value_buffers: StagingBuffers::new(VALUE_BUFFERS),
            result_buffers: StagingBuffers::new(RESULT_BUFFERS),
            graph_order: Mutex::default(),
            uncaptured: Mutex::default(),
            precision,
            band_bytes: AtomicUsize::new(Bands::Wide.bytes()),
            device,
        })))
    }

    /// What the user may want to know of the work so far: that the kept choices of algorithms were of no use, or cannot
    /// be kept.
    pub fn note(&self) -> Option<String> {
        self.0.gemm.get().and_then(Gemm::note)
    }

    /// Device memory that the driver holds for this handle, in use or not, in bytes; its context and the code of kernels
    /// are not in it.
    pub fn reserved_bytes(&self) -> Result<u64> {
        self.device().reserved_bytes()
    }

    fn device(&self) -> &Arc<Device> {
        &self.0.device
    }

    /// cuBLASLt, opened by the first product.
    fn gemm(&self) -> Result<&Gemm> {
        if let Some(gemm) = self.0.gemm.get() {
            return Ok(gemm);
        }
        let _opening = self.0.opening_gemm.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gemm) = self.0.gemm.get() {
            return Ok(gemm);
        }
        let gemm = Gemm::new(self.device(), &self.0.gemm_cache)?;
        Ok(self.0.gemm.get_or_init(|| gemm))
    }

    fn launch(&self, file: &'static str, name: &'static str) -> Result<Launch<'_>> {
        self.device().launch(file, name)
    }

    /// A dense tensor, not initialised.
    fn empty(&self, rows: usize, cols: usize) -> Result<Tensor<Cuda>> {
        let buffer = Buffer::new(self.device(), Kind::Bf16, rows * cols)?;
        Ok(Tensor::from_buffer(self, buffer, rows, cols))
    }

    /// A new tensor of the shape of `x` for the result of an op that consumes `x`; none where the result may go over
    /// `x`.
    fn unless_writable(&self, x: &Tensor<Cuda>) -> Result<Option<Tensor<Cuda>>> {
        if x.writable() { Ok(None) } else { self.empty(x.rows(), x.cols()).map(Some) }
    }
}

impl Tensor<Cuda> {
    /// Device address of the first cell.
    fn address(&self) -> u64 {
        self.buffer().address() + (self.offset() * self.buffer().kind().size()) as u64
    }

    /// Whether every row starts at a multiple of 16 bytes and, of bf16, is a whole number of them.
    fn aligned(&self) -> bool {
        let size = self.buffer().kind().size();
        let whole = |elements: usize| (elements * size).is_multiple_of(16);
        self.address().is_multiple_of(16) && (self.rows() <= 1 || whole(self.stride())) && whole(self.cols())
    }
}

/// Whether kernels that move 16 bytes at once can take all these tensors.
fn all_aligned(tensors: &[&Tensor<Cuda>]) -> bool {
    tensors.iter().all(|tensor| tensor.aligned())
}

impl Launch<'_> {
    /// Enqueues a kernel that uses `for_each_run` over [rows, cols], 8 columns at a time where `wide`.
    ///
    /// # Safety
    /// As for [`Launch::run`].
    unsafe fn run_rows(self, rows: usize, cols: usize, wide: bool) -> Result<()> {
        let (grid, block) = launch::row_tiles(rows, if wide { cols / 8 } else { cols });
        // SAFETY: what the caller promises.
        unsafe { self.run(grid, block) }
    }
}
