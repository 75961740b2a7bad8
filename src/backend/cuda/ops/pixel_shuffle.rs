//! Launches cuda/pixel_shuffle.cu.

use crate::backend::cuda::launch::row_tiles;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::ops::PixelShuffle;

impl Cuda {
    pub(crate) fn pixel_shuffle_op(&self, operands: PixelShuffle<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let PixelShuffle { x, base, scale, width } = operands;
        let out = self.empty(x.rows() * scale * scale, x.cols() / (scale * scale))?;
        let launch = self.launch("pixel_shuffle", "pixel_shuffle")?.matrix(x);
        let launch = match base {
            Some(base) => launch.matrix(base),
            None => launch.address(0).long(0),
        };
        let launch = launch.vector(&out).int(out.rows()).int(out.cols()).int(width).int(scale);
        let (grid, block) = row_tiles(out.rows(), out.cols());
        // SAFETY: argument types and order match cuda/pixel_shuffle.cu; `Tensor::pixel_shuffle` checked the shapes;
        // `out` was made dense above.
        unsafe { launch.run(grid, block) }?;
        Ok(out)
    }
}
