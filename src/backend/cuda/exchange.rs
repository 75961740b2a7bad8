//! Launches cuda/exchange.cu: what the ranks of a group give each other.

use std::ffi::c_void;
use std::ops::Range;

use super::group::{RANKS, Rank};
use super::pieces::{Piece, RowCopy};
use super::{Cuda, Tensor};
use crate::backend::Backend;
use crate::error::{Error, Result};

/// As in cuda/exchange.cu.
const THREADS: usize = 512;
const COPIES: usize = 64;
const UNROLL: usize = 4;
/// Blocks where ranks share a GPU: so few that others run beside them while they wait.
const SHARED_GPU_BLOCKS: usize = 4;

/// As `Exchange` in cuda/exchange.cu.
#[repr(C)]
struct Parameters {
    flags: [u64; RANKS],
    counters: u64,
    mailbox: u64,
    limit_ns: u64,
    rank: i32,
    world: i32,
    count: i32,
    last: i32,
    copies: [RowCopy; COPIES],
}

/// Who meets in a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ranks {
    All,
    /// Nobody: it copies and counts as no meeting.
    This,
}

impl Cuda {
    /// Gives each rank the pieces that `sent` has for it, all of them in the order of ranks. `place` says, of the pieces
    /// that each rank gave this one, what is copied where, and what the result is. What was sent may be freed when this
    /// returns, as after any op.
    ///
    /// Errors as [`crate::backend::Backend::exchange`], and as `place`, which ends the collectives of all ranks.
    pub(super) fn exchange_pieces<T>(
        &self,
        op: &'static str,
        sent: Vec<Vec<Piece>>,
        place: impl FnOnce(&[Vec<Piece>]) -> Result<(T, Vec<RowCopy>)>,
    ) -> Result<T> {
        let rank = self.rank_of_group(op)?;
        let given = rank.member().exchange(op, self.readable(rank, sent)?)?;
        let made = place(&given).and_then(|(made, copies)| {
            self.launch_exchange(rank, &copies)?;
            rank.meet_behind(op)?;
            Ok(made)
        });
        // The others are on their way to this exchange.
        made.inspect_err(|cause| rank.member().abort(cause))
    }

    /// What is sent, where the others can read it: copied to memory of the host where that of this GPU is out of reach.
    fn readable(&self, rank: &Rank, sent: Vec<Vec<Piece>>) -> Result<Vec<Vec<Piece>>> {
        let Some(outbox) = rank.outbox() else { return Ok(sent) };
        let packed = outbox.pack(self.device(), sent, rank.member().rank())?;
        for some in packed.copies.chunks(COPIES) {
            self.launch_copies(rank, Ranks::This, some, false)?;
        }
        Ok(packed.sent)
    }

    /// [`Cuda::exchange_pieces`] among some ranks of the group, counted from the first of them; the others have pieces of
    /// their own meanwhile.
    ///
    /// Errors as that.
    pub(super) fn exchange_among<T>(
        &self,
        op: &'static str,
        ranks: Range<usize>,
        sent: Vec<Vec<Piece>>,
        place: impl FnOnce(&[Vec<Piece>]) -> Result<(T, Vec<RowCopy>)>,
    ) -> Result<T> {
        let others = |count: usize| std::iter::repeat_n(Vec::new(), count);
        let all = others(ranks.start).chain(sent).chain(others(self.world() - ranks.end)).collect();
        self.exchange_pieces(op, all, |given| place(&given[ranks]))
    }

    fn rank_of_group(&self, op: &str) -> Result<&Rank> {
        self.group_rank().ok_or_else(|| Error::new("a GPU that is in no group has no peers").at(format!("op `{op}`")))
    }

    fn launch_exchange(&self, rank: &Rank, copies: &[RowCopy]) -> Result<()> {
        let copies: Vec<_> = copies.iter().filter(|copy| copy.units() > 0).copied().collect();
        let launches = copies.len().div_ceil(COPIES).max(1);
        for launch in 0..launches {
            let some = &copies[launch * COPIES..((launch + 1) * COPIES).min(copies.len())];
            self.launch_copies(rank, Ranks::All, some, launch + 1 == launches)?;
        }
        Ok(())
    }

    /// At most COPIES copies, once these ranks have met. They are done with each other behind the `last` ones.
    fn launch_copies(&self, rank: &Rank, ranks: Ranks, copies: &[RowCopy], last: bool) -> Result<()> {
        let (own, world) = match ranks {
            Ranks::All => (rank.member().rank(), rank.member().world()),
            // The first and only one: it tells nobody, and waits for nobody.
            Ranks::This => (0, 1),
        };
        let mut parameters = Parameters {
            flags: [0; RANKS],
            counters: rank.counters(),
            mailbox: rank.mailbox(),
            limit_ns: u64::try_from(rank.limit().as_nanos()).unwrap_or(u64::MAX),
            rank: own as i32,
            world: world as i32,
            count: copies.len() as i32,
            last: i32::from(last),
            copies: [RowCopy::default(); COPIES],
        };
        parameters.flags.iter_mut().zip(rank.flags()).for_each(|(to, address)| *to = address);
        parameters.copies[..copies.len()].copy_from_slice(copies);
        let most_blocks = if rank.shares_gpus() { SHARED_GPU_BLOCKS } else { self.device().multiprocessors() };
        let units: usize = copies.iter().map(RowCopy::units).sum();
        let blocks = units.div_ceil(THREADS * UNROLL).clamp(1, most_blocks);
        let mut arguments = [std::ptr::from_mut(&mut parameters).cast::<c_void>()];
        // SAFETY: the parameters match cuda/exchange.cu. Copies are from pieces of live tensors of ranks, which free them
        // behind their own exchange, which ends after this one has read them, or from outboxes, which are written again
        // behind it; they are to tensors of this rank or to its own outbox. Counters, flags, mailbox and outboxes live as
        // long as the group.
        unsafe { self.launch("exchange", "exchange")?.run_raw([blocks, 1, 1], [THREADS, 1, 1], &mut arguments) }
    }

    /// See [`crate::backend::Backend::exchange`].
    pub(super) fn exchange_op(&self, op: &'static str, sent: &[Vec<Tensor<Cuda>>]) -> Result<Vec<Vec<Tensor<Cuda>>>> {
        let sent = sent.iter().map(|parcel| parcel.iter().map(Piece::of).collect()).collect();
        self.exchange_pieces(op, sent, |given| {
            let mut copies = Vec::new();
            let mut own = |piece: &Piece| {
                let [rows, cols] = piece.shape();
                let x = self.empty(rows, cols)?;
                copies.push(piece.copy_to(Piece::of(&x)));
                Ok(x)
            };
            let parcels = given.iter().map(|parcel| parcel.iter().map(&mut own).collect::<Result<Vec<_>>>());
            let parcels = parcels.collect::<Result<Vec<_>>>()?;
            Ok((parcels, copies))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_fit_what_every_gpu_takes() {
        assert!(size_of::<Parameters>() <= 4096);
        assert_eq!(size_of::<RowCopy>(), 48);
    }
}
