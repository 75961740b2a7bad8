//! `all_gather_rows`: gathers the rows of all ranks in one tensor.

use super::all_to_all::gathered;
use crate::backend::cuda::pieces::RowChunk;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::ops::RowSplit;

impl Cuda {
    pub(crate) fn all_gather_rows_op(&self, x: &Tensor<Cuda>, rows: &RowSplit) -> Result<Tensor<Cuda>> {
        const OP: &str = "all_gather_rows";
        let whole = self.empty(rows.rows(), x.cols())?;
        self.exchange_among(OP, rows.ranks(), vec![vec![RowChunk::new(x)]; rows.world()], |given| {
            let copies = gathered(OP, *rows, |rank| given[rank].first().copied(), RowChunk::new(&whole))?;
            Ok((whole, copies))
        })
    }
}
