//! Weights out of files to the device.
//!
//! A few threads ([`copy`]) take the weights piece by piece, in the order of use, and the copy engine reads them from
//! the mapped file, which [`registered`] makes known to the driver. Where that cannot be, and for weights that are not
//! bf16 and are converted on the device, they go through staging buffers.

mod copy;
mod job;
mod registered;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use cudarc::driver::result;

use super::buffer::{Buffer, Kind};
use super::device::{Device, Stream};
use super::driver::failed;
use super::ops::quantise::e4m3_block;
use super::weight::{PADDING, Weight};
use crate::error::{Error, Result};
use crate::files::e4m3::MULTIPLE;
use crate::files::{Format, TensorView};
use copy::Copier;
use job::{Job, Place, Queue};
use registered::RegisteredFiles;

/// When the values of a weight go up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// With the others of [`Uploader::together`], at once outside of it.
    Together,
    /// At once: the next work on the upload stream reads them.
    AtOnce,
}

/// Loads weights.
pub struct Uploader {
    copier: Copier,
    /// Of the threads that are inside [`Uploader::together`]: what a thread loads there waits in its own.
    queues: Mutex<HashMap<ThreadId, Queue>>,
}

/// This thread's queue, which goes with it, also by a panic.
struct OpenQueue<'a>(&'a Mutex<HashMap<ThreadId, Queue>>);

impl<'a> OpenQueue<'a> {
    /// Errors when this thread has one already.
    fn open(queues: &'a Mutex<HashMap<ThreadId, Queue>>) -> Result<Self> {
        let mut open = queues.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = thread::current().id();
        if open.contains_key(&thread) {
            return Err(Error::new("weights are loaded together with others that this thread loads"));
        }
        open.insert(thread, Queue::default());
        Ok(Self(queues))
    }

    fn close(&self) -> Queue {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.remove(&thread::current().id()).unwrap_or_default()
    }
}

impl Drop for OpenQueue<'_> {
    fn drop(&mut self) {
        drop(self.close());
    }
}

impl Uploader {
    pub fn new(device: &Arc<Device>) -> Self {
        Self { copier: Copier::new(device), queues: Mutex::default() }
    }

    /// Runs `work`; the weights that it makes on this thread go up together when it ends, and `report` hears of their
    /// elements. No op may read them before.
    pub fn together<T>(
        &self,
        device: &Arc<Device>,
        work: impl FnOnce() -> Result<T>,
        report: &mut dyn FnMut(u64),
    ) -> Result<T> {
        let queue = OpenQueue::open(&self.queues)?;
        let done = work()?;
        self.send(device, queue.close(), report)?;
        Ok(done)
    }

    /// What is mapped and registered.
    pub fn registered(&self) -> &RegisteredFiles {
        self.copier.registered()
    }

    /// A weight matrix of the parts' rows, one part under the other; rows and columns padded with zeros to multiples of
    /// [`PADDING`].
    pub fn weight(&self, device: &Arc<Device>, parts: &[TensorView]) -> Result<Weight> {
        self.rows(device, parts, When::Together)
    }

    fn rows(&self, device: &Arc<Device>, parts: &[TensorView], when: When) -> Result<Weight> {
        // Their bytes are not those of as many bf16 values, which the memory is made for.
        if parts.iter().any(|part| part.format() == Format::E4m3Rows) {
            return Err(Error::new("e4m3 is taken as the quantised form of a weight only"));
        }
        let cols = parts[0].cols();
        let rows = parts.iter().map(TensorView::rows).sum::<usize>();
        let stride = cols.next_multiple_of(PADDING);
        self.matrix(device, rows, cols, stride, when, |buffer, queue| {
            let mut row = 0;
            for part in parts {
                let to = buffer.address() + (row * stride * 2) as u64;
                if stride == cols {
                    queue.push(part, to, None)?;
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
    pub fn e4m3_weight(&self, device: &Arc<Device>, parts: &[TensorView]) -> Result<Weight> {
        if let Some(e4m3) = parts.iter().map(TensorView::quantised).collect::<Option<Vec<_>>>() {
            return self.e4m3_weight_of_file(device, &e4m3, parts[0].cols());
        }
        let copy = self.rows(device, parts, When::AtOnce)?;
        let quantised = self.quantised(device, device.upload_stream(), &copy);
        // Also after an error, when what was made is dropped.
        device.join_uploads()?;
        quantised
    }

    /// A bf16 weight in e4m3 with a scale for each row, by work on `stream`, on which the weight was made.
    pub fn quantised(&self, device: &Arc<Device>, stream: Stream, weight: &Weight) -> Result<Weight> {
        let (rows, cols) = (weight.rows(), weight.cols());
        let (padded_rows, stride) = (rows.next_multiple_of(MULTIPLE), cols.next_multiple_of(MULTIPLE));
        let buffer = Buffer::e4m3_on_stream(device, stream, padded_rows, stride)?;
        let block = e4m3_block(cols).filter(|_| cols.is_multiple_of(8));
        let kernel = if block.is_some() { "quantise_weight_bf16" } else { "quantise_weight_bf16_any" };
        let launch = device.launch("quantise_weight", kernel)?;
        let launch = launch.on(stream).address(weight.address()).long(weight.stride());
        let launch = launch.address(buffer.address()).long(stride).address(buffer.scales()).int(rows).int(cols);
        // SAFETY: argument types and order match the kernels in cuda/quantise_weight.cu. `weight` has `rows` rows of
        // `cols` values, aligned to 16 bytes; `buffer` has room for the row and the scale of every block. Both come
        // before this on the stream, and `weight` is freed behind it.
        unsafe { launch.run([padded_rows, 1, 1], [block.unwrap_or(256), 1, 1]) }?;
        Ok(Weight::new(buffer, rows, cols))
    }

    /// Values and scales of a weight of `cols` columns, as a file holds them.
    fn e4m3_weight_of_file(&self, device: &Arc<Device>, parts: &[&TensorView], cols: usize) -> Result<Weight> {
        let rows = parts.iter().map(|part| part.rows()).sum::<usize>();
        let (padded_rows, stride) = (rows.next_multiple_of(MULTIPLE), cols.next_multiple_of(MULTIPLE));
        let buffer = Buffer::e4m3_on_stream(device, device.upload_stream(), padded_rows, stride)?;
        let values_of = |row: usize| buffer.address() + (row * stride) as u64;
        let scales_of = |row: usize| buffer.scales() + (row * size_of::<f32>()) as u64;
        let mut queue = Queue::default();
        let mut row = 0;
        for part in parts {
            let scales = part.row_scales().expect("e4m3 rows have scales");
            queue.jobs.push(Job::new(part, values_of(row), None));
            queue.jobs.push(Job { conversion: None, ..Job::new(&scales, scales_of(row), None) });
            row += part.rows();
        }
        // SAFETY: the buffer has room for the values and the scales of `padded_rows` rows.
        unsafe {
            clear(device, values_of(rows), (padded_rows - rows) * stride)?;
            clear(device, scales_of(rows), (padded_rows - rows) * size_of::<f32>())?;
        }
        self.enqueue(device, queue, When::Together)?;
        Ok(Weight::new(buffer, rows, cols))
    }

    /// A convolution weight [out, in, k, k] as [out, k * k * in], columns ordered (ky, kx, in), padded as in
    /// [`Uploader::weight`].
    pub fn conv_weight(&self, device: &Arc<Device>, view: &TensorView) -> Result<Weight> {
        let &[rows, channels, height, width] = view.shape() else {
            return Err(Error::new(format!("a convolution weight has 4 axes, not {:?}", view.shape())));
        };
        let (cols, taps) = (channels * height * width, height * width);
        let stride = cols.next_multiple_of(PADDING);
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
    ) -> Result<Weight> {
        let padded_rows = rows.next_multiple_of(PADDING);
        let buffer = Buffer::on_stream(device, device.upload_stream(), Kind::Bf16, padded_rows * stride)?;
        let mut queue = Queue::default();
        fill(&buffer, &mut queue)?;
        // SAFETY: the buffer ends `padded_rows - rows` rows behind the address.
        unsafe { clear(device, buffer.address() + (rows * stride * 2) as u64, (padded_rows - rows) * stride * 2) }?;
        self.enqueue(device, queue, when)?;
        Ok(Weight::new(buffer, rows, cols))
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
        let sent = self.copier.copy(device, &queue.jobs, report).and_then(|()| {
            let mut places = queue.jobs.iter().filter_map(|job| job.place.as_ref().map(|place| (job.to, place)));
            places.try_for_each(|(from, place)| place.launch(device, from))
        });
        // Also after an error, when what was sent is dropped.
        device.join_uploads()?;
        sent
    }
}

/// Zeros, by work on the upload stream.
///
/// # Safety
/// The `len` bytes at `address` are in a live buffer, whose first use is on the upload stream.
unsafe fn clear(device: &Device, address: u64, len: usize) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    let _submission = device.submit(device.upload_stream())?;
    // SAFETY: what the caller promises.
    unsafe { result::memset_d8_async(address, 0, len, device.upload_stream().raw()) }
        .map_err(|e| failed("cannot clear GPU memory", e))
}
