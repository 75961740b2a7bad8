//! Values that the host computed to the device, results back to the host, and rows from one place on the device to
//! another.

use std::collections::VecDeque;
use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{result, sys};
use half::bf16;

use super::device::{Device, Event, Stream, failed};
use super::pool::{Buffer, Kind};
use super::{Cuda, Tensor};
use crate::error::{Error, Result};
use crate::files::{Format, TensorView};

/// Bytes of a slot: 80 us of a PCIe 5 bus, far above the cost of starting a copy.
pub const SLOT_BYTES: usize = 4 << 20;
/// Slots for values that the host computed: as many as an image uploads, so that none waits for another of the same
/// image.
pub const VALUE_SLOTS: usize = 4;
/// Slots for results: the host takes them out of one while the other is filled.
pub const RESULT_SLOTS: usize = 2;
/// The driver takes fewer bytes from any memory at once; for more it waits for the stream.
const SHORT_BYTES: usize = 64 << 10;
/// The smallest page of the host's memory.
const PAGE_BYTES: usize = 4096;

/// Pinned host memory, and the event behind its last use.
pub struct Slot {
    host: *mut u8,
    last_use: Event,
}

// SAFETY: the memory belongs to the slot alone.
unsafe impl Send for Slot {}

impl Slot {
    /// It is free behind what is on `stream` now.
    pub fn new(device: &Arc<Device>, stream: Stream) -> Result<Self> {
        device.bind()?;
        // PORTABLE: readable from all contexts. Not write-combined: threads fill it with ordinary stores.
        // SAFETY: the size is not zero; the memory is freed in `drop`.
        let host = unsafe { result::malloc_host(SLOT_BYTES, sys::CU_MEMHOSTALLOC_PORTABLE) }
            .map_err(|e| failed("cannot pin host memory", e))?;
        Ok(Self { host: host.cast(), last_use: Event::new(device, stream)? })
    }

    /// Its memory, once the device is done with it.
    pub fn bytes(&mut self) -> Result<&mut [u8]> {
        self.last_use.wait()?;
        // SAFETY: `host` points to SLOT_BYTES bytes that live as long as the slot; the driver zeroes new pages, so they
        // are initialised; the last copy from or to them is done.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.host, SLOT_BYTES) })
    }

    /// Its first `len` bytes to device address `to`, which has room for them, by work on `stream`. [`Slot::record`] has
    /// to follow before the slot is used again.
    pub fn copy_to(&self, device: &Device, len: usize, to: u64, stream: Stream) -> Result<()> {
        device.bind()?;
        // SAFETY: `len` is at most SLOT_BYTES, and the caller leaves the slot alone until the event that it records
        // next.
        let host = unsafe { std::slice::from_raw_parts(self.host, len) };
        // SAFETY: as above; `to` has room for `len` bytes.
        unsafe { result::memcpy_htod_async(to, host, stream.raw()) }
            .map_err(|e| failed("cannot copy to the GPU", e))?;
        device.counters().copies.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// `len` bytes from device address `from` to where it begins, by work on `stream`; otherwise as [`Slot::copy_to`].
    pub fn copy_from(&mut self, device: &Device, len: usize, from: u64, stream: Stream) -> Result<()> {
        device.bind()?;
        // SAFETY: `len` is at most SLOT_BYTES, and the caller leaves the slot alone until the event that it records
        // next.
        let host = unsafe { std::slice::from_raw_parts_mut(self.host, len) };
        // SAFETY: as above; the caller's buffer has `len` bytes behind `from`.
        unsafe { result::memcpy_dtoh_async(host, from, stream.raw()) }
            .map_err(|e| failed("cannot copy from the GPU", e))?;
        device.counters().copies.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// What uses it is enqueued on `stream`.
    pub fn record(&self, stream: Stream) -> Result<()> {
        self.last_use.record(stream)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.last_use.wait().is_ok() {
            // SAFETY: allocated by `malloc_host`, freed once, and no copy reads it any more.
            let _ = unsafe { result::free_host(self.host.cast()) };
        }
    }
}

/// Slots for one purpose, the one that was used last at the end.
pub struct Slots {
    slots: Mutex<VecDeque<Slot>>,
    count: usize,
}

impl Slots {
    /// None yet; pinning takes time.
    pub fn new(count: usize) -> Self {
        Self { slots: Mutex::default(), count }
    }

    /// All of them, which are made unless they are there.
    pub fn made(&self, device: &Arc<Device>) -> Result<MutexGuard<'_, VecDeque<Slot>>> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        while slots.len() < self.count {
            slots.push_back(Slot::new(device, device.stream())?);
        }
        Ok(slots)
    }
}

/// An image as bytes on the device.
pub struct Rgb8 {
    /// A byte for every value, and one behind them that tells whether one of them was not a number.
    bytes: Buffer,
    values: usize,
    made: Event,
}

impl Cuda {
    /// Host values as bf16; a vector is padded with zeros to a multiple of 8, as weights are.
    pub(super) fn upload_bf16(&self, values: &[f32], rows: usize, cols: usize) -> Result<Tensor<Cuda>> {
        let padded_cols = if rows == 1 { cols.next_multiple_of(8) } else { cols };
        let buffer = self.upload_rows(Kind::Bf16, rows, padded_cols, |some, out| {
            let values = &values[some.start * cols..some.end * cols];
            out.iter_mut().zip(values).for_each(|(to, value)| *to = bf16::from_f32(*value));
            out[values.len()..].fill(bf16::ZERO);
        })?;
        Ok(Tensor::from_buffer(self, buffer, rows, cols))
    }

    /// Host values as they are.
    pub(super) fn upload_f32_op(&self, values: &[f32], rows: usize, cols: usize) -> Result<Tensor<Cuda>> {
        let buffer = self.upload_rows(Kind::F32, rows, cols, |some, out| {
            out.copy_from_slice(&values[some.start * cols..some.end * cols])
        })?;
        Ok(Tensor::from_buffer(self, buffer, rows, cols))
    }

    /// Rows `ids` of a table in the file, one under the other.
    pub(super) fn embedding_op(&self, table: &TensorView, ids: &[usize]) -> Result<Tensor<Cuda>> {
        let cols = table.cols();
        let buffer = self.upload_rows(Kind::Bf16, ids.len(), cols, |some, out| {
            let ids = &ids[some];
            for (i, &id) in ids.iter().enumerate() {
                if i > 0 && ids[i - 1] == id {
                    // Most of a prompt is padding.
                    out.copy_within((i - 1) * cols..i * cols, i * cols);
                    continue;
                }
                let (row, out) = (table.row_range(id..id + 1), &mut out[i * cols..(i + 1) * cols]);
                match row.format() {
                    Format::Bf16 => bytemuck::cast_slice_mut(out).copy_from_slice(row.bytes()),
                    _ => out.iter_mut().zip(row.to_f32()).for_each(|(to, value)| *to = bf16::from_f32(value)),
                }
            }
        })?;
        Ok(Tensor::from_buffer(self, buffer, ids.len(), cols))
    }

    /// Rows of `cols` values that `write` makes, some rows at a time, where the device reads them. Does not wait for
    /// the work before, unless a row is more than a slot holds.
    fn upload_rows<T: bytemuck::Pod>(
        &self,
        kind: Kind,
        rows: usize,
        cols: usize,
        write: impl Fn(Range<usize>, &mut [T]),
    ) -> Result<Buffer> {
        let device = self.device();
        let buffer = Buffer::new(device, kind, rows * cols)?;
        if device.is_capturing() {
            return Err(Error::new("an upload cannot be captured"));
        }
        let row_bytes = cols * size_of::<T>();
        if rows * row_bytes < SHORT_BYTES || row_bytes > SLOT_BYTES {
            let mut host = vec![T::zeroed(); rows * cols];
            write(0..rows, &mut host);
            if !host.is_empty() {
                // SAFETY: the buffer has room for the values; from pageable memory the driver has taken them when the
                // call returns.
                let copied = unsafe { result::memcpy_htod_async(buffer.address(), &host, device.stream().raw()) };
                copied.map_err(|e| failed("cannot copy to the GPU", e))?;
                device.counters().copies.fetch_add(1, Ordering::Relaxed);
            }
            return Ok(buffer);
        }
        let mut slots = self.0.value_slots.made(device)?;
        let rows_at_once = SLOT_BYTES / row_bytes;
        for first in (0..rows).step_by(rows_at_once) {
            let some = first..(first + rows_at_once).min(rows);
            let bytes = some.len() * row_bytes;
            slots.rotate_left(1);
            let slot = slots.back_mut().expect("`made` makes some");
            write(some, bytemuck::cast_slice_mut(&mut slot.bytes()?[..bytes]));
            slot.copy_to(device, bytes, buffer.address() + (first * row_bytes) as u64, device.stream())?;
            slot.record(device.stream())?;
        }
        Ok(buffer)
    }

    /// Sets one byte to zero, by work on the compute stream.
    pub(super) fn clear_byte(&self, address: u64) -> Result<()> {
        self.device().bind()?;
        // SAFETY: the caller's buffer holds the byte, and lives until it is used behind this on the same stream.
        unsafe { result::memset_d8_async(address, 0, 1, self.device().stream().raw()) }
            .map_err(|e| failed("cannot clear GPU memory", e))
    }

    /// Rows of `cols` values of `T`, row by row from a matrix of any stride. Waits.
    pub(super) fn download_values<T: bytemuck::Pod>(
        &self,
        address: u64,
        rows: usize,
        cols: usize,
        stride: usize,
    ) -> Result<Vec<T>> {
        if stride == cols && rows * cols * size_of::<T>() >= SHORT_BYTES {
            return self.download_dense(address, rows * cols, self.device().stream());
        }
        let device = self.device();
        let mut host = vec![T::zeroed(); rows * cols];
        if !host.is_empty() {
            device.bind()?;
            if stride == cols {
                // SAFETY: the matrix lies in a live buffer; `host` is as long, and waited for below.
                unsafe { result::memcpy_dtoh_async(&mut host, address, device.stream().raw()) }
                    .map_err(|e| failed("cannot copy from the GPU", e))?;
            } else {
                self.copy_to_host(&mut host, address, [rows, cols], stride)?;
            }
            device.counters().copies.fetch_add(1, Ordering::Relaxed);
            // SAFETY: the stream lives as long as the device.
            unsafe { result::stream::synchronize(device.stream().raw()) }.map_err(|e| failed("GPU work failed", e))?;
            device.counters().waits.fetch_add(1, Ordering::Relaxed);
        }
        Ok(host)
    }

    /// `len` values through slots, by copies on `stream`. Waits.
    fn download_dense<T: bytemuck::Pod>(&self, address: u64, len: usize, stream: Stream) -> Result<Vec<T>> {
        let device = self.device();
        let bytes = len * size_of::<T>();
        let part = |index: usize| index * SLOT_BYTES..((index + 1) * SLOT_BYTES).min(bytes);
        let enqueue = |slot: &mut Slot, part: Range<usize>| {
            slot.copy_from(device, part.len(), address + part.start as u64, stream)?;
            slot.record(stream)
        };
        let mut slots = self.0.result_slots.made(device)?;
        let (parts, ahead) = (bytes.div_ceil(SLOT_BYTES), slots.len());
        for (index, slot) in slots.iter_mut().enumerate().take(parts) {
            // Its last copy may have been on another stream.
            slot.bytes()?;
            enqueue(slot, part(index))?;
        }
        let mut host = vec![T::zeroed(); len];
        let host_bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut host);
        // The system gives each page when it is first written, which takes longer than the copy: now, while the device
        // computes.
        host_bytes.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *black_box(byte) = 0);
        for index in 0..parts {
            let slot = &mut slots[index % ahead];
            let part_bytes = part(index).len();
            host_bytes[part(index)].copy_from_slice(&slot.bytes()?[..part_bytes]);
            if index + ahead < parts {
                enqueue(slot, part(index + ahead))?;
            }
        }
        device.counters().waits.fetch_add(1, Ordering::Relaxed);
        Ok(host)
    }

    /// See [`crate::backend::Backend::rgb8`].
    pub(super) fn rgb8_op(&self, x: &Tensor<Cuda>) -> Result<Rgb8> {
        let values = x.rows() * x.cols();
        let bytes = Buffer::new(self.device(), Kind::Byte, values + 1)?;
        self.clear_byte(bytes.address() + values as u64)?;
        let launch = self.launch("transfer", "to_rgb8")?.matrix(x).address(bytes.address()).int(x.rows()).int(x.cols());
        // SAFETY: argument types and order match `to_rgb8` in cuda/transfer.cu; `bytes` has a byte for every cell of x
        // and one behind.
        unsafe { launch.run([values.div_ceil(256).min(1 << 16), 1, 1], [256, 1, 1]) }?;
        Ok(Rgb8 { bytes, values, made: Event::new(self.device(), self.device().stream())? })
    }

    /// See [`crate::backend::Backend::take_rgb8`].
    pub(super) fn take_rgb8_op(&self, Rgb8 { bytes, values, made }: Rgb8) -> Result<Vec<u8>> {
        let stream = self.device().download_stream();
        made.hold(stream)?;
        // All copies are done when this returns, so that `bytes` may go, whose end is ordered by the compute stream
        // alone.
        let mut host = self.download_dense::<u8>(bytes.address(), values + 1, stream).inspect_err(|_| {
            // SAFETY: the stream lives as long as the device. What fails here has failed above.
            let _ = unsafe { result::stream::synchronize(stream.raw()) };
        })?;
        if host.pop() == Some(0) { Ok(host) } else { Err(crate::backend::not_a_number()) }
    }

    fn copy_to_host<T>(&self, host: &mut [T], address: u64, [rows, cols]: [usize; 2], stride: usize) -> Result<()> {
        let width = cols * size_of::<T>();
        let copy = sys::CUDA_MEMCPY2D {
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcDevice: address,
            srcPitch: stride * size_of::<T>(),
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            dstHost: host.as_mut_ptr().cast(),
            dstPitch: width,
            WidthInBytes: width,
            Height: rows,
            ..empty_copy()
        };
        self.copy_2d(&copy)
    }

    /// A copy of bf16 rows on the device.
    pub(super) fn copy_rows(
        &self,
        from: u64,
        from_stride: usize,
        to: u64,
        to_stride: usize,
        rows: usize,
        cols: usize,
    ) -> Result<()> {
        if rows == 0 || cols == 0 {
            return Ok(());
        }
        let device = self.device();
        device.bind()?;
        if rows == 1 || (from_stride == cols && to_stride == cols) {
            // SAFETY: callers pass matrices that lie in live buffers and do not overlap.
            unsafe { result::memcpy_dtod_async(to, from, rows * cols * 2, device.stream().raw()) }
                .map_err(|e| failed("cannot copy on the GPU", e))?;
        } else {
            let copy = sys::CUDA_MEMCPY2D {
                srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
                srcDevice: from,
                srcPitch: from_stride * 2,
                dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
                dstDevice: to,
                dstPitch: to_stride * 2,
                WidthInBytes: cols * 2,
                Height: rows,
                ..empty_copy()
            };
            self.copy_2d(&copy)?;
        }
        device.counters().launches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn copy_2d(&self, copy: &sys::CUDA_MEMCPY2D) -> Result<()> {
        // SAFETY: the callers above filled `copy` with ranges of live buffers; host memory is waited for by
        // `download_values`.
        unsafe { sys::cuMemcpy2DAsync_v2(copy, self.device().stream().raw()) }
            .result()
            .map_err(|e| failed("cannot copy GPU memory", e))
    }
}

fn empty_copy() -> sys::CUDA_MEMCPY2D {
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
