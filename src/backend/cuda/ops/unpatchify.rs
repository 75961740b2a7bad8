//! Launches cuda/unpatchify.cu.

use crate::backend::cuda::launch::row_tiles;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::ops::Patches;

impl Cuda {
    pub(crate) fn unpatchify_op(&self, patches: Patches<'_, Cuda>) -> Result<Tensor<Cuda>> {
        let Patches { x, mean, std, height, width } = patches;
        let channels = x.cols() / 4;
        let out = self.empty(4 * x.rows(), channels)?;
        let launch = self.launch("unpatchify", "unpatchify")?.matrix(x).vector(mean).vector(std).vector(&out);
        let launch = launch.int(height).int(width).int(channels);
        let (grid, block) = row_tiles(out.rows(), channels);
        // SAFETY: argument types and order match cuda/unpatchify.cu; `Tensor::unpatchify` checked the shapes, and mean
        // and std are float32; `out` was made dense above.
        unsafe { launch.run(grid, block) }?;
        Ok(out)
    }
}
