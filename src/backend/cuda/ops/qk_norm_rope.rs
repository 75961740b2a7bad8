//! Launches cuda/qk_norm_rope.cu.

use std::ffi::c_void;

use crate::backend::cuda::launch;
use crate::backend::cuda::layout::assert_layout;
use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;
use crate::ops::{Pairs, QkNormRope};

/// Threads of a block.
const THREADS: usize = 256;

/// `Heads` in cuda/qk_norm_rope.cu, field by field.
#[repr(C)]
struct Heads {
    q: u64,
    ld_q: i64,
    out_q: u64,
    ld_out_q: i64,
    k: u64,
    ld_k: i64,
    out_k: u64,
    ld_out_k: i64,
    txt_weight_q: u64,
    txt_weight_k: u64,
    img_weight_q: u64,
    img_weight_k: u64,
    cos: u64,
    sin: u64,
    ld_table: i64,
    txt_eps: f32,
    img_eps: f32,
    rows: i32,
    txt_rows: i32,
    txt: i32,
    img: i32,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
}

assert_layout! { Heads: 160, q: 0, ld_q: 8, out_q: 16, ld_out_q: 24, k: 32, ld_k: 40, out_k: 48, ld_out_k: 56,
txt_weight_q: 64, txt_weight_k: 72, img_weight_q: 80, img_weight_k: 88, cos: 96, sin: 104, ld_table: 112,
txt_eps: 120, img_eps: 124, rows: 128, txt_rows: 132, txt: 136, img: 140, heads: 144, kv_heads: 148,
head_dim: 152 }

/// Returns the kernel with 16-byte loads for heads of `head_dim`, if there is one.
fn wide_kernel(head_dim: usize, pairs: Pairs) -> Option<&'static str> {
    Some(match (head_dim, pairs) {
        (128, Pairs::Interleaved) => "qk_norm_rope_interleaved_128",
        (128, Pairs::Halves) => "qk_norm_rope_halves_128",
        (64, Pairs::Interleaved) => "qk_norm_rope_interleaved_64",
        (64, Pairs::Halves) => "qk_norm_rope_halves_64",
        (32, Pairs::Interleaved) => "qk_norm_rope_interleaved_32",
        (32, Pairs::Halves) => "qk_norm_rope_halves_32",
        (16, Pairs::Interleaved) => "qk_norm_rope_interleaved_16",
        (16, Pairs::Halves) => "qk_norm_rope_halves_16",
        _ => return None,
    })
}

/// Returns the blocks of a wide kernel over rows of `heads` heads, and the groups of lanes that share a row: its last
/// argument.
fn wide_grid(rows: usize, heads: usize, head_dim: usize) -> Result<(usize, i32)> {
    let groups = THREADS / (head_dim / 8);
    let groups_per_row = groups.min(heads);
    Ok((rows.div_ceil(groups / groups_per_row), int(groups_per_row)?))
}

fn int(value: usize) -> Result<i32> {
    launch::int(value, || "op `qk_norm_rope`".to_string())
}

impl Cuda {
    pub(crate) fn qk_norm_rope_op(&self, operands: QkNormRope<'_, Cuda>) -> Result<(Tensor<Cuda>, Tensor<Cuda>)> {
        let QkNormRope { q, k, norm, rope, layout } = operands;
        let head_dim = 2 * rope.cos.cols();
        let (cos, sin) = self.same_stride(rope)?;
        let (fresh_q, fresh_k) = (self.unless_writable(&q)?, self.unless_writable(&k)?);
        let (out_q, out_k) = (fresh_q.as_ref().unwrap_or(&q), fresh_k.as_ref().unwrap_or(&k));
        let (heads, kv_heads) = (q.cols() / head_dim, k.cols() / head_dim);
        let mut arguments = Heads {
            q: q.address(),
            ld_q: q.stride() as i64,
            out_q: out_q.address(),
            ld_out_q: out_q.stride() as i64,
            k: k.address(),
            ld_k: k.stride() as i64,
            out_k: out_k.address(),
            ld_out_k: out_k.stride() as i64,
            txt_weight_q: norm[0].q.address(),
            txt_weight_k: norm[0].k.address(),
            img_weight_q: norm[1].q.address(),
            img_weight_k: norm[1].k.address(),
            cos: cos.address(),
            sin: sin.address(),
            ld_table: cos.stride() as i64,
            txt_eps: norm[0].eps,
            img_eps: norm[1].eps,
            rows: int(layout.rows())?,
            txt_rows: int(layout.txt_rows())?,
            txt: int(layout.txt)?,
            img: int(layout.image_stream())?,
            heads: int(heads)?,
            kv_heads: int(kv_heads)?,
            head_dim: int(head_dim)?,
        };
        let tensors = [&q, &k, out_q, out_k, &norm[0].q, &norm[0].k, &norm[1].q, &norm[1].k, cos, sin];
        let wide = wide_kernel(head_dim, rope.pairs).filter(|_| all_aligned(&tensors));
        let (blocks, mut last) = match wide {
            Some(_) => wide_grid(layout.rows(), heads + kv_heads, head_dim)?,
            // A warp for each head.
            None => {
                let halves = rope.pairs == Pairs::Halves;
                ((layout.rows() * (heads + kv_heads)).div_ceil(THREADS / 32), i32::from(halves))
            }
        };
        let launch = self.launch("qk_norm_rope", wide.unwrap_or("qk_norm_rope_any"))?;
        let blocks = if wide.is_some() { blocks.min(launch.blocks_at_once(THREADS as u32)?) } else { blocks };
        let mut pointers: [*mut c_void; 2] =
            [std::ptr::from_mut(&mut arguments).cast(), std::ptr::from_mut(&mut last).cast()];
        // SAFETY: all kernels of cuda/qk_norm_rope.cu take `Heads`, laid out as there, and an int.
        // `Tensor::qk_norm_rope` checked q and k to have layout.rows() rows of whole heads, the weights to be [1,
        // head_dim] and the tables to have a row for every token; outputs are q and k, or new and of their shapes. A
        // head is read before it is written.
        unsafe { launch.run_raw([blocks, 1, 1], [THREADS, 1, 1], &mut pointers) }?;
        Ok((fresh_q.unwrap_or(q), fresh_k.unwrap_or(k)))
    }
}
