//! `broadcast`: sends the tensor of the first rank to all others.

use crate::backend::Group;
use crate::backend::cuda::pieces::RowChunk;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::ops::all_to_all::expect_parcel;

impl Cuda {
    pub(crate) fn broadcast_op(&self, x: Option<Tensor<Cuda>>, [rows, cols]: [usize; 2]) -> Result<Tensor<Cuda>> {
        const OP: &str = "broadcast";
        let sent = x.as_ref().map(RowChunk::new).into_iter().collect();
        let out = if x.is_some() { None } else { Some(self.empty(rows, cols)?) };
        let copied = self.exchange_pieces(OP, vec![sent; self.world()], |given| {
            let shape = given[0].first().map_or([0, 0], RowChunk::shape);
            expect_parcel(OP, 0, shape, [rows, cols])?;
            let copy = given[0].first().zip(out.as_ref()).map(|(piece, out)| piece.copy_to(RowChunk::new(out)));
            Ok((out, copy.into_iter().collect()))
        })?;
        Ok(copied.or(x).expect("rank 0 has x, and the others have a place for it"))
    }
}
