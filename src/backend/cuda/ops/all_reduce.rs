//! `all_reduce_statistics`: gathers the statistics of all splits of all ranks, which norms merge in order.

use crate::backend::Group;
use crate::backend::cuda::channel_statistics::ChannelStatistics;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::ops::all_to_all::expect_parcel;

impl Cuda {
    pub(crate) fn all_reduce_statistics_op(
        &self,
        x: &Tensor<Cuda>,
        own: Option<&ChannelStatistics>,
    ) -> Result<ChannelStatistics> {
        const OP: &str = "all_reduce_statistics";
        let fresh = match own {
            Some(_) => None,
            None if x.rows() == 0 => Some(ChannelStatistics::new(self, 0, x.cols())?),
            None => Some(self.channel_statistics_of(x)?),
        };
        let own = fresh.as_ref().or(own).expect("statistics were passed or computed");
        let pieces = own.pieces();
        self.exchange_pieces(OP, vec![pieces.to_vec(); self.world()], |given| {
            let splits = given.iter().map(|parcel| parcel.first().map_or(0, |partial| partial.shape()[0]));
            let all = ChannelStatistics::new(self, splits.sum(), own.channels())?;
            let (mut copies, mut first) = (Vec::new(), 0);
            for (rank, parcel) in given.iter().enumerate() {
                let splits = parcel.first().map_or(0, |partial| partial.shape()[0]);
                for (from, to) in parcel.iter().zip(all.pieces()) {
                    expect_parcel(OP, rank, from.shape(), [splits, to.shape()[1]])?;
                    copies.push(from.copy_to(to.rows(first..first + splits)));
                }
                first += splits;
            }
            Ok((all, copies))
        })
    }
}
