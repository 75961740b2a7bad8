//! `concat_rows`, `concat_cols`, `upsample`, `unpatchify`: putting rows elsewhere. Launches cuda/upsample.cu.

use crate::backend::cuda::launch::row_tiles;
use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;

impl Cuda {
    pub(crate) fn concat_rows_op(&self, parts: &[&Tensor<Cuda>]) -> Result<Tensor<Cuda>> {
        let out = self.empty(parts.iter().map(|part| part.rows()).sum(), parts[0].cols())?;
        let mut row = 0;
        for part in parts {
            let to = out.address() + 2 * (row * out.stride()) as u64;
            self.copy_rows(part.address(), part.stride(), to, out.stride(), part.rows(), part.cols())?;
            row += part.rows();
        }
        Ok(out)
    }

    pub(crate) fn concat_cols_op(&self, parts: &[&Tensor<Cuda>]) -> Result<Tensor<Cuda>> {
        let out = self.empty(parts[0].rows(), parts.iter().map(|part| part.cols()).sum())?;
        let mut column = 0;
        for part in parts {
            let to = out.address() + 2 * column as u64;
            self.copy_rows(part.address(), part.stride(), to, out.stride(), part.rows(), part.cols())?;
            column += part.cols();
        }
        Ok(out)
    }

    pub(crate) fn upsample_op(&self, x: &Tensor<Cuda>, height: usize, width: usize) -> Result<Tensor<Cuda>> {
        let out = self.empty(4 * x.rows(), x.cols())?;
        let wide = all_aligned(&[x, &out]);
        let launch = self.launch("upsample", if wide { "upsample_bf16" } else { "upsample_bf16_any" })?;
        let launch = launch.matrix(x).vector(&out).int(height).int(width).int(x.cols());
        // SAFETY: argument types and order match cuda/upsample.cu; `Tensor::upsample` checked x to have height * width
        // rows; `out` was made dense with four times as many above.
        unsafe { launch.run_rows(x.rows(), x.cols(), wide) }?;
        Ok(out)
    }

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
        let launch = self.launch("upsample", "unpatchify_bf16")?.matrix(latents).vector(mean).vector(std).vector(&out);
        let launch = launch.int(height).int(width).int(channels);
        let (grid, block) = row_tiles(out.rows(), channels);
        // SAFETY: argument types and order match `unpatchify_bf16` in cuda/upsample.cu; `Tensor::unpatchify` checked
        // the shapes, and mean and std came through `upload_f32`; `out` was made dense above.
        unsafe { launch.run(grid, block) }?;
        Ok(out)
    }
}
