//! Launches cuda/attention_e4m3_sm90a.cu: `attention` and `attention_cached` in e4m3, if requested, and the second half
//! of `project_attention`.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys;

use super::attention::Call;
use super::quantize;
use crate::backend::cuda::buffer::{Buffer, BufferKind};
use crate::backend::cuda::capability::HOPPER;
use crate::backend::cuda::device::Device;
use crate::backend::cuda::hopper::{Axis, Choice};
use crate::backend::cuda::layout::assert_layout;
use crate::backend::cuda::{AttentionPrecision, Cuda, Tensor, kernels};
use crate::error::{Error, Field, Result};
use crate::ops::{Mask, TokenLayout};

/// `FLUX_ATTENTION_E4M3=base` keeps attention in bf16; `FLUX_ATTENTION_E4M3=sm90` makes it an error if this GPU or this
/// program has no kernel, and `sm90-always` also runs it when it is no faster.
const CHOICE: Choice =
    Choice { op: "attention in e4m3", variable: "FLUX_ATTENTION_E4M3", file: "attention_e4m3_sm90a", forms: &[ALWAYS] };
const ALWAYS: &str = "sm90-always";
/// `HEAD_DIM`, `QUERIES` and `KEYS`, which are equal, and `STAGES` of cuda/attention_e4m3_sm90a.cu.
const HEAD_DIM: usize = 128;
const TILE: usize = 128;
const STAGES: usize = 3;
/// `BARRIERS` of that file, and 8 bytes for each barrier.
pub(super) const SHARED_BYTES: usize = TILE * HEAD_DIM + STAGES * (2 * TILE + 8) * HEAD_DIM + 8 * (2 + 4 * STAGES);
const THREADS: usize = 3 * 128;
/// With fewer queries per sample, attention in bf16 is as fast.
const MIN_QUERIES: usize = 1024;

/// `Arguments` of cuda/attention_e4m3_sm90a.cu, field by field.
#[repr(C)]
struct Arguments {
    q: sys::CUtensorMap,
    k: sys::CUtensorMap,
    v: sys::CUtensorMap,
    q_rows: u64,
    k_tiles: u64,
    v_tiles: u64,
    norms: [u64; 4],
    out: u64,
    ld_out: i32,
    batch: i32,
    txt: i32,
    img: i32,
    first_query: i32,
    cached: i32,
    heads: i32,
    group: i32,
    query_rows: i32,
    key_rows: i32,
    scale: f32,
}

assert_layout! { Arguments: 512, q: 0, k: 128, v: 256, q_rows: 384, k_tiles: 392, v_tiles: 400, norms: 408, out: 440,
ld_out: 448, batch: 452, txt: 456, img: 460, first_query: 464, cached: 468, heads: 472, group: 476,
query_rows: 480, key_rows: 484, scale: 488 }

/// Offsets in one buffer.
#[derive(Default)]
pub(super) struct Parts {
    bytes: usize,
}

impl Parts {
    /// Appends `bytes` bytes, aligned for TMA.
    pub(super) fn take(&mut self, bytes: usize) -> usize {
        let at = self.bytes;
        self.bytes += bytes.next_multiple_of(256);
        at
    }

    /// Returns the size of the buffer.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Memory for v of one sample in e4m3, and for the scales of its tiles.
pub(super) struct Values {
    pub(super) v8: u64,
    pub(super) v_tiles: u64,
    /// The keys, rounded up to whole tiles.
    pub(super) key_rows: usize,
    /// `true` if `project` stored them: otherwise they are converted before attention.
    pub(super) are_stored: bool,
    _buffer: Buffer,
}

impl Values {
    /// Allocates memory for `keys` rows of `cols` columns.
    pub(super) fn new(device: &Arc<Device>, keys: usize, cols: usize) -> Result<Self> {
        let key_rows = keys.next_multiple_of(TILE);
        let mut parts = Parts::default();
        let at = [parts.take(cols * key_rows), parts.take(cols / HEAD_DIM * (key_rows / TILE) * size_of::<f32>())];
        let buffer = Buffer::new(device, BufferKind::Byte, parts.bytes())?;
        let [v8, v_tiles] = at.map(|at| buffer.address() + at as u64);
        Ok(Self { v8, v_tiles, key_rows, are_stored: false, _buffer: buffer })
    }

    /// Returns `true` if every half of a tile of `height` rows is a tile of keys, for rows in two parts.
    pub(super) fn are_tiles_of(&self, height: usize, part_rows: [usize; 2]) -> bool {
        height == 2 * TILE && (part_rows[1] == 0 || part_rows[0].is_multiple_of(TILE))
    }
}

/// Errors if a GPU doesn't support attention in e4m3.
pub fn check(device: &Device) -> Result<()> {
    quantize::check_fp8(device, Field::Attention)?;
    let (major, minor) = device.capability;
    if (major, minor) == HOPPER {
        return Ok(());
    }
    let what = format!(
        "attention in fp8 needs a GPU of compute capability 9.0 (Hopper), {} has {major}.{minor}",
        device.name()
    );
    let field = Field::Attention;
    Err(Error::new(what).at(format!("{field:#} fp8")).for_field(field).hint(format!("leave out `{field:#}`")))
}

/// Returns the rows of queries and of keys of a sample, padded to whole tiles.
fn rows_of(call: &Call<'_>) -> [usize; 2] {
    let cached_rows = call.cached.map_or(0, |cached| cached.k.rows());
    let queries = call.layout.tokens() - call.layout.first_query();
    [queries, call.layout.tokens() + cached_rows].map(|rows| rows.next_multiple_of(TILE))
}

impl Cuda {
    /// Returns the precision of long attention: the requested one, if this program has its kernel.
    pub fn attention_precision(&self) -> AttentionPrecision {
        let lacks_fp8 = || kernels::fatbin(CHOICE.file, self.element()).is_none();
        match self.0.attention {
            AttentionPrecision::Fp8 if lacks_fp8() => AttentionPrecision::Bf16,
            attention => attention,
        }
    }

    /// Returns `true` if a call is computed in e4m3.
    ///
    /// Errors if `FLUX_ATTENTION_E4M3` names no available kernel.
    pub(super) fn attends_in_e4m3(&self, head_dim: usize, layout: TokenLayout, mask: Mask) -> Result<bool> {
        if self.0.attention != AttentionPrecision::Fp8 || head_dim != HEAD_DIM || mask != Mask::None {
            return Ok(false);
        }
        let queries = layout.tokens() - layout.first_query();
        let form = self.hopper_form(CHOICE)?;
        Ok(form.is_some_and(|form| queries > 0 && (queries >= MIN_QUERIES || form == ALWAYS)))
    }

    /// Computes a call for which [`Cuda::attends_in_e4m3`] is `true`.
    pub(super) fn attend_in_e4m3(&self, call: &Call<'_>) -> Result<()> {
        let (batch, heads, kv_heads) = (call.layout.batch, call.heads(), call.heads() / call.group());
        let [query_rows, key_rows] = rows_of(call);
        let [q_cols, kv_cols] = [heads, kv_heads].map(|heads| heads * HEAD_DIM);
        let (q_heads, kv_tiles) = (batch * heads, batch * kv_heads * (key_rows / TILE));
        let mut parts = Parts::default();
        let at = [
            parts.take(batch * query_rows * q_cols),
            parts.take(q_heads * query_rows * 2 * size_of::<f32>()),
            parts.take(batch * key_rows * kv_cols),
            parts.take(kv_tiles * 2 * size_of::<f32>()),
            parts.take(batch * kv_cols * key_rows),
            parts.take(kv_tiles * size_of::<f32>()),
        ];
        let buffer = Buffer::new(self.device(), BufferKind::Byte, parts.bytes())?;
        let at = at.map(|at| buffer.address() + at as u64);
        let [q8, q_rows, k8, k_tiles, v8, v_tiles] = at;
        self.quantize_heads(call, at)?;
        let arguments = Arguments {
            q: tensor_map(q8, batch * query_rows, q_cols, q_cols)?,
            k: tensor_map(k8, batch * key_rows, kv_cols, kv_cols)?,
            v: tensor_map(v8, batch * kv_cols, key_rows, key_rows)?,
            q_rows,
            k_tiles,
            ..self.e4m3_arguments(call, v_tiles)?
        };
        self.run_e4m3("attention_e4m3_sm90", call, arguments)
    }

    /// Computes a call of one sample with q and k in e4m3, as stored by cuda/project_sm90a.cu: the first half of each
    /// head. `norms` are the norms of q of text, q of image, k of text and k of image.
    pub(super) fn attend_normed_in_e4m3(&self, call: &Call<'_>, values: &Values, norms: [u64; 4]) -> Result<()> {
        let cols = call.heads() * HEAD_DIM;
        let Values { v8, v_tiles, key_rows, .. } = *values;
        if !values.are_stored {
            self.quantize_heads(call, [0, 0, 0, 0, v8, v_tiles])?;
        }
        let of_heads = |x: &Tensor<Cuda>| tensor_map(x.address(), x.rows(), 2 * cols, 2 * x.stride());
        let arguments = Arguments {
            q: of_heads(call.q)?,
            k: of_heads(call.k)?,
            v: tensor_map(v8, cols, key_rows, key_rows)?,
            norms,
            ..self.e4m3_arguments(call, v_tiles)?
        };
        self.run_e4m3("attention_e4m3_normed_sm90", call, arguments)
    }

    /// Converts q, k and v to e4m3, or only v if q8 is 0.
    fn quantize_heads(&self, call: &Call<'_>, [q8, q_rows, k8, k_tiles, v8, v_tiles]: [u64; 6]) -> Result<()> {
        let Call { q, k, v, layout, cached, .. } = *call;
        let [query_rows, key_rows] = rows_of(call);
        // Without cached keys their pointers are not dereferenced.
        let (cached_k, cached_v) = cached.map_or((k, v), |cached| (&cached.k, &cached.v));
        let jobs = if q8 == 0 { 1 } else { 3 };
        let launch = self.launch(CHOICE.file, "attention_to_e4m3")?;
        let launch = launch.matrix(q).matrix(k).matrix(v).matrix(cached_k).matrix(cached_v);
        let launch = launch.address(q8).address(q_rows).address(k8).address(k_tiles).address(v8).address(v_tiles);
        let launch = launch.int(layout.batch).int(layout.txt).int(layout.image_stream()).int(layout.first_query());
        let launch = launch.int(cached.map_or(0, |cached| cached.k.rows())).int(call.heads()).int(call.group());
        let launch = launch.int(query_rows).int(key_rows).int(jobs);
        // SAFETY: argument types and order match `attention_to_e4m3`. `Tensor::attention` and
        // `Tensor::attention_cached` checked that k and v have layout.rows() rows of whole heads, q
        // layout.query_rows(), and the cached ones their columns; all rows are aligned to 16 bytes. The caller's buffer
        // has room for all outputs: with one job, v8 and v_tiles.
        unsafe { launch.run([call.heads(), query_rows.max(key_rows) / TILE, jobs * layout.batch], [256, 1, 1]) }
    }

    /// Returns the arguments that both kernels take, with empty maps.
    fn e4m3_arguments(&self, call: &Call<'_>, v_tiles: u64) -> Result<Arguments> {
        let (layout, [query_rows, key_rows]) = (call.layout, rows_of(call));
        let none = sys::CUtensorMap { opaque: [0; 16] };
        Ok(Arguments {
            q: none,
            k: none,
            v: none,
            q_rows: 0,
            k_tiles: 0,
            v_tiles,
            norms: [0; 4],
            out: call.out.address(),
            ld_out: CHOICE.int(call.out.stride())?,
            batch: CHOICE.int(layout.batch)?,
            txt: CHOICE.int(layout.txt)?,
            img: CHOICE.int(layout.image_stream())?,
            first_query: CHOICE.int(layout.first_query())?,
            cached: CHOICE.int(call.cached.map_or(0, |cached| cached.k.rows()))?,
            heads: CHOICE.int(call.heads())?,
            group: CHOICE.int(call.group())?,
            query_rows: CHOICE.int(query_rows)?,
            key_rows: CHOICE.int(key_rows)?,
            // Scores are powers of two in steps of 1/8.
            scale: 8.0 * call.scale(),
        })
    }

    fn run_e4m3(&self, kernel: &'static str, call: &Call<'_>, mut arguments: Arguments) -> Result<()> {
        let items = rows_of(call)[0] / TILE * call.heads() * call.layout.batch;
        CHOICE.int(items)?;
        let launch = self.launch(CHOICE.file, kernel)?.shared(SHARED_BYTES as u32)?;
        let mut pointers: [*mut c_void; 1] = [std::ptr::from_mut(&mut arguments).cast()];
        // SAFETY: the kernel takes `Arguments`, laid out as there; the shared memory is its `Shared` and its barriers.
        // The maps cover the output of the earlier kernels. `out` has a row for each query, and nothing else of this
        // call reads it, except the e4m3 queries of its own rows and head, which are read before.
        unsafe { launch.run_raw([items.min(self.device().multiprocessors()), 1, 1], [THREADS, 1, 1], &mut pointers) }
    }
}

/// Returns a map of rows of bytes, in boxes of TILE rows and TILE bytes of each.
fn tensor_map(address: u64, rows: usize, cols: usize, stride: usize) -> Result<sys::CUtensorMap> {
    let columns = Axis { cells: cols, step: 1, in_box: TILE };
    // The stride of a single row is unused, and need not be aligned.
    let step = if rows > 1 { stride } else { cols };
    CHOICE.byte_tensor_map(address, [columns, Axis { cells: rows, step, in_box: TILE }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_fits_the_shared_memory_of_hopper() {
        const { assert!(SHARED_BYTES <= 227 << 10) }
    }
}
