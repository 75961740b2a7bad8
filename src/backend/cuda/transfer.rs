//! Values between host and device.
//!
//! Weights go from the mapped file through pinned slots: a few threads copy slices into slots of their own, and the copy engine takes
//! them from there, so that reading the file and the bus overlap. Weights that are not bf16 are converted on the device.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{result, sys};
use half::bf16;

use super::device::{Device, Mark, Stream, failed};
use super::pool::{Buffer, Kind};
use super::quantise::{MULTIPLE, e4m3_block};
use super::{Cuda, Tensor};
use crate::error::{Error, Result};
use crate::weights::{Dtype, WeightView};

/// Bytes of a slot: 80 us of a PCIe 5 bus, far above the cost of starting a copy.
const SLOT_BYTES: usize = 4 << 20;
/// A thread fills one slot while the other goes up.
const SLOTS_PER_THREAD: usize = 2;
/// One thread reads a warm page cache at 10 GB/s at most; eight come near to the bus.
const MOST_THREADS: usize = 8;
/// Below this, starting threads costs more than they gain.
const THREADED_BYTES: usize = 4 * SLOT_BYTES;

/// Pinned host memory, and the mark behind its last use.
struct Slot {
    host: *mut u8,
    last_use: Mark,
    /// Device memory of the same size, for values that are converted there.
    staging: Option<Buffer>,
}

// SAFETY: the memory belongs to the slot alone.
unsafe impl Send for Slot {}

impl Slot {
    fn new(device: &Arc<Device>) -> Result<Self> {
        device.bind()?;
        // PORTABLE: readable from all contexts. Not write-combined: threads fill it with ordinary stores.
        // SAFETY: the size is not zero; the memory is freed in `drop`.
        let host = unsafe { result::malloc_host(SLOT_BYTES, sys::CU_MEMHOSTALLOC_PORTABLE) }.map_err(|e| failed("cannot pin host memory", e))?;
        Ok(Self { host: host.cast(), last_use: Mark::new(device, device.upload_stream())?, staging: None })
    }

    /// Its memory, once the device has read what was in it.
    fn bytes(&mut self) -> Result<&mut [u8]> {
        self.last_use.wait()?;
        // SAFETY: `host` points to SLOT_BYTES bytes that live as long as the slot; the driver zeroes new pages, so they are initialised;
        // the last copy from them is done.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.host, SLOT_BYTES) })
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

/// The slots; made when the first weight comes.
#[derive(Default)]
pub struct Uploader {
    slots: Mutex<Vec<Slot>>,
}

impl Uploader {
    /// A weight matrix of the parts' rows, one part under the other; rows and columns padded with zeros to multiples of 8, so that
    /// cuBLASLt's fast kernels fit every size.
    pub fn weight(&self, device: &Arc<Device>, parts: &[WeightView]) -> Result<(Buffer, [usize; 2], usize)> {
        let cols = parts[0].cols();
        let rows = parts.iter().map(WeightView::rows).sum::<usize>();
        let stride = cols.next_multiple_of(8);
        self.matrix(device, rows, cols, stride, |buffer, temporaries| {
            let mut row = 0;
            for part in parts {
                let to = buffer.address() + (row * stride * 2) as u64;
                if stride == cols {
                    self.copy(device, part, to)?;
                } else {
                    let dense = Buffer::on_stream(device, device.upload_stream(), Kind::Bf16, part.elements())?;
                    self.copy(device, part, dense.address())?;
                    place(device, dense.address(), to, [part.rows(), cols, 1], part.rows(), stride)?;
                    temporaries.push(dense);
                }
                row += part.rows();
            }
            Ok(())
        })
    }

    /// As [`Uploader::weight`], in e4m3 with a scale for each row; padded to multiples of [`MULTIPLE`]. The bf16 copy is freed behind the
    /// kernel that reads it.
    pub fn narrow_weight(&self, device: &Arc<Device>, parts: &[WeightView]) -> Result<(Buffer, [usize; 2], usize)> {
        let (copy, [rows, cols], copy_stride) = self.weight(device, parts)?;
        let (padded_rows, stride) = (rows.next_multiple_of(MULTIPLE), cols.next_multiple_of(MULTIPLE));
        let upload_stream = device.upload_stream();
        let buffer = Buffer::e4m3(device, upload_stream, padded_rows, stride)?;
        let block = e4m3_block(cols).filter(|_| cols.is_multiple_of(8));
        let launched = device.launch("quantise", if block.is_some() { "quantise_bf16" } else { "quantise_bf16_any" }).and_then(|launch| {
            let launch = launch.on(upload_stream).address(copy.address()).long(copy_stride);
            let launch = launch.address(buffer.address()).long(stride).address(buffer.scales()).int(rows).int(cols);
            // SAFETY: argument types and order match the kernels in cuda/quantise.cu. `copy` has `rows` rows of `cols` values, aligned to 16
            // bytes; `buffer` has room for the row and the scale of every block. Both come before this on the upload stream.
            unsafe { launch.run([padded_rows, 1, 1], [block.unwrap_or(256), 1, 1]) }
        });
        // As in `matrix`: `copy` is freed on the compute stream.
        device.join_uploads()?;
        launched?;
        Ok((buffer, [rows, cols], stride))
    }

    /// A convolution weight [out, in, k, k] as [out, k * k * in], columns ordered (ky, kx, in), padded as in [`Uploader::weight`].
    pub fn conv_weight(&self, device: &Arc<Device>, view: &WeightView) -> Result<(Buffer, [usize; 2], usize)> {
        let &[rows, channels, height, width] = view.shape() else {
            return Err(Error::new(format!("a convolution weight has 4 axes, not {:?}", view.shape())));
        };
        let (cols, taps) = (channels * height * width, height * width);
        let stride = cols.next_multiple_of(8);
        self.matrix(device, rows, cols, stride, |buffer, temporaries| {
            let dense = Buffer::on_stream(device, device.upload_stream(), Kind::Bf16, view.elements())?;
            self.copy(device, view, dense.address())?;
            place(device, dense.address(), buffer.address(), [rows, channels, taps], rows, stride)?;
            temporaries.push(dense);
            Ok(())
        })
    }

    /// A padded matrix that `fill` writes by work on the upload stream. Memory that such work needs goes to `temporaries`.
    fn matrix(
        &self,
        device: &Arc<Device>,
        rows: usize,
        cols: usize,
        stride: usize,
        fill: impl FnOnce(&Buffer, &mut Vec<Buffer>) -> Result<()>,
    ) -> Result<(Buffer, [usize; 2], usize)> {
        let padded_rows = rows.next_multiple_of(8);
        let stream = device.upload_stream();
        let mut buffer = Buffer::on_stream(device, stream, Kind::Bf16, padded_rows * stride)?;
        let mut temporaries = Vec::new();
        let filled = fill(&buffer, &mut temporaries).and_then(|()| {
            if padded_rows == rows {
                return Ok(());
            }
            let tail = buffer.address() + (rows * stride * 2) as u64;
            // SAFETY: the buffer ends `padded_rows - rows` rows behind `tail`.
            unsafe { result::memset_d8_async(tail, 0, (padded_rows - rows) * stride * 2, stream.raw()) }
                .map_err(|e| failed("cannot clear GPU memory", e))
        });
        // Buffers are freed on the compute stream, which must be behind the uploads then, also after an error.
        device.join_uploads()?;
        filled?;
        buffer.mark_zero_padded();
        Ok((buffer, [rows, cols], stride))
    }

    /// The values of `view` as bf16, dense, to device address `to`; by work on the upload stream.
    fn copy(&self, device: &Arc<Device>, view: &WeightView, to: u64) -> Result<()> {
        let bytes = view.bytes();
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let threads = if bytes.len() < THREADED_BYTES { 1 } else { std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS) };
        while slots.len() < threads * SLOTS_PER_THREAD {
            slots.push(Slot::new(device)?);
        }
        let copied = if threads == 1 {
            copy_slices(device, view.dtype(), bytes, to, &mut slots[..SLOTS_PER_THREAD], 0, 1)
        } else {
            std::thread::scope(|scope| {
                let workers: Vec<_> = slots
                    .chunks_mut(SLOTS_PER_THREAD)
                    .take(threads)
                    .enumerate()
                    .map(|(thread, own)| scope.spawn(move || copy_slices(device, view.dtype(), bytes, to, own, thread, threads)))
                    .collect();
                let joined =
                    workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| Err(Error::new("a thread that loads weights panicked"))));
                joined.collect::<Result<Vec<()>>>().map(drop)
            })
        };
        if slots.iter().any(|slot| slot.staging.is_some()) {
            device.join_uploads()?;
            slots.iter_mut().for_each(|slot| slot.staging = None);
        }
        copied
    }
}

/// Every `threads`-th slice of `bytes` from `thread` on, through `slots` in turn.
fn copy_slices(device: &Arc<Device>, dtype: Dtype, bytes: &[u8], to: u64, slots: &mut [Slot], thread: usize, threads: usize) -> Result<()> {
    let stream = device.upload_stream();
    let own = bytes.chunks(SLOT_BYTES).enumerate().skip(thread).step_by(threads);
    for (turn, (index, slice)) in own.enumerate() {
        let slot = &mut slots[turn % SLOTS_PER_THREAD];
        slot.bytes()?[..slice.len()].copy_from_slice(slice);
        let first = index * (SLOT_BYTES / dtype.size());
        let values = slice.len() / dtype.size();
        let to = to + 2 * first as u64;
        if dtype == Dtype::Bf16 {
            copy_from_slot(device, slot, slice.len(), to, stream)?;
        } else {
            if slot.staging.is_none() {
                slot.staging = Some(Buffer::on_stream(device, stream, Kind::Byte, SLOT_BYTES)?);
            }
            let staging = slot.staging.as_ref().expect("set above").address();
            copy_from_slot(device, slot, slice.len(), staging, stream)?;
            let kernel = if dtype == Dtype::F32 { "f32_to_bf16" } else { "f16_to_bf16" };
            let launch = device.launch("transfer", kernel)?.on(stream).address(staging).address(to).long(values);
            // SAFETY: types and order match cuda/transfer.cu; `staging` holds `values` values, and the weight's memory has room for
            // as many at `to`, because slices follow each other as in the file.
            unsafe { launch.run([values.div_ceil(256).min(4096), 1, 1], [256, 1, 1]) }?;
        }
        slot.last_use.record(stream)?;
    }
    Ok(())
}

fn copy_from_slot(device: &Device, slot: &Slot, len: usize, to: u64, stream: Stream) -> Result<()> {
    device.bind()?;
    // SAFETY: `len` is at most SLOT_BYTES, and the caller leaves the slot alone until the mark that it records next.
    let host = unsafe { std::slice::from_raw_parts(slot.host, len) };
    // SAFETY: as above; `to` has room for `len` bytes.
    unsafe { result::memcpy_htod_async(to, host, stream.raw()) }.map_err(|e| failed("cannot copy weights to the GPU", e))?;
    device.counters().copies.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// `from` [rows, channels, taps] to `to` [to_rows, stride], columns ordered (tap, channel), zeros elsewhere; on the upload stream.
fn place(device: &Device, from: u64, to: u64, [rows, channels, taps]: [usize; 3], to_rows: usize, stride: usize) -> Result<()> {
    let launch = device
        .launch("transfer", "place_weight")?
        .on(device.upload_stream())
        .address(from)
        .address(to)
        .int(rows)
        .int(channels)
        .int(taps)
        .int(to_rows)
        .long(stride);
    // SAFETY: types and order match `place_weight` in cuda/transfer.cu; `from` holds rows * channels * taps values, `to` has to_rows * stride.
    unsafe { launch.run([(to_rows * stride).div_ceil(256).min(1 << 16), 1, 1], [256, 1, 1]) }
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

    /// Host values as they are.
    pub(super) fn upload_values<T: Copy>(&self, kind: Kind, values: &[T]) -> Result<Buffer> {
        let device = self.device();
        let buffer = Buffer::new(device, kind, values.len())?;
        if !values.is_empty() {
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
