//! Values between host and device.
//!
//! A few threads take the weights piece by piece, in the order of use, and the copy engine reads them from the mapped file, which
//! [`regions`](super::regions) registers. Where it cannot be registered, and for weights that are not bf16 and are converted on the
//! device, a thread copies slices into pinned slots of its own, and the copy engine takes them from there.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, ThreadId};

use cudarc::driver::{result, sys};
use half::bf16;

use super::device::{Device, Mark, Stream, failed};
use super::pool::{Buffer, Kind};
use super::quantise::{MULTIPLE, e4m3_block};
use super::regions::{FileRegions, REGION_BYTES, Region, Regions};
use super::{Cuda, Tensor};
use crate::error::{Error, Result};
use crate::weights::{Dtype, WeightView};

/// Bytes of a slot: 80 us of a PCIe 5 bus, far above the cost of starting a copy.
const SLOT_BYTES: usize = 4 << 20;
/// A thread fills one slot while the other goes up.
const SLOTS_PER_THREAD: usize = 2;
/// One thread reads a warm page cache at 10 GB/s at most, and registers it at 50 GB/s; eight come near to the bus either way.
const MOST_THREADS: usize = 8;
/// For less, starting another thread costs more than it gains.
const THREADED_BYTES: usize = 4 * SLOT_BYTES;

/// Slots for values that the host computed: as many as a picture uploads, so that none waits for another of the same picture.
const VALUE_SLOTS: usize = 4;
/// The driver takes fewer bytes from any memory at once; for more it waits for the stream.
const SHORT_BYTES: usize = 64 << 10;

/// Pinned host memory, and the mark behind its last use.
pub struct Slot {
    host: *mut u8,
    last_use: Mark,
    /// Device memory of the same size, for values that are converted there.
    staging: Option<Buffer>,
}

// SAFETY: the memory belongs to the slot alone.
unsafe impl Send for Slot {}

impl Slot {
    /// Its copies are to be enqueued on `stream`.
    fn new(device: &Arc<Device>, stream: Stream) -> Result<Self> {
        device.bind()?;
        // PORTABLE: readable from all contexts. Not write-combined: threads fill it with ordinary stores.
        // SAFETY: the size is not zero; the memory is freed in `drop`.
        let host = unsafe { result::malloc_host(SLOT_BYTES, sys::CU_MEMHOSTALLOC_PORTABLE) }.map_err(|e| failed("cannot pin host memory", e))?;
        Ok(Self { host: host.cast(), last_use: Mark::new(device, stream)?, staging: None })
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

/// Weights whose memory is there and whose values are not.
#[derive(Default)]
struct Queue {
    jobs: Vec<Job>,
    /// Memory that jobs need until they are done.
    temporaries: Vec<Buffer>,
}

/// When the values of a weight go up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// With the others of [`Uploader::together`], at once outside of it.
    Together,
    /// At once: the next work on the upload stream reads them.
    AtOnce,
}

/// The values of a tensor as bf16, dense, to a device address; then, of some, to their places in a padded or reordered weight.
struct Job {
    view: WeightView,
    to: u64,
    place: Option<Place>,
}

/// `to` [to_rows, stride] takes [rows, channels, taps], columns ordered (tap, channel), zeros elsewhere.
struct Place {
    to: u64,
    from: [usize; 3],
    to_rows: usize,
    stride: usize,
}

/// A part of a job that one copy takes, or that one thread puts through its slots.
struct Piece<'a> {
    job: &'a Job,
    bytes: Range<usize>,
    /// The region of the mapped file that holds it; none where it goes through slots.
    region: Option<&'a Region>,
}

/// Loads weights.
pub struct Uploader {
    slots: Mutex<Vec<Slot>>,
    /// The one that was used last is at the end.
    value_slots: Mutex<VecDeque<Slot>>,
    regions: Regions,
    /// Of the threads that are inside [`Uploader::together`].
    queues: Mutex<HashMap<ThreadId, Queue>>,
}

impl Uploader {
    pub fn new(device: &Arc<Device>) -> Self {
        Self { slots: Mutex::default(), value_slots: Mutex::default(), regions: Regions::new(device), queues: Mutex::default() }
    }

    /// Runs `work`; the weights that it makes on this thread go up together when it ends, and `report` hears of their elements.
    /// No op may read them before.
    pub fn together<T>(&self, device: &Arc<Device>, work: impl FnOnce() -> Result<T>, report: &mut dyn FnMut(u64)) -> Result<T> {
        let thread = thread::current().id();
        let queues = || self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues().insert(thread, Queue::default());
        let done = work();
        let queue = queues().remove(&thread).unwrap_or_default();
        let done = done?;
        self.send(device, queue, report)?;
        Ok(done)
    }

    /// Makes the slots for values that the host computed, unless they are there.
    pub fn value_slots(&self, device: &Arc<Device>) -> Result<MutexGuard<'_, VecDeque<Slot>>> {
        let mut value_slots = self.value_slots.lock().unwrap_or_else(PoisonError::into_inner);
        while value_slots.len() < VALUE_SLOTS {
            value_slots.push_back(Slot::new(device, device.stream())?);
        }
        Ok(value_slots)
    }

    /// What is mapped and registered.
    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    /// A weight matrix of the parts' rows, one part under the other; rows and columns padded with zeros to multiples of 8, so that
    /// cuBLASLt's fast kernels fit every size.
    pub fn weight(&self, device: &Arc<Device>, parts: &[WeightView]) -> Result<(Buffer, [usize; 2], usize)> {
        self.rows(device, parts, When::Together)
    }

    fn rows(&self, device: &Arc<Device>, parts: &[WeightView], when: When) -> Result<(Buffer, [usize; 2], usize)> {
        let cols = parts[0].cols();
        let rows = parts.iter().map(WeightView::rows).sum::<usize>();
        let stride = cols.next_multiple_of(8);
        self.matrix(device, rows, cols, stride, when, |buffer, queue| {
            let mut row = 0;
            for part in parts {
                let to = buffer.address() + (row * stride * 2) as u64;
                if stride == cols {
                    queue.jobs.push(Job { view: part.clone(), to, place: None });
                } else {
                    queue.push_dense(device, part, Place { to, from: [part.rows(), cols, 1], to_rows: part.rows(), stride })?;
                }
                row += part.rows();
            }
            Ok(())
        })
    }

    /// As [`Uploader::weight`], in e4m3 with a scale for each row; padded to multiples of [`MULTIPLE`]. The bf16 copy goes up at once, and
    /// is freed behind the kernel that reads it, so that never more than one is there.
    pub fn narrow_weight(&self, device: &Arc<Device>, parts: &[WeightView]) -> Result<(Buffer, [usize; 2], usize)> {
        let (copy, [rows, cols], copy_stride) = self.rows(device, parts, When::AtOnce)?;
        let (padded_rows, stride) = (rows.next_multiple_of(MULTIPLE), cols.next_multiple_of(MULTIPLE));
        let upload_stream = device.upload_stream();
        let buffer = Buffer::e4m3_on_stream(device, upload_stream, padded_rows, stride)?;
        let block = e4m3_block(cols).filter(|_| cols.is_multiple_of(8));
        let launched = device.launch("quantise", if block.is_some() { "quantise_bf16" } else { "quantise_bf16_any" }).and_then(|launch| {
            let launch = launch.on(upload_stream).address(copy.address()).long(copy_stride);
            let launch = launch.address(buffer.address()).long(stride).address(buffer.scales()).int(rows).int(cols);
            // SAFETY: argument types and order match the kernels in cuda/quantise.cu. `copy` has `rows` rows of `cols` values, aligned to 16
            // bytes; `buffer` has room for the row and the scale of every block. Both come before this on the upload stream, on which
            // `copy` is freed too.
            unsafe { launch.run([padded_rows, 1, 1], [block.unwrap_or(256), 1, 1]) }
        });
        // Also after an error, when what was made is dropped.
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
        self.matrix(device, rows, cols, stride, When::Together, |buffer, queue| {
            queue.push_dense(device, view, Place { to: buffer.address(), from: [rows, channels, taps], to_rows: rows, stride })
        })
    }

    /// A padded matrix that the jobs of `fill` write.
    fn matrix(
        &self,
        device: &Arc<Device>,
        rows: usize,
        cols: usize,
        stride: usize,
        when: When,
        fill: impl FnOnce(&Buffer, &mut Queue) -> Result<()>,
    ) -> Result<(Buffer, [usize; 2], usize)> {
        let padded_rows = rows.next_multiple_of(8);
        let stream = device.upload_stream();
        let mut buffer = Buffer::on_stream(device, stream, Kind::Bf16, padded_rows * stride)?;
        let mut queue = Queue::default();
        fill(&buffer, &mut queue)?;
        if padded_rows > rows {
            let tail = buffer.address() + (rows * stride * 2) as u64;
            // SAFETY: the buffer ends `padded_rows - rows` rows behind `tail`.
            unsafe { result::memset_d8_async(tail, 0, (padded_rows - rows) * stride * 2, stream.raw()) }
                .map_err(|e| failed("cannot clear GPU memory", e))?;
        }
        buffer.mark_zero_padded();
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if when == When::Together
            && let Some(later) = queues.get_mut(&thread::current().id())
        {
            later.jobs.append(&mut queue.jobs);
            later.temporaries.append(&mut queue.temporaries);
        } else {
            drop(queues);
            self.send(device, queue, &mut |_| {})?;
        }
        Ok((buffer, [rows, cols], stride))
    }

    /// Does the jobs by work on the upload stream, and lets the compute stream wait for it.
    fn send(&self, device: &Arc<Device>, queue: Queue, report: &mut dyn FnMut(u64)) -> Result<()> {
        let sent = self.copy(device, &queue.jobs, report).and_then(|()| {
            let mut places = queue.jobs.iter().filter_map(|job| job.place.as_ref().map(|place| (job.to, place)));
            places.try_for_each(|(from, place)| place.launch(device, from))
        });
        // Also after an error, when what was sent is dropped.
        device.join_uploads()?;
        sent
    }

    /// The values of all jobs, by several threads that take pieces in the order of use.
    fn copy(&self, device: &Arc<Device>, jobs: &[Job], report: &mut dyn FnMut(u64)) -> Result<()> {
        let files = self.regions.of_files(jobs.iter().map(|job| &job.view));
        let pieces: Vec<Piece<'_>> = jobs.iter().flat_map(|job| pieces(job, &files)).collect();
        let bytes = pieces.iter().map(|piece| piece.bytes.len()).sum::<usize>();
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = (bytes / THREADED_BYTES).clamp(1, cores.min(MOST_THREADS));

        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut own: Vec<Vec<Slot>> = (0..threads).map(|_| Vec::new()).collect();
        for (i, slot) in slots.drain(..).enumerate() {
            own[i % threads].push(slot);
        }
        let next = AtomicUsize::new(0);
        let copied = thread::scope(|scope| {
            let (sender, done) = mpsc::channel();
            let workers: Vec<_> = own
                .iter_mut()
                .map(|slots| {
                    let (sender, next, pieces, regions) = (sender.clone(), &next, &pieces, &self.regions);
                    scope.spawn(move || {
                        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                            if let Err(error) = piece.send(device, regions, slots) {
                                next.store(pieces.len(), Ordering::Relaxed); // the others need not go on
                                return Err(error);
                            }
                            // Nobody listens any more where the other end failed.
                            let _ = sender.send((piece.bytes.len() / piece.job.view.dtype().size()) as u64);
                        }
                        Ok(())
                    })
                })
                .collect();
            drop(sender);
            done.iter().for_each(report);
            let joined = workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| Err(Error::new("a thread that loads weights panicked"))));
            joined.collect::<Result<Vec<()>>>().map(drop)
        });
        slots.extend(own.into_iter().flatten());
        slots.iter_mut().for_each(|slot| slot.staging = None);
        copied
    }
}

impl Queue {
    /// A job that goes through dense memory of its own.
    fn push_dense(&mut self, device: &Arc<Device>, view: &WeightView, place: Place) -> Result<()> {
        let dense = Buffer::on_stream(device, device.upload_stream(), Kind::Bf16, view.elements())?;
        self.jobs.push(Job { view: view.clone(), to: dense.address(), place: Some(place) });
        self.temporaries.push(dense);
        Ok(())
    }
}

impl Place {
    /// By work on the upload stream.
    fn launch(&self, device: &Device, from: u64) -> Result<()> {
        let [rows, channels, taps] = self.from;
        let launch = device.launch("transfer", "place_weight")?.on(device.upload_stream()).address(from).address(self.to);
        let launch = launch.int(rows).int(channels).int(taps).int(self.to_rows).long(self.stride);
        // SAFETY: types and order match `place_weight` in cuda/transfer.cu; `from` holds rows * channels * taps values, and `to` has room for
        // to_rows * stride.
        unsafe { launch.run([(self.to_rows * self.stride).div_ceil(256).min(1 << 16), 1, 1], [256, 1, 1]) }
    }
}

/// A job in pieces that end where regions end.
fn pieces<'a>(job: &'a Job, files: &'a [Arc<FileRegions>]) -> Vec<Piece<'a>> {
    let (size, all) = (job.view.dtype().size(), job.view.bytes().len());
    let file = files.iter().find(|file| job.view.dtype() == Dtype::Bf16 && file.is_of(&job.view));
    let start = job.view.start();
    let mut pieces = Vec::new();
    let mut done = 0;
    while done < all {
        // A value may lie across the end of a region: copies of bf16 are copies of bytes.
        let end = if file.is_some() { ((start + done) / REGION_BYTES + 1) * REGION_BYTES - start } else { done + REGION_BYTES / size * size };
        pieces.push(Piece { job, region: file.map(|file| file.region(start + done)), bytes: done..end.min(all) });
        done = end;
    }
    pieces
}

impl Piece<'_> {
    /// By work on the upload stream: from the registered file, or where it cannot be registered through slots.
    fn send(&self, device: &Arc<Device>, regions: &Regions, slots: &mut Vec<Slot>) -> Result<()> {
        let bytes = &self.job.view.bytes()[self.bytes.clone()];
        if let Some(region) = self.region
            && regions.register(region)?
        {
            device.bind()?;
            let to = self.job.to + self.bytes.start as u64;
            // SAFETY: the region stays mapped and registered until the copy is done: `Regions` sees to it. The job's memory has room for
            // its values, which in a region are bf16.
            unsafe { result::memcpy_htod_async(to, bytes, device.upload_stream().raw()) }.map_err(|e| failed("cannot copy weights to the GPU", e))?;
            device.counters().copies.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let dtype = self.job.view.dtype();
        copy_slices(device, dtype, bytes, self.job.to + (self.bytes.start * 2 / dtype.size()) as u64, slots)
    }
}

/// `bytes` in slices, through slots in turn.
fn copy_slices(device: &Arc<Device>, dtype: Dtype, bytes: &[u8], to: u64, slots: &mut Vec<Slot>) -> Result<()> {
    let stream = device.upload_stream();
    while slots.len() < SLOTS_PER_THREAD {
        slots.push(Slot::new(device, stream)?);
    }
    for (index, slice) in bytes.chunks(SLOT_BYTES).enumerate() {
        let slot = &mut slots[index % SLOTS_PER_THREAD];
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
    unsafe { result::memcpy_htod_async(to, host, stream.raw()) }.map_err(|e| failed("cannot copy to the GPU", e))?;
    device.counters().copies.fetch_add(1, Ordering::Relaxed);
    Ok(())
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
            let mut value_slots = self.0.uploader.value_slots(device)?;
            value_slots.rotate_left(1);
            let slot = value_slots.back_mut().expect("`value_slots` makes some");
            slot.bytes()?[..bytes.len()].copy_from_slice(bytes);
            copy_from_slot(device, slot, bytes.len(), buffer.address(), device.stream())?;
            slot.last_use.record(device.stream())?;
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
