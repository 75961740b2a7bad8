//! Weights out of files to the device.
//!
//! A few threads take the weights piece by piece, in the order of use, and the copy engine reads them from the mapped
//! file, which [`regions`](super::regions) registers. Where it cannot be registered, and for weights that are not bf16
//! and are converted on the device, a thread copies slices into pinned slots of its own, and the copy engine takes them
//! from there.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, ThreadId};

use cudarc::driver::result;

use super::device::{Device, failed};
use super::ops::quantise::e4m3_block;
use super::pool::{Buffer, Kind};
use super::regions::{FileRegions, REGION_BYTES, Region, Regions};
use super::transfer::{SLOT_BYTES, Slot};
use crate::error::{Error, Result};
use crate::files::e4m3::MULTIPLE;
use crate::files::{Format, TensorView};

/// A thread fills one slot while the other goes up.
const SLOTS_PER_THREAD: usize = 2;
/// One thread reads a warm page cache at 10 GB/s at most, and registers it at 50 GB/s; eight come near to the bus
/// either way.
const MOST_THREADS: usize = 8;
/// For less, starting another thread costs more than it gains.
const THREADED_BYTES: usize = 4 * SLOT_BYTES;

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

/// The values of a tensor, as bf16 or as they are in the file, dense, to a device address; then, of some, to their
/// places in a padded or reordered weight.
struct Job {
    view: TensorView,
    /// None where the device takes the values as they are in the file.
    conversion: Option<Conversion>,
    to: u64,
    place: Option<Place>,
}

/// Which values a kernel rounds to bf16 on the device.
#[derive(Clone, Copy)]
enum Conversion {
    F16,
    F32,
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

/// Where one thread puts weights through.
struct WeightSlot {
    pinned: Slot,
    /// Device memory of the same size, for values that are converted there.
    staging: Option<Buffer>,
}

/// Loads weights.
pub struct Uploader {
    slots: Mutex<Vec<WeightSlot>>,
    regions: Regions,
    /// Of the threads that are inside [`Uploader::together`].
    queues: Mutex<HashMap<ThreadId, Queue>>,
}

impl Uploader {
    pub fn new(device: &Arc<Device>) -> Self {
        Self { slots: Mutex::default(), regions: Regions::new(device), queues: Mutex::default() }
    }

    /// Runs `work`; the weights that it makes on this thread go up together when it ends, and `report` hears of their
    /// elements. No op may read them before.
    pub fn together<T>(
        &self,
        device: &Arc<Device>,
        work: impl FnOnce() -> Result<T>,
        report: &mut dyn FnMut(u64),
    ) -> Result<T> {
        let thread = thread::current().id();
        let queues = || self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues().insert(thread, Queue::default());
        let done = work();
        let queue = queues().remove(&thread).unwrap_or_default();
        let done = done?;
        self.send(device, queue, report)?;
        Ok(done)
    }

    /// What is mapped and registered.
    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    /// A weight matrix of the parts' rows, one part under the other; rows and columns padded with zeros to multiples of
    /// 8, so that cuBLASLt's fast kernels fit every size.
    pub fn weight(&self, device: &Arc<Device>, parts: &[TensorView]) -> Result<(Buffer, [usize; 2], usize)> {
        self.rows(device, parts, When::Together)
    }

    fn rows(&self, device: &Arc<Device>, parts: &[TensorView], when: When) -> Result<(Buffer, [usize; 2], usize)> {
        // Their bytes are not those of as many bf16 values, which the memory is made for.
        if parts.iter().any(|part| part.format() == Format::E4m3Rows) {
            return Err(Error::new("e4m3 is taken as the quantised form of a weight only"));
        }
        let cols = parts[0].cols();
        let rows = parts.iter().map(TensorView::rows).sum::<usize>();
        let stride = cols.next_multiple_of(8);
        self.matrix(device, rows, cols, stride, when, |buffer, queue| {
            let mut row = 0;
            for part in parts {
                let to = buffer.address() + (row * stride * 2) as u64;
                if stride == cols {
                    queue.jobs.push(Job::new(part, to, None));
                } else {
                    queue.push_dense(
                        device,
                        part,
                        Place { to, from: [part.rows(), cols, 1], to_rows: part.rows(), stride },
                    )?;
                }
                row += part.rows();
            }
            Ok(())
        })
    }

    /// As [`Uploader::weight`], in e4m3 with a scale for each row; padded to multiples of [`MULTIPLE`]. Where no file
    /// holds e4m3, a bf16 copy goes up at once, and is freed behind the kernel that reads it, so that never more than
    /// one is there.
    pub fn narrow_weight(&self, device: &Arc<Device>, parts: &[TensorView]) -> Result<(Buffer, [usize; 2], usize)> {
        if let Some(e4m3) = parts.iter().map(TensorView::quantised).collect::<Option<Vec<_>>>() {
            return self.e4m3_weight(device, &e4m3, parts[0].cols());
        }
        let (copy, [rows, cols], copy_stride) = self.rows(device, parts, When::AtOnce)?;
        let (padded_rows, stride) = (rows.next_multiple_of(MULTIPLE), cols.next_multiple_of(MULTIPLE));
        let upload_stream = device.upload_stream();
        let buffer = Buffer::e4m3_on_stream(device, upload_stream, padded_rows, stride)?;
        let block = e4m3_block(cols).filter(|_| cols.is_multiple_of(8));
        let kernel = if block.is_some() { "quantise_weight_bf16" } else { "quantise_weight_bf16_any" };
        let launched = device.launch("quantise_weight", kernel).and_then(|launch| {
            let launch = launch.on(upload_stream).address(copy.address()).long(copy_stride);
            let launch = launch.address(buffer.address()).long(stride).address(buffer.scales()).int(rows).int(cols);
            // SAFETY: argument types and order match the kernels in cuda/quantise_weight.cu. `copy` has `rows` rows of
            // `cols` values, aligned to 16 bytes; `buffer` has room for the row and the scale of every block. Both come
            // before this on the upload stream, on which `copy` is freed too.
            unsafe { launch.run([padded_rows, 1, 1], [block.unwrap_or(256), 1, 1]) }
        });
        // Also after an error, when what was made is dropped.
        device.join_uploads()?;
        launched?;
        Ok((buffer, [rows, cols], stride))
    }

    /// Values and scales of a weight of `cols` columns, as a file holds them.
    fn e4m3_weight(
        &self,
        device: &Arc<Device>,
        parts: &[&TensorView],
        cols: usize,
    ) -> Result<(Buffer, [usize; 2], usize)> {
        let rows = parts.iter().map(|part| part.rows()).sum::<usize>();
        let (padded_rows, stride) = (rows.next_multiple_of(MULTIPLE), cols.next_multiple_of(MULTIPLE));
        let buffer = Buffer::e4m3_on_stream(device, device.upload_stream(), padded_rows, stride)?;
        let values_of = |row: usize| buffer.address() + (row * stride) as u64;
        let scales_of = |row: usize| buffer.scales() + (row * size_of::<f32>()) as u64;
        let mut queue = Queue::default();
        let mut row = 0;
        for part in parts {
            let scales = part.scales().expect("e4m3 rows have scales");
            queue.jobs.push(Job::new(part, values_of(row), None));
            queue.jobs.push(Job { conversion: None, ..Job::new(scales, scales_of(row), None) });
            row += part.rows();
        }
        // SAFETY: the buffer has room for the values and the scales of `padded_rows` rows.
        unsafe {
            clear(device, values_of(rows), (padded_rows - rows) * stride)?;
            clear(device, scales_of(rows), (padded_rows - rows) * size_of::<f32>())?;
        }
        self.enqueue(device, queue, When::Together)?;
        Ok((buffer, [rows, cols], stride))
    }

    /// A convolution weight [out, in, k, k] as [out, k * k * in], columns ordered (ky, kx, in), padded as in
    /// [`Uploader::weight`].
    pub fn conv_weight(&self, device: &Arc<Device>, view: &TensorView) -> Result<(Buffer, [usize; 2], usize)> {
        let &[rows, channels, height, width] = view.shape() else {
            return Err(Error::new(format!("a convolution weight has 4 axes, not {:?}", view.shape())));
        };
        let (cols, taps) = (channels * height * width, height * width);
        let stride = cols.next_multiple_of(8);
        self.matrix(device, rows, cols, stride, When::Together, |buffer, queue| {
            queue.push_dense(
                device,
                view,
                Place { to: buffer.address(), from: [rows, channels, taps], to_rows: rows, stride },
            )
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
        let mut buffer = Buffer::on_stream(device, device.upload_stream(), Kind::Bf16, padded_rows * stride)?;
        let mut queue = Queue::default();
        fill(&buffer, &mut queue)?;
        // SAFETY: the buffer ends `padded_rows - rows` rows behind the address.
        unsafe { clear(device, buffer.address() + (rows * stride * 2) as u64, (padded_rows - rows) * stride * 2) }?;
        buffer.mark_zero_padded();
        self.enqueue(device, queue, when)?;
        Ok((buffer, [rows, cols], stride))
    }

    /// Does the jobs of `queue`, or leaves them to [`Uploader::together`].
    fn enqueue(&self, device: &Arc<Device>, mut queue: Queue, when: When) -> Result<()> {
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
        Ok(())
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
        let mut own: Vec<Vec<WeightSlot>> = (0..threads).map(|_| Vec::new()).collect();
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
                            let _ = sender.send(piece.elements());
                        }
                        Ok(())
                    })
                })
                .collect();
            drop(sender);
            done.iter().for_each(report);
            let joined = workers.into_iter().map(|worker| {
                worker.join().unwrap_or_else(|_| Err(Error::new("a thread that loads weights panicked")))
            });
            joined.collect::<Result<Vec<()>>>().map(drop)
        });
        slots.extend(own.into_iter().flatten());
        slots.iter_mut().for_each(|slot| slot.staging = None);
        copied
    }
}

impl Job {
    fn new(view: &TensorView, to: u64, place: Option<Place>) -> Self {
        let conversion = match view.format() {
            Format::Bf16 | Format::E4m3Rows => None,
            Format::F16 => Some(Conversion::F16),
            Format::F32 => Some(Conversion::F32),
        };
        Self { view: view.clone(), conversion, to, place }
    }
}

impl Conversion {
    /// Bytes of a value in the file.
    fn size(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    fn kernel(self) -> &'static str {
        match self {
            Self::F16 => "f16_to_bf16",
            Self::F32 => "f32_to_bf16",
        }
    }
}

impl Queue {
    /// A job that goes through dense memory of its own.
    fn push_dense(&mut self, device: &Arc<Device>, view: &TensorView, place: Place) -> Result<()> {
        let dense = Buffer::on_stream(device, device.upload_stream(), Kind::Bf16, view.elements())?;
        self.jobs.push(Job::new(view, dense.address(), Some(place)));
        self.temporaries.push(dense);
        Ok(())
    }
}

impl Place {
    /// By work on the upload stream.
    fn launch(&self, device: &Device, from: u64) -> Result<()> {
        let [rows, channels, taps] = self.from;
        let launch =
            device.launch("transfer", "place_weight")?.on(device.upload_stream()).address(from).address(self.to);
        let launch = launch.int(rows).int(channels).int(taps).int(self.to_rows).long(self.stride);
        // SAFETY: types and order match `place_weight` in cuda/transfer.cu; `from` holds rows * channels * taps values,
        // and `to` has room for to_rows * stride.
        unsafe { launch.run([(self.to_rows * self.stride).div_ceil(256).min(1 << 16), 1, 1], [256, 1, 1]) }
    }
}

/// What `bytes` of a file take on the device.
fn bytes_on_device(conversion: Option<Conversion>, bytes: usize) -> u64 {
    conversion.map_or(bytes, |conversion| bytes / conversion.size() * Kind::Bf16.size()) as u64
}

/// Zeros, by work on the upload stream.
///
/// # Safety
/// The `len` bytes at `address` are in a live buffer, whose first use is on the upload stream.
unsafe fn clear(device: &Device, address: u64, len: usize) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    device.bind()?;
    // SAFETY: what the caller promises.
    unsafe { result::memset_d8_async(address, 0, len, device.upload_stream().raw()) }
        .map_err(|e| failed("cannot clear GPU memory", e))
}

/// A job in pieces that end where regions end.
fn pieces<'a>(job: &'a Job, files: &'a [Arc<FileRegions>]) -> Vec<Piece<'a>> {
    let (size, all) = (job.conversion.map_or(1, Conversion::size), job.view.bytes().len());
    let file = files.iter().find(|file| job.conversion.is_none() && file.is_of(&job.view));
    let start = job.view.start();
    let mut pieces = Vec::new();
    let mut done = 0;
    while done < all {
        // A value may lie across the end of a region: what goes as it is goes as bytes.
        let end = if file.is_some() {
            ((start + done) / REGION_BYTES + 1) * REGION_BYTES - start
        } else {
            done + REGION_BYTES / size * size
        };
        pieces.push(Piece { job, region: file.map(|file| file.region(start + done)), bytes: done..end.min(all) });
        done = end;
    }
    pieces
}

impl Piece<'_> {
    /// About how many values it has.
    fn elements(&self) -> u64 {
        let block = self.job.view.format().block();
        (self.bytes.len() * block.values / block.bytes) as u64
    }

    /// By work on the upload stream: from the registered file, or where it cannot be registered through slots.
    fn send(&self, device: &Arc<Device>, regions: &Regions, slots: &mut Vec<WeightSlot>) -> Result<()> {
        let bytes = &self.job.view.bytes()[self.bytes.clone()];
        if let Some(region) = self.region
            && regions.register(region)?
        {
            device.bind()?;
            let to = self.job.to + self.bytes.start as u64;
            // SAFETY: the region stays mapped and registered until the copy is done: `Regions` sees to it. The job's
            // memory has room for its values, which in a region go as they are.
            unsafe { result::memcpy_htod_async(to, bytes, device.upload_stream().raw()) }
                .map_err(|e| failed("cannot copy weights to the GPU", e))?;
            device.counters().copies.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let conversion = self.job.conversion;
        copy_slices(device, conversion, bytes, self.job.to + bytes_on_device(conversion, self.bytes.start), slots)
    }
}

/// `bytes` in slices, through slots in turn.
fn copy_slices(
    device: &Arc<Device>,
    conversion: Option<Conversion>,
    bytes: &[u8],
    to: u64,
    slots: &mut Vec<WeightSlot>,
) -> Result<()> {
    let stream = device.upload_stream();
    while slots.len() < SLOTS_PER_THREAD {
        slots.push(WeightSlot { pinned: Slot::new(device, stream)?, staging: None });
    }
    for (index, slice) in bytes.chunks(SLOT_BYTES).enumerate() {
        let slot = &mut slots[index % SLOTS_PER_THREAD];
        slot.pinned.bytes()?[..slice.len()].copy_from_slice(slice);
        let to = to + bytes_on_device(conversion, index * SLOT_BYTES);
        if let Some(conversion) = conversion {
            if slot.staging.is_none() {
                slot.staging = Some(Buffer::on_stream(device, stream, Kind::Byte, SLOT_BYTES)?);
            }
            let staging = slot.staging.as_ref().expect("set above").address();
            slot.pinned.copy_to(device, slice.len(), staging, stream)?;
            let values = slice.len() / conversion.size();
            let launch =
                device.launch("transfer", conversion.kernel())?.on(stream).address(staging).address(to).long(values);
            // SAFETY: types and order match cuda/transfer.cu; `staging` holds `values` values, and the weight's memory
            // has room for as many at `to`, because slices follow each other as in the file.
            unsafe { launch.run([values.div_ceil(256).min(4096), 1, 1], [256, 1, 1]) }?;
        } else {
            slot.pinned.copy_to(device, slice.len(), to, stream)?;
        }
        slot.pinned.record(stream)?;
    }
    Ok(())
}
