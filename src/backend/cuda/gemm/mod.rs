//! Matrix products: bf16 or fp16 in and float32 sums, or e4m3 in and sums of the tensor cores; bf16, fp16 or float32
//! out.
//!
//! cuBLASLt computes them; our own kernel serves for shapes that it declines, and for all where `FLUX_GEMM=own` asks
//! for it. A plan is made once per shape. Of cuBLASLt's suggestions a rule takes one, or timing the fastest,
//! once for all runs: see [`choices`].

mod choices;
mod cublaslt;
mod key;
mod tile_counters;

use std::env;
use std::ffi::OsStr;
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::result;
use lru::LruCache;

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

/// What products may use as they like; behind it are counters.
const WORKSPACE_BYTES: usize = GEMM_WORKSPACE_BYTES - tile_counters::BYTES;
/// Plans that are kept, a few kilobytes each; an image needs about fifty.
const PLANS: NonZero<usize> = NonZero::new(512).expect("not zero");
/// Whether sums of fp8 products stay in the tensor cores, where Hopper keeps about 14 bits: cut off at every step, they
/// lose up to 2% over 4096 terms (DeepSeek-V3 technical report, section 3.3.2). Without it cuBLASLt takes them to
/// float32 every so many terms. Neither brings an image nearer: the final latents of a random model of 4B's size are
/// 0.0129 and 0.0125 (512 x 512, 1024 x 1024, 4 steps) from float32 with it, 0.0128 and 0.0125 without, because e4m3's
/// own rounding is larger; and a step of 1024 x 1024 takes 35.5 ms instead of 38.2 (H200).
const FAST_ACCUMULATION: bool = true;
/// Sets it (0 or 1), to measure again what the longer sums cost and gain.
const FAST_ACCUMULATION_VARIABLE: &str = "FLUX_FP8_FAST_ACCUMULATION";
/// Chooses who computes: `cublaslt`; `base` for the kernels that all GPUs have, so that products of e4m3 are made by
/// mma.sync; or `own` for our kernels without tensor cores alone, whose accesses to memory tools can follow.
const VARIABLE: &str = "FLUX_GEMM";

/// What was prepared for products of one key.
struct Prepared {
    plan: Plan,
    algorithm: Algorithm,
    /// What the algorithm needs.
    workspace_bytes: usize,
}

/// Matrix products on one device.
pub struct Gemm {
    cublaslt: CublasLt,
    /// None is a shape that cuBLASLt declined.
    plans: Mutex<LruCache<Key, Option<Arc<Prepared>>>>,
    choices: Mutex<Choices>,
    workspace: Buffer,
    counters: TileCounters,
    fast_accumulation: bool,
    kernels: Kernels,
    device: Arc<Device>,
}

/// Who computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kernels {
    /// cuBLASLt wherever it can.
    CublasLt,
    /// cuBLASLt in 16 bits.
    Base,
    /// Neither cuBLASLt nor tensor cores.
    Own,
}

fn fast_accumulation(value: Option<&OsStr>) -> Result<bool> {
    one_of(FAST_ACCUMULATION_VARIABLE, value, ["0", "1"], FAST_ACCUMULATION)
}

/// Who computes where the variable has this value, on a GPU of this capability. cuBLASLt multiplies e4m3 with a scale
/// for each row and column on Hopper alone: on Ada it takes one scale for a whole matrix, on Blackwell scales of
/// blocks.
fn kernels(value: Option<&OsStr>, capability: (i32, i32)) -> Result<Kernels> {
    let rule = if capability == HOPPER { Kernels::CublasLt } else { Kernels::Base };
    match value.map(OsStr::to_string_lossy).as_deref() {
        None | Some("") => Ok(rule),
        Some("cublaslt") => Ok(rule),
        Some("base") => Ok(Kernels::Base),
        Some("own") => Ok(Kernels::Own),
        Some(other) => Err(Error::usage(format!("`{other}` is none of `cublaslt`, `base` and `own`")).at(VARIABLE)),
    }
}

impl Gemm {
    pub fn new(device: &Arc<Device>, cache: &GemmCache) -> Result<Self> {
        let fast_accumulation = fast_accumulation(env::var_os(FAST_ACCUMULATION_VARIABLE).as_deref())?;
        let kernels = kernels(env::var_os(VARIABLE).as_deref(), device.capability())?;
        let workspace = Buffer::new(device, BufferKind::Byte, GEMM_WORKSPACE_BYTES)?;
        let counters = TileCounters::at(workspace.address() + WORKSPACE_BYTES as u64);
        let cublaslt = CublasLt::open(device)?;
        let (gpu, multiprocessors) = (device.name().to_string(), device.multiprocessors());
        let (driver, element) = (device.driver(), device.element());
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

    /// Whether sums of fp8 products stay in the tensor cores.
    pub fn fast_accumulation(&self) -> bool {
        self.fast_accumulation
    }

    /// Whether products of e4m3 are for a kernel that uses mma.sync: see [`Kernels::Base`].
    pub fn leaves_e4m3(&self) -> bool {
        self.kernels == Kernels::Base
    }

    /// What the user may want to know of who computes and of the kept choices, if anything.
    pub fn note(&self) -> Option<String> {
        if self.kernels == Kernels::Own {
            return Some(format!("`{VARIABLE}=own`: matrix products run without tensor cores, which is slow"));
        }
        self.choices().note()
    }

    fn choices(&self) -> MutexGuard<'_, Choices> {
        // Its methods leave it whole.
        self.choices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plans(&self) -> MutexGuard<'_, LruCache<Key, Option<Arc<Prepared>>>> {
        // A plan is inserted whole, so a panic elsewhere leaves nothing broken.
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues the product on the compute stream.
    ///
    /// # Safety
    /// All matrices of `product` lie in live buffers, with `stride` values from row to row and its type, and so do as
    /// many bias values as out has columns and as many scales as weight and x have rows. out overlaps none of them but
    /// a residual in the same place.
    pub unsafe fn run(&self, product: &Product) -> Result<()> {
        if product.m == 0 || product.n == 0 {
            return Ok(());
        }
        if self.kernels == Kernels::Own {
            // SAFETY: what the caller promises.
            return unsafe { self.run_own(product) };
        }
        let key = Key::of(product, self.fast_accumulation);
        let known = self.plans().get(&key).cloned();
        // Neither under the lock nor with a submission, because this takes long, and may wait for the device.
        // SAFETY: what the caller promises.
        let prepared = known.map_or_else(|| unsafe { self.prepare(&key, product) }, Ok)?;
        if let Some(prepared) = prepared {
            let _submission = self.device.submit(self.device.stream())?;
            let counter = self.device.is_capturing().then(|| self.counters.next(prepared.workspace_bytes)).flatten();
            let workspace = counter.unwrap_or((self.workspace.address(), WORKSPACE_BYTES));
            // SAFETY: what the caller promises; the plan was found under the product's key.
            return unsafe {
                self.cublaslt.enqueue(&prepared.plan, prepared.algorithm, product, workspace, self.device.stream())
            };
        }
        if product.scales.is_some() {
            let what =
                format!("cuBLASLt has no fp8 product of {} x {} x {} on this GPU", product.m, product.k, product.n);
            return Err(Error::new(what).hint(format!("leave out `{} fp8`", Field::Precision)));
        }
        self.device.count_composed();
        // SAFETY: what the caller promises.
        unsafe { self.run_own(product) }
    }

    /// The counters of products that are captured.
    pub fn tile_counters(&self) -> &TileCounters {
        &self.counters
    }

    /// Lets cuBLASLt set itself up, which it does in its first product. That is one on the download stream, so that
    /// other threads can enqueue meanwhile.
    pub fn warm_up(&self) -> Result<()> {
        const SIDE: usize = 64;
        if self.kernels == Kernels::Own {
            return Ok(());
        }
        let (element, stream) = (self.device.element(), self.device.download_stream());
        let buffer = |kind, len| Buffer::on_stream(&self.device, stream, kind, len);
        let (x, out) = (buffer(element.kind(), SIDE * SIDE)?, buffer(element.kind(), SIDE * SIDE)?);
        // Without room for another workspace the first product of an image does this.
        let Ok(workspace) = buffer(BufferKind::Byte, WORKSPACE_BYTES) else { return Ok(()) };
        // SAFETY: the buffer holds that many bytes.
        unsafe { result::memset_d8_async(x.address(), 0, x.bytes(), stream.raw()) }
            .map_err(|e| failed("cannot clear GPU memory", e))?;
        let matrix = |buffer: &Buffer| Matrix { address: buffer.address(), stride: SIDE };
        let product = Product::square(matrix(&x), matrix(&out), SIDE);
        let key = Key::of(&product, self.fast_accumulation);
        let plan = Plan::new(element, &key, &product)?;
        if let Some(first) = self.cublaslt.candidates(&plan, &key)?.first() {
            // SAFETY: the buffers were made on this stream, for this product and this plan alone; they are freed behind
            // it.
            unsafe { self.cublaslt.enqueue(&plan, *first, &product, (workspace.address(), WORKSPACE_BYTES), stream) }?;
        }
        Ok(())
    }

    /// What products of this key need, kept for the next; none when cuBLASLt has no algorithm for them.
    ///
    /// # Safety
    /// As for [`Gemm::run`].
    unsafe fn prepare(&self, key: &Key, product: &Product) -> Result<Option<Arc<Prepared>>> {
        let plan = Plan::new(self.device.element(), key, product)?;
        // SAFETY: what the caller promises.
        let algorithm = unsafe { self.choose(&plan, key, product) }?;
        let prepared = algorithm.map(|algorithm| {
            let workspace_bytes = self.cublaslt.workspace_bytes(&plan, algorithm).unwrap_or(WORKSPACE_BYTES);
            Arc::new(Prepared { plan, algorithm, workspace_bytes })
        });
        self.plans().put(*key, prepared.clone());
        Ok(prepared)
    }

    /// The algorithm that an earlier run chose, or the fastest of those that cuBLASLt suggests; without a way to keep
    /// the choice, or when it does not matter, [`CublasLt::preferred`] of them.
    ///
    /// # Safety
    /// As for [`Gemm::run`].
    unsafe fn choose(&self, plan: &Plan, key: &Key, product: &Product) -> Result<Option<Algorithm>> {
        let worth_timing = key.is_worth_timing();
        let kept = if worth_timing { self.choices().get(key) } else { None };
        if kept.is_some_and(|kept| self.cublaslt.workspace_bytes(plan, kept).is_some()) {
            return Ok(kept);
        }
        let candidates = self.cublaslt.candidates(plan, key)?;
        // The check knows neither alignments nor preferences, and may refuse what the suggestions are made for.
        if kept.is_some_and(|kept| candidates.contains(&kept)) {
            return Ok(kept);
        }
        let Some(preferred) = self.cublaslt.preferred(&candidates, key) else { return Ok(None) };
        // What is captured does not run, so it cannot be timed.
        if !worth_timing || self.device.is_capturing() || !self.choices().keeps() {
            return Ok(Some(*preferred));
        }
        // SAFETY: what the caller promises.
        let fastest = unsafe { self.time(plan, product, &candidates) };
        let chosen = candidates[fastest];
        self.choices().keep(*key, chosen);
        Ok(Some(chosen))
    }

    /// The index of the fastest candidate. Each writes to memory of its own and only reads the product's; where there
    /// is no room, it is the first.
    ///
    /// # Safety
    /// As for [`Gemm::run`].
    unsafe fn time(&self, plan: &Plan, product: &Product, candidates: &[Algorithm]) -> usize {
        let kind = if product.out_f32 { BufferKind::F32 } else { self.device.element().kind() };
        let cells = (product.m - 1) * product.out.stride + product.n;
        let Ok(out) = Buffer::on_stream(&self.device, self.device.stream(), kind, cells) else { return 0 };
        let trial = Product { out: Matrix { address: out.address(), ..product.out }, ..*product };
        let times_us = |candidate: usize, runs| {
            // SAFETY: what the caller promises; `out` has room for all rows.
            unsafe { self.times_us(plan, candidates[candidate], &trial, runs) }.ok()
        };
        fastest(candidates.len(), times_us)
    }

    /// Device time of each of `runs` runs of an algorithm, from caches that hold nothing of the product. Waits.
    ///
    /// # Safety
    /// As for [`Gemm::run`].
    unsafe fn times_us(&self, plan: &Plan, algorithm: Algorithm, product: &Product, runs: usize) -> Result<Vec<f64>> {
        let (stream, workspace) = (self.device.stream(), self.workspace.address());
        let mut events = Vec::new();
        for _ in 0..runs {
            // SAFETY: the workspace holds that many bytes, and products use it one after the other on this stream.
            unsafe { result::memset_d8_async(workspace, 0, WORKSPACE_BYTES, stream.raw()) }
                .map_err(|e| failed("cannot clear GPU memory", e))?;
            let from = Event::new(&self.device, stream)?;
            // SAFETY: what the caller promises.
            unsafe { self.cublaslt.enqueue(plan, algorithm, product, (workspace, WORKSPACE_BYTES), stream) }?;
            events.push((from, Event::new(&self.device, stream)?));
        }
        self.device.counters().waits.add(1);
        events.last().map_or(Ok(()), |(_, to)| to.wait())?;
        events.iter().map(|(from, to)| Ok(from.elapsed(to)?.as_secs_f64() * 1e6)).collect()
    }

    /// The product by our own kernels, for any shape.
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
        // matrices are what the caller promises.
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
