//! Weights in a GPU's memory, which linked GPUs copy instead of loading them from files.
//!
//! NVLink transfers 395 GB/s, a host 55, and conversion, padding and quantization are not repeated.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use cudarc::driver::sys;
use parking_lot::Mutex;

use super::form::{Form, UploadSource};
use crate::backend::cuda::buffer::Buffer;
use crate::backend::cuda::device::{Device, Stream};
use crate::backend::cuda::driver::failed;
use crate::backend::cuda::event::Event;
use crate::error::Result;
use crate::files::{Bytes, Format, TensorView};

/// The sources of a weight, and its layout in memory: on GPUs that compute alike, equal origins have equal bytes.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    parts: Vec<Chunk>,
    form: Form,
    layout: Layout,
}

/// The location of a tensor: its file, as an address, and the byte range.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Chunk {
    file: usize,
    start: usize,
    len: usize,
    format: Format,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Layout {
    /// In the layout of matrix multiplications.
    Rows,
    /// Concatenated columns of matrices with these numbers of columns.
    Columns(Vec<usize>),
    /// In the format of its file.
    Stored,
    /// The columns of a convolution's weight, reordered.
    Convolution,
}

impl Origin {
    pub fn from_source(source: &UploadSource) -> Self {
        let layout = if source.stored.is_some() { Layout::Stored } else { Layout::Rows };
        Self { parts: source.views().map(Chunk::new).collect(), form: source.form, layout }
    }

    /// Returns the origin of concatenated columns, for a matrix with this layout.
    pub fn side_by_side(sources: &[UploadSource], form: Form) -> Self {
        let parts = sources.iter().flat_map(UploadSource::views).map(Chunk::new).collect();
        Self { parts, form, layout: Layout::Columns(sources.iter().map(|source| source.form.cols).collect()) }
    }

    pub fn for_convolution(view: &TensorView, form: Form) -> Self {
        Self { parts: vec![Chunk::new(view)], form, layout: Layout::Convolution }
    }
}

impl Chunk {
    fn new(view: &TensorView) -> Self {
        let file = Arc::as_ptr(view.file()) as usize;
        Self { file, start: view.start(), len: view.bytes().len(), format: view.format() }
    }
}

/// A weight with values that are complete after the event `made`.
#[derive(Clone)]
pub struct Found {
    pub buffer: Arc<Buffer>,
    pub made: Arc<Event>,
}

struct Entry {
    buffer: Weak<Buffer>,
    made: Arc<Event>,
    /// As long as these exist, no other file can have the address of one of them.
    _files: Vec<Weak<Bytes>>,
}

/// The weights of a GPU that others may copy.
#[derive(Default)]
pub struct LoadedWeights(Mutex<HashMap<Origin, Entry>>);

impl LoadedWeights {
    /// Adds weights that are complete after the event `made`.
    pub fn add(&self, weights: Vec<Made>, made: &Arc<Event>) {
        let mut entries = self.0.lock();
        entries.retain(|_, entry| entry.buffer.strong_count() > 0);
        for Made { origin, files, buffer } in weights {
            entries.insert(origin, Entry { buffer: Arc::downgrade(&buffer), made: Arc::clone(made), _files: files });
        }
    }

    /// Returns the weight, if it still exists.
    pub fn find(&self, origin: &Origin) -> Option<Found> {
        let entries = self.0.lock();
        let Entry { buffer, made, .. } = entries.get(origin)?;
        Some(Found { buffer: buffer.upgrade()?, made: Arc::clone(made) })
    }
}

/// A weight that is being uploaded.
pub struct Made {
    pub origin: Origin,
    pub files: Vec<Weak<Bytes>>,
    pub buffer: Arc<Buffer>,
}

/// A copy of a weight from the memory of another GPU.
pub struct CopyOfWeight {
    pub from: Found,
    pub to: Arc<Buffer>,
    /// Its elements, for progress reports.
    pub elements: u64,
}

/// Runs copies on `stream` of `device`, and waits for them: their sources may be freed afterwards.
pub fn copy_weights(
    device: &Arc<Device>,
    stream: Stream,
    copies: &[CopyOfWeight],
    report: &mut dyn FnMut(u64),
) -> Result<()> {
    if copies.is_empty() {
        return Ok(());
    }
    let enqueued = copies.iter().try_for_each(|copy| copy.enqueue(device, stream));
    // Also after an error, because some copies may be running.
    let waited = Event::new(device, stream).and_then(|event| event.wait());
    if waited.is_err() {
        // On a failed device a copy may still read, so its source must not be freed.
        copies.iter().for_each(|copy| std::mem::forget(Arc::clone(&copy.from.buffer)));
    }
    enqueued.and(waited)?;
    copies.iter().for_each(|copy| report(copy.elements));
    Ok(())
}

impl CopyOfWeight {
    fn enqueue(&self, device: &Arc<Device>, stream: Stream) -> Result<()> {
        let Found { buffer, made } = &self.from;
        made.make_wait(stream)?;
        let _submission = device.submit(stream)?;
        let (to, own) = (self.to.address(), device.context);
        // SAFETY: both buffers live until the copy is done, which `copy_weights` waits for, and `to` is as long as
        // `buffer`. Their contexts live as long as their devices.
        unsafe {
            sys::cuMemcpyPeerAsync(to, own, buffer.address(), buffer.device().context, buffer.bytes(), stream.raw())
        }
        .result()
        .map_err(|e| failed(&format!("cannot copy weights from {}", buffer.device().numbered_name()), e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Storage;
    use crate::files::Scales;

    fn view(file: &Arc<Bytes>, rows: std::ops::Range<usize>) -> TensorView {
        let (range, shape) = (rows.start * 16..rows.end * 16, vec![rows.len(), 8]);
        TensorView::new(Arc::clone(file), range, Format::Bf16, shape, Scales::None).unwrap()
    }

    #[test]
    fn the_same_rows_in_the_same_form_are_one_weight() {
        let [file, other] = [0, 1].map(|byte| Arc::new(Bytes::Embedded(vec![byte; 256].leak())));
        let of =
            |parts: &[TensorView], storage| Origin::from_source(&UploadSource::new(parts, storage, false).unwrap());
        let origin = of(&[view(&file, 0..4)], Storage::Native);
        assert_eq!(of(&[view(&file, 0..4)], Storage::Native), origin);
        assert_ne!(of(&[view(&file, 0..5)], Storage::Native), origin);
        assert_ne!(of(&[view(&file, 4..8)], Storage::Native), origin);
        assert_ne!(of(&[view(&file, 0..4), view(&file, 4..8)], Storage::Native), origin);
        assert_ne!(of(&[view(&other, 0..4)], Storage::Native), origin);
        assert_ne!(of(&[view(&file, 0..4)], Storage::Fp8), origin);
        let form = Form { rows: 4, cols: 8, storage: Storage::Native, group: 1 };
        assert_ne!(Origin::for_convolution(&view(&file, 0..4), form), origin);
    }
}
