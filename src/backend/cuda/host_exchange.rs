//! Launches `exchange_through_host` of cuda/exchange.cu: exchanges between ranks with GPUs that can't reach each
//! other's memory. Each rank has a [`HostStagingBuffer`](super::host_staging_buffer::HostStagingBuffer) in host memory.
//! Some blocks fill it while others read those of the other ranks, so that both directions of the bus are busy.

use std::ffi::c_void;

use super::Cuda;
use super::exchange::{Barrier, Placed, THREADS, UNROLL, not_empty};
use super::group::{HostLink, RANKS, Rank};
use super::host_staging_buffer::Packed;
use super::layout::assert_layout;
use super::pieces::{RowChunk, RowCopy};
use crate::error::{Error, Result};

/// As in cuda/exchange.cu.
const COPIES: usize = 32;
const WINDOW_BYTES: usize = THREADS * UNROLL * 16;
/// The max number of windows that a writer can count.
const MAX_WINDOWS: usize = u16::MAX as usize;
/// Max writers, and max readers: few blocks saturate the bus.
const MAX_LANES: usize = 32;
/// One in this many concurrent blocks is a writer.
const BLOCKS_OF_A_LANE: usize = 4;

/// As `HostExchange` in cuda/exchange.cu.
#[repr(C)]
struct Parameters {
    meeting: Barrier,
    staging_buffers: [u64; RANKS],
    windows: [u32; RANKS],
    lanes: i32,
    told: i32,
    sent_count: i32,
    padding: i32,
    sent: [RowCopy; COPIES],
    read: [RowCopy; COPIES],
}

assert_layout! { Parameters: 3448, meeting: 0, staging_buffers: 168, windows: 296, lanes: 360, told: 364,
sent_count: 368, padding: 372, sent: 376, read: 1912 }

/// The staging buffers of all ranks.
#[derive(Default)]
struct StagingBuffers {
    addresses: [u64; RANKS],
    /// The number of windows in use.
    windows: [u32; RANKS],
}

/// The copies of one launch.
#[derive(Debug, PartialEq, Eq)]
struct Fragment {
    sent: Vec<RowCopy>,
    /// `true` if all sent pieces are in the staging buffer after this launch.
    told: bool,
    read: Vec<RowCopy>,
    last: bool,
}

/// Splits an exchange into launches. Sends come before reads, because reading ranks wait for the sends of others.
fn parts(sent: &[RowCopy], read: &[RowCopy]) -> Vec<Fragment> {
    let chunks = |copies: &[RowCopy]| -> Vec<Vec<RowCopy>> {
        let chunks: Vec<_> = copies.chunks(COPIES).map(<[RowCopy]>::to_vec).collect();
        if chunks.is_empty() { vec![Vec::new()] } else { chunks }
    };
    let (sent, read) = (chunks(sent), chunks(read));
    // The last launch that sends is the first that reads.
    let (senders, launches) = (sent.len(), sent.len() + read.len() - 1);
    let reads = std::iter::repeat_n(Vec::new(), senders - 1).chain(read);
    let sends = sent.into_iter().chain(std::iter::repeat_with(Vec::new));
    let both = sends.zip(reads).enumerate();
    both.map(|(i, (sent, read))| Fragment { sent, told: i + 1 == senders, read, last: i + 1 == launches }).collect()
}

impl Cuda {
    pub(super) fn exchange_through_host<T>(
        &self,
        op: &'static str,
        rank: &Rank,
        link: &HostLink,
        sent: Vec<Vec<RowChunk>>,
        place: impl FnOnce(&[Vec<RowChunk>]) -> Result<Placed<T>>,
    ) -> Result<T> {
        let own = rank.member.rank();
        let Packed { sent, copies, address, bytes } = link.staging_buffer(own).pack(self.device(), sent, own)?;
        let lanes = (rank.blocks_at_once() / BLOCKS_OF_A_LANE).clamp(1, MAX_LANES);
        let windows = bytes.div_ceil(WINDOW_BYTES);
        if windows.div_ceil(lanes) > MAX_WINDOWS {
            let what = format!("{bytes} bytes are too many for one exchange through host memory");
            return Err(Error::new(what).at(format!("op `{op}`")).hint("request a smaller image"));
        }
        let sent = sent.into_iter().map(|parcel| (address, windows as u32, parcel)).collect();
        let (mut staging_buffers, mut given) = (StagingBuffers::default(), Vec::new());
        for (rank, (address, windows, parcel)) in rank.member.exchange(op, sent)?.into_iter().enumerate() {
            (staging_buffers.addresses[rank], staging_buffers.windows[rank]) = (address, windows);
            given.push(parcel);
        }
        let (made, read) = place(&given)?;
        for part in parts(&not_empty(copies), &not_empty(read)) {
            self.launch_part(rank, &part, &staging_buffers, lanes)?;
        }
        Ok(made)
    }

    fn launch_part(&self, rank: &Rank, part: &Fragment, staging_buffers: &StagingBuffers, lanes: usize) -> Result<()> {
        let Fragment { sent, told, read, last } = part;
        let mut parameters = Parameters {
            meeting: Barrier::new(rank, read.len(), *last),
            staging_buffers: staging_buffers.addresses,
            windows: staging_buffers.windows,
            lanes: lanes as i32,
            told: i32::from(*told),
            sent_count: sent.len() as i32,
            padding: 0,
            sent: [RowCopy::default(); COPIES],
            read: [RowCopy::default(); COPIES],
        };
        parameters.sent[..sent.len()].copy_from_slice(sent);
        parameters.read[..read.len()].copy_from_slice(read);
        let own: usize = read.iter().filter(|copy| copy.rank() == rank.member.rank()).map(RowCopy::units).sum();
        let rest = rank.blocks_at_once().saturating_sub(2 * lanes).max(1);
        let blocks = 2 * lanes + own.div_ceil(THREADS * UNROLL).clamp(1, rest);
        let mut arguments = [std::ptr::from_mut(&mut parameters).cast::<c_void>()];
        let launch = self.launch("exchange", "exchange_through_host")?;
        // SAFETY: the parameters match cuda/exchange.cu. Copies are from pieces of live tensors of this rank, which it
        // frees behind this launch, to its own staging buffer, which is as large; and from staging buffers to tensors
        // of this rank. The exchange before has ended on all ranks, so no staging buffer is read while it is written,
        // unless the group was ended and its results are unused. Counters, flags, mailbox and staging buffers live as
        // long as the group.
        unsafe { launch.run_raw([blocks, 1, 1], [THREADS, 1, 1], &mut arguments) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_fit_what_every_gpu_takes() {
        assert!(size_of::<Parameters>() <= 4096);
        assert_eq!(std::mem::offset_of!(Parameters, sent), 376);
    }

    #[test]
    fn nothing_is_read_in_front_of_the_last_that_is_sent() {
        let copies = |count: u64| -> Vec<RowCopy> {
            let piece = |i: u64| RowChunk::dense(4096 * (i + 1), [1, 8], 2);
            (0..count).map(|i| piece(i).copy_to(piece(i + 1000))).collect()
        };
        for (sent, read, launches) in
            [(0, 0, 1), (1, 0, 1), (0, 5, 1), (32, 32, 1), (33, 32, 2), (32, 65, 3), (70, 40, 4)]
        {
            let (sent, read) = (copies(sent), copies(read));
            let parts = parts(&sent, &read);
            assert_eq!(parts.len(), launches);
            assert_eq!(parts.iter().flat_map(|part| part.sent.clone()).collect::<Vec<_>>(), sent);
            assert_eq!(parts.iter().flat_map(|part| part.read.clone()).collect::<Vec<_>>(), read);
            let told = parts.iter().position(|part| part.told).unwrap();
            assert!(parts[..told].iter().all(|part| part.read.is_empty()));
            assert!(parts[told + 1..].iter().all(|part| part.sent.is_empty() && !part.told));
            assert!(parts.iter().enumerate().all(|(i, part)| part.last == (i + 1 == launches)));
        }
    }
}
