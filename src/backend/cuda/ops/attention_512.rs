//! Launches cuda/attention_512_sm90a.cu: the attention of the VAE, on Hopper.

use std::ffi::c_void;

use super::attention_hopper::{CHOICE, apart, tensor_map};
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::ops::{Mask, TokenLayout};

/// `HEAD_DIM`, `QUERIES`, `KEYS`, `VALUES`, `STAGES` and the shared memory of cuda/attention_512_sm90a.cu: Q, four
/// chunks of keys and of values, the weights of two tiles, and up to 1024 bytes of floats and barriers.
const HEAD_DIM: usize = 512;
const QUERIES: usize = 64;
const KEYS: usize = 128;
const VALUES: usize = 32;
const STAGES: usize = 4;
pub(super) const SHARED_BYTES: usize = (QUERIES * HEAD_DIM + 2 * STAGES * KEYS * 64 + 2 * QUERIES * KEYS) * 2 + 1024;
const THREADS: usize = 512;

/// Returns `true` if the kernel supports a call with aligned rows: no mask, and the tokens of a sample are contiguous
/// rows, as are its queries.
pub(super) fn suits_512(head_dim: usize, layout: TokenLayout, mask: Mask) -> bool {
    let in_runs = !apart(layout) && (layout.batch == 1 || layout.first_query() == 0);
    head_dim == HEAD_DIM && mask == Mask::None && in_runs && layout.query_rows() > 0
}

impl Cuda {
    /// Computes `softmax(q k^T / sqrt(512)) v`; overwrites q if it is writable. The call must pass [`suits_512`], and
    /// its rows must be aligned.
    pub(super) fn attention_512(
        &self,
        q: Tensor<Cuda>,
        k: &Tensor<Cuda>,
        v: &Tensor<Cuda>,
        layout: TokenLayout,
        single: bool,
    ) -> Result<Tensor<Cuda>> {
        let fresh = self.unless_writable(&q)?;
        let out = fresh.as_ref().unwrap_or(&q);
        let (kernel, blocks) =
            if single { ("attention_bf16_512_sm90", 1) } else { ("attention_bf16_512_pairs_sm90", 2) };
        // Load first: a driver that loads this kernel supports tensor maps too.
        let launch = self.launch("attention_512_sm90a", kernel)?.shared(SHARED_BYTES as u32)?;
        let mut maps = [tensor_map(&q, QUERIES)?, tensor_map(k, KEYS / blocks)?, tensor_map(v, VALUES)?];
        let mut out_address = out.address();
        // The kernel counts rows in ints.
        CHOICE.int(layout.rows().next_multiple_of(KEYS))?;
        let queries = layout.tokens() - layout.first_query();
        let ints = [out.stride(), layout.tokens(), queries, q.cols() / k.cols()];
        let mut ints = ints.into_iter().map(|value| CHOICE.int(value)).collect::<Result<Vec<i32>>>()?;
        let mut scale = (std::f64::consts::LOG2_E / (HEAD_DIM as f64).sqrt()) as f32;
        let mut arguments: Vec<*mut c_void> = maps.iter_mut().map(|map| std::ptr::from_mut(map).cast()).collect();
        arguments.push(std::ptr::from_mut(&mut out_address).cast());
        arguments.extend(ints.iter_mut().map(|int| std::ptr::from_mut(int).cast::<c_void>()));
        arguments.push(std::ptr::from_mut(&mut scale).cast());
        let tiles = queries.div_ceil(QUERIES).next_multiple_of(blocks);
        // SAFETY: `arguments` are, in the order of `ATTENTION_512` in cuda/attention_512_sm90a.cu, three tensor maps, a
        // pointer, four ints and a float, all alive until the call returns; the shared memory is its `Shared`. The maps
        // cover exactly the cells of q, k and v. `Tensor::attention` checked their shapes, and the caller that a
        // sample's tokens are one run of rows, as are its queries; `out` is q, or new and of its shape. A block reads
        // its queries before it writes them, and no output depends on other cells of q that it reads. Pairs have an
        // even number of blocks in each row of the grid.
        unsafe { launch.run_raw([tiles, q.cols() / HEAD_DIM, layout.batch], [THREADS, 1, 1], &mut arguments) }?;
        Ok(fresh.unwrap_or(q))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shared_memory_is_there_on_hopper() {
        const { assert!(SHARED_BYTES <= 227 << 10) };
    }

    #[test]
    fn samples_and_queries_in_one_run_without_a_mask_suit() {
        let none = |layout| suits_512(512, layout, Mask::None);
        assert!(none(TokenLayout::single(1)) && none(TokenLayout::new(2, 0, 300)) && none(TokenLayout::new(1, 5, 60)));
        assert!(none(TokenLayout::new(1, 5, 60).image_queries()) && none(TokenLayout::new(2, 0, 60).image_queries()));
        assert!(!none(TokenLayout::new(2, 5, 60)) && !none(TokenLayout::new(2, 5, 60).image_queries()));
        assert!(!none(TokenLayout::single(0)) && !none(TokenLayout::new(1, 5, 0).image_queries()));
        assert!(!suits_512(512, TokenLayout::single(9), Mask::Causal { keys: 9 }));
        assert!(!suits_512(256, TokenLayout::single(9), Mask::None));
    }
}
