//! Launches cuda/unpatchify.cu.

use crate::backend::cuda::launch::row_tiles;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;

impl Cuda {
    pub(crate) fn unpatchify_op(
        &self,
        latents: &Tensor<Cuda>,
        mean: &Tensor<Cuda>,
        std: &Tensor<Cuda>,
        height: usize,
        width: usize,
    ) -> Result<Tensor<Cuda>> {
        let channels = latents.cols() / 4;
        let out = self.empty(4 * latents.rows(), channels)?;
        let launch = self.launch("unpatchify", "unpatchify")?.matrix(latents).vector(mean).vector(std).vector(&out);
        let launch = launch.int(height).int(width).int(channels);
        let (grid, block) = row_tiles(out.rows(), channels);
        // SAFETY: argument types and order match cuda/unpatchify.cu; `Tensor::unpatchify` checked the shapes, and mean
        // and std are float32; `out` was made dense above.
        unsafe { launch.run(grid, block) }?;
        Ok(out)
    }
}
