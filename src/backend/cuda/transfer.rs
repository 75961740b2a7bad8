//! Values that the host computed to the device, results back to the host, and rows from one place on the device to another.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{result, sys};
use half::bf16;

use super::device::{Device, Mark, Stream, failed};
use super::pool::{Buffer, Kind};
use super::{Cuda, Tensor};
use crate::error::{Error, Result};
use crate::weights::WeightView;

/// Bytes of a slot: 80 us of a PCIe 5 bus, far above the cost of starting a copy.
pub const SLOT_BYTES: usize = 4 << 20;
/// Slots for values that the host computed: as many as a picture uploads, so that none waits for another of the same picture.
const VALUE_SLOTS: usize = 4;
/// The driver takes fewer bytes from any memory at once; for more it waits for the stream.
const SHORT_BYTES: usize = 64 << 10;

/// Pinned host memory, and the mark behind its last use.
pub struct Slot {
    host: *mut u8,
    last_use: Mark,
}

// SAFETY: the memory belongs to the slot alone.
unsafe impl Send for Slot {}

impl Slot {
    /// Its copies are to be enqueued on `stream`.
    pub fn new(device: &Arc<Device>, stream: Stream) -> Result<Self> {
        device.bind()?;
        // PORTABLE: readable from all contexts. Not write-combined: threads fill it with ordinary stores.
        // SAFETY: the size is not zero; the memory is freed in `drop`.
        let host = unsafe { result::malloc_host(SLOT_BYTES, sys::CU_MEMHOSTALLOC_PORTABLE) }.map_err(|e| failed("cannot pin host memory", e))?;
        Ok(Self { host: host.cast(), last_use: Mark::new(device, stream)? })
    }

    /// Its memory, once the device has read what was in it.
    pub fn bytes(&mut self) -> Result<&mut [u8]> {
        self.last_use.wait()?;
        // SAFETY: `host` points to SLOT_BYTES bytes that live as long as the slot; the driver zeroes new pages, so they are initialised;
        // the last copy from them is done.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.host, SLOT_BYTES) })
    }

    /// Its first `len` bytes to device address `to`, which has room for them, by work on `stream`. [`Slot::record`] has to follow before
    /// the slot is used again.
    pub fn copy_to(&self, device: &Device, len: usize, to: u64, stream: Stream) -> Result<()> {
        device.bind()?;
        // SAFETY: `len` is at most SLOT_BYTES, and the caller leaves the slot alone until the mark that it records next.
        let host = unsafe { std::slice::from_raw_parts(self.host, len) };
        // SAFETY: as above; `to` has room for `len` bytes.
        unsafe { result::memcpy_htod_async(to, host, stream.raw()) }.map_err(|e| failed("cannot copy to the GPU", e))?;
        device.counters().copies.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// What reads it is enqueued on `stream`.
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

/// Slots for values that the host computed, the one that was used last at the end.
#[derive(Default)]
pub struct ValueSlots(Mutex<VecDeque<Slot>>);

impl ValueSlots {
    /// The slots, which are made unless they are there.
    pub fn made(&self, device: &Arc<Device>) -> Result<MutexGuard<'_, VecDeque<Slot>>> {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while slots.len() < VALUE_SLOTS {
            slots.push_back(Slot::new(device, device.stream())?);
        }
        Ok(slots)
    }
}

impl Cuda {
    /// Host values as bf16; a vector is padded with zeros to a multiple of 8, as weights are.
    pub(super) fn upload_bf16(&self, values: &[f32], rows: usize, cols: usize) -> Result<Tensor<Cuda>> {
        let padded = if rows == 1 { cols.next_multiple_of(8) } else { values.len() };
        let mut host: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
        host.resize(padded, bf16::ZERO);
        let buffer = self.upload_values(Kind::Bf16, &host)?;
        Ok(Tensor::from_buffer(self, buffer, rows, cols))
    }

    /// Rows `ids` of a table in the file, one under the other.
    pub(super) fn embedding_op(&self, table: &WeightView, ids: &[usize]) -> Result<Tensor<Cuda>> {
        let mut host: Vec<bf16> = Vec::with_capacity(ids.len() * table.cols());
        for (i, &id) in ids.iter().enumerate() {
            if i > 0 && ids[i - 1] == id {
                // Most of a prompt is padding.
                host.extend_from_within((i - 1) * table.cols()..);
            } else {
                host.extend(table.row_range(id..id + 1).to_f32().into_iter().map(bf16::from_f32));
            }
        }
        let buffer = self.upload_values(Kind::Bf16, &host)?;
        Ok(Tensor::from_buffer(self, buffer, ids.len(), table.cols()))
    }

    /// Host values as they are. Does not wait for the work before, unless they are more than a slot holds.
    pub(super) fn upload_values<T: bytemuck::Pod>(&self, kind: Kind, values: &[T]) -> Result<Buffer> {
        let device = self.device();
        let buffer = Buffer::new(device, kind, values.len())?;
        if device.is_recording() {
            return Err(Error::new("an upload cannot be recorded"));
        }
        let bytes: &[u8] = bytemuck::cast_slice(values);
        if (SHORT_BYTES..=SLOT_BYTES).contains(&bytes.len()) {
            let mut value_slots = self.0.value_slots.made(device)?;
            value_slots.rotate_left(1);
            let slot = value_slots.back_mut().expect("`made` makes some");
            slot.bytes()?[..bytes.len()].copy_from_slice(bytes);
            slot.copy_to(device, bytes.len(), buffer.address(), device.stream())?;
            slot.record(device.stream())?;
        } else if !values.is_empty() {
            // SAFETY: the buffer has room for the values; from pageable memory the driver has taken them when the call returns.
            unsafe { result::memcpy_htod_async(buffer.address(), values, device.stream().raw()) }.map_err(|e| failed("cannot copy to the GPU", e))?;
            device.counters().copies.fetch_add(1, Ordering::Relaxed);
        }
        Ok(buffer)
    }

    /// Sets one byte to zero, by work on the compute stream.
    pub(super) fn clear_byte(&self, address: u64) -> Result<()> {
        self.device().bind()?;
        // SAFETY: the caller's buffer holds the byte, and lives until it is used behind this on the same stream.
        unsafe { result::memset_d8_async(address, 0, 1, self.device().stream().raw()) }.map_err(|e| failed("cannot clear GPU memory", e))
    }

    /// Rows of `cols` values of `T`, row by row from a matrix of any stride. Waits.
    pub(super) fn download_values<T: Copy + Default>(&self, address: u64, rows: usize, cols: usize, stride: usize) -> Result<Vec<T>> {
        let device = self.device();
        let mut host = vec![T::default(); rows * cols];
        if !host.is_empty() {
            device.bind()?;
            if stride == cols {
                // SAFETY: the matrix lies in a live buffer; `host` is as long, and waited for below.
                unsafe { result::memcpy_dtoh_async(&mut host, address, device.stream().raw()) }.map_err(|e| failed("cannot copy from the GPU", e))?;
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
    pub(super) fn copy_rows(&self, from: u64, from_stride: usize, to: u64, to_stride: usize, rows: usize, cols: usize) -> Result<()> {
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
        // SAFETY: the callers above filled `copy` with ranges of live buffers; host memory is waited for by `download_values`.
        unsafe { sys::cuMemcpy2DAsync_v2(copy, self.device().stream().raw()) }.result().map_err(|e| failed("cannot copy GPU memory", e))
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
