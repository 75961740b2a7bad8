//! Launches cuda/exchange.cu: exchanges between the ranks of a group. For GPUs that can't access each other's memory,
//! see [`host_exchange`](super::host_exchange).

use std::ffi::c_void;
use std::mem;
use std::ops::Range;

use super::group::{RANKS, Rank};
use super::layout::assert_layout;
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

assert_layout! { Barrier: 168, flags: 0, counters: 128, mailbox: 136, limit_ns: 144, rank: 152, world: 156, last: 160,
count: 164 }

impl Barrier {
    /// Parameters of a launch with `count` copies; after the `last` launch the ranks are done with each other.
    pub(super) fn new(rank: &Rank, count: usize, last: bool) -> Self {
        let mut flags = [0; RANKS];
        flags.iter_mut().zip(rank.flags()).for_each(|(to, address)| *to = address);
        Self {
            flags,
            counters: rank.counters(),
            mailbox: rank.mailbox(),
            limit_ns: u64::try_from(rank.limit().as_nanos()).unwrap_or(u64::MAX),
            rank: rank.member.rank() as i32,
            world: rank.member.world() as i32,
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

assert_layout! { Parameters: 3240, meeting: 0, copies: 168 }

/// The result for received pieces, and the copies that fill it.
pub(super) type Placed<T> = (T, Vec<RowCopy>);

impl Cuda {
    /// Sends each rank the pieces that `sent` has for it, in the order of ranks. `place` gets the pieces that each rank
    /// sent to this one, and returns the copies and the result. The caller may free the sent tensors when this returns,
    /// as after any op.
    ///
    /// Errors as [`crate::backend::Group::exchange`], and as `place`, which ends the collectives of all ranks.
    pub(super) fn exchange_pieces<T>(
        &self,
        op: &'static str,
        sent: Vec<Vec<RowChunk>>,
        place: impl FnOnce(&[Vec<RowChunk>]) -> Result<Placed<T>>,
    ) -> Result<T> {
        let rank = self.rank_of_group(op)?;
        let own = |piece: RowChunk| piece.with_rank(rank.member.rank());
        let sent = sent.into_iter().map(|parcel| parcel.into_iter().map(own).collect()).collect();
        let made = match rank.host_link() {
            None => self.exchange_between_gpus(op, rank, sent, place),
            Some(link) => self.exchange_through_host(op, rank, link, sent, place),
        };
        let met = made.and_then(|made| rank.meet_behind(op).map(|()| made));
        // The other ranks are on their way to this exchange.
        met.inspect_err(|cause| rank.member.abort(cause))
    }

    /// Ranks announce the pieces that they send, then the destinations of those that they receive, and each GPU writes
    /// its own pieces there: writing over NVLink is faster than reading.
    fn exchange_between_gpus<T>(
        &self,
        op: &'static str,
        rank: &Rank,
        sent: Vec<Vec<RowChunk>>,
        place: impl FnOnce(&[Vec<RowChunk>]) -> Result<Placed<T>>,
    ) -> Result<T> {
        let given = rank.member.exchange(op, sent)?;
        let (made, copies) = place(&given)?;
        let mut wanted = vec![Vec::new(); rank.member.world()];
        copies.into_iter().for_each(|copy| wanted[copy.rank()].push(copy));
        let copies = not_empty(rank.member.exchange(op, wanted)?.concat());
        let launches = copies.len().div_ceil(COPIES).max(1);
        let launched = (0..launches).try_for_each(|launch| {
            let some = &copies[launch * COPIES..((launch + 1) * COPIES).min(copies.len())];
            self.launch_copies(rank, some, launch + 1 == launches)
        });
        match launched {
            Ok(()) => Ok(made),
            Err(error) => {
                // Other ranks may still write there, and no launch of this rank waits for them.
                mem::forget(made);
                Err(error)
            }
        }
    }

    /// As [`Cuda::exchange_pieces`], among some ranks of the group, counted from the first of them; the other ranks run
    /// an exchange of their own at the same time.
    ///
    /// Errors as [`Cuda::exchange_pieces`].
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
        self.group_rank()
            .ok_or_else(|| Error::new("this GPU is not in a group, so it has no peers").at(format!("op `{op}`")))
    }

    /// Launches at most COPIES copies, once all ranks have met.
    fn launch_copies(&self, rank: &Rank, copies: &[RowCopy], last: bool) -> Result<()> {
        let mut parameters =
            Parameters { meeting: Barrier::new(rank, copies.len(), last), copies: [RowCopy::default(); COPIES] };
        parameters.copies[..copies.len()].copy_from_slice(copies);
        let units: usize = copies.iter().map(RowCopy::units).sum();
        let blocks = units.div_ceil(THREADS * UNROLL).clamp(1, rank.blocks_at_once());
        let mut arguments = [std::ptr::from_mut(&mut parameters).cast::<c_void>()];
        // SAFETY: the parameters match cuda/exchange.cu. Copies are from pieces of live tensors of this rank, which it
        // frees behind this launch, to tensors that ranks allocated for this exchange. Ranks free these behind their
        // own part of the exchange, which ends after this launch, or, if the group was ended, after the time that this
        // launch takes. Counters, flags and mailbox live as long as the group.
        unsafe { self.launch("exchange", "exchange")?.run_raw([blocks, 1, 1], [THREADS, 1, 1], &mut arguments) }
    }

    /// See [`crate::backend::Group::exchange`].
    pub(super) fn exchange_op(&self, op: &'static str, sent: &[Vec<Tensor<Cuda>>]) -> Result<Vec<Vec<Tensor<Cuda>>>> {
        let sent = sent.iter().map(|parcel| parcel.iter().map(RowChunk::new).collect()).collect();
        self.exchange_pieces(op, sent, |given| {
            let mut copies = Vec::new();
            let mut own = |piece: &RowChunk| {
                let [rows, cols] = piece.shape();
                let x = self.empty(rows, cols)?;
                copies.push(piece.copy_to(RowChunk::new(&x)));
                Ok(x)
            };
            let parcels = given.iter().map(|parcel| parcel.iter().map(&mut own).collect::<Result<Vec<_>>>());
            let parcels = parcels.collect::<Result<Vec<_>>>()?;
            Ok((parcels, copies))
        })
    }
}

/// Returns the copies without empty ones.
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
