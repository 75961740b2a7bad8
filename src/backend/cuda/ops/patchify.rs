//! Launches cuda/patchify.cu.

use crate::backend::cuda::launch::row_tiles;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::ops::Patches;

impl Cuda {
    pub(crate) fn patchify_op(&self, patches: Patches<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let Patches { x, mean, std, height, width } = patches;
        let channels = x.cols();
        let out = self.empty(height * width, 4 * channels)?;
        let launch = self.launch("patchify", "patchify")?.matrix(x).vector(mean).vector(std).vector(&out);
        let launch = launch.int(height).int(width).int(channels);
        let (grid, block) = row_tiles(out.rows(), out.cols());
        // SAFETY: argument types and order match cuda/patchify.cu; `Tensor::patchify` checked the shapes, and mean and
        // std are float32; `out` was made dense above.
        unsafe { launch.run(grid, block) }?;
        Ok(out)
    }
}
