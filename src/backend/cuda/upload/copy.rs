//! Copies of weights to the device, by a few threads.
//!
//! A piece in a registered range of a mapped file is copied from there. Other pieces go through staging buffers: those
//! read for the first time on a machine with enough cores, those that can't be registered, and values that are
//! converted on the device.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use parking_lot::Mutex;

use super::job::{Conversion, UploadJob, bytes_on_device};
use super::registered::{CHUNK_BYTES, Chunk, MappedFile, RegisteredFiles};
use crate::backend::cuda::buffer::{Buffer, BufferKind};
use crate::backend::cuda::destination::Destination;
use crate::backend::cuda::device::{Device, Stream};
use crate::backend::cuda::element::Element;
use crate::backend::cuda::staging::{STAGING_BYTES, StagingBuffer};
use crate::error::{Error, Result};
use crate::files::{TensorView, dequantize_rows};

/// A thread fills one staging buffer while the other is copied.
const BUFFERS_PER_THREAD: usize = 2;
/// One thread reads a warm page cache at 7 to 10 GB/s, and registers it at 50 GB/s; eight nearly saturate the bus
/// either way.
const MAX_THREADS: usize = 8;
/// With this many cores, data read once is uploaded faster through staging buffers than it is registered: the driver
/// registers for one thread at a time, and does little else meanwhile. With four cores both take as long.
const STAGING_CORES: usize = 6;
/// For fewer bytes, starting another thread costs more than it gains.
const THREADED_BYTES: usize = 4 * STAGING_BYTES;

/// A part of a job that is one copy, or that one thread copies through its staging buffers.
struct CopyChunk<'a> {
    job: &'a UploadJob,
    bytes: Range<usize>,
    /// The registered chunk of the mapped file that contains it; `None` if it goes through staging buffers.
    chunk: Option<&'a Chunk>,
}

/// The staging memory of one thread.
struct WeightStaging {
    host: StagingBuffer,
    /// Device memory of equal size, for values that are converted there.
    device: Option<Buffer>,
}

/// Copies jobs to the device.
pub struct Copier {
    staging: Mutex<Vec<WeightStaging>>,
    registered: RegisteredFiles,
}

impl Copier {
    pub fn new(device: &Arc<Device>) -> Self {
        Self { staging: Mutex::default(), registered: RegisteredFiles::new(device) }
    }

    /// Returns the mapped and registered files.
    pub fn registered(&self) -> &RegisteredFiles {
        &self.registered
    }

    /// Copies the values of all jobs by work on `stream`: with several threads, which take pieces in the order of use,
    /// or on this thread if all pages are registered. Returns the number of bytes that the host had to touch.
    pub fn copy(
        &self,
        device: &Arc<Device>,
        stream: Stream,
        jobs: &[UploadJob],
        report: &mut dyn FnMut(u64),
    ) -> Result<usize> {
        let files = self.registered.mapped_files(jobs.iter().map(|job| &job.view));
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let stages = cores >= STAGING_CORES;
        let pieces: Vec<CopyChunk<'_>> = jobs.iter().flat_map(|job| pieces(job, &files, stages)).collect();
        if pieces.iter().all(|piece| piece.chunk.is_some_and(Chunk::is_registered)) {
            let mut none = Vec::new();
            for piece in &pieces {
                piece.send(device, stream, &self.registered, &mut none)?;
                report(piece.elements());
            }
            return Ok(0);
        }
        let unknown = pieces.iter().filter(|piece| !piece.chunk.is_some_and(Chunk::is_registered));
        let bytes = unknown.map(|piece| piece.bytes.len()).sum::<usize>();
        // Threads that wait for a disk need no core of their own.
        let waits = cores < MAX_THREADS && pieces.iter().any(CopyChunk::is_cold);
        let threads = (bytes / THREADED_BYTES).clamp(1, if waits { MAX_THREADS } else { cores.min(MAX_THREADS) });

        let mut kept = self.staging.lock();
        let mut own: Vec<Vec<WeightStaging>> = (0..threads).map(|_| Vec::new()).collect();
        for (i, staging) in kept.drain(..).enumerate() {
            own[i % threads].push(staging);
        }
        let next = AtomicUsize::new(0);
        let copied = thread::scope(|scope| {
            let (sender, done) = mpsc::channel();
            let workers: Vec<_> = own
                .iter_mut()
                .map(|staging| {
                    let (sender, next, pieces, registered) = (sender.clone(), &next, &pieces, &self.registered);
                    scope.spawn(move || {
                        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                            if let Err(error) = piece.send(device, stream, registered, staging) {
                                next.store(pieces.len(), Ordering::Relaxed); // the other threads may stop
                                return Err(error);
                            }
                            // The receiver is gone if the other side failed.
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
        kept.extend(own.into_iter().flatten());
        kept.iter_mut().for_each(|staging| staging.device = None);
        copied.map(|()| bytes)
    }
}

/// Splits a job into pieces that end at ends of chunks. Data that was not read before goes through staging buffers if
/// the host `stages` it, and always if a disk must read it.
fn pieces<'a>(job: &'a UploadJob, files: &'a [Arc<MappedFile>], stages: bool) -> Vec<CopyChunk<'a>> {
    if job.conversion == Some(Conversion::Dequantize) {
        return vec![CopyChunk { job, chunk: None, bytes: 0..job.view.bytes().len() }];
    }
    let (size, all) = (job.conversion.map_or(1, Conversion::size), job.view.bytes().len());
    let file = files.iter().find(|file| job.conversion.is_none() && file.is_of(&job.view));
    let start = job.view.start();
    let mut pieces = Vec::new();
    let mut done = 0;
    while done < all {
        // A value may cross the end of a chunk: unconverted values are copied as bytes.
        let (end, chunk) = match file {
            Some(file) => {
                let at = start + done;
                let is_known = || (!stages || file.was_read(at)) && !file.chunk(at).is_cold();
                let chunk = Some(file.chunk(at)).filter(|chunk| chunk.is_registered() || is_known());
                let size = if chunk.is_some() { CHUNK_BYTES } else { STAGING_BYTES };
                ((at / size + 1) * size - start, chunk)
            }
            None => (done + CHUNK_BYTES / size * size, None),
        };
        pieces.push(CopyChunk { job, chunk, bytes: done..end.min(all) });
        done = end;
    }
    if let Some(file) = file {
        file.mark_read(&job.view);
    }
    pieces
}

impl CopyChunk<'_> {
    /// Returns its approximate number of values.
    fn elements(&self) -> u64 {
        let block = self.job.view.format().block();
        (self.bytes.len() * block.values / block.bytes) as u64
    }

    /// Returns `true` if a disk must read it.
    fn is_cold(&self) -> bool {
        let (view, bytes) = (&self.job.view, &self.bytes);
        self.chunk.is_none() && view.file().is_cold(view.start() + bytes.start..view.start() + bytes.end)
    }

    /// Copies by work on `stream`: from the registered file, or through staging buffers if it can't be registered.
    fn send(
        &self,
        device: &Arc<Device>,
        stream: Stream,
        registered: &RegisteredFiles,
        staging: &mut Vec<WeightStaging>,
    ) -> Result<()> {
        let bytes = self.bytes.clone();
        if let Some(chunk) = self.chunk
            && registered.register(chunk)?
        {
            let bytes = &self.job.view.bytes()[bytes.clone()];
            let _submission = device.submit(stream)?;
            // SAFETY: the chunk stays mapped and registered until the copy is done, which `RegisteredFiles` ensures.
            // The job's memory has room for its values, which are not converted if they are in a chunk.
            unsafe { self.job.to.behind(self.bytes.start).copy(bytes, stream) }?;
            device.counters.copies.add(1);
            return Ok(());
        }
        let conversion = self.job.conversion;
        if conversion == Some(Conversion::Dequantize) {
            return dequantize(device, stream, self.job, staging);
        }
        let to = self.job.to.behind(bytes_on_device(conversion, bytes.start));
        copy_slices(device, stream, conversion, (&self.job.view, bytes), to, staging)
    }
}

/// Dequantizes the values of a job for matrix multiplications, through a staging buffer.
fn dequantize(device: &Arc<Device>, stream: Stream, job: &UploadJob, staging: &mut Vec<WeightStaging>) -> Result<()> {
    fill(device, stream, staging)?;
    // The other buffer is copied meanwhile.
    staging.rotate_left(1);
    let (view, host) = (&job.view, &mut staging[0].host);
    let mut values = vec![0.0; view.cols()];
    let (element, bytes) = (device.element(), view.elements() * Element::BYTES);
    let rows = bytemuck::cast_slice_mut::<u8, u16>(&mut host.bytes()?[..bytes]);
    for (row, out) in rows.chunks_exact_mut(view.cols()).enumerate() {
        dequantize_rows(view, row..row + 1, &mut values);
        out.iter_mut().zip(&values).for_each(|(to, value)| *to = element.weight(*value));
    }
    // SAFETY: the job's memory has room for its values.
    unsafe { host.copy_to(device, bytes, job.to, stream) }
}

/// Allocates the staging buffers of a thread.
fn fill(device: &Arc<Device>, stream: Stream, staging: &mut Vec<WeightStaging>) -> Result<()> {
    while staging.len() < BUFFERS_PER_THREAD {
        staging.push(WeightStaging { host: StagingBuffer::new(device, stream)?, device: None });
    }
    Ok(())
}

/// Copies bytes of a tensor in slices by work on `stream`, alternating between staging buffers.
fn copy_slices(
    device: &Arc<Device>,
    stream: Stream,
    conversion: Option<Conversion>,
    (view, bytes): (&TensorView, Range<usize>),
    to: Destination,
    staging: &mut Vec<WeightStaging>,
) -> Result<()> {
    fill(device, stream, staging)?;
    for start in bytes.clone().step_by(STAGING_BYTES) {
        let len = STAGING_BYTES.min(bytes.end - start);
        // The other buffer is copied meanwhile.
        staging.rotate_left(1);
        let WeightStaging { host, device: on_device } = &mut staging[0];
        view.file().read_at(view.start() + start, &mut host.bytes()?[..len])?;
        let to = to.behind(bytes_on_device(conversion, start - bytes.start));
        let Some((conversion, kernel)) = conversion.and_then(|conversion| Some((conversion, conversion.kernel()?)))
        else {
            // SAFETY: the job's memory has room for its values.
            unsafe { host.copy_to(device, len, to, stream) }?;
            continue;
        };
        let source = match on_device {
            Some(buffer) => buffer.address(),
            None => on_device.insert(Buffer::on_stream(device, stream, BufferKind::Byte, STAGING_BYTES)?).address(),
        };
        // SAFETY: the buffer on the device is as large as the host's.
        unsafe { host.copy_to(device, len, Destination::dense(source), stream) }?;
        let values = len / conversion.size();
        let launch = device.launch("transfer", kernel)?.on(stream).address(source).address(to.address()).long(values);
        // SAFETY: types and order match cuda/transfer.cu; at `source` are `values` values, and the weight's memory has
        // room for as many at `to`, because slices follow each other as in the file.
        unsafe { launch.run([values.div_ceil(256).min(4096), 1, 1], [256, 1, 1]) }?;
        // Its next copy writes memory that the kernel reads.
        host.in_use_on(stream)?;
    }
    Ok(())
}
