//! Safe wrappers of cuBLASLt that free their handles.
//!
//! cuBLASLt is column-major. Our row-major out [m, n] is its column-major [n, m], so its A is the weight and its B is
//! x.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use cudarc::cublaslt::{result, sys};

use super::WORKSPACE_BYTES;
use super::choices::Algorithm;
use super::key::{Key, Product};
use crate::backend::cuda::captures::outside_captures;
use crate::backend::cuda::device::{Device, Stream};
use crate::backend::cuda::element::Element;
use crate::backend::cuda::library::load_cublaslt;
use crate::error::{Error, Result};

/// `cublasOperation_t`, which cudarc's cuBLASLt bindings lack.
const OPERATION_N: i32 = 0;
const OPERATION_T: i32 = 1;
/// The number of algorithms to request.
const CANDIDATES: usize = 16;
/// Tiles of Hopper kernels in which one half of a block multiplies while the other stores. With many tiles, so that a
/// partial last round doesn't matter, they are faster at the GPU's power limit than the larger tiles that cuBLASLt
/// suggests first: see docs/kernels-gemm.md.
const ALTERNATING: [sys::cublasLtMatmulTile_t; 2] =
    [sys::cublasLtMatmulTile_t::CUBLASLT_MATMUL_TILE_168x128, sys::cublasLtMatmulTile_t::CUBLASLT_MATMUL_TILE_176x128];
const ALTERNATING_CELLS: usize = 172 * 128;
/// The min tiles per multiprocessor to count as many: 43 were faster, 25 were not.
const MANY_TILES: usize = 40;

fn failed(error: result::CublasError) -> Error {
    Error::new(format!("cuBLASLt failed: {:?}", error.0))
}

/// cuBLASLt on one device.
pub struct CublasLt {
    handle: sys::cublasLtHandle_t,
    device: Arc<Device>,
}

// SAFETY: a cuBLASLt handle may be used from several threads.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

impl CublasLt {
    /// Errors if cuBLASLt can't be loaded.
    pub fn open(device: &Arc<Device>) -> Result<Self> {
        load_cublaslt()?;
        device.make_current()?;
        let _outside = outside_captures();
        let handle = result::create_handle().map_err(failed)?;
        Ok(Self { handle, device: Arc::clone(device) })
    }

    /// Returns its version, as cuBLASLt counts.
    pub fn version(&self) -> usize {
        // SAFETY: the function has no precondition; the library was loaded when the handle was created.
        unsafe { sys::cublasLtGetVersion() }
    }

    /// Returns the workspace of an algorithm for these matrices; `None` if they don't fit it, or the workspace exceeds
    /// ours.
    pub fn workspace_bytes(&self, plan: &Plan, algorithm: Algorithm) -> Option<usize> {
        // By its documentation cuBLASLt writes the size of the workspace, not the state.
        let mut found =
            sys::cublasLtMatmulHeuristicResult_t { state: sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS, ..NOTHING_FOUND };
        let algorithm = sys::cublasLtMatmulAlgo_t { data: algorithm };
        let [a, b, c, d] = plan.layouts;
        // SAFETY: all descriptors live; `algorithm` and `found` have the sizes that cuBLASLt reads and writes.
        let status =
            unsafe { sys::cublasLtMatmulAlgoCheck(self.handle, plan.operation, a, b, c, d, &algorithm, &mut found) };
        (status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS && fits(&found)).then_some(found.workspaceSize)
    }

    /// Returns the suggested algorithms for these alignments and this workspace, the best first.
    pub fn candidates(&self, plan: &Plan, key: &Key) -> Result<Vec<Algorithm>> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let preference = Preference::new()?;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE_BYTES)?;
        // Accumulate split sums in float32: the other reductions round each part to the type of the result.
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
        let (operation, preference, most) = (plan.operation, preference.0, CANDIDATES as i32);
        // SAFETY: all descriptors live; `found` has room for CANDIDATES results. cuBLASLt writes `state` from the
        // statuses of version 13.0, which the bindings match.
        let status = unsafe {
            let found = found.as_mut_ptr();
            sys::cublasLtMatmulAlgoGetHeuristic(self.handle, operation, a, b, c, d, preference, most, found, &mut count)
        };
        if status != sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
            return Ok(Vec::new());
        }
        let found = found.iter().take(usize::try_from(count).unwrap_or(0));
        Ok(found.filter(|result| fits(result)).map(|result| result.algo.data).collect())
    }

    /// Returns the suggestion to use without timing.
    pub fn preferred<'a>(&self, candidates: &'a [Algorithm], key: &Key) -> Option<&'a Algorithm> {
        let [m, n, _] = key.sizes;
        let has_many_tiles = !key.fp8 && m * n >= MANY_TILES * ALTERNATING_CELLS * self.device.multiprocessors();
        let alternates =
            |algorithm: &&Algorithm| ALTERNATING.iter().any(|tile| tile_of(algorithm) == Some(*tile as u32));
        candidates.iter().find(|algorithm| has_many_tiles && alternates(algorithm)).or(candidates.first())
    }

    /// Enqueues `product` on `stream`.
    ///
    /// # Safety
    /// `plan` was made for a matrix multiplication with the same key, and is used on `stream` only; the matrices are as
    /// for [`Gemm::run`](super::Gemm::run), and work on `stream` may use them. `workspace` is an address and its bytes,
    /// for matrix multiplications on `stream` only. Unless `stream` is the compute stream, no other thread uses `plan`.
    pub unsafe fn enqueue(
        &self,
        plan: &Plan,
        algorithm: Algorithm,
        product: &Product,
        (workspace, workspace_bytes): (u64, usize),
        stream: Stream,
    ) -> Result<()> {
        // One thread at a time on the compute stream: the descriptor is written here and read in the call below, and
        // the kernels of one matrix multiplication share the workspace.
        let _submission = self.device.submit(stream)?;
        plan.point_to(product)?;
        let algorithm = sys::cublasLtMatmulAlgo_t { data: algorithm };
        let one = 1.0f32;
        let beta = if product.residual.is_some() { 1.0f32 } else { 0.0 };
        let residual = product.residual.unwrap_or(product.out);
        let [a, b, c, d] = plan.layouts;
        // SAFETY: as the caller promises. alpha and beta are read before the call returns.
        let enqueued = unsafe {
            result::matmul(
                self.handle,
                plan.operation,
                ptr::from_ref(&one).cast(),
                ptr::from_ref(&beta).cast(),
                product.weight.address as *const c_void,
                a,
                product.x.address as *const c_void,
                b,
                residual.address as *const c_void,
                c,
                product.out.address as *mut c_void,
                d,
                &algorithm,
                workspace as *mut c_void,
                workspace_bytes,
                stream.raw().cast(),
            )
        };
        enqueued.map_err(|e| Error::new(format!("cuBLASLt failed: {:?} for {product:?}", e.0)))?;
        self.device.counters.launches.add(1);
        Ok(())
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // cuBLASLt waits for all work of the context first.
            let _outside = outside_captures();
            // SAFETY: the handle is destroyed once.
            let _ = unsafe { result::destroy_handle(self.handle) };
        }
    }
}

/// An empty result, to be filled.
const NOTHING_FOUND: sys::cublasLtMatmulHeuristicResult_t = sys::cublasLtMatmulHeuristicResult_t {
    algo: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
    workspaceSize: 0,
    state: sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
    wavesCount: 0.0,
    reserved: [0; 4],
};

/// Returns the `cublasLtMatmulTile_t` of an algorithm, if it has one.
fn tile_of(algorithm: &Algorithm) -> Option<u32> {
    let (algorithm, mut tile) = (sys::cublasLtMatmulAlgo_t { data: *algorithm }, 0);
    let (attribute, bytes) =
        (sys::cublasLtMatmulAlgoConfigAttributes_t::CUBLASLT_ALGO_CONFIG_TILE_ID, size_of::<u32>());
    // SAFETY: `algorithm` has the size that cuBLASLt reads, and `tile` that of the attribute, a `uint32_t`; the number
    // of written bytes is optional.
    let status = unsafe {
        let tile = (&raw mut tile).cast();
        sys::cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, tile, bytes, ptr::null_mut())
    };
    (status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS).then_some(tile)
}

/// Returns `true` if an algorithm can run in our workspace.
fn fits(found: &sys::cublasLtMatmulHeuristicResult_t) -> bool {
    found.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS && found.workspaceSize <= WORKSPACE_BYTES
}

/// The descriptors of a matrix multiplication.
pub struct Plan {
    operation: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 4],
}

// SAFETY: a descriptor is plain memory of cuBLASLt. Once created it is written only by `CublasLt::enqueue`, by one
// thread at a time.
unsafe impl Send for Plan {}
// SAFETY: as above.
unsafe impl Sync for Plan {}

impl Plan {
    /// Creates the descriptors of matrix multiplications of `element` with this key, such as `product`.
    pub fn new(element: Element, key: &Key, product: &Product) -> Result<Self> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let [m, n, k] = key.sizes;
        let element_type = match element {
            Element::Bf16 => sys::cudaDataType::CUDA_R_16BF,
            Element::F16 => sys::cudaDataType::CUDA_R_16F,
        };
        let out_type = if key.out_f32 { sys::cudaDataType::CUDA_R_32F } else { element_type };
        let (weight_rows, weight_cols) = if key.weight_is_kn { (n, k) } else { (k, n) };
        let shapes = [(weight_rows, weight_cols), (k, m), (n, m), (n, m)];
        let operand_type = if key.fp8 { sys::cudaDataType::CUDA_R_8F_E4M3 } else { element_type };
        let types = [operand_type, operand_type, out_type, out_type];
        let operation =
            result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType::CUDA_R_32F)
                .map_err(failed)?;
        // From here on `plan` owns the descriptors, so an early return frees them.
        let mut plan = Self { operation, layouts: [ptr::null_mut(); 4] };
        for (index, layout) in plan.layouts.iter_mut().enumerate() {
            let (rows, cols) = shapes[index];
            *layout = result::create_matrix_layout(types[index], rows as u64, cols as u64, key.strides[index] as i64)
                .map_err(failed)?;
        }
        let transpose = if key.weight_is_kn { OPERATION_N } else { OPERATION_T };
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &transpose)?;
        if product.bias.is_some() {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32;
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
            let bias_type = element_type as i32;
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type)?;
        }
        if product.scales.is_some() {
            let outer = sys::cublasLtMatmulMatrixScale_t::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F as i32;
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &outer)?;
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &outer)?;
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, &i8::from(key.fast_accumulation))?;
        }
        plan.point_to(product)?;
        Ok(plan)
    }

    /// Sets the parts of the descriptor that differ between matrix multiplications of one key.
    fn point_to(&self, product: &Product) -> Result<()> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        if let Some(bias) = product.bias {
            self.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
        if let Some([weight, x]) = product.scales {
            self.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &weight)?;
            self.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &x)?;
        }
        Ok(())
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        let (value, size) = (ptr::from_ref(value).cast(), size_of::<T>());
        // SAFETY: the descriptor lives; callers pass the type of the attribute, and cuBLASLt checks its size.
        unsafe { result::set_matmul_desc_attribute(self.operation, attribute, value, size) }.map_err(failed)
    }
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

/// The constraints on suggested algorithms.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new() -> Result<Self> {
        result::create_matmul_pref().map(Self).map_err(failed)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulPreferenceAttributes_t, value: &T) -> Result<()> {
        let (value, size) = (ptr::from_ref(value).cast(), size_of::<T>());
        // SAFETY: as in `Plan::set`.
        unsafe { result::set_matmul_pref_attribute(self.0, attribute, value, size) }.map_err(failed)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}
