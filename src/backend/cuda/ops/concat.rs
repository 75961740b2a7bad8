//! `concat_rows` and `concat_cols`: the driver copies rows.

use crate::backend::cuda::{Cuda, Tensor};
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
}
