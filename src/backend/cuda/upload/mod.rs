//! Weights out of files to the device.
//!
//! A few threads ([`copy`]) take the weights piece by piece, in the order of use, and put them through staging buffers.
//! What is read again, or by a host with few cores, the copy engine reads from the mapped file, which [`registered`]
//! makes known to the driver. A weight that a linked GPU has is copied from there ([`loaded`]).

mod copy;
mod form;
mod host_rate;
mod job;
mod loaded;
mod registered;

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Instant;

use cudarc::driver::result;

use super::buffer::{Buffer, BufferKind};
use super::destination::Destination;
use super::device::{Device, Stream};
use super::driver::failed;
use super::event::Event;
use super::gemm::Matrix;
use super::ops::quantise::quantised_block;
use super::stored::Stored;
use super::weight::{Columns, Weight};
use crate::backend::Storage;
use crate::error::{Error, Result};
use crate::files::TensorView;
use copy::Copier;
use host_rate::HostRate;
use job::{CopyTarget, Queue, UploadJob};
use loaded::{CopyOfWeight, Found, LoadedWeights, Made, Origin, copy_weights};
use registered::RegisteredFiles;

pub use form::{Form, UploadSource};
pub use registered::MappedFile;

/// When the values of a weight go up.
#[derive(Clone, Copy)]
enum When<'a> {
    /// With the others of [`Uploader::together`], at once outside of it.
    With(Option<&'a Uploads>),
    /// At once: the next work on the upload stream reads them.
    AtOnce,
}

/// The weights that go up together.
pub struct Uploads(Mutex<Queue>);

/// Loads weights.
pub struct Uploader {
    copier: Copier,
    /// Of blocks that are streamed, what did not come from registered pages.
    host_rate: Mutex<HostRate>,
    /// For GPUs that copy weights from this one.
    loaded: Arc<LoadedWeights>,
    source: OnceLock<Other>,
    /// Why there is none.
    no_source: OnceLock<String>,
}

/// A GPU whose weights this one copies.
struct Other {
    name: String,
    loaded: Weak<LoadedWeights>,
    /// What was copied.
    bytes: AtomicU64,
}

impl Uploader {
    pub fn new(device: &Arc<Device>) -> Self {
        Self {
            copier: Copier::new(device),
            host_rate: Mutex::default(),
            loaded: Arc::default(),
            source: OnceLock::new(),
            no_source: OnceLock::new(),
        }
    }

    /// Runs `work`; the weights that it makes with what it is given go up together when it ends, and `report` hears of
    /// their elements. No op may read them before.
    pub fn together<T>(
        &self,
        device: &Arc<Device>,
        work: impl FnOnce(&Uploads) -> Result<T>,
        report: &mut dyn FnMut(u64),
    ) -> Result<T> {
        let uploads = Uploads(Mutex::new(Queue::new(device, device.upload_stream())));
        let done = work(&uploads)?;
        self.send_and_join(device, uploads.0.into_inner().unwrap_or_else(PoisonError::into_inner), report)?;
        Ok(done)
    }

    /// From here on, weights that the GPU of `other`, called `name`, has by then are copied from there. This GPU
    /// reaches its memory, and computes as it does. The first one counts.
    pub fn copy_from(&self, other: &Self, name: String) {
        let loaded = Arc::downgrade(&other.loaded);
        let _ = self.source.set(Other { name, loaded, bytes: AtomicU64::new(0) });
    }

    /// Weights come from the files, although another GPU that computes alike has them.
    pub fn cannot_copy(&self, why: &str) {
        let _ = self.no_source.set(why.to_string());
    }

    /// Which weights were copied from another GPU, or why none could be, in words.
    pub fn copied(&self) -> Option<String> {
        if let Some(why) = self.no_source.get() {
            return Some(format!("weights were loaded from the files and not copied from another GPU: {why}"));
        }
        let Other { name, bytes, .. } = self.source.get()?;
        let bytes = bytes.load(Ordering::Relaxed);
        (bytes > 0).then(|| format!("{:.2} GB of weights were copied from {name}", bytes as f64 / 1e9))
    }

    /// What is mapped and registered.
    pub fn registered(&self) -> &RegisteredFiles {
        self.copier.registered()
    }

    /// A weight in memory of its own.
    pub fn weight(&self, device: &Arc<Device>, source: &UploadSource, uploads: Option<&Uploads>) -> Result<Weight> {
        let (when, origin) = (When::With(uploads), Origin::of(source));
        let weight = match (self.find(&origin), &source.stored, source.form.storage) {
            (Some(found), stored, _) => self.copy_of(device, found, source.form, when)?.with_stored(stored.clone()),
            (None, Some(stored), _) => self.stored(device, stored, source.form, when)?,
            (None, None, Storage::Native) => self.rows(device, &source.parts, when)?,
            (None, None, Storage::Fp8 | Storage::Int8 | Storage::W4a8) => {
                self.quantised_weight(device, &source.parts, source.form, when)?
            }
        };
        self.offer(device, origin, source.views(), &weight, when)?;
        Ok(weight)
    }

    /// Weights that are the columns of one matrix.
    pub fn side_by_side(
        &self,
        device: &Arc<Device>,
        sources: &[UploadSource],
        uploads: Option<&Uploads>,
    ) -> Result<Vec<Weight>> {
        let (rows, cols) = (sources[0].form.rows, sources.iter().map(|source| source.form.cols).sum());
        let form = Form { rows, cols, storage: Storage::Native, group: 1 };
        let (when, origin) = (When::With(uploads), Origin::side_by_side(sources, form));
        let whole = match self.find(&origin) {
            Some(found) => self.copy_of(device, found, form, when)?,
            None => {
                let stream = device.upload_stream();
                let buffer = Buffer::of_weights(device, stream, device.element().kind(), rows * cols)?;
                let mut queue = Queue::new(device, stream);
                for source in sources {
                    // SAFETY: the buffer was made for the matrix that has all of them.
                    unsafe { push_native(device, &mut queue, source, buffer.address()) }?;
                }
                self.enqueue(device, queue, when)?;
                Weight::new(buffer, rows, cols)
            }
        };
        self.offer(device, origin, sources.iter().flat_map(UploadSource::views), &whole, when)?;
        let buffer = whole.buffer().ok_or_else(|| Error::new("a weight that was loaded has no memory"))?;
        let of = |source: &UploadSource| {
            Weight::new(Arc::clone(buffer), rows, source.form.cols).with_columns(source.columns)
        };
        Ok(sources.iter().map(of).collect())
    }

    /// The weight on another GPU.
    fn find(&self, origin: &Origin) -> Option<Found> {
        self.source.get()?.loaded.upgrade()?.find(origin)
    }

    /// A copy of a weight of another GPU.
    fn copy_of(&self, device: &Arc<Device>, from: Found, form: Form, when: When<'_>) -> Result<Weight> {
        let stream = device.upload_stream();
        let to = Arc::new(Buffer::for_copy(device, stream, &from.buffer)?);
        if let Some(source) = self.source.get() {
            source.bytes.fetch_add(to.bytes() as u64, Ordering::Relaxed);
        }
        let mut queue = Queue::new(device, stream);
        queue.copies.push(CopyOfWeight { from, to: Arc::clone(&to), elements: (form.rows * form.cols) as u64 });
        self.enqueue(device, queue, when)?;
        Ok(Weight::new(to, form.rows, form.cols))
    }

    /// Lets other GPUs copy the weight, once what this thread loads is there.
    fn offer<'a>(
        &self,
        device: &Arc<Device>,
        origin: Origin,
        views: impl Iterator<Item = &'a TensorView>,
        weight: &Weight,
        when: When<'_>,
    ) -> Result<()> {
        let Some(buffer) = weight.buffer() else { return Ok(()) };
        let files = views.map(|view| Arc::downgrade(view.file())).collect();
        let mut queue = Queue::new(device, device.upload_stream());
        queue.made.push(Made { origin, files, buffer: Arc::clone(buffer) });
        self.enqueue(device, queue, when)
    }

    /// A weight in the format of its file.
    fn stored(&self, device: &Arc<Device>, stored: &Arc<Stored>, form: Form, when: When<'_>) -> Result<Weight> {
        let stream = device.upload_stream();
        let buffer = Buffer::on_stream(device, stream, BufferKind::Byte, stored.bytes())?;
        let mut queue = Queue::new(device, stream);
        push_stored(&mut queue, stored, buffer.address());
        self.enqueue(device, queue, when)?;
        Ok(Weight::new(buffer, form.rows, form.cols).with_stored(Some(Arc::clone(stored))))
    }

    /// A 16-bit matrix of the parts' rows, one part under the other; rows and columns padded with zeros to multiples of
    /// [`PADDING`](super::weight::PADDING).
    fn rows(&self, device: &Arc<Device>, parts: &[TensorView], when: When<'_>) -> Result<Weight> {
        let (form, stream) = (Form::of(parts, Storage::Native)?, device.upload_stream());
        let buffer = match when {
            When::With(_) => Buffer::of_weights,
            When::AtOnce => Buffer::on_stream,
        };
        let buffer = buffer(device, stream, device.element().kind(), form.padded_rows() * form.stride())?;
        let mut queue = Queue::new(device, stream);
        // SAFETY: the buffer was made for a weight of this form.
        unsafe { push_rows(device, &mut queue, parts, form, buffer.address()) }?;
        self.enqueue(device, queue, when)?;
        Ok(Weight::new(buffer, form.rows, form.cols))
    }

    /// A quantised weight with a scale for each row; padded to multiples of [`MULTIPLE`]. Where no file holds it so, a
    /// copy in 16 bits goes up at once, and is freed behind the kernel that reads it, so that never more than one is
    /// there.
    ///
    /// [`MULTIPLE`]: crate::files::e4m3::MULTIPLE
    fn quantised_weight(
        &self,
        device: &Arc<Device>,
        parts: &[TensorView],
        form: Form,
        when: When<'_>,
    ) -> Result<Weight> {
        let stream = device.upload_stream();
        if let Some(quantised) = quantised_parts(parts) {
            let buffer = quantised_buffer(device, stream, form)?;
            let mut queue = Queue::new(device, stream);
            // SAFETY: the buffer was made for a weight of this form.
            unsafe { push_quantised(device, &mut queue, &quantised, form, buffer.address()) }?;
            self.enqueue(device, queue, when)?;
            return Ok(Weight::new(buffer, form.rows, form.cols));
        }
        let copy = self.rows(device, parts, When::AtOnce)?;
        let quantised = self.quantised(device, stream, &copy, form.storage);
        // Also after an error, when what was made is dropped.
        device.join_uploads()?;
        quantised
    }

    /// A weight in 16 bits, brought to `storage` with a scale for each row by work on `stream`, on which the weight was
    /// made.
    pub fn quantised(&self, device: &Arc<Device>, stream: Stream, weight: &Weight, storage: Storage) -> Result<Weight> {
        let form = Form::quantised_here(weight.rows(), weight.cols(), storage);
        let buffer = quantised_buffer(device, stream, form)?;
        let from = Matrix { address: weight.address(), stride: weight.stride() };
        // SAFETY: the weight has the rows and columns of the form, for which the buffer was made. It comes before this
        // on the stream, and is freed behind it.
        unsafe { quantise(device, stream, from, form, buffer.address()) }?;
        Ok(Weight::new(buffer, form.rows, form.cols))
    }

    /// The files of `views` that are mapped; what is registered of them stays so as long as the result is there.
    pub fn files_of<'a>(&self, views: impl Iterator<Item = &'a TensorView>) -> Vec<Arc<MappedFile>> {
        self.registered().of_files(views)
    }

    /// Brings weights to their places behind `address`, by work on `stream`. The host waits for nothing but its own
    /// staging buffers. `scratch` is memory that no work on another stream uses; it is made where it is missing, and
    /// kept, because freeing it would wait for the work on the compute stream.
    ///
    /// # Safety
    /// Behind `address` is a live buffer with room for all of the weights, which work on `stream` may write.
    pub unsafe fn write(
        &self,
        device: &Arc<Device>,
        stream: Stream,
        weights: &[(UploadSource, u64)],
        address: u64,
        scratch: &mut Option<Buffer>,
    ) -> Result<()> {
        let mut queue = Queue::new(device, stream);
        let mut to_quantise = Vec::new();
        for (source, offset) in weights {
            let UploadSource { parts, form, stored, .. } = source;
            let to = address + offset;
            if let Some(stored) = stored {
                push_stored(&mut queue, stored, to);
                continue;
            }
            match (form.storage, quantised_parts(parts)) {
                // SAFETY: what the caller promises.
                (Storage::Native, _) => unsafe { push_native(device, &mut queue, source, to) }?,
                // SAFETY: as above.
                (_, Some(quantised)) => unsafe { push_quantised(device, &mut queue, &quantised, *form, to) }?,
                (_, None) => to_quantise.push((parts, *form, to)),
            }
        }
        self.send_and_time(device, &queue)?;
        for (parts, form, to) in to_quantise {
            let native = form.native();
            let copy = match scratch.take().filter(|scratch| scratch.bytes() >= native.bytes()) {
                Some(large_enough) => large_enough,
                None => Buffer::on_stream(device, stream, BufferKind::Byte, native.bytes())?,
            };
            let copy = scratch.insert(copy);
            let mut queue = Queue::new(device, stream);
            // SAFETY: `copy` has room for a weight of this form, and work on `stream` alone uses it.
            unsafe { push_rows(device, &mut queue, parts, native, copy.address()) }?;
            self.send_and_time(device, &queue)?;
            let from = Matrix { address: copy.address(), stride: native.stride() };
            // SAFETY: as above; of the destination the caller is sure.
            unsafe { quantise(device, stream, from, form, to) }?;
        }
        Ok(())
    }

    /// Does the jobs of `queue`, and measures it where the host takes part.
    fn send_and_time(&self, device: &Arc<Device>, queue: &Queue) -> Result<()> {
        let start = Instant::now();
        let bytes = self.send(device, queue, &mut |_| {})?;
        if bytes > 0 {
            let mut rate = self.host_rate.lock().unwrap_or_else(PoisonError::into_inner);
            *rate = HostRate { bytes: rate.bytes + bytes as u64, time: rate.time + start.elapsed() };
        }
        Ok(())
    }

    /// What bounds the streaming of blocks, where that is not the bus.
    pub fn slow_host(&self) -> Option<String> {
        self.host_rate.lock().unwrap_or_else(PoisonError::into_inner).remark()
    }

    /// A convolution weight [out, in, k, k] as [out, k * k * in], columns ordered (ky, kx, in), padded as in
    /// [`Uploader::weight`].
    pub fn conv_weight(&self, device: &Arc<Device>, view: &TensorView, uploads: Option<&Uploads>) -> Result<Weight> {
        let when = When::With(uploads);
        let &[rows, channels, height, width] = view.shape() else {
            return Err(Error::new(format!("a convolution weight has 4 axes, not {:?}", view.shape())));
        };
        let (cols, taps) = (channels * height * width, height * width);
        let form = Form { rows, cols, storage: Storage::Native, group: 1 };
        let origin = Origin::of_convolution(view, form);
        let weight = match self.find(&origin) {
            Some(found) => self.copy_of(device, found, form, when)?,
            None => self.reordered(device, view, form, [rows, channels, taps], when)?,
        };
        self.offer(device, origin, [view].into_iter(), &weight, when)?;
        Ok(weight)
    }

    /// A tensor of `from`, rows, channels and taps, in the order in which convolutions read it.
    fn reordered(
        &self,
        device: &Arc<Device>,
        view: &TensorView,
        form: Form,
        from: [usize; 3],
        when: When<'_>,
    ) -> Result<Weight> {
        let stream = device.upload_stream();
        let buffer = Buffer::of_weights(device, stream, device.element().kind(), form.padded_rows() * form.stride())?;
        let (to, mut queue) = (buffer.address(), Queue::new(device, stream));
        queue.push_dense(device, view, CopyTarget { to, from, to_rows: form.rows, stride: form.stride() })?;
        // SAFETY: the buffer was made for the rows and their padding.
        unsafe { clear_padding(device, stream, form, to) }?;
        self.enqueue(device, queue, when)?;
        Ok(Weight::new(buffer, form.rows, form.cols))
    }

    /// Does the jobs of `queue`, or leaves them to [`Uploader::together`].
    fn enqueue(&self, device: &Arc<Device>, queue: Queue, when: When<'_>) -> Result<()> {
        match when {
            When::With(Some(Uploads(later))) => later.lock().unwrap_or_else(PoisonError::into_inner).append(queue),
            When::With(None) | When::AtOnce => self.send_and_join(device, queue, &mut |_| {})?,
        }
        Ok(())
    }

    /// Does the jobs, and lets the compute stream wait for all uploads.
    fn send_and_join(&self, device: &Arc<Device>, mut queue: Queue, report: &mut dyn FnMut(u64)) -> Result<()> {
        let sent = self.send(device, &queue, report);
        let copied = sent.and_then(|_| copy_weights(device, queue.stream, &queue.copies, report));
        // Also after an error, when what was sent is dropped.
        device.join_uploads()?;
        copied?;
        if !queue.made.is_empty() {
            let made = Arc::new(Event::new(device, queue.stream)?);
            self.loaded.add(mem::take(&mut queue.made), &made);
        }
        Ok(())
    }

    /// Does the jobs by work on the queue's stream. Returns how many bytes the host had to touch.
    fn send(&self, device: &Arc<Device>, queue: &Queue, report: &mut dyn FnMut(u64)) -> Result<usize> {
        let bytes = self.copier.copy(device, queue.stream, &queue.jobs, report)?;
        queue.jobs.iter().try_for_each(|job| job.finish(device, queue.stream))?;
        Ok(bytes)
    }
}

/// Memory for a quantised weight, whose first use is on `stream`.
fn quantised_buffer(device: &Arc<Device>, stream: Stream, form: Form) -> Result<Buffer> {
    let kind = form.quantised_kind().expect("the form of a quantised weight");
    Buffer::quantised_weight(device, stream, kind, form.padded_rows(), form.stride())
}

/// The parts as they are quantised, where files hold all of them so.
fn quantised_parts(parts: &[TensorView]) -> Option<Vec<&TensorView>> {
    parts.iter().map(TensorView::quantised).collect()
}

/// Jobs for a 16-bit weight at device address `to`.
///
/// # Safety
/// Behind `to` is a live buffer with room for a weight of this form, which work on the queue's stream may write.
unsafe fn push_rows(device: &Arc<Device>, queue: &mut Queue, parts: &[TensorView], form: Form, to: u64) -> Result<()> {
    let (cols, stride, mut row) = (form.cols, form.stride(), 0);
    for part in parts {
        let to = to + (row * stride * form.value_bytes()) as u64;
        if stride == cols {
            queue.push(part, to, None)?;
        } else {
            let from = [part.rows(), cols, 1];
            queue.push_dense(device, part, CopyTarget { to, from, to_rows: part.rows(), stride })?;
        }
        row += part.rows();
    }
    // SAFETY: what the caller promises.
    unsafe { clear_padding(device, queue.stream, form, to) }
}

/// Jobs for a 16-bit weight at device address `to`, or for columns of the matrix there.
///
/// # Safety
/// As [`push_rows`], for all of that matrix.
unsafe fn push_native(device: &Arc<Device>, queue: &mut Queue, source: &UploadSource, to: u64) -> Result<()> {
    let UploadSource { parts, form, .. } = source;
    let Some(Columns { first, stride }) = source.columns else {
        // SAFETY: what the caller promises.
        return unsafe { push_rows(device, queue, parts, *form, to) };
    };
    let (size, mut row) = (form.value_bytes(), 0);
    let columns = Destination::rows(to + (first * size) as u64, form.cols * size, stride * size);
    for part in parts {
        queue.jobs.push(UploadJob::raw(part, columns.behind(row * form.cols * size)));
        row += part.rows();
    }
    Ok(())
}

/// Jobs for a weight in the format of its file at device address `to`, where there is room for it.
fn push_stored(queue: &mut Queue, stored: &Stored, to: u64) {
    for part in stored.parts() {
        let raw = |view: &TensorView, at: usize| UploadJob::raw(view, Destination::dense(to + at as u64));
        queue.jobs.push(raw(&part.values, part.values_at));
        queue.jobs.extend(part.scales.iter().map(|scales| raw(scales, part.scales_at)));
    }
}

/// Jobs for values and scales of a quantised weight at device address `to`, as files hold them.
///
/// # Safety
/// As [`push_rows`].
unsafe fn push_quantised(
    device: &Arc<Device>,
    queue: &mut Queue,
    parts: &[&TensorView],
    form: Form,
    to: u64,
) -> Result<()> {
    let values_of = |row: usize| Destination::dense(to + (row * form.stride()) as u64);
    let scales_of = |row: usize| to + (form.scales().unwrap_or(0) + row * size_of::<f32>()) as u64;
    let mut row = 0;
    for part in parts {
        let scales = part.row_scales().expect("quantised rows have scales");
        queue.jobs.extend([
            UploadJob::raw(part, values_of(row)),
            UploadJob::raw(&scales, Destination::dense(scales_of(row))),
        ]);
        row += part.rows();
    }
    // SAFETY: what the caller promises.
    unsafe {
        clear_padding(device, queue.stream, form, to)?;
        clear(device, queue.stream, scales_of(row), (form.padded_rows() - row) * size_of::<f32>())
    }
}

/// A matrix of 16 bits of the form's rows and columns, quantised as the form says with a scale for each row, at device
/// address `to`, by work on `stream`.
///
/// # Safety
/// The matrix lies in a live buffer, with rows of whole 16 bytes; behind `to` is one with room for the form. Work on
/// `stream` may read the one and write the other.
unsafe fn quantise(device: &Device, stream: Stream, from: Matrix, form: Form, to: u64) -> Result<()> {
    let (rows, cols) = (form.rows, form.cols);
    let block = quantised_block(cols).filter(|_| cols.is_multiple_of(8));
    let (file, kernel) = match (form.storage, block) {
        (Storage::Int8, Some(_)) => ("quantise_int8", "quantise_int8"),
        (Storage::Int8, None) => ("quantise_int8", "quantise_int8_any"),
        (Storage::W4a8, _) => ("quantise_w4a8", "quantise_w4a8"),
        (_, Some(_)) => ("quantise_weight", "quantise_weight_bf16"),
        (_, None) => ("quantise_weight", "quantise_weight_bf16_any"),
    };
    let launch = device.launch(file, kernel)?.on(stream).address(from.address).long(from.stride);
    let launch = launch.address(to).long(form.stride()).address(to + form.scales().unwrap_or(0) as u64);
    let launch = launch.int(rows).int(cols);
    let is_rotated = matches!(form.storage, Storage::Int8 | Storage::W4a8);
    let launch = if is_rotated { launch.int(form.group) } else { launch };
    // SAFETY: argument types and order match the kernels in cuda/quantise_weight.cu, cuda/quantise_int8.cu and
    // cuda/quantise_w4a8.cu, of which the last takes all columns that forms of W4a8 have. The matrix has `rows` rows of
    // `cols` values; behind `to` is room for the row and the scale of every block.
    unsafe { launch.run([form.padded_rows(), 1, 1], [block.unwrap_or(256), 1, 1]) }
}

/// Zeros in the rows behind the last, by work on `stream`.
///
/// # Safety
/// As [`push_rows`].
unsafe fn clear_padding(device: &Device, stream: Stream, form: Form, to: u64) -> Result<()> {
    let row_bytes = form.stride() * form.value_bytes();
    let behind = to + (form.rows * row_bytes) as u64;
    // SAFETY: what the caller promises.
    unsafe { clear(device, stream, behind, (form.padded_rows() - form.rows) * row_bytes) }
}

/// Zeros, by work on `stream`.
///
/// # Safety
/// The `len` bytes at `address` are in a live buffer, which work on `stream` may write.
unsafe fn clear(device: &Device, stream: Stream, address: u64, len: usize) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    let _submission = device.submit(stream)?;
    // SAFETY: what the caller promises.
    unsafe { result::memset_d8_async(address, 0, len, stream.raw()) }.map_err(|e| failed("cannot clear GPU memory", e))
}
