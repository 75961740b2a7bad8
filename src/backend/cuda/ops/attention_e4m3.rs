//! Launches cuda/attention_e4m3_sm90a.cu: `attention` and `attention_cached` in e4m3, where that is asked for.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::attention::Call;
use super::quantise;
use crate::backend::cuda::buffer::{Buffer, BufferKind};
use crate::backend::cuda::device::Device;
use crate::backend::cuda::hopper::{Axis, Choice};
use crate::backend::cuda::{Cuda, kernels};
use crate::error::{Field, Result};
use crate::ops::Mask;

/// `FLUX_ATTENTION_E4M3=base` leaves attention in bf16 all the same; `FLUX_ATTENTION_E4M3=sm90` makes it
/// an error when this GPU or this program has no kernel, and `sm90-always` also runs it where it is no faster.
const CHOICE: Choice =
    Choice { op: "attention in e4m3", variable: "FLUX_ATTENTION_E4M3", file: "attention_e4m3_sm90a", forms: &[ALWAYS] };
const ALWAYS: &str = "sm90-always";
/// `HEAD_DIM`, `QUERIES` and `KEYS`, which are equal, and `STAGES` of cuda/attention_e4m3_sm90a.cu.
const HEAD_DIM: usize = 128;
const TILE: usize = 128;
const STAGES: usize = 3;
/// `BARRIERS` there, and 8 bytes for each barrier.
const SHARED_BYTES: usize = TILE * HEAD_DIM + STAGES * (2 * TILE + 8) * HEAD_DIM + 8 * (2 + 4 * STAGES);
const THREADS: usize = 3 * 128;
/// For fewer queries of a sample attention in bf16 takes no longer.
const LEAST_QUERIES: usize = 1024;

/// Where in one buffer things lie.
struct Parts {
    bytes: usize,
}

impl Parts {
    /// So many bytes more, aligned for TMA.
    fn take(&mut self, bytes: usize) -> usize {
        let at = self.bytes;
        self.bytes += bytes.next_multiple_of(256);
        at
    }
}

/// Errors when a GPU does not compute attention in e4m3.
pub fn check(device: &Device) -> Result<()> {
    quantise::check_fp8(device, Field::Attention)
}

impl Cuda {
    /// Whether long attention is computed in e4m3: it is asked for, and this program has the kernel.
    pub fn has_fp8_attention(&self) -> bool {
        self.0.arithmetic.fp8_attention && kernels::fatbin(CHOICE.file, self.element()).is_some()
    }

    /// Whether a call is computed in e4m3.
    ///
    /// Errors when `FLUX_ATTENTION_E4M3` names no kernel that is here.
    pub(super) fn attends_in_e4m3(&self, call: &Call<'_>) -> Result<bool> {
        if !self.0.arithmetic.fp8_attention || call.head_dim != HEAD_DIM || call.mask != Mask::None {
            return Ok(false);
        }
        let queries = call.layout.tokens() - call.layout.first_query();
        let form = self.hopper_form(CHOICE)?;
        Ok(form.is_some_and(|form| queries > 0 && (queries >= LEAST_QUERIES || form == ALWAYS)))
    }

    /// Computes a call that [`Cuda::attends_in_e4m3`] takes.
    pub(super) fn attend_in_e4m3(&self, call: &Call<'_>) -> Result<()> {
        let Call { q, k, v, out, layout, cached, .. } = *call;
        let (batch, heads, group) = (layout.batch, call.heads(), call.group());
        let (kv_heads, cached_rows) = (heads / group, cached.map_or(0, |cached| cached.k.rows()));
        let query_rows = (layout.tokens() - layout.first_query()).next_multiple_of(TILE);
        let key_rows = (layout.tokens() + cached_rows).next_multiple_of(TILE);
        let [q_cols, kv_cols] = [heads, kv_heads].map(|heads| heads * HEAD_DIM);

        let (q_heads, kv_tiles) = (batch * heads, batch * kv_heads * (key_rows / TILE));
        let mut parts = Parts { bytes: 0 };
        let at = [
            parts.take(batch * query_rows * q_cols),
            parts.take(q_heads * query_rows * 2 * size_of::<f32>()),
            parts.take(batch * key_rows * kv_cols),
            parts.take(kv_tiles * 2 * size_of::<f32>()),
            parts.take(batch * kv_cols * key_rows),
            parts.take(kv_tiles * size_of::<f32>()),
        ];
        let buffer = Buffer::new(self.device(), BufferKind::Byte, parts.bytes)?;
        let [q8, q_rows, k8, k_tiles, v8, v_tiles] = at.map(|at| buffer.address() + at as u64);

        // Without cached keys their pointers are not followed.
        let (cached_k, cached_v) = cached.map_or((k, v), |cached| (&cached.k, &cached.v));
        let (txt, img) = (layout.txt, layout.image_stream());
        let launch = self.launch(CHOICE.file, "attention_to_e4m3")?;
        let launch = launch.matrix(q).matrix(k).matrix(v).matrix(cached_k).matrix(cached_v);
        let launch = launch.address(q8).address(q_rows).address(k8).address(k_tiles).address(v8).address(v_tiles);
        let launch = launch.int(batch).int(txt).int(img).int(layout.first_query()).int(cached_rows).int(heads);
        let launch = launch.int(group).int(query_rows).int(key_rows);
        // SAFETY: argument types and order match `attention_to_e4m3`. `Tensor::attention` and
        // `Tensor::attention_cached` checked that k and v have layout.rows() rows of whole heads, q
        // layout.query_rows(), and the cached ones their columns; all rows are aligned to 16 bytes. The buffer was made
        // for all that is written.
        unsafe { launch.run([query_rows.max(key_rows) / TILE, heads, 3 * batch], [256, 1, 1]) }?;

        // A driver that loads this kernel knows tensor maps too.
        let launch = self.launch(CHOICE.file, "attention_e4m3_sm90")?.shared(SHARED_BYTES as u32)?;
        let mut maps = [
            tensor_map(q8, batch * query_rows, q_cols)?,
            tensor_map(k8, batch * key_rows, kv_cols)?,
            tensor_map(v8, batch * kv_cols, key_rows)?,
        ];
        let items = query_rows / TILE * heads * batch;
        let mut pointers = [q_rows, k_tiles, v_tiles, out.address()];
        let ints =
            [out.stride(), batch, txt, img, layout.first_query(), cached_rows, heads, group, query_rows, key_rows];
        CHOICE.int(items)?;
        let mut ints = ints.into_iter().map(|value| CHOICE.int(value)).collect::<Result<Vec<i32>>>()?;
        // Scores are eighths of powers of two.
        let mut scale = 8.0 * call.scale();
        let mut arguments: Vec<*mut c_void> = maps.iter_mut().map(|map| std::ptr::from_mut(map).cast()).collect();
        arguments.extend(pointers.iter_mut().map(|pointer| std::ptr::from_mut(pointer).cast::<c_void>()));
        arguments.extend(ints.iter_mut().map(|int| std::ptr::from_mut(int).cast::<c_void>()));
        arguments.push(std::ptr::from_mut(&mut scale).cast());
        // SAFETY: `arguments` are, in the order of `attention_e4m3_sm90`, three tensor maps, four pointers, ten ints
        // and a float, all alive until the call returns; the shared memory is its `Shared` and its barriers. The maps
        // cover exactly what the kernel before wrote. `out` has a row for each query, and nothing else of this call
        // reads it.
        unsafe { launch.run_raw([items.min(self.device().multiprocessors()), 1, 1], [THREADS, 1, 1], &mut arguments) }
    }
}

/// A map of dense rows of bytes, in boxes of TILE rows and of TILE bytes of each.
fn tensor_map(address: u64, rows: usize, cols: usize) -> Result<sys::CUtensorMap> {
    let columns = Axis { cells: cols, step: 1, in_box: TILE };
    CHOICE.byte_tensor_map(address, [columns, Axis { cells: rows, step: cols, in_box: TILE }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_fits_the_shared_memory_of_hopper() {
        const { assert!(SHARED_BYTES <= 227 << 10) }
    }
}
