//! Launches cuda/rope.cu.

use crate::backend::cuda::launch::row_tiles;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::{Error, Result};
use crate::ops::{Pairs, Rope, TokenLayout};

impl Cuda {
    pub(crate) fn rope_op(&self, x: Tensor<Cuda>, rope: &Rope<Cuda>, layout: TokenLayout) -> Result<Tensor<Cuda>> {
        let (cos, sin) = self.same_stride(rope)?;
        let fresh = self.unless_writable(&x)?;
        let out = fresh.as_ref().unwrap_or(&x);
        let launch = self.launch("rope", "rope")?.matrix(&x).matrix(out).vector(cos).vector(sin).long(cos.stride());
        let launch =
            launch.int(x.rows()).int(x.cols()).int(layout.txt_rows()).int(layout.txt).int(layout.image_stream());
        let launch = launch.int(rope.cos.cols()).int(usize::from(rope.pairs == Pairs::Halves));
        let (grid, block) = row_tiles(x.rows(), x.cols() / 2);
        // SAFETY: argument types and order match cuda/rope.cu. `Tensor::rope` checked x to have layout.rows() rows of
        // whole heads and the tables a row for every token; `out` is x, or new and of its shape. A thread reads a pair,
        // then writes it.
        unsafe { launch.run(grid, block) }?;
        Ok(fresh.unwrap_or(x))
    }

    /// Returns the tables of cosines and sines, with equal strides as kernels expect.
    pub(super) fn same_stride<'a>(&self, rope: &'a Rope<Cuda>) -> Result<(&'a Tensor<Cuda>, &'a Tensor<Cuda>)> {
        if rope.cos.stride() == rope.sin.stride() {
            Ok((&rope.cos, &rope.sin))
        } else {
            Err(Error::new("the cosine and sine tables have different strides").at("op `rope`"))
        }
    }
}
