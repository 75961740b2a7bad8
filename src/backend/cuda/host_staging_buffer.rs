//! Staging buffers for exchanges between GPUs that can't reach each other's memory: pinned host memory that all of them
//! read.

use std::ffi::c_void;

use cudarc::driver::{result, sys};
use parking_lot::Mutex;

use super::device::Device;
use super::driver::failed;
use super::pieces::{RowChunk, RowCopy};
use crate::error::Result;

/// The alignment of the addresses of pieces.
const ALIGNMENT: usize = 256;
/// The smallest block of memory.
const MIN_BYTES: usize = 1 << 20;

/// Pinned, zeroed host memory at one address on the host and all GPUs. It is freed in `drop`; the owner ensures that no
/// GPU uses it any more, and that a context is current.
pub struct Pinned {
    host: *mut c_void,
    bytes: usize,
}

// SAFETY: it only holds the memory. Readers and writers justify their accesses.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Allocates at least one byte.
    pub fn new(device: &Device, bytes: usize) -> Result<Self> {
        device.make_current()?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the size is not zero; the memory is freed in `drop`.
        let host = unsafe { result::malloc_host(bytes.max(1), flags) };
        Ok(Self { host: host.map_err(|e| failed("cannot pin host memory", e))?, bytes })
    }

    /// Returns the address. Host and devices share one address space in every 64-bit program.
    pub fn address(&self) -> u64 {
        self.host as u64
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn host(&self) -> *mut c_void {
        self.host
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: freed once, when no GPU uses it any more.
        let _ = unsafe { result::free_host(self.host) };
    }
}

/// The staging buffer of a rank. The next exchange overwrites it, after all ranks have read it.
#[derive(Default)]
pub struct HostStagingBuffer {
    /// Each larger than the earlier ones, which captured work may still use.
    blocks: Mutex<Vec<Pinned>>,
}

/// The packed pieces that a rank sends to each other rank.
pub struct Packed {
    /// The addresses from which other ranks read. Pieces for the rank itself stay in their place.
    pub sent: Vec<Vec<RowChunk>>,
    /// The copies into the staging buffer, run by the rank.
    pub copies: Vec<RowCopy>,
    /// The start of the staging buffer, followed by its bytes in use.
    pub address: u64,
    pub bytes: usize,
}

impl HostStagingBuffer {
    /// Packs the pieces that rank `own` sends to each rank into the staging buffer: each piece once, even if several
    /// ranks get it.
    ///
    /// Errors if no more host memory can be pinned.
    pub fn pack(&self, device: &Device, sent: Vec<Vec<RowChunk>>, own: usize) -> Result<Packed> {
        let bytes = place(&sent, own).1;
        Ok(pack(sent, own, self.room(device, bytes)?))
    }

    /// Returns the address of memory for `bytes` bytes.
    fn room(&self, device: &Device, bytes: usize) -> Result<u64> {
        // A panic leaves only complete blocks.
        let mut blocks = self.blocks.lock();
        if let Some(block) = blocks.last().filter(|block| block.bytes() >= bytes) {
            return Ok(block.address());
        }
        let block = Pinned::new(device, bytes.next_power_of_two().max(MIN_BYTES))?;
        let address = block.address();
        blocks.push(block);
        Ok(address)
    }
}

/// Returns each piece that other ranks get, once, with its byte offset; and the total bytes.
fn place(sent: &[Vec<RowChunk>], own: usize) -> (Vec<(RowChunk, usize)>, usize) {
    let (mut places, mut end) = (Vec::<(RowChunk, usize)>::new(), 0);
    let of_others = sent.iter().enumerate().filter(|(to, _)| *to != own).flat_map(|(_, parcel)| parcel);
    for piece in of_others {
        if !places.iter().any(|(placed, _)| placed == piece) {
            places.push((*piece, end));
            end += piece.bytes().next_multiple_of(ALIGNMENT);
        }
    }
    (places, end)
}

fn pack(sent: Vec<Vec<RowChunk>>, own: usize, address: u64) -> Packed {
    let (places, bytes) = place(&sent, own);
    let placed = |piece: &RowChunk| {
        let found = places.iter().find(|(placed, _)| placed == piece);
        found.map_or(*piece, |(_, at)| piece.at(address + *at as u64))
    };
    let to = |(to, parcel): (usize, Vec<RowChunk>)| {
        if to == own { parcel } else { parcel.iter().map(placed).collect() }
    };
    let filled = places.iter().filter(|(piece, _)| piece.bytes() > 0);
    let copies = filled.map(|(piece, at)| piece.copy_to(piece.at(address + *at as u64))).collect();
    Packed { sent: sent.into_iter().enumerate().map(to).collect(), copies, address, bytes }
}

#[cfg(test)]
mod tests {
    use super::super::pieces::on_host::Matrix;
    use super::*;

    #[test]
    fn what_others_get_is_packed_once_and_what_a_rank_keeps_stays() {
        // Rows with a gap, with some columns sent; one matrix for all; an empty piece; and one for the rank itself.
        let (wide, shared) = (Matrix::counting(5, 48, 0), Matrix::counting(3, 7, 1000));
        let (part, all) = (wide.piece().cols(3..27).rows(1..4), shared.piece());
        let nothing = shared.piece().rows(0..0);
        let sent = vec![vec![part, all], vec![all, part], vec![all, nothing], vec![]];
        let (places, bytes) = place(&sent, 1);
        assert_eq!((places.len(), bytes), (3, 2 * ALIGNMENT));
        let staging_buffer = Matrix::zeros(2, ALIGNMENT / 2);
        let packed = pack(sent.clone(), 1, staging_buffer.address());
        assert_eq!((packed.copies.len(), &packed.sent[1]), (2, &sent[1]), "its own parcel is not copied");
        packed.copies.iter().for_each(RowCopy::run_on_host);
        for (to, parcel) in sent.iter().enumerate().filter(|(to, _)| *to != 1) {
            for (from, piece) in parcel.iter().zip(&packed.sent[to]) {
                let [rows, cols] = piece.shape();
                let (was, is) = (Matrix::zeros(rows, cols), Matrix::zeros(rows, cols));
                from.copy_to(was.piece()).run_on_host();
                piece.copy_to(is.piece()).run_on_host();
                assert_eq!(is.values(), was.values(), "to {to}");
            }
        }
    }
}
