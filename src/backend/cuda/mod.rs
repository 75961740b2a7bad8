//! The CUDA backend: tensors of bf16, or of fp16 where a GPU has no bf16 ([`element`]), in device memory, float32
//! inside every op, one rounding at its end.
//!
//! With [`Precision::Fp8`] products with weights in [`Storage::Fp8`](crate::backend::Storage::Fp8) take e4m3 on both
//! sides, with a scale for each row of either, sum in what the tensor cores keep of a float32, and give bf16; see
//! [`quantise`] and [`gemm`]. With [`Precision::Int8`] those in [`Storage::Int8`](crate::backend::Storage::Int8) take
//! 8-bit integers in the same way, and sums are exact; they have a kernel of their own, and so has e4m3 where cuBLASLt
//! does not multiply it.
//!
//! [`library`] finds the driver, [`driver`] asks it, [`survey`](mod@survey) tells of all GPUs, [`device`] opens one,
//! [`buffer`] hands out its memory under the budget of [`memory`], [`launch`] starts the kernels of cuda/*.cu that
//! build.rs compiled into [`kernels`], [`gemm`] asks cuBLASLt, [`transfer`] moves values and images through [`staging`]
//! buffers, [`upload`] weights out of files, [`stored`] says how those lie that stay in a file's format,
//! [`block_stream`] those of blocks that take turns in memory, [`graph`] launches captured work as a whole. GPUs that
//! make one image together are ranks of a [`group`], which write to each other's memory ([`peers`]) in an [`exchange`]
//! of [`pieces`], or to a [`host_staging_buffer`] in that of the host in a [`host_exchange`]; [`weight_source`] says
//! whether one copies the weights of another. What an op learns of its result on the way, it leaves there as
//! [`channel_statistics`]. Every op has a launcher in the file of its name in [`ops`]; those for Hopper alone share
//! [`hopper`]. Computing goes to one stream in program order, or beside it as in [`fork`]; in that stream [`capture`]
//! lets one thread at a time enqueue, and [`captures`] keeps away what would break a capture; only downloads,
//! [`Device::wait`](crate::backend::Device::wait), the timing of algorithms and allocations that have to gather freed
//! memory wait.
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
mod library;
mod memory;
mod merge;
mod ops;
mod peers;
mod pieces;
mod pools;
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
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

pub use block_stream::BlockStream;
pub use buffer::Buffer;
pub use channel_statistics::ChannelStatistics;
pub use driver::count_gpus;
pub use event::Event;
pub use gemm::GemmCache;
pub use graph::Graph;
pub use group::{GroupOptions, Link, are_linked};
pub use kernels::{KernelsBuilt, built as kernels_built};
pub use survey::{Fastest, GpuFacts, Survey, free_bytes, survey};
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
use ops::{attention_e4m3, quantise};
use staging::StagingBuffers;
use transfer::{RESULT_BUFFERS, VALUE_BUFFERS};
use upload::Uploader;

/// In what the large products are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// As everything else: in fp16 where the GPU has no bf16.
    Bf16,
    /// e4m3 with a scale for each row of either side: weights take half the memory, and the tensor cores do twice as
    /// much. Hopper, Ada and Blackwell of 12.x.
    Fp8,
    /// 8-bit integers with a scale for each row of either side, whose columns are rotated before; see
    /// [`crate::files::int8`]. Weights take half the memory, and tensor cores do twice as much, on any GPU.
    Int8,
    /// The same with weights in 4 bits: see [`crate::files::w4a8`].
    W4a8,
}

/// In what a GPU computes, as far as that can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arithmetic {
    /// The large products.
    pub products: Precision,
    /// Whether long attention without a mask is in e4m3, which is for Hopper only; none leaves it to the GPU, see
    /// [`Arithmetic::attends_in_fp8`].
    pub fp8_attention: Option<bool>,
}

impl Arithmetic {
    /// Errors when a GPU does not compute in this.
    fn check(self, device: &Device) -> Result<()> {
        quantise::check(self.products, device)?;
        if self.fp8_attention == Some(true) { attention_e4m3::check(device) } else { Ok(()) }
    }

    /// Beside products in e4m3 attention is so too where there is a kernel for it: it adds nothing to their error that
    /// could be measured.
    fn attends_in_fp8(self, device: &Device) -> bool {
        let beside_products = || self.products == Precision::Fp8 && attention_e4m3::check(device).is_ok();
        self.fp8_attention.unwrap_or_else(beside_products)
    }
}

impl From<Precision> for Arithmetic {
    fn from(products: Precision) -> Self {
        Self { products, fp8_attention: None }
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
    /// For values that the host computed, and for results.
    value_buffers: StagingBuffers,
    result_buffers: StagingBuffers,
    /// Held while launched as graphs work is enqueued.
    graph_order: Mutex<()>,
    /// Why some work could not be captured.
    uncaptured: Mutex<Option<String>>,
    products: Precision,
    fp8_attention: bool,
    /// See [`Cuda::limit_bands`].
    band_bytes: AtomicUsize,
    /// None where it is alone.
    rank: Option<Rank>,
    device: Arc<Device>,
}

impl Cuda {
    /// Opens GPU `ordinal` as `nvidia-smi -L` counts. Of its memory at most `memory_cap` bytes are used, or 80% of what
    /// is free now. The choice of algorithms is timed where the environment says so, see
    /// [`GemmCache::from_environment`].
    ///
    /// Errors when this program holds no kernels, the machine no driver or cuBLASLt, or the GPU is missing or older
    /// than Turing. A cuBLASLt that is there and cannot be loaded is an error of the first product.
    pub fn new(ordinal: usize, memory_cap: Option<u64>) -> Result<Self> {
        Self::with(ordinal, memory_cap, Precision::Bf16, &GemmCache::from_environment())
    }

    /// As [`Cuda::new`], computing in `arithmetic`, and with the choice of algorithms kept in `gemm_cache`.
    ///
    /// Errors as [`Cuda::new`], and when the GPU does not compute in it.
    pub fn with(
        ordinal: usize,
        memory_cap: Option<u64>,
        arithmetic: impl Into<Arithmetic>,
        gemm_cache: &GemmCache,
    ) -> Result<Self> {
        let arithmetic = arithmetic.into();
        let device = open_all(&[ordinal], memory_cap, arithmetic)?.remove(0);
        Ok(Self::of_device(device, arithmetic, gemm_cache, None))
    }

    /// The ranks of a group of GPUs that make one image together, in this order; otherwise as [`Cuda::with`]. Each is
    /// to be used by a thread of its own: hosts and GPUs wait for each other, at most the limit of the options in a
    /// collective, and hosts 60 times as long where one of them may be loading weights.
    ///
    /// Errors as [`Cuda::with`], and when a GPU is named twice.
    pub fn group(
        ordinals: &[usize],
        memory_cap: Option<u64>,
        arithmetic: impl Into<Arithmetic>,
        gemm_cache: &GemmCache,
        options: GroupOptions,
    ) -> Result<Vec<Self>> {
        if let Some((_, twice)) = ordinals.iter().enumerate().find(|(i, ordinal)| ordinals[..*i].contains(ordinal)) {
            return Err(Error::usage(format!("GPU {twice} is named twice")).hint("name each GPU once"));
        }
        Self::ranks(ordinals, memory_cap, arithmetic.into(), gemm_cache, options)
    }

    /// As [`Cuda::group`], of `world` ranks that share GPU `ordinal`, each with `memory_cap` bytes. It shows what a
    /// group computes where there is one GPU; it gains nothing.
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
            [] => Err(Error::usage("a group of 0 GPUs makes no image")),
            [alone] => Ok(vec![Self::with(*alone, memory_cap, arithmetic, gemm_cache)?]),
            _ => {
                let devices = open_all(ordinals, memory_cap, arithmetic)?;
                let ranks = Rank::group(&devices.iter().collect::<Vec<_>>(), options)?;
                let made = devices.into_iter().zip(ranks);
                Ok(made.map(|(device, rank)| Self::of_device(device, arithmetic, gemm_cache, Some(rank))).collect())
            }
        }
    }

    fn of_device(device: Arc<Device>, arithmetic: Arithmetic, gemm_cache: &GemmCache, rank: Option<Rank>) -> Self {
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
            fp8_attention: arithmetic.attends_in_fp8(&device),
            band_bytes: AtomicUsize::new(Bands::Wide.bytes()),
            rank,
            device,
        }))
    }

    /// What the user may want to know of the work so far: that the kept choices of algorithms were of no use, or cannot
    /// be kept.
    pub fn note(&self) -> Option<String> {
        self.0.gemm.get().and_then(Gemm::note)
    }

    /// Whether activations and weights are bf16; otherwise they are fp16.
    pub fn computes_in_bf16(&self) -> bool {
        self.element() == Element::Bf16
    }

    /// Device memory that the driver holds for this handle, in use or not, in bytes; its context and the code of
    /// kernels are not in it.
    pub fn reserved_bytes(&self) -> Result<u64> {
        self.device().reserved_bytes()
    }

    /// Its place in its group; none where it is alone.
    fn group_rank(&self) -> Option<&Rank> {
        self.0.rank.as_ref()
    }

    /// To be asked after every wait for the device: what is computed after the collectives were ended is of no use.
    ///
    /// Errors when they were.
    fn check_group(&self, what: &str) -> Result<()> {
        self.group_rank().map_or(Ok(()), |rank| rank.member().check(what))
    }

    fn device(&self) -> &Arc<Device> {
        &self.0.device
    }

    /// What activations and weights are in.
    fn element(&self) -> Element {
        self.device().element()
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
        let buffer = Buffer::new(self.device(), self.element().kind(), rows * cols)?;
        Ok(Tensor::from_buffer(self, buffer, rows, cols))
    }

    /// A new tensor of the shape of `x` for the result of an op that consumes `x`; none where the result may go over
    /// `x`.
    fn unless_writable(&self, x: &Tensor<Cuda>) -> Result<Option<Tensor<Cuda>>> {
        if x.writable() { Ok(None) } else { self.empty(x.rows(), x.cols()).map(Some) }
    }
}

/// One of two values that a variable may have, `value` being what it has.
fn one_of(variable: &str, value: Option<&OsStr>, [no, yes]: [&str; 2], rule: bool) -> Result<bool> {
    match value.map(OsStr::to_string_lossy).as_deref() {
        None | Some("") => Ok(rule),
        Some(value) if value == no => Ok(false),
        Some(value) if value == yes => Ok(true),
        Some(other) => Err(Error::usage(format!("`{other}` is neither {no} nor {yes}")).at(variable)),
    }
}

/// These GPUs, all opened at the same time, where there is a cuBLASLt.
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
    /// Device address of the first cell.
    fn address(&self) -> u64 {
        self.buffer().address() + (self.offset() * self.buffer().kind().size()) as u64
    }

    /// Whether its values are what ops compute with, not tables or quantised rows.
    fn is_activation(&self) -> bool {
        self.buffer().kind() == self.backend().element().kind()
    }

    /// Whether every row starts at a multiple of 16 bytes and, of activations, is a whole number of them.
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
