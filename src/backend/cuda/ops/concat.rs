//! `concat_rows` and `concat_cols`: the driver copies rows.

use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;

impl Cuda {
    pub(crate) fn concat_rows_op(&self, parts: &[&Tensor<Cuda>]) -> Result<Tensor<Cuda>> {
        let out = self.empty(parts.iter().map(|part| part.rows()).sum(), parts[0].cols())?;
        let mut row = 0;
        for part in parts {
            self.copy_cells(part, &out.row_view(row..row + part.rows()))?;
            row += part.rows();
        }
        Ok(out)
    }

    pub(crate) fn concat_cols_op(&self, parts: &[&Tensor<Cuda>]) -> Result<Tensor<Cuda>> {
        let out = self.empty(parts[0].rows(), parts.iter().map(|part| part.cols()).sum())?;
        let mut column = 0;
        for part in parts {
            let (from, to) = (part.address(), out.address() + 2 * column as u64);
            // SAFETY: `Tensor::concat_cols` checked that all parts have the same rows, and activations; out has a
            // column for each of theirs.
            unsafe { self.copy_rows(from, part.stride(), to, out.stride(), part.rows(), part.cols()) }?;
            column += part.cols();
        }
        Ok(out)
    }
}
