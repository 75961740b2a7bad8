//! Uploads of weights from files to the device.
//!
//! A few threads ([`copy`]) copy the weights piece by piece, in the order of use, through staging buffers. Data that is
//! read again, or by a host with few cores, is read by the copy engine from the mapped file, which [`registered`]
//! registers with the driver. A weight in the memory of a linked GPU is copied from there ([`loaded`]). The module
//! knows nothing about models. Start reading at [`Uploader`].

mod copy;
mod form;
mod host_rate;
mod job;
mod loaded;
mod registered;

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use cudarc::driver::result;
use parking_lot::Mutex;

use super::buffer::{Buffer, BufferKind};
use super::destination::Destination;
use super::device::{Device, Stream};
use super::driver::failed;
use super::event::Event;
use super::gemm::Matrix;
use super::ops::quantize::quantized_block;
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

/// The time of a weight's upload.
#[derive(Clone, Copy)]
enum When<'a> {
    /// With the batch of [`Uploader::together`], or immediately without one.
    With(Option<&'a Uploads>),
    /// Immediately: the next work on the upload stream reads the values.
    AtOnce,
}

/// The weights of a batch.
pub struct Uploads(Mutex<Queue>);

/// Loads weights.
pub struct Uploader {
    copier: Copier,
    /// The rate of streamed blocks that did not come from registered pages.
    host_rate: Mutex<HostRate>,
    /// The weights that other GPUs may copy from this one.
    loaded: Arc<LoadedWeights>,
    source: OnceLock<Other>,
    /// The reason that there is no source.
    no_source: OnceLock<String>,
}

/// A GPU from which this one copies weights.
struct Other {
    name: String,
    loaded: Weak<LoadedWeights>,
    /// Copied bytes.
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

    /// Runs `work`, then uploads the weights that `work` added to the batch; `report` gets their numbers of elements.
    /// No op may read them earlier.
    pub fn together<T>(
        &self,
        device: &Arc<Device>,
        work: impl FnOnce(&Uploads) -> Result<T>,
        report: &mut dyn FnMut(u64),
    ) -> Result<T> {
        let uploads = Uploads(Mutex::new(Queue::new(device, device.upload_stream)));
        let done = work(&uploads)?;
        self.send_and_join(device, uploads.0.into_inner(), report)?;
        Ok(done)
    }

    /// Copies later weights from the GPU of `other`, called `name`, if it has them by then. This GPU can access its
    /// memory, and computes alike. Only the first call counts.
    pub fn copy_from(&self, other: &Self, name: String) {
        let loaded = Arc::downgrade(&other.loaded);
        let _ = self.source.set(Other { name, loaded, bytes: AtomicU64::new(0) });
    }

    /// Records that weights come from the files, although another GPU that computes alike has them.
    pub fn cannot_copy(&self, why: &str) {
        let _ = self.no_source.set(why.to_string());
    }

    /// Describes the weights that were copied from another GPU, or the reason that none could be.
    pub fn copied(&self) -> Option<String> {
        if let Some(why) = self.no_source.get() {
            return Some(format!("weights were loaded from the files instead of copied from another GPU: {why}"));
        }
        let Other { name, bytes, .. } = self.source.get()?;
        let bytes = bytes.load(Ordering::Relaxed);
        (bytes > 0).then(|| format!("{:.2} GB of weights were copied from {name}", bytes as f64 / 1e9))
    }

    /// Returns the mapped and registered files.
    pub fn registered(&self) -> &RegisteredFiles {
        self.copier.registered()
    }

    /// Loads a weight into its own memory.
    pub fn weight(&self, device: &Arc<Device>, source: &UploadSource, uploads: Option<&Uploads>) -> Result<Weight> {
        let (when, origin) = (When::With(uploads), Origin::from_source(source));
        let weight = match (self.find(&origin), &source.stored, source.form.storage) {
            (Some(found), stored, _) => self.copy_of(device, found, source.form, when)?.with_stored(stored.clone()),
            (None, Some(stored), _) => self.stored(device, stored, source.form, when)?,
            (None, None, Storage::Native) => self.rows(device, &source.parts, when)?,
            (None, None, Storage::Fp8 | Storage::Int8 | Storage::W4a8) => {
                self.quantized_weight(device, &source.parts, source.form, when)?
            }
        };
        self.offer(device, origin, source.views(), &weight, when)?;
        Ok(weight)
    }

    /// Loads weights as the columns of one matrix.
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
                let stream = device.upload_stream;
                let buffer = Buffer::for_weights(device, stream, device.element().kind(), rows * cols)?;
                let mut queue = Queue::new(device, stream);
                for source in sources {
                    // SAFETY: the buffer was allocated for the matrix with all of them.
                    unsafe { push_native(device, &mut queue, source, buffer.address()) }?;
                }
                self.enqueue(device, queue, when)?;
                Weight::new(buffer, rows, cols)
            }
        };
        self.offer(device, origin, sources.iter().flat_map(UploadSource::views), &whole, when)?;
        let buffer = whole.buffer().ok_or_else(|| Error::new("a loaded weight has no memory"))?;
        let of = |source: &UploadSource| {
            Weight::new(Arc::clone(buffer), rows, source.form.cols).with_columns(source.columns)
        };
        Ok(sources.iter().map(of).collect())
    }

    /// Returns the weight on another GPU.
    fn find(&self, origin: &Origin) -> Option<Found> {
        self.source.get()?.loaded.upgrade()?.find(origin)
    }

    /// Copies a weight of another GPU.
    fn copy_of(&self, device: &Arc<Device>, from: Found, form: Form, when: When<'_>) -> Result<Weight> {
        let stream = device.upload_stream;
        let to = Arc::new(Buffer::for_copy(device, stream, &from.buffer)?);
        if let Some(source) = self.source.get() {
            source.bytes.fetch_add(to.bytes() as u64, Ordering::Relaxed);
        }
        let mut queue = Queue::new(device, stream);
        queue.copies.push(CopyOfWeight { from, to: Arc::clone(&to), elements: (form.rows * form.cols) as u64 });
        self.enqueue(device, queue, when)?;
        Ok(Weight::new(to, form.rows, form.cols))
    }

    /// Offers the weight to other GPUs, once this thread's loads are done.
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
        let mut queue = Queue::new(device, device.upload_stream);
        queue.made.push(Made { origin, files, buffer: Arc::clone(buffer) });
        self.enqueue(device, queue, when)
    }

    /// Loads a weight in the format of its file.
    fn stored(&self, device: &Arc<Device>, stored: &Arc<Stored>, form: Form, when: When<'_>) -> Result<Weight> {
        let stream = device.upload_stream;
        let buffer = Buffer::on_stream(device, stream, BufferKind::Byte, stored.bytes())?;
        let mut queue = Queue::new(device, stream);
        push_stored(&mut queue, stored, buffer.address());
        self.enqueue(device, queue, when)?;
        Ok(Weight::new(buffer, form.rows, form.cols).with_stored(Some(Arc::clone(stored))))
    }

    /// Loads a 16-bit matrix with the concatenated rows of the parts; rows and columns are padded with zeros to
    /// multiples of [`PADDING`](super::weight::PADDING).
    fn rows(&self, device: &Arc<Device>, parts: &[TensorView], when: When<'_>) -> Result<Weight> {
        let (form, stream) = (Form::for_parts(parts, Storage::Native)?, device.upload_stream);
        let buffer = match when {
            When::With(_) => Buffer::for_weights,
            When::AtOnce => Buffer::on_stream,
        };
        let buffer = buffer(device, stream, device.element().kind(), form.padded_rows() * form.stride())?;
        let mut queue = Queue::new(device, stream);
        // SAFETY: the buffer was allocated for a weight of this form.
        unsafe { push_rows(device, &mut queue, parts, form, buffer.address()) }?;
        self.enqueue(device, queue, when)?;
        Ok(Weight::new(buffer, form.rows, form.cols))
    }

    /// Loads a quantized weight with a scale for each row, padded to multiples of [`MULTIPLE`]. If no file has it
    /// quantized, a 16-bit copy is uploaded immediately, and freed behind the kernel that reads it, so that there is
    /// never more than one.
    ///
    /// [`MULTIPLE`]: crate::files::e4m3::MULTIPLE
    fn quantized_weight(
        &self,
        device: &Arc<Device>,
        parts: &[TensorView],
        form: Form,
        when: When<'_>,
    ) -> Result<Weight> {
        let stream = device.upload_stream;
        if let Some(quantized) = quantized_parts(parts) {
            let buffer = quantized_buffer(device, stream, form)?;
            let mut queue = Queue::new(device, stream);
            // SAFETY: the buffer was allocated for a weight of this form.
            unsafe { push_quantized(device, &mut queue, &quantized, form, buffer.address()) }?;
            self.enqueue(device, queue, when)?;
            return Ok(Weight::new(buffer, form.rows, form.cols));
        }
        let copy = self.rows(device, parts, When::AtOnce)?;
        let quantized = self.quantized(device, stream, &copy, form.storage);
        // Also after an error, before the memory is dropped.
        device.join_uploads()?;
        quantized
    }

    /// Quantizes a 16-bit weight to `storage` with a scale for each row, by work on `stream`, on which the weight was
    /// computed.
    pub fn quantized(&self, device: &Arc<Device>, stream: Stream, weight: &Weight, storage: Storage) -> Result<Weight> {
        let form = Form::quantized_here(weight.rows(), weight.cols(), storage);
        let buffer = quantized_buffer(device, stream, form)?;
        let from = Matrix { address: weight.address(), stride: weight.stride() };
        // SAFETY: the weight has the rows and columns of the form, for which the buffer was allocated. It is complete
        // before this on the stream, and freed behind it.
        unsafe { quantize(device, stream, from, form, buffer.address()) }?;
        Ok(Weight::new(buffer, form.rows, form.cols))
    }

    /// Returns the mapped files of `views`; their chunks stay registered as long as the result exists.
    pub fn files_of<'a>(&self, views: impl Iterator<Item = &'a TensorView>) -> Vec<Arc<MappedFile>> {
        self.registered().mapped_files(views)
    }

    /// Copies weights to their places from `address` on, by work on `stream`. The host waits only for its own staging
    /// buffers. `scratch` is memory that no work on another stream uses; it is allocated if missing, and kept, because
    /// freeing it would wait for the work on the compute stream.
    ///
    /// # Safety
    /// At `address` is a live buffer with room for all of the weights, which work on `stream` may write.
    pub unsafe fn write(
        &self,
        device: &Arc<Device>,
        stream: Stream,
        weights: &[(UploadSource, u64)],
        address: u64,
        scratch: &mut Option<Buffer>,
    ) -> Result<()> {
        let mut queue = Queue::new(device, stream);
        let mut to_quantize = Vec::new();
        for (source, offset) in weights {
            let UploadSource { parts, form, stored, .. } = source;
            let to = address + offset;
            if let Some(stored) = stored {
                push_stored(&mut queue, stored, to);
                continue;
            }
            match (form.storage, quantized_parts(parts)) {
                // SAFETY: as the caller promises.
                (Storage::Native, _) => unsafe { push_native(device, &mut queue, source, to) }?,
                // SAFETY: as above.
                (_, Some(quantized)) => unsafe { push_quantized(device, &mut queue, &quantized, *form, to) }?,
                (_, None) => to_quantize.push((parts, *form, to)),
            }
        }
        self.send_and_time(device, &queue)?;
        for (parts, form, to) in to_quantize {
            let native = form.native();
            let copy = match scratch.take().filter(|scratch| scratch.bytes() >= native.bytes()) {
                Some(large_enough) => large_enough,
                None => Buffer::on_stream(device, stream, BufferKind::Byte, native.bytes())?,
            };
            let copy = scratch.insert(copy);
            let mut queue = Queue::new(device, stream);
            // SAFETY: `copy` has room for a weight of this form, and only work on `stream` uses it.
            unsafe { push_rows(device, &mut queue, parts, native, copy.address()) }?;
            self.send_and_time(device, &queue)?;
            let from = Matrix { address: copy.address(), stride: native.stride() };
            // SAFETY: as above; the caller promises the destination.
            unsafe { quantize(device, stream, from, form, to) }?;
        }
        Ok(())
    }

    /// Runs the jobs of `queue`, and measures the rate if the host takes part.
    fn send_and_time(&self, device: &Arc<Device>, queue: &Queue) -> Result<()> {
        let start = Instant::now();
        let bytes = self.send(device, queue, &mut |_| {})?;
        if bytes > 0 {
            let mut rate = self.host_rate.lock();
            *rate = HostRate { bytes: rate.bytes + bytes as u64, time: rate.time + start.elapsed() };
        }
        Ok(())
    }

    /// Returns a remark if the host limits the streaming of blocks.
    pub fn slow_host(&self) -> Option<String> {
        self.host_rate.lock().remark()
    }

    /// Loads a convolution weight [out, in, k, k] as [out, k * k * in], columns ordered (ky, kx, in), padded as in
    /// [`Uploader::weight`].
    pub fn conv_weight(&self, device: &Arc<Device>, view: &TensorView, uploads: Option<&Uploads>) -> Result<Weight> {
        let when = When::With(uploads);
        let &[rows, channels, height, width] = view.shape() else {
            return Err(Error::new(format!("a convolution weight has shape {:?}, expected 4 axes", view.shape())));
        };
        let (cols, taps) = (channels * height * width, height * width);
        let form = Form { rows, cols, storage: Storage::Native, group: 1 };
        let origin = Origin::for_convolution(view, form);
        let weight = match self.find(&origin) {
            Some(found) => self.copy_of(device, found, form, when)?,
            None => self.reordered(device, view, form, [rows, channels, taps], when)?,
        };
        self.offer(device, origin, [view].into_iter(), &weight, when)?;
        Ok(weight)
    }

    /// Loads a tensor of `from`, rows, channels and taps, in the order in which convolutions read it.
    fn reordered(
        &self,
        device: &Arc<Device>,
        view: &TensorView,
        form: Form,
        from: [usize; 3],
        when: When<'_>,
    ) -> Result<Weight> {
        let stream = device.upload_stream;
        let buffer = Buffer::for_weights(device, stream, device.element().kind(), form.padded_rows() * form.stride())?;
        let (to, mut queue) = (buffer.address(), Queue::new(device, stream));
        queue.push_dense(device, view, CopyTarget { to, from, to_rows: form.rows, stride: form.stride() })?;
        // SAFETY: the buffer was allocated for the rows and their padding.
        unsafe { clear_padding(device, stream, form, to) }?;
        self.enqueue(device, queue, when)?;
        Ok(Weight::new(buffer, form.rows, form.cols))
    }

    /// Runs the jobs of `queue`, or leaves them to [`Uploader::together`].
    fn enqueue(&self, device: &Arc<Device>, queue: Queue, when: When<'_>) -> Result<()> {
        match when {
            When::With(Some(Uploads(later))) => later.lock().append(queue),
            When::With(None) | When::AtOnce => self.send_and_join(device, queue, &mut |_| {})?,
        }
        Ok(())
    }

    /// Runs the jobs, and makes the compute stream wait for all uploads.
    fn send_and_join(&self, device: &Arc<Device>, mut queue: Queue, report: &mut dyn FnMut(u64)) -> Result<()> {
        let sent = self.send(device, &queue, report);
        let copied = sent.and_then(|_| copy_weights(device, queue.stream, &queue.copies, report));
        // Also after an error, before the queue is dropped.
        device.join_uploads()?;
        copied?;
        if !queue.made.is_empty() {
            let made = Arc::new(Event::new(device, queue.stream)?);
            self.loaded.add(mem::take(&mut queue.made), &made);
        }
        Ok(())
    }

    /// Runs the jobs on the queue's stream. Returns the number of bytes that the host had to touch.
    fn send(&self, device: &Arc<Device>, queue: &Queue, report: &mut dyn FnMut(u64)) -> Result<usize> {
        let bytes = self.copier.copy(device, queue.stream, &queue.jobs, report)?;
        queue.jobs.iter().try_for_each(|job| job.finish(device, queue.stream))?;
        Ok(bytes)
    }
}

/// Allocates a quantized weight for first use on `stream`.
fn quantized_buffer(device: &Arc<Device>, stream: Stream, form: Form) -> Result<Buffer> {
    let kind = form.quantized_kind().expect("the form of a quantized weight");
    Buffer::quantized_weight(device, stream, kind, form.padded_rows(), form.stride())
}

/// Returns the quantized parts, if files have all of them quantized.
fn quantized_parts(parts: &[TensorView]) -> Option<Vec<&TensorView>> {
    parts.iter().map(TensorView::quantized).collect()
}

/// Adds jobs for a 16-bit weight at device address `to`.
///
/// # Safety
/// At `to` is a live buffer with room for a weight of this form, which work on the queue's stream may write.
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
    // SAFETY: as the caller promises.
    unsafe { clear_padding(device, queue.stream, form, to) }
}

/// Adds jobs for a 16-bit weight at device address `to`, or for columns of the matrix there.
///
/// # Safety
/// As [`push_rows`], for the whole matrix.
unsafe fn push_native(device: &Arc<Device>, queue: &mut Queue, source: &UploadSource, to: u64) -> Result<()> {
    let UploadSource { parts, form, .. } = source;
    let Some(Columns { first, stride }) = source.columns else {
        // SAFETY: as the caller promises.
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

/// Adds jobs for a weight in the format of its file at device address `to`, which must have room for it.
fn push_stored(queue: &mut Queue, stored: &Stored, to: u64) {
    for part in stored.parts() {
        let raw = |view: &TensorView, at: usize| UploadJob::raw(view, Destination::dense(to + at as u64));
        queue.jobs.push(raw(&part.values, part.values_at));
        queue.jobs.extend(part.scales.iter().map(|scales| raw(scales, part.scales_at)));
    }
}

/// Adds jobs for values and scales of a quantized weight at device address `to`, as in the files.
///
/// # Safety
/// As [`push_rows`].
unsafe fn push_quantized(
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
        let scales = part.row_scales().expect("quantized rows have scales");
        queue.jobs.extend([
            UploadJob::raw(part, values_of(row)),
            UploadJob::raw(&scales, Destination::dense(scales_of(row))),
        ]);
        row += part.rows();
    }
    // SAFETY: as the caller promises.
    unsafe {
        clear_padding(device, queue.stream, form, to)?;
        clear(device, queue.stream, scales_of(row), (form.padded_rows() - row) * size_of::<f32>())
    }
}

/// Quantizes a 16-bit matrix with the form's rows and columns to the form at device address `to`, with a scale for each
/// row, by work on `stream`.
///
/// # Safety
/// The matrix is in a live buffer, with rows of whole 16 bytes; at `to` is one with room for the form. Work on `stream`
/// may read the matrix and write to `to`.
unsafe fn quantize(device: &Device, stream: Stream, from: Matrix, form: Form, to: u64) -> Result<()> {
    let (rows, cols) = (form.rows, form.cols);
    let block = quantized_block(cols).filter(|_| cols.is_multiple_of(8));
    let (file, kernel) = match (form.storage, block) {
        (Storage::Int8, Some(_)) => ("quantize_int8", "quantize_int8"),
        (Storage::Int8, None) => ("quantize_int8", "quantize_int8_any"),
        (Storage::W4a8, _) => ("quantize_w4a8", "quantize_w4a8"),
        (_, Some(_)) => ("quantize_weight", "quantize_weight_bf16"),
        (_, None) => ("quantize_weight", "quantize_weight_bf16_any"),
    };
    let launch = device.launch(file, kernel)?.on(stream).address(from.address).long(from.stride);
    let launch = launch.address(to).long(form.stride()).address(to + form.scales().unwrap_or(0) as u64);
    let launch = launch.int(rows).int(cols);
    let is_rotated = matches!(form.storage, Storage::Int8 | Storage::W4a8);
    let launch = if is_rotated { launch.int(form.group) } else { launch };
    // SAFETY: argument types and order match the kernels in cuda/quantize_weight.cu, cuda/quantize_int8.cu and
    // cuda/quantize_w4a8.cu, which supports all columns that forms of W4a8 have. The matrix has `rows` rows of `cols`
    // values; at `to` is room for the row and the scale of every block.
    unsafe { launch.run([form.padded_rows(), 1, 1], [block.unwrap_or(256), 1, 1]) }
}

/// Zeroes the padding rows, by work on `stream`.
///
/// # Safety
/// As [`push_rows`].
unsafe fn clear_padding(device: &Device, stream: Stream, form: Form, to: u64) -> Result<()> {
    let row_bytes = form.stride() * form.value_bytes();
    let behind = to + (form.rows * row_bytes) as u64;
    // SAFETY: as the caller promises.
    unsafe { clear(device, stream, behind, (form.padded_rows() - form.rows) * row_bytes) }
}

/// Zeroes memory, by work on `stream`.
///
/// # Safety
/// The `len` bytes at `address` are in a live buffer, which work on `stream` may write.
unsafe fn clear(device: &Device, stream: Stream, address: u64, len: usize) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    let _submission = device.submit(stream)?;
    // SAFETY: as the caller promises.
    unsafe { result::memset_d8_async(address, 0, len, stream.raw()) }.map_err(|e| failed("cannot clear GPU memory", e))
}
