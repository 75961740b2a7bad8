//! Matrix multiplications: bf16 or fp16 operands accumulated in float32, or e4m3 accumulated in the tensor cores; bf16,
//! fp16 or float32 results.
//!
//! cuBLASLt computes them. Our own kernel handles shapes that cuBLASLt declines, and all shapes with `FLUX_GEMM=own`. A
//! plan is made once per shape. A rule selects among cuBLASLt's suggestions, or timing selects the fastest, once for
//! all runs: see [`choices`].

mod choices;
mod cublaslt;
mod key;
mod tile_counters;

use std::env;
use std::ffi::OsStr;
use std::num::NonZero;
use std::sync::Arc;

use cudarc::driver::result;
use lru::LruCache;
use parking_lot::Mutex;

use super::buffer::{Buffer, BufferKind};
use super::capability::HOPPER;
use super::device::Device;
use super::driver::failed;
use super::event::Event;
use super::one_of;
use crate::backend::GEMM_WORKSPACE_BYTES;
use crate::error::{Error, Field, Result};
use choices::{Algorithm, Choices, Machine, fastest};
use cublaslt::{CublasLt, Plan};

pub use choices::GemmCache;
pub use key::{Key, Matrix, Product};
pub use tile_counters::{Cleared, TileCounters};

/// The workspace of matrix multiplications; counters follow it.
const WORKSPACE_BYTES: usize = GEMM_WORKSPACE_BYTES - tile_counters::BYTES;
/// Number of cached plans, a few kilobytes each; an image needs about fifty.
const PLANS: NonZero<usize> = NonZero::new(512).expect("not zero");
/// `true` if sums of fp8 matrix multiplications stay in the tensor cores, with about 14 bits on Hopper: truncated
/// at every step, they lose up to 2% over 4096 terms (DeepSeek-V3 technical report, section 3.3.2). Otherwise cuBLASLt
/// adds them to float32 every few terms. Both are equally accurate for an image: the final latents of a random model of
/// 4B's size differ from float32 by 0.0129 and 0.0125 (512 x 512, 1024 x 1024, 4 steps) with it, 0.0128 and 0.0125
/// without, because e4m3's own rounding is larger; and a step of 1024 x 1024 takes 35.5 ms instead of 38.2 (H200).
const FAST_ACCUMULATION: bool = true;
/// Environment variable that sets it (0 or 1), to measure the cost and gain of longer sums.
const FAST_ACCUMULATION_VARIABLE: &str = "FLUX_FP8_FAST_ACCUMULATION";
/// Environment variable that selects kernels: `cublaslt`; `base` for the kernels of all GPUs, so that mma.sync
/// multiplies e4m3; or `own` for our kernels without tensor cores only, with memory accesses that tools can follow.
const VARIABLE: &str = "FLUX_GEMM";

/// The plan and algorithm for matrix multiplications of one key.
struct Prepared {
    plan: Plan,
    algorithm: Algorithm,
    /// The workspace of the algorithm.
    workspace_bytes: usize,
}

/// Matrix multiplications on one device.
pub struct Gemm {
    cublaslt: CublasLt,
    /// `None` for a shape that cuBLASLt declined.
    plans: Mutex<LruCache<Key, Option<Arc<Prepared>>>>,
    choices: Mutex<Choices>,
    workspace: Buffer,
    counters: TileCounters,
    fast_accumulation: bool,
    kernels: Kernels,
    device: Arc<Device>,
}

/// The selection of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kernels {
    /// cuBLASLt whenever it supports the shape.
    CublasLt,
    /// cuBLASLt in 16 bits only.
    Base,
    /// Neither cuBLASLt nor tensor cores.
    Own,
}

fn fast_accumulation(value: Option<&OsStr>) -> Result<bool> {
    one_of(FAST_ACCUMULATION_VARIABLE, value, ["0", "1"], FAST_ACCUMULATION)
}

/// Returns the kernels for this value of the variable on a GPU of this capability. cuBLASLt multiplies e4m3 with a
/// scale for each row and column on Hopper only: on Ada it takes one scale for a whole matrix, on Blackwell scales of
/// blocks.
fn kernels(value: Option<&OsStr>, capability: (i32, i32)) -> Result<Kernels> {
    let rule = if capability == HOPPER { Kernels::CublasLt } else { Kernels::Base };
    match value.map(OsStr::to_string_lossy).as_deref() {
        None | Some("") => Ok(rule),
        Some("cublaslt") => Ok(rule),
        Some("base") => Ok(Kernels::Base),
        Some("own") => Ok(Kernels::Own),
        Some(other) => Err(Error::usage(format!("`{other}` is not one of `cublaslt`, `base` and `own`")).at(VARIABLE)),
    }
}

impl Gemm {
    pub fn new(device: &Arc<Device>, cache: &GemmCache) -> Result<Self> {
        let fast_accumulation = fast_accumulation(env::var_os(FAST_ACCUMULATION_VARIABLE).as_deref())?;
        let kernels = kernels(env::var_os(VARIABLE).as_deref(), device.capability)?;
        let workspace = Buffer::new(device, BufferKind::Byte, GEMM_WORKSPACE_BYTES)?;
        let counters = TileCounters::at(workspace.address() + WORKSPACE_BYTES as u64);
        let cublaslt = CublasLt::open(device)?;
        let (gpu, multiprocessors) = (device.name().to_string(), device.multiprocessors());
        let (driver, element) = (device.driver, device.element());
        let machine = Machine { gpu, multiprocessors, driver, cublaslt: cublaslt.version(), element };
        Ok(Self {
            cublaslt,
            plans: Mutex::new(LruCache::new(PLANS)),
            choices: Mutex::new(Choices::open(cache, machine)),
            workspace,
            counters,
            fast_accumulation,
            kernels,
            device: Arc::clone(device),
        })
    }

    /// Returns `true` if sums of fp8 matrix multiplications stay in the tensor cores.
    pub fn fast_accumulation(&self) -> bool {
        self.fast_accumulation
    }

    /// Returns `true` if a kernel with mma.sync multiplies e4m3: see [`Kernels::Base`].
    pub fn leaves_e4m3(&self) -> bool {
        self.kernels == Kernels::Base
    }

    /// Returns a note for the user about the kernels and the cached choices, if there is one.
    pub fn note(&self) -> Option<String> {
        if self.kernels == Kernels::Own {
            return Some(format!("`{VARIABLE}=own`: matrix multiplications run without tensor cores, which is slow"));
        }
        self.choices.lock().note()
    }

    /// Enqueues the matrix multiplication on the compute stream.
    ///
    /// # Safety
    /// All matrices of `product` are in live buffers, with `stride` values from row to row and the types of `product`,
    /// as are one bias value for each column of out and one scale for each row of weight and x. out overlaps none of
    /// them except a residual in the same place.
    pub unsafe fn run(&self, product: &Product) -> Result<()> {
        if product.m == 0 || product.n == 0 {
            return Ok(());
        }
        if self.kernels == Kernels::Own {
            // SAFETY: as the caller promises.
            return unsafe { self.run_own(product) };
        }
        let key = Key::new(product, self.fast_accumulation);
        let known = self.plans.lock().get(&key).cloned();
        // Neither under the lock nor with a submission, because this takes long, and may wait for the device.
        // SAFETY: as the caller promises.
        let prepared = known.map_or_else(|| unsafe { self.prepare(&key, product) }, Ok)?;
        if let Some(prepared) = prepared {
            let _submission = self.device.submit(self.device.stream)?;
            let counter = self.device.is_capturing().then(|| self.counters.next(prepared.workspace_bytes)).flatten();
            let workspace = counter.unwrap_or((self.workspace.address(), WORKSPACE_BYTES));
            // SAFETY: as the caller promises; the plan was found under the product's key.
            return unsafe {
                self.cublaslt.enqueue(&prepared.plan, prepared.algorithm, product, workspace, self.device.stream)
            };
        }
        if product.scales.is_some() {
            let what = format!(
                "cuBLASLt has no fp8 matrix multiplication for {} x {} x {} on this GPU",
                product.m, product.k, product.n
            );
            return Err(Error::new(what).hint(format!("leave out `{} fp8`", Field::Precision)));
        }
        self.device.count_composed();
        // SAFETY: as the caller promises.
        unsafe { self.run_own(product) }
    }

    /// Returns the counters of captured matrix multiplications.
    pub fn tile_counters(&self) -> &TileCounters {
        &self.counters
    }

    /// Makes cuBLASLt initialize itself, as its first matrix multiplication does. It runs on the download stream, so
    /// that other threads can enqueue meanwhile.
    pub fn warm_up(&self) -> Result<()> {
        const SIDE: usize = 64;
        if self.kernels == Kernels::Own {
            return Ok(());
        }
        let (element, stream) = (self.device.element(), self.device.download_stream);
        let buffer = |kind, len| Buffer::on_stream(&self.device, stream, kind, len);
        let (x, out) = (buffer(element.kind(), SIDE * SIDE)?, buffer(element.kind(), SIDE * SIDE)?);
        // Without room for another workspace, the first matrix multiplication of an image does this.
        let Ok(workspace) = buffer(BufferKind::Byte, WORKSPACE_BYTES) else { return Ok(()) };
        // SAFETY: the buffer has this size.
        unsafe { result::memset_d8_async(x.address(), 0, x.bytes(), stream.raw()) }
            .map_err(|e| failed("cannot clear GPU memory", e))?;
        let matrix = |buffer: &Buffer| Matrix { address: buffer.address(), stride: SIDE };
        let product = Product::square(matrix(&x), matrix(&out), SIDE);
        let key = Key::new(&product, self.fast_accumulation);
        let plan = Plan::new(element, &key, &product)?;
        if let Some(first) = self.cublaslt.candidates(&plan, &key)?.first() {
            // SAFETY: the buffers were allocated on this stream, for this product and this plan only; they are freed
            // behind it.
            unsafe { self.cublaslt.enqueue(&plan, *first, &product, (workspace.address(), WORKSPACE_BYTES), stream) }?;
        }
        Ok(())
    }

    /// Prepares the plan of this key, and caches it; `None` if cuBLASLt has no algorithm.
    ///
    /// # Safety
    /// As for [`Gemm::run`].
    unsafe fn prepare(&self, key: &Key, product: &Product) -> Result<Option<Arc<Prepared>>> {
        let plan = Plan::new(self.device.element(), key, product)?;
        // SAFETY: as the caller promises.
        let algorithm = unsafe { self.choose(&plan, key, product) }?;
        let prepared = algorithm.map(|algorithm| {
            let workspace_bytes = self.cublaslt.workspace_bytes(&plan, algorithm).unwrap_or(WORKSPACE_BYTES);
            Arc::new(Prepared { plan, algorithm, workspace_bytes })
        });
        self.plans.lock().put(*key, prepared.clone());
        Ok(prepared)
    }

    /// Returns the algorithm that an earlier run chose, or the fastest of cuBLASLt's suggestions; if the choice can't
    /// be kept, or doesn't matter, [`CublasLt::preferred`].
    ///
    /// # Safety
    /// As for [`Gemm::run`].
    unsafe fn choose(&self, plan: &Plan, key: &Key, product: &Product) -> Result<Option<Algorithm>> {
        let worth_timing = key.is_worth_timing();
        let kept = if worth_timing { self.choices.lock().get(key) } else { None };
        if kept.is_some_and(|kept| self.cublaslt.workspace_bytes(plan, kept).is_some()) {
            return Ok(kept);
        }
        let candidates = self.cublaslt.candidates(plan, key)?;
        // The check ignores alignments and preferences, and may reject algorithms that were suggested for them.
        if kept.is_some_and(|kept| candidates.contains(&kept)) {
            return Ok(kept);
        }
        let Some(preferred) = self.cublaslt.preferred(&candidates, key) else { return Ok(None) };
        // Captured work doesn't run, so it can't be timed.
        if !worth_timing || self.device.is_capturing() || !self.choices.lock().keeps() {
            return Ok(Some(*preferred));
        }
        // SAFETY: as the caller promises.
        let fastest = unsafe { self.time(plan, product, &candidates) };
        let chosen = candidates[fastest];
        self.choices.lock().keep(*key, chosen);
        Ok(Some(chosen))
    }

    /// Returns the index of the fastest candidate. Each writes to memory of its own and only reads the operands;
    /// without room for that, the first wins.
    ///
    /// # Safety
    /// As for [`Gemm::run`].
    unsafe fn time(&self, plan: &Plan, product: &Product, candidates: &[Algorithm]) -> usize {
        let kind = if product.out_f32 { BufferKind::F32 } else { self.device.element().kind() };
        let cells = (product.m - 1) * product.out.stride + product.n;
        let Ok(out) = Buffer::on_stream(&self.device, self.device.stream, kind, cells) else { return 0 };
        let trial = Product { out: Matrix { address: out.address(), ..product.out }, ..*product };
        let times_us = |candidate: usize, runs| {
            // SAFETY: as the caller promises; `out` has room for all rows.
            unsafe { self.times_us(plan, candidates[candidate], &trial, runs) }.ok()
        };
        fastest(candidates.len(), times_us)
    }

    /// Returns the device time of each of `runs` runs of an algorithm, with caches that hold none of the operands.
    /// Waits.
    ///
    /// # Safety
    /// As for [`Gemm::run`].
    unsafe fn times_us(&self, plan: &Plan, algorithm: Algorithm, product: &Product, runs: usize) -> Result<Vec<f64>> {
        let (stream, workspace) = (self.device.stream, self.workspace.address());
        let mut events = Vec::new();
        for _ in 0..runs {
            // SAFETY: the workspace has this size, and matrix multiplications use it one after the other on this
            // stream.
            unsafe { result::memset_d8_async(workspace, 0, WORKSPACE_BYTES, stream.raw()) }
                .map_err(|e| failed("cannot clear GPU memory", e))?;
            let from = Event::new(&self.device, stream)?;
            // SAFETY: as the caller promises.
            unsafe { self.cublaslt.enqueue(plan, algorithm, product, (workspace, WORKSPACE_BYTES), stream) }?;
            events.push((from, Event::new(&self.device, stream)?));
        }
        self.device.counters.waits.add(1);
        events.last().map_or(Ok(()), |(_, to)| to.wait())?;
        events.iter().map(|(from, to)| Ok(from.elapsed(to)?.as_secs_f64() * 1e6)).collect()
    }

    /// Runs the matrix multiplication in our own kernels, for any shape.
    ///
    /// # Safety
    /// As for [`Gemm::run`].
    unsafe fn run_own(&self, product: &Product) -> Result<()> {
        const TILE: usize = 64;
        let residual = product.residual.unwrap_or(Matrix { address: 0, stride: 0 });
        let kernel = if product.scales.is_some() { "linear_e4m3_any" } else { "linear_any" };
        let [weight_scales, x_scales] = product.scales.unwrap_or_default();
        let launch = self
            .device
            .launch("linear", kernel)?
            .address(product.x.address)
            .long(product.x.stride)
            .address(x_scales)
            .address(product.weight.address)
            .long(product.weight.stride)
            .address(weight_scales)
            .address(product.bias.unwrap_or(0))
            .address(residual.address)
            .long(residual.stride)
            .address(product.out.address)
            .long(product.out.stride)
            .int(product.m)
            .int(product.n)
            .int(product.k)
            .int(usize::from(product.weight_is_kn))
            .int(usize::from(product.out_f32));
        // SAFETY: types and order match the kernels in cuda/linear.cu, which guard every index by m, n and k; the
        // matrices are as the caller promises.
        unsafe { launch.run([product.m.div_ceil(TILE), product.n.div_ceil(TILE), 1], [256, 1, 1]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_one_of_their_words_or_an_error() {
        let fast = |value: &str| fast_accumulation(Some(OsStr::new(value)));
        assert_eq!([fast("").unwrap(), fast("0").unwrap(), fast("1").unwrap()], [FAST_ACCUMULATION, false, true]);
        let message = fast("yes").unwrap_err().to_string();
        assert!(message.contains("`yes`") && message.contains(FAST_ACCUMULATION_VARIABLE), "{message}");
        let who = |value: &str, capability| kernels(Some(OsStr::new(value)), capability);
        let on_hopper = ["", "cublaslt", "base", "own"].map(|value| who(value, HOPPER).unwrap());
        assert_eq!(on_hopper, [Kernels::CublasLt, Kernels::CublasLt, Kernels::Base, Kernels::Own]);
        assert_eq!(["", "own"].map(|value| who(value, (8, 9)).unwrap()), [Kernels::Base, Kernels::Own]);
        let message = who("fast", HOPPER).unwrap_err().to_string();
        assert!(message.contains("`fast`") && message.contains(VARIABLE), "{message}");
    }
}
