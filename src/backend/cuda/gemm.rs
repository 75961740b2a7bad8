//! Matrix products by cuBLASLt: bf16 in and float32 sums, or e4m3 in and sums of the tensor cores; bf16 or float32 out.
//! A plan is made once per shape.
//!
//! Of cuBLASLt's suggestions the first serves, or the fastest of them by timing, once for all runs: see
//! [`super::gemm_choices`].
//!
//! cuBLASLt thinks in columns. Our row-major out [m, n] is its column-major [n, m], so its A is the weight and its B is
//! x.

use std::collections::HashMap;
use std::ffi::{OsStr, c_void};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::cublaslt::{result, sys};
use cudarc::driver;
use serde::{Deserialize, Serialize};

use super::device::{self, Device, Event};
use super::gemm_choices::{Choices, GemmCache, Machine, fastest};
use super::pool::{Buffer, Kind};
use super::{Cuda, Tensor};
use crate::error::{Error, Result};

/// What algorithms may use for split sums. NVIDIA asks for at least 32 MiB on Hopper.
const WORKSPACE_BYTES: usize = 64 << 20;
/// `cublasOperation_t`, which cudarc's cuBLASLt bindings leave out.
const OPERATION_N: i32 = 0;
const OPERATION_T: i32 = 1;
/// Whether sums of fp8 products stay in the tensor cores, where Hopper keeps about 14 bits: cut off at every step, they
/// lose up to 2% over 4096 terms (DeepSeek-V3 technical report, section 3.3.2). Without it cuBLASLt takes them to
/// float32 every so many terms. Neither brings an image nearer: the final latents of a random model of 4B's size are
/// 0.0129 and 0.0125 (512 x 512, 1024 x 1024, 4 steps) from float32 with it, 0.0128 and 0.0125 without, because e4m3's
/// own rounding is larger; and a step of 1024 x 1024 takes 35.5 ms instead of 38.2 (H200).
const FAST_ACCUMULATION: bool = true;
/// Sets it (0 or 1), to measure again what the longer sums cost and gain.
const FAST_ACCUMULATION_VARIABLE: &str = "FLUX_FP8_FAST_ACCUMULATION";
/// How many algorithms to ask for.
const CANDIDATES: usize = 16;
/// Products of more floating-point operations are worth the time of choosing; for others the first suggestion serves.
const WORTH_TIMING: usize = 1_000_000_000;

/// Where a matrix is: address of the first cell, elements from row to row.
#[derive(Debug, Clone, Copy)]
pub struct Matrix {
    pub address: u64,
    pub stride: usize,
}

impl Matrix {
    pub fn of(x: &Tensor<Cuda>) -> Self {
        Self { address: x.address(), stride: x.stride() }
    }

    /// The same matrix from row `row` on, of values of `size` bytes.
    pub fn row(self, row: usize, size: usize) -> Self {
        Self { address: self.address + (row * self.stride * size) as u64, ..self }
    }

    fn alignment(self) -> u32 {
        1 << self.address.trailing_zeros().min(8)
    }
}

/// `out = x weight^T + bias + residual`: x [m, k], weight [n, k] (or [k, n] where `weight_is_kn`), bias [n], residual
/// and out [m, n].
#[derive(Debug, Clone, Copy)]
pub struct Product {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub x: Matrix,
    pub weight: Matrix,
    /// Addresses of the float32 scales of the weight's rows and of those of x, which both are e4m3 then; they are bf16
    /// otherwise.
    pub scales: Option<[u64; 2]>,
    pub weight_is_kn: bool,
    /// Address of bf16 values.
    pub bias: Option<u64>,
    /// bf16; may be `out`.
    pub residual: Option<Matrix>,
    pub out: Matrix,
    /// Whether out is float32 instead of bf16.
    pub out_f32: bool,
}

impl Product {
    /// `out = x x^T` of a bf16 matrix of `side` rows and columns.
    pub fn square(x: Matrix, out: Matrix, side: usize) -> Self {
        Self {
            m: side,
            n: side,
            k: side,
            x,
            weight: x,
            scales: None,
            weight_is_kn: false,
            bias: None,
            residual: None,
            out,
            out_f32: false,
        }
    }

    /// The same product for some rows of x, residual and out, which are bf16.
    pub fn rows(&self, rows: Range<usize>) -> Self {
        let from = |matrix: Matrix| matrix.row(rows.start, 2);
        Self { m: rows.len(), x: from(self.x), residual: self.residual.map(from), out: from(self.out), ..*self }
    }
}

/// Everything that a choice of algorithm depends on, but for the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    sizes: [usize; 3],
    strides: [usize; 4],
    alignments: [u32; 4],
    fp8: bool,
    /// Of fp8 products, which other kernels compute then.
    fast_accumulation: bool,
    weight_is_kn: bool,
    bias: bool,
    residual: bool,
    out_f32: bool,
}

impl Key {
    pub fn of(product: &Product, fast_accumulation: bool) -> Self {
        let residual = product.residual.unwrap_or(product.out);
        let operands = [product.weight, product.x, residual, product.out];
        Self {
            sizes: [product.m, product.n, product.k],
            strides: operands.map(|matrix| matrix.stride),
            alignments: operands.map(Matrix::alignment),
            fp8: product.scales.is_some(),
            fast_accumulation: product.scales.is_some() && fast_accumulation,
            weight_is_kn: product.weight_is_kn,
            bias: product.bias.is_some(),
            residual: product.residual.is_some(),
            out_f32: product.out_f32,
        }
    }

    fn is_worth_timing(&self) -> bool {
        self.sizes.iter().fold(2usize, |flops, size| flops.saturating_mul(*size)) > WORTH_TIMING
    }
}

/// A product that cuBLASLt prepared.
struct Plan {
    operation: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 4],
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: the plan owns its descriptors; they are destroyed once, and cuBLASLt copied what enqueued work needs.
        unsafe {
            for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
                let _ = result::destroy_matrix_layout(layout);
            }
            let _ = result::destroy_matmul_desc(self.operation);
        }
    }
}

/// cuBLASLt on one device.
pub struct Gemm {
    handle: sys::cublasLtHandle_t,
    /// None is a shape that cuBLASLt declined.
    plans: Mutex<HashMap<Key, Option<Plan>>>,
    choices: Mutex<Choices>,
    workspace: Mutex<Buffer>,
    fast_accumulation: bool,
    device: Arc<Device>,
}

// SAFETY: a cuBLASLt handle may be used from several threads; a plan is used by the thread that makes it, then under
// their mutex only.
unsafe impl Send for Gemm {}
// SAFETY: as above.
unsafe impl Sync for Gemm {}

/// Room for an answer of cuBLASLt.
const NOTHING_FOUND: sys::cublasLtMatmulHeuristicResult_t = sys::cublasLtMatmulHeuristicResult_t {
    algo: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
    workspaceSize: 0,
    state: sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
    wavesCount: 0.0,
    reserved: [0; 4],
};

/// Whether an algorithm can run in our workspace.
fn fits(found: &sys::cublasLtMatmulHeuristicResult_t) -> bool {
    found.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS && found.workspaceSize <= WORKSPACE_BYTES
}

/// What the variable says, else what is the rule.
fn fast_accumulation(value: Option<&OsStr>) -> Result<bool> {
    match value.map(OsStr::to_string_lossy).as_deref() {
        None | Some("") => Ok(FAST_ACCUMULATION),
        Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(Error::usage(format!("`{other}` is neither 0 nor 1")).at(FAST_ACCUMULATION_VARIABLE)),
    }
}

fn failed(error: result::CublasError) -> Error {
    Error::new(format!("cuBLASLt failed: {:?}", error.0))
}

impl Gemm {
    pub fn new(device: &Arc<Device>, cache: &GemmCache) -> Result<Self> {
        device.bind()?;
        let workspace = Buffer::new(device, Kind::Byte, WORKSPACE_BYTES)?;
        let handle = result::create_handle().map_err(failed)?;
        // SAFETY: the function only answers; the library was loaded by the call before.
        let cublaslt = unsafe { sys::cublasLtGetVersion() };
        let (gpu, multiprocessors) = (device.name().to_string(), device.multiprocessors());
        let choices = Choices::open(cache, Machine { gpu, multiprocessors, driver: device.driver(), cublaslt });
        let fast_accumulation = fast_accumulation(std::env::var_os(FAST_ACCUMULATION_VARIABLE).as_deref())?;
        let (choices, workspace, device) = (Mutex::new(choices), Mutex::new(workspace), Arc::clone(device));
        Ok(Self { handle, plans: Mutex::default(), choices, workspace, fast_accumulation, device })
    }

    /// Whether sums of fp8 products stay in the tensor cores.
    pub fn fast_accumulation(&self) -> bool {
        self.fast_accumulation
    }

    /// What the user may want to know of the kept choices, if anything.
    pub fn note(&self) -> Option<String> {
        self.choices().note()
    }

    fn choices(&self) -> MutexGuard<'_, Choices> {
        // Its methods leave it whole.
        self.choices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues the product.
    pub fn run(&self, product: &Product) -> Result<()> {
        if product.m == 0 || product.n == 0 {
            return Ok(());
        }
        self.device.bind()?;
        let key = Key::of(product, self.fast_accumulation);
        let planned = self.plans().contains_key(&key);
        if !planned {
            // Not under the lock, which other threads need while this one waits for the device.
            let plan = self.plan(&key, product)?;
            self.plans().entry(key).or_insert(plan);
        }
        if let Some(Some(plan)) = self.plans().get(&key) {
            return self.enqueue(plan, &plan.algorithm, product);
        }
        if product.scales.is_some() {
            let what =
                format!("cuBLASLt has no fp8 product of {} x {} x {} on this GPU", product.m, product.k, product.n);
            return Err(Error::new(what).hint("leave out `--precision fp8`"));
        }
        self.run_any(product)
    }

    fn plans(&self) -> MutexGuard<'_, HashMap<Key, Option<Plan>>> {
        // A plan is inserted whole, so a panic elsewhere leaves nothing broken.
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The workspace, for one product at a time: another thread's must not come between two kernels of one, which meet
    /// there.
    fn workspace(&self) -> MutexGuard<'_, Buffer> {
        self.workspace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None when cuBLASLt has no algorithm for the shape.
    fn plan(&self, key: &Key, product: &Product) -> Result<Option<Plan>> {
        let [m, n, k] = key.sizes;
        let out_type = if key.out_f32 { sys::cudaDataType::CUDA_R_32F } else { sys::cudaDataType::CUDA_R_16BF };
        let (weight_rows, weight_cols) = if key.weight_is_kn { (n, k) } else { (k, n) };
        let shapes = [(weight_rows, weight_cols), (k, m), (n, m), (n, m)];
        let operand_type = if key.fp8 { sys::cudaDataType::CUDA_R_8F_E4M3 } else { sys::cudaDataType::CUDA_R_16BF };
        let types = [operand_type, operand_type, out_type, out_type];
        let operation =
            result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType::CUDA_R_32F)
                .map_err(failed)?;
        // From here on `plan` owns what exists, so an early return frees it.
        let mut plan = Plan {
            operation,
            layouts: [std::ptr::null_mut(); 4],
            algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
        };
        for (index, layout) in plan.layouts.iter_mut().enumerate() {
            let (rows, cols) = shapes[index];
            *layout = result::create_matrix_layout(types[index], rows as u64, cols as u64, key.strides[index] as i64)
                .map_err(failed)?;
        }
        let transpose = if key.weight_is_kn { OPERATION_N } else { OPERATION_T };
        plan.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA, &transpose)?;
        if let Some(bias) = product.bias {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32;
            plan.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
            plan.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
            let bias_type = sys::cudaDataType::CUDA_R_16BF as i32;
            plan.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type)?;
        }
        if let Some(scales) = product.scales {
            let outer = sys::cublasLtMatmulMatrixScale_t::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F as i32;
            plan.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &outer)?;
            plan.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &outer)?;
            plan.set(
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_FAST_ACCUM,
                &i8::from(key.fast_accumulation),
            )?;
            plan.set_scales(scales)?;
        }
        let Some(algorithm) = self.choose(&plan, key, product)? else { return Ok(None) };
        plan.algorithm = algorithm;
        Ok(Some(plan))
    }

    /// The algorithm that an earlier run chose, or the fastest of those that cuBLASLt suggests; without a way to keep
    /// the choice, or when it does not matter, the first of them.
    fn choose(&self, plan: &Plan, key: &Key, product: &Product) -> Result<Option<sys::cublasLtMatmulAlgo_t>> {
        let worth_timing = key.is_worth_timing();
        let kept = if worth_timing { self.choices().get(key) } else { None };
        let kept = kept.map(|data| sys::cublasLtMatmulAlgo_t { data });
        if kept.is_some_and(|kept| self.runs(plan, &kept)) {
            return Ok(kept);
        }
        let candidates = self.candidates(plan, key)?;
        // The check knows neither alignments nor preferences, and may refuse what the suggestions are made for.
        if kept.is_some_and(|kept| candidates.iter().any(|candidate| candidate.data == kept.data)) {
            return Ok(kept);
        }
        let Some(first) = candidates.first() else { return Ok(None) };
        // What is captured does not run, so it cannot be timed.
        if !worth_timing || self.device.is_capturing() || !self.choices().keeps() {
            return Ok(Some(*first));
        }
        let chosen = candidates[self.time(plan, product, &candidates)];
        self.choices().keep(*key, chosen.data);
        Ok(Some(chosen))
    }

    /// The index of the fastest candidate. Each writes to memory of its own and only reads the product's; where there
    /// is no room, it is the first.
    fn time(&self, plan: &Plan, product: &Product, candidates: &[sys::cublasLtMatmulAlgo_t]) -> usize {
        let kind = if product.out_f32 { Kind::F32 } else { Kind::Bf16 };
        let cells = (product.m - 1) * product.out.stride + product.n;
        let Ok(out) = Buffer::on_stream(&self.device, self.device.stream(), kind, cells) else { return 0 };
        let trial = Product { out: Matrix { address: out.address(), ..product.out }, ..*product };
        fastest(candidates.len(), |candidate, runs| self.times_us(plan, &candidates[candidate], &trial, runs).ok())
    }

    /// Device time of each of `runs` runs of an algorithm, from caches that hold nothing of the product. Waits.
    fn times_us(
        &self,
        plan: &Plan,
        algorithm: &sys::cublasLtMatmulAlgo_t,
        product: &Product,
        runs: usize,
    ) -> Result<Vec<f64>> {
        let stream = self.device.stream();
        let mut events = Vec::new();
        for _ in 0..runs {
            // SAFETY: the workspace holds that many bytes, and products use it one after the other on this stream.
            unsafe { driver::result::memset_d8_async(self.workspace().address(), 0, WORKSPACE_BYTES, stream.raw()) }
                .map_err(|e| device::failed("cannot clear GPU memory", e))?;
            let from = Event::new(&self.device, stream)?;
            self.enqueue(plan, algorithm, product)?;
            events.push((from, Event::new(&self.device, stream)?));
        }
        self.device.counters().waits.fetch_add(1, Ordering::Relaxed);
        events.last().map_or(Ok(()), |(_, to)| to.wait())?;
        events.iter().map(|(from, to)| Ok(from.elapsed(to)?.as_secs_f64() * 1e6)).collect()
    }

    /// Whether cuBLASLt takes an algorithm for these matrices and this workspace.
    fn runs(&self, plan: &Plan, algorithm: &sys::cublasLtMatmulAlgo_t) -> bool {
        // What is documented to be written is the size of the workspace, not the state.
        let mut found =
            sys::cublasLtMatmulHeuristicResult_t { state: sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS, ..NOTHING_FOUND };
        let [a, b, c, d] = plan.layouts;
        // SAFETY: all descriptors live; `algorithm` has the size that cuBLASLt reads, and `found` that which it writes.
        let status =
            unsafe { sys::cublasLtMatmulAlgoCheck(self.handle, plan.operation, a, b, c, d, algorithm, &mut found) };
        status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS && fits(&found)
    }

    /// The algorithms that cuBLASLt suggests for these alignments and this workspace, the one it thinks best first.
    fn candidates(&self, plan: &Plan, key: &Key) -> Result<Vec<sys::cublasLtMatmulAlgo_t>> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let preference = Preference::new()?;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE_BYTES)?;
        // Split sums meet in float32: the other ways of adding them round each part to the type of the result.
        let in_float32 = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &in_float32)?;
        let alignments = [
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ];
        for (attribute, bytes) in alignments.into_iter().zip(&key.alignments) {
            preference.set(attribute, bytes)?;
        }
        let mut found = [NOTHING_FOUND; CANDIDATES];
        let mut count = 0;
        let [a, b, c, d] = plan.layouts;
        // SAFETY: all descriptors live; `found` has room for CANDIDATES results. cuBLASLt writes `state` from the
        // statuses of version 13.0, to which the bindings belong.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                plan.operation,
                a,
                b,
                c,
                d,
                preference.0,
                CANDIDATES as i32,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        if status != sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
            return Ok(Vec::new());
        }
        Ok(found
            .iter()
            .take(usize::try_from(count).unwrap_or(0))
            .filter(|result| fits(result))
            .map(|result| result.algo)
            .collect())
    }

    fn enqueue(&self, plan: &Plan, algorithm: &sys::cublasLtMatmulAlgo_t, product: &Product) -> Result<()> {
        if let Some(bias) = product.bias {
            plan.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
        if let Some(scales) = product.scales {
            plan.set_scales(scales)?;
        }
        let one = 1.0f32;
        let beta = if product.residual.is_some() { 1.0f32 } else { 0.0 };
        let residual = product.residual.unwrap_or(product.out);
        let [a, b, c, d] = plan.layouts;
        let workspace = self.workspace();
        // SAFETY: the plan was made for exactly these sizes, strides and alignments. The matrices lie in buffers that
        // the caller's tensors hold, of the shapes that `Tensor`'s methods checked. alpha and beta are read before the
        // call returns. The workspace is used by this stream alone, one product after the other.
        let enqueued = unsafe {
            result::matmul(
                self.handle,
                plan.operation,
                std::ptr::from_ref(&one).cast(),
                std::ptr::from_ref(&beta).cast(),
                product.weight.address as *const c_void,
                a,
                product.x.address as *const c_void,
                b,
                residual.address as *const c_void,
                c,
                product.out.address as *mut c_void,
                d,
                algorithm,
                workspace.address() as *mut c_void,
                WORKSPACE_BYTES,
                self.device.stream().raw().cast(),
            )
        };
        enqueued.map_err(|e| Error::new(format!("cuBLASLt failed: {:?} for {product:?}", e.0)))?;
        self.device.counters().launches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The product by our own kernel, for any shape.
    fn run_any(&self, product: &Product) -> Result<()> {
        const TILE: usize = 64;
        self.device.count_composed();
        let residual = product.residual.unwrap_or(Matrix { address: 0, stride: 0 });
        let launch = self
            .device
            .launch("linear", "linear_any")?
            .address(product.x.address)
            .long(product.x.stride)
            .address(product.weight.address)
            .long(product.weight.stride)
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
        // SAFETY: types and order match `linear_any` in cuda/linear.cu, which guards every index by m, n and k; the
        // matrices are as in `enqueue`.
        unsafe { launch.run([product.m.div_ceil(TILE), product.n.div_ceil(TILE), 1], [256, 1, 1]) }
    }
}

impl Drop for Gemm {
    fn drop(&mut self) {
        self.plans.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        if self.device.bind().is_ok() {
            // SAFETY: the handle is destroyed once, after all plans.
            let _ = unsafe { result::destroy_handle(self.handle) };
        }
    }
}

impl Plan {
    fn set_scales(&self, [weight, x]: [u64; 2]) -> Result<()> {
        self.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &weight)?;
        self.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &x)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        // SAFETY: the descriptor lives; callers pass the type that the attribute has, which cuBLASLt checks by its
        // size.
        unsafe {
            result::set_matmul_desc_attribute(
                self.operation,
                attribute,
                std::ptr::from_ref(value).cast(),
                size_of::<T>(),
            )
        }
        .map_err(failed)
    }
}

/// What the choice of an algorithm may use.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new() -> Result<Self> {
        result::create_matmul_pref().map(Self).map_err(failed)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulPreferenceAttributes_t, value: &T) -> Result<()> {
        // SAFETY: as in `Plan::set`.
        unsafe {
            result::set_matmul_pref_attribute(self.0, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
        }
        .map_err(failed)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// A product of `m` rows with a weight [64, 64].
#[cfg(test)]
pub(super) fn small_product(m: usize) -> Product {
    let [x, weight, out] = [256, 512, 1024].map(|address| Matrix { address, stride: 64 });
    Product {
        m,
        n: 64,
        k: 64,
        x,
        weight,
        scales: None,
        weight_is_kn: false,
        bias: None,
        residual: None,
        out,
        out_f32: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_accumulation_is_0_or_1_or_an_error() {
        let of = |value: &str| fast_accumulation(Some(OsStr::new(value)));
        assert_eq!([of("").unwrap(), of("0").unwrap(), of("1").unwrap()], [FAST_ACCUMULATION, false, true]);
        let message = of("yes").unwrap_err().to_string();
        assert!(message.contains("`yes`") && message.contains(FAST_ACCUMULATION_VARIABLE), "{message}");
    }

    #[test]
    fn a_plan_depends_on_alignment_but_not_on_address() {
        let product = |address| Product { x: Matrix { address, stride: 64 }, ..small_product(4) };
        let key = |address| Key::of(&product(address), true);
        assert_eq!(key(256), key(4096));
        assert_ne!(key(256), key(256 + 16));
        let fp8 = |scales| Product { scales: Some(scales), ..product(256) };
        assert_eq!(Key::of(&fp8([1, 2]), true), Key::of(&fp8([3, 4]), true));
        assert_ne!(Key::of(&fp8([1, 2]), true), key(256));
        assert_ne!(Key::of(&fp8([1, 2]), true), Key::of(&fp8([1, 2]), false), "other kernels");
        assert_eq!(Key::of(&product(256), true), Key::of(&product(256), false), "bf16 has no such choice");
        let matrix = |address| Matrix { address, stride: 64 };
        assert_eq!(matrix(6).alignment(), 2);
        assert_eq!(matrix(1 << 20).row(1, 2).alignment(), 128);
    }
}
