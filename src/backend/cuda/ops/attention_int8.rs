//! Launches cuda/attention_int8.cu: long attention with queries and keys in 8-bit integers, if requested.

use super::attention::{Call, has_100_kib, whole_tiles};
use super::attention_e4m3::Parts;
use crate::backend::cuda::buffer::{Buffer, BufferKind};
use crate::backend::cuda::device::Device;
use crate::backend::cuda::{AttentionPrecision, Cuda, Tensor, all_aligned};
use crate::error::{Error, Field, Result};
use crate::ops::{Heads, Mask, Pairs, Rope, TokenLayout};

const FILE: &str = "attention_int8";
/// `HEAD_DIM`, the tiles, `THREADS` and `CONVERT_THREADS` of cuda/attention_int8.cu.
const HEAD_DIM: usize = 128;
const QUERY_TILE: usize = 128;
/// The queries or keys that a block converts.
const KEY_TILE: usize = 64;
const VALUE_TILE: usize = 2 * KEY_TILE;
const THREADS: u32 = 128;
const CONVERT_THREADS: usize = 512;
/// The heads that a block converts with the same rotation.
const HEADS_PER_BLOCK: usize = 4;
/// `STAGES * STAGE_BYTES` of that file.
pub(super) const SHARED_BYTES: usize = 2 * 3 * KEY_TILE * HEAD_DIM;
/// With fewer queries per sample, conversion takes as long as it saves.
const MIN_QUERIES: usize = 512;
/// With more keys, sums in f16 could overflow: each adds up to 1/4.
const MAX_KEYS: usize = 3 << 16;

/// Errors if a GPU doesn't support attention in int8.
pub fn check(device: &Device) -> Result<()> {
    if device.capability >= (8, 0) {
        return Ok(());
    }
    let field = Field::Attention;
    let what = format!("attention in int8 needs a GPU of compute capability 8.0, {} is older", device.name());
    Err(Error::new(what).at(format!("{field:#} int8")).for_field(field).hint(format!("leave out `{field:#}`")))
}

/// Returns `true` if a GPU multiplies 8-bit integers at four times the rate of 16 bits with sums in float32, and 16
/// bits with sums in f16 at twice that rate: GeForce and its workstation cards.
/// Source: NVIDIA's Ampere GA102, Ada and RTX Blackwell architecture papers, peak rates.
pub fn is_faster(capability: (i32, i32)) -> bool {
    has_100_kib(capability)
}

impl Cuda {
    /// Returns `true` if a call is computed in int8.
    pub(super) fn attends_in_int8(&self, head_dim: usize, layout: TokenLayout, mask: Mask) -> bool {
        let queries = layout.tokens() - layout.first_query();
        let suits = head_dim == HEAD_DIM && mask == Mask::None && queries >= MIN_QUERIES && layout.tokens() <= MAX_KEYS;
        self.attention_precision() == AttentionPrecision::Int8 && suits
    }

    /// Returns `true` if the conversion can norm and rotate q and k of a call that is computed in int8.
    pub(super) fn norms_in_int8(&self, kvq: [&Tensor<Cuda>; 3], heads: &Heads<'_, Cuda>) -> Result<bool> {
        let [txt, img] = heads.norm;
        let (cos, sin) = self.same_stride(heads.rope)?;
        let tensors: Vec<_> = kvq.into_iter().chain([&txt.q, &txt.k, &img.q, &img.k, cos, sin]).collect();
        let suits = heads.rope.pairs == Pairs::Interleaved && all_aligned(&tensors);
        Ok(suits && self.attends_in_int8(txt.q.cols(), heads.layout, Mask::None))
    }

    /// Computes a call for which [`Cuda::attends_in_int8`] is `true`, without cached keys. With `norms`, for which
    /// [`Cuda::norms_in_int8`] is `true`, q and k have neither norm nor rotation yet.
    pub(super) fn attend_in_int8(&self, call: &Call<'_>, norms: Option<&Heads<'_, Cuda>>) -> Result<()> {
        let Call { q, k, v, out, layout, .. } = *call;
        let (batch, heads, kv_heads) = (layout.batch, call.heads(), call.heads() / call.group());
        let queries = layout.tokens() - layout.first_query();
        let query_rows = queries.next_multiple_of(KEY_TILE);
        let key_rows = layout.tokens().next_multiple_of(VALUE_TILE);
        let [all_queries, all_keys] = [batch * heads * query_rows, batch * kv_heads * key_rows];
        let mut parts = Parts::default();
        let at = [
            all_queries * HEAD_DIM,
            all_queries * size_of::<f32>(),
            all_keys * HEAD_DIM,
            all_keys / KEY_TILE * size_of::<f32>(),
            all_keys * HEAD_DIM * size_of::<u16>(),
            all_keys / VALUE_TILE * size_of::<f32>(),
        ]
        .map(|bytes| parts.take(bytes));
        let buffer = Buffer::new(self.device(), BufferKind::Byte, parts.bytes())?;
        let at = at.map(|at| buffer.address() + at as u64);
        let launch = self.launch(FILE, "attention_to_int8")?.matrix(q).matrix(k).matrix(v);
        let launch = at.into_iter().fold(launch, |launch, at| launch.address(at));
        let ints = [batch, layout.txt, layout.image_stream(), layout.first_query(), heads, call.group()];
        let ints = ints.into_iter().chain([query_rows, key_rows]);
        let launch = ints.clone().fold(launch, |launch, int| launch.int(int)).float(call.scale());
        let launch = match norms {
            Some(&Heads { norm: [txt, img], rope: Rope { cos, sin, .. }, .. }) => {
                let launch = launch.vector(&txt.q).vector(&img.q).vector(&txt.k).vector(&img.k).vector(cos).vector(sin);
                launch.int(cos.stride()).float(txt.eps).float(img.eps)
            }
            None => (0..6).fold(launch, |launch, _| launch.address(0)).int(0).float(0.0).float(0.0),
        };
        let tiles = query_rows.max(key_rows) / KEY_TILE;
        // SAFETY: argument types and order match `attention_to_int8`. `Tensor::attention`, or `expect_parts` of
        // `project`, checked that k and v have layout.rows() rows of whole heads, and q layout.query_rows(), that norms
        // have HEAD_DIM columns, and that tables have a row for each token; all rows are aligned to 16 bytes. `buffer`
        // has room for all outputs, at 256-byte boundaries.
        unsafe { launch.run([heads.div_ceil(HEADS_PER_BLOCK), tiles, 3 * batch], [CONVERT_THREADS, 1, 1]) }?;
        let launch = self.launch(FILE, "attention_int8")?.shared(SHARED_BYTES as u32)?;
        let tiles = queries.div_ceil(QUERY_TILE) * heads * batch;
        let whole = whole_tiles(tiles, launch.blocks_at_once(THREADS)?);
        let launch = at.into_iter().fold(launch, |launch, at| launch.address(at)).vector(out).int(out.stride());
        let launch = ints.fold(launch, |launch, int| launch.int(int)).int(whole);
        // SAFETY: argument types and order match `attention_int8`, and the shared memory its stages. The conversion,
        // which comes first on the stream, has written all rows that the kernel reads; `out` is q, or new and of its
        // shape, and its rows are aligned to 16 bytes. The buffer is freed in stream order. Tiles behind `whole` have
        // two blocks each.
        unsafe { launch.run([2 * tiles - whole, 1, 1], [THREADS as usize, 1, 1]) }
    }
}
