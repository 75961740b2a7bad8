//! Destinations of host bytes on the device.

use cudarc::driver::{result, sys};

use super::device::Stream;
use super::driver::failed;
use crate::error::Result;

/// A destination on the device: contiguous, or rows with a stride.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    address: u64,
    rows: Option<Rows>,
}

/// Rows of `bytes` bytes with a stride of `stride` bytes. The first `skipped` bytes belong to an earlier part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rows {
    bytes: usize,
    stride: usize,
    skipped: usize,
}

/// One copy: `rows` rows of `bytes` bytes, contiguous on the host from byte `from` on.
#[derive(Debug, PartialEq, Eq)]
struct CopyOfRows {
    from: usize,
    to: u64,
    bytes: usize,
    rows: usize,
}

impl Destination {
    /// Returns a contiguous destination.
    pub fn dense(address: u64) -> Self {
        Self { address, rows: None }
    }

    /// Returns rows of `bytes` bytes with a stride of `stride` bytes.
    pub fn rows(address: u64, bytes: usize, stride: usize) -> Self {
        Self { address, rows: Some(Rows { bytes, stride, skipped: 0 }) }
    }

    /// Returns the address of the first row, or of the contiguous run.
    pub fn address(self) -> u64 {
        self.address
    }

    /// Returns the destination after `bytes` bytes.
    pub fn behind(self, bytes: usize) -> Self {
        match self.rows {
            None => Self::dense(self.address + bytes as u64),
            Some(rows) => Self { rows: Some(Rows { skipped: rows.skipped + bytes, ..rows }), ..self },
        }
    }

    /// Returns the copies for `len` bytes: the rest of a row, whole rows, and the beginning of another row.
    fn copies(self, len: usize) -> Vec<CopyOfRows> {
        let Some(Rows { bytes, stride, skipped }) = self.rows else {
            return vec![CopyOfRows { from: 0, to: self.address, bytes: len, rows: 1 }];
        };
        let (mut copies, mut from) = (Vec::new(), 0);
        while from < len {
            let (row, at) = ((skipped + from) / bytes, (skipped + from) % bytes);
            let to = self.address + (row * stride + at) as u64;
            let rest = len - from;
            let copy = match at == 0 && rest >= bytes {
                true => CopyOfRows { from, to, bytes, rows: rest / bytes },
                false => CopyOfRows { from, to, bytes: (bytes - at).min(rest), rows: 1 },
            };
            from += copy.rows * copy.bytes;
            copies.push(copy);
        }
        copies
    }

    /// Copies `host` there, by work on `stream`.
    ///
    /// # Safety
    /// The destination has room in a buffer that lives until work on `stream` is done with it. Until then `host` is
    /// neither written nor freed, unless it is memory that the driver doesn't know, which the driver has read when this
    /// returns.
    pub unsafe fn copy(self, host: &[u8], stream: Stream) -> Result<()> {
        for CopyOfRows { from, to, bytes, rows } in self.copies(host.len()) {
            let host = &host[from..from + rows * bytes];
            let copied = if rows == 1 {
                // SAFETY: as the caller promises.
                unsafe { result::memcpy_htod_async(to, host, stream.raw()) }
            } else {
                let copy = sys::CUDA_MEMCPY2D {
                    srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
                    srcHost: host.as_ptr().cast(),
                    srcPitch: bytes,
                    dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
                    dstDevice: to,
                    dstPitch: self.rows.map_or(bytes, |rows| rows.stride),
                    WidthInBytes: bytes,
                    Height: rows,
                    ..empty_copy()
                };
                // SAFETY: as above; `host` has `rows` rows of `bytes` bytes.
                unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, stream.raw()) }.result()
            };
            copied.map_err(|e| failed("cannot copy to the GPU", e))?;
        }
        Ok(())
    }
}

/// Returns an empty two-dimensional copy, to fill in.
pub fn empty_copy() -> sys::CUDA_MEMCPY2D {
    sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: std::ptr::null(),
        srcDevice: 0,
        srcArray: std::ptr::null_mut(),
        srcPitch: 0,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: 0,
        dstArray: std::ptr::null_mut(),
        dstPitch: 0,
        WidthInBytes: 0,
        Height: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(from: usize, to: u64, bytes: usize, rows: usize) -> CopyOfRows {
        CopyOfRows { from, to, bytes, rows }
    }

    #[test]
    fn bytes_in_one_run_are_one_copy() {
        assert_eq!(Destination::dense(256).behind(10).copies(7), [copy(0, 266, 7, 1)]);
    }

    #[test]
    fn rows_that_lie_apart_are_copied_together_and_what_is_cut_off_by_itself() {
        let rows = Destination::rows(1000, 10, 100);
        assert_eq!(rows.copies(30), [copy(0, 1000, 10, 3)]);
        assert_eq!(rows.copies(4), [copy(0, 1000, 4, 1)]);
        assert_eq!(rows.behind(4).copies(3), [copy(0, 1004, 3, 1)]);
        assert_eq!(rows.behind(4).copies(6), [copy(0, 1004, 6, 1)]);
        let behind = rows.behind(13).behind(4);
        assert_eq!(behind.copies(26), [copy(0, 1107, 3, 1), copy(3, 1200, 10, 2), copy(23, 1400, 3, 1)]);
        assert_eq!(rows.behind(20).copies(10), [copy(0, 1200, 10, 1)]);
        assert_eq!(rows.copies(0), []);
    }

    #[test]
    fn pieces_one_behind_the_other_go_where_the_whole_goes() {
        let (row, stride, len) = (7, 16, 7 * 9);
        let places = |destination: Destination, len: usize| {
            let bytes = |copy: CopyOfRows| {
                (0..copy.rows * copy.bytes)
                    .map(move |i| (copy.from + i, copy.to + (i / copy.bytes * stride + i % copy.bytes) as u64))
            };
            destination.copies(len).into_iter().flat_map(bytes).collect::<Vec<_>>()
        };
        let whole = Destination::rows(64, row, stride);
        let expected: Vec<_> = (0..len).map(|i| (i, 64 + (i / row * stride + i % row) as u64)).collect();
        assert_eq!(places(whole, len), expected);
        for piece in 1..len {
            let of_piece = |start: usize| {
                let places = places(whole.behind(start), piece.min(len - start));
                places.into_iter().map(move |(from, to)| (start + from, to))
            };
            assert_eq!((0..len).step_by(piece).flat_map(of_piece).collect::<Vec<_>>(), expected, "{piece}");
        }
    }
}
