//! Reading of weights from a cold disk before they are used: while a GPU is being opened, and while the CPU computes
//! with the weights before them.
//!
//! An access of a mapped page that is not in memory reads a small range of the file, and waits for it. The system reads
//! several times faster if it knows what is used next.

use std::ops::Range;
use std::sync::Arc;
use std::thread;

use crate::files::{Bytes, TensorFiles};
use crate::memory;
use crate::model::open::Files;
use crate::stage::CancelFlag;
use crate::text_encoder;

/// Bytes that are requested at once: what is still read after the value is dropped.
const CHUNK: usize = 32 << 20;

/// Another thread that reads the weights of a model in the order of use, until this value is dropped.
pub(crate) struct ReadAhead(CancelFlag);

impl ReadAhead {
    /// Starts the thread; if that fails, weights are read when they are used. It reads at most three quarters of the
    /// available memory, so that the weights stay there until they are used.
    pub(crate) fn start(files: &Files) -> Self {
        let chunks = chunks(files, memory::available_bytes() / 4 * 3);
        let stop = CancelFlag::default();
        let stopped = stop.clone();
        let read = move || {
            chunks.iter().take_while(|_| !stopped.is_set()).for_each(|(file, range)| file.read_ahead(range.clone()))
        };
        let _ = thread::Builder::new().spawn(read);
        Self(stop)
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Returns the ranges of the weights in the order of use, of at most `limit` bytes.
fn chunks(files: &Files, limit: u64) -> Vec<(Arc<Bytes>, Range<usize>)> {
    let components = files.text_encoder.iter().chain([&files.transformer, &files.vae]);
    let tensors = components.flat_map(TensorFiles::requested);
    let tensors = tensors.filter(|(name, _)| !name.ends_with(text_encoder::EMBEDDING)).flat_map(|(_, pieces)| pieces);
    let chunks = tensors.flat_map(|tensor| {
        let (start, end) = (tensor.start(), tensor.start() + tensor.bytes().len());
        let file = Arc::clone(tensor.file());
        (start..end).step_by(CHUNK).map(move |at| (Arc::clone(&file), at..end.min(at + CHUNK)))
    });
    let mut left = limit;
    let fits = |(_, range): &(Arc<Bytes>, Range<usize>)| {
        let len = range.len() as u64;
        let fits = len <= left;
        left = left.saturating_sub(len);
        fits
    };
    chunks.take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Container, ModelFiles};
    use crate::model::OpenModel;

    #[test]
    fn weights_are_read_in_the_order_of_use_without_the_embeddings_and_within_the_limit() {
        let model = OpenModel::open(&ModelFiles::open("models/tiny".as_ref()).unwrap()).unwrap();
        let files = &model.files;
        let all = chunks(files, u64::MAX);
        let text = files.text_encoder.as_ref().unwrap();
        let place = |files: &TensorFiles, name: &str| {
            let (_, pieces) = files.requested().into_iter().find(|(found, _)| found.ends_with(name)).unwrap();
            let (file, start) = (Arc::clone(pieces[0].file()), pieces[0].start());
            all.iter().position(|(other, range)| Arc::ptr_eq(other, &file) && range.start == start)
        };
        assert_eq!(place(text, text_encoder::EMBEDDING), None);
        let layer = |i| place(text, &format!("layers.{i}.self_attn.q_proj.weight")).unwrap();
        assert!(layer(0) < layer(1));
        let in_file = |container: &Container| all.iter().rposition(|(file, _)| Arc::ptr_eq(file, container.bytes()));
        let last = |files: &TensorFiles| in_file(&files.files()[0]).unwrap();
        assert!(last(text) < last(&files.transformer) && last(&files.transformer) < last(&files.vae));
        assert!(all.iter().all(|(_, range)| range.len() <= CHUNK));
        let lengths =
            |chunks: &[(Arc<Bytes>, Range<usize>)]| chunks.iter().map(|(_, range)| range.len() as u64).sum::<u64>();
        let half = lengths(&all) / 2;
        let some = chunks(files, half);
        assert!(!some.is_empty() && lengths(&some) <= half && some.len() < all.len());
    }
}
