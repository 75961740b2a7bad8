//! Launches cuda/exchange.cu: what the ranks of a group give each other. Where GPUs are out of each other's reach, see
//! [`host_exchange`](super::host_exchange).

use std::ffi::c_void;
use std::mem;
use std::ops::Range;

use super::group::{RANKS, Rank};
use super::pieces::{RowChunk, RowCopy};
use super::{Cuda, Tensor};
use crate::backend::Group;
use crate::error::{Error, Result};

/// As in cuda/exchange.cu.
pub(super) const THREADS: usize = 512;
pub(super) const UNROLL: usize = 4;
const COPIES: usize = 64;

/// As in cuda/exchange.cu.
#[repr(C)]
pub(super) struct Barrier {
    flags: [u64; RANKS],
    counters: u64,
    mailbox: u64,
    limit_ns: u64,
    rank: i32,
    world: i32,
    last: i32,
    count: i32,
}

impl Barrier {
    /// A launch with `count` copies; behind the `last` one the ranks are done with each other.
    pub(super) fn new(rank: &Rank, count: usize, last: bool) -> Self {
        let mut flags = [0; RANKS];
        flags.iter_mut().zip(rank.flags()).for_each(|(to, address)| *to = address);
        Self {
            flags,
            counters: rank.counters(),
            mailbox: rank.mailbox(),
            limit_ns: u64::try_from(rank.limit().as_nanos()).unwrap_or(u64::MAX),
            rank: rank.member().rank() as i32,
            world: rank.member().world() as i32,
            last: i32::from(last),
            count: count as i32,
        }
    }
}

/// As `Exchange` in cuda/exchange.cu.
#[repr(C)]
struct Parameters {
    meeting: Barrier,
    copies: [RowCopy; COPIES],
}

/// What is copied where of the pieces that each rank gave, and the result.
pub(super) type Placed<T> = (T, Vec<RowCopy>);

impl Cuda {
    /// Gives each rank the pieces that `sent` has for it, all of them in the order of ranks. `place` says, of the
    /// pieces that each rank gave this one, what is copied where, and what the result is. What was sent may be freed
    /// when this returns, as after any op.
    ///
    /// Errors as [`crate::backend::Group::exchange`], and as `place`, which ends the collectives of all ranks.
    pub(super) fn exchange_pieces<T>(
        &self,
        op: &'static str,
        sent: Vec<Vec<RowChunk>>,
        place: impl FnOnce(&[Vec<RowChunk>]) -> Result<Placed<T>>,
    ) -> Result<T> {
        let rank = self.rank_of_group(op)?;
        let own = |piece: RowChunk| piece.of_rank(rank.member().rank());
        let sent = sent.into_iter().map(|parcel| parcel.into_iter().map(own).collect()).collect();
        let made = match rank.host_link() {
            None => self.exchange_between_gpus(op, rank, sent, place),
            Some(link) => self.exchange_through_host(op, rank, link, sent, place),
        };
        let met = made.and_then(|made| rank.meet_behind(op).map(|()| made));
        // The others are on their way to this exchange.
        met.inspect_err(|cause| rank.member().abort(cause))
    }

    /// Ranks say what they give, then where they want what others give, and each GPU writes to there what is its own:
    /// writing crosses NVLink faster than reading.
    fn exchange_between_gpus<T>(
        &self,
        op: &'static str,
        rank: &Rank,
        sent: Vec<Vec<RowChunk>>,
        place: impl FnOnce(&[Vec<RowChunk>]) -> Result<Placed<T>>,
    ) -> Result<T> {
        let given = rank.member().exchange(op, sent)?;
        let (made, copies) = place(&given)?;
        let mut wanted = vec![Vec::new(); rank.member().world()];
        copies.into_iter().for_each(|copy| wanted[copy.rank()].push(copy));
        let copies = not_empty(rank.member().exchange(op, wanted)?.concat());
        let launches = copies.len().div_ceil(COPIES).max(1);
        let launched = (0..launches).try_for_each(|launch| {
            let some = &copies[launch * COPIES..((launch + 1) * COPIES).min(copies.len())];
            self.launch_copies(rank, some, launch + 1 == launches)
        });
        match launched {
            Ok(()) => Ok(made),
            Err(error) => {
                // Others may write there, and no launch of this rank waits for them.
                mem::forget(made);
                Err(error)
            }
        }
    }

    /// [`Cuda::exchange_pieces`] among some ranks of the group, counted from the first of them; the others have pieces
    /// of their own meanwhile.
    ///
    /// Errors as that.
    pub(super) fn exchange_among<T>(
        &self,
        op: &'static str,
        ranks: Range<usize>,
        sent: Vec<Vec<RowChunk>>,
        place: impl FnOnce(&[Vec<RowChunk>]) -> Result<Placed<T>>,
    ) -> Result<T> {
        let others = |count: usize| std::iter::repeat_n(Vec::new(), count);
        let all = others(ranks.start).chain(sent).chain(others(self.world() - ranks.end)).collect();
        self.exchange_pieces(op, all, |given| place(&given[ranks]))
    }

    fn rank_of_group(&self, op: &str) -> Result<&Rank> {
        self.group_rank().ok_or_else(|| Error::new("a GPU that is in no group has no peers").at(format!("op `{op}`")))
    }

    /// At most COPIES copies, once all ranks have met.
    fn launch_copies(&self, rank: &Rank, copies: &[RowCopy], last: bool) -> Result<()> {
        let mut parameters =
            Parameters { meeting: Barrier::new(rank, copies.len(), last), copies: [RowCopy::default(); COPIES] };
        parameters.copies[..copies.len()].copy_from_slice(copies);
        let units: usize = copies.iter().map(RowCopy::units).sum();
        let blocks = units.div_ceil(THREADS * UNROLL).clamp(1, rank.blocks_at_once());
        let mut arguments = [std::ptr::from_mut(&mut parameters).cast::<c_void>()];
        // SAFETY: the parameters match cuda/exchange.cu. Copies are from pieces of live tensors of this rank, which
        // frees them behind this, to tensors that ranks made for this exchange: they free them behind their own part of
        // it, which ends after this one, or where the group was ended, after the time that this one takes. Counters,
        // flags and mailbox live as long as the group.
        unsafe { self.launch("exchange", "exchange")?.run_raw([blocks, 1, 1], [THREADS, 1, 1], &mut arguments) }
    }

    /// See [`crate::backend::Group::exchange`].
    pub(super) fn exchange_op(&self, op: &'static str, sent: &[Vec<Tensor<Cuda>>]) -> Result<Vec<Vec<Tensor<Cuda>>>> {
        let sent = sent.iter().map(|parcel| parcel.iter().map(RowChunk::of).collect()).collect();
        self.exchange_pieces(op, sent, |given| {
            let mut copies = Vec::new();
            let mut own = |piece: &RowChunk| {
                let [rows, cols] = piece.shape();
                let x = self.empty(rows, cols)?;
                copies.push(piece.copy_to(RowChunk::of(&x)));
                Ok(x)
            };
            let parcels = given.iter().map(|parcel| parcel.iter().map(&mut own).collect::<Result<Vec<_>>>());
            let parcels = parcels.collect::<Result<Vec<_>>>()?;
            Ok((parcels, copies))
        })
    }
}

/// Without those that copy nothing.
pub(super) fn not_empty(mut copies: Vec<RowCopy>) -> Vec<RowCopy> {
    copies.retain(|copy| copy.units() > 0);
    copies
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_fit_what_every_gpu_takes() {
        assert!(size_of::<Parameters>() <= 4096);
        assert_eq!((size_of::<RowCopy>(), size_of::<Barrier>()), (48, 168));
    }
}
