//! Launches cuda/ceiling.cu: the max rate of mma.sync.

use super::quantize;
use crate::backend::Storage;
use crate::backend::cuda::Cuda;
use crate::error::{Field, Result};

/// `THREADS` of cuda/ceiling.cu.
const THREADS: usize = 256;
/// Operations of a block per step of 64 bytes, on 8-bit values.
const STEP_OPERATIONS: u64 = 2 * 128 * 256 * 64;

impl Cuda {
    /// Runs `steps` steps of a tile on each multiprocessor. Returns the number of operations; `None` if mma.sync does
    /// not multiply this storage.
    pub(crate) fn multiply_alone_op(&self, storage: Storage, steps: usize) -> Result<Option<u64>> {
        let (kernel, of_step) = match storage {
            Storage::Native => ("multiply_native", STEP_OPERATIONS / 2),
            Storage::Int8 | Storage::W4a8 => ("multiply_int8", STEP_OPERATIONS),
            Storage::Fp8
                if quantize::check_fp8(self.device(), Field::Precision).is_ok() && self.gemm()?.leaves_e4m3() =>
            {
                ("multiply_e4m3", STEP_OPERATIONS)
            }
            Storage::Fp8 => return Ok(None),
        };
        let blocks = self.device().multiprocessors();
        let out = self.upload_f32_op(&vec![0.0; blocks * THREADS], blocks, THREADS)?;
        let launch = self.launch("ceiling", kernel)?.int(steps).address(out.address());
        // SAFETY: argument types and order match cuda/ceiling.cu, whose kernels write 4 bytes for each thread.
        unsafe { launch.run([blocks, 1, 1], [THREADS, 1, 1]) }?;
        Ok(Some(blocks as u64 * steps as u64 * of_step))
    }
}
