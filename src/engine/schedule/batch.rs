//! The images of jobs in batches.

use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;

use super::super::estimate::Cost;
use super::super::event::{Event, Message, Sink};
use super::super::image::Origin;
use super::super::job::{Job, JobId};
use crate::error::Error;
use crate::pipeline::Request;
use crate::pipeline::session::shared_text::{SharedText, TextSource};
use crate::stage::CancelFlag;

/// Batches of a job, created when they are taken, because there may be any number of images.
pub(super) type Batches = Box<dyn Iterator<Item = Range<usize>> + Send>;

/// A job that is not over.
pub(super) struct Active {
    pub(super) origin: Arc<Origin>,
    pub(super) cancel: CancelFlag,
    pub(super) sink: Sink,
    pub(super) outlives_engine: bool,
    /// Number of the model.
    pub(super) model: usize,
    pub(super) cost: Cost,
    /// Max images of a batch.
    pub(super) max: usize,
    /// Images that were returned by batches; they are the next to generate.
    pub(super) first: Vec<Range<usize>>,
    /// Batches that were not taken yet.
    pub(super) rest: Peekable<Batches>,
    /// Text features that the device of the first batch computes for all, if there are several batches.
    pub(super) text: Option<Arc<SharedText>>,
    /// Number of batches that were taken and not yet received by the caller.
    pub(super) open: usize,
    /// Number of batches that were taken and have not ended.
    pub(super) running: usize,
    pub(super) failed: Option<Error>,
}

/// Images of a job in a batch.
pub(in crate::engine) struct JobShare {
    pub(super) id: JobId,
    pub(super) images: Range<usize>,
    sink: Sink,
    pub(in crate::engine) origin: Arc<Origin>,
}

impl JobShare {
    pub(in crate::engine) fn job(&self) -> &Job {
        &self.origin.job
    }

    /// Returns `true` if the job requests the text features, and no other batch sends them.
    pub(in crate::engine) fn wants_embeddings(&self) -> bool {
        self.job().embeddings && self.images.start == 0
    }

    /// Returns the images as a range in the job.
    pub(in crate::engine) fn images(&self) -> Range<usize> {
        self.images.clone()
    }

    pub(in crate::engine) fn send(&self, event: Event) {
        // Without a receiver the job was cancelled, which the session detects.
        (self.sink)(Message::Event { first: self.images.start, event });
    }
}

/// Images that a device generates in one batch, if memory allows.
pub(in crate::engine) struct Batch {
    pub(super) number: u64,
    pub(super) device: usize,
    pub(in crate::engine) parts: Vec<JobShare>,
    /// The request of each image, in the order of the parts.
    pub(in crate::engine) requests: Vec<Request>,
    pub(in crate::engine) reader: TextSource,
    pub(in crate::engine) cancel: CancelFlag,
}

impl Batch {
    /// Returns the job of an image of the batch.
    pub(in crate::engine) fn job(&self, mut image: usize) -> Option<&Job> {
        let has_image = |part: &&JobShare| {
            let count = part.images.len();
            let is_own = image < count;
            image = image.saturating_sub(count);
            is_own
        };
        self.parts.iter().find(has_image).map(JobShare::job)
    }
}

impl Active {
    /// Takes the next images for a batch.
    pub(super) fn take(&mut self) -> Option<Range<usize>> {
        let images = self.first.pop().or_else(|| self.rest.next())?;
        // A single device gets all remaining images at once; they are cut here.
        if images.len() > self.max {
            self.first.push(images.start + self.max..images.end);
        }
        Some(images.start..images.end.min(images.start + self.max))
    }

    /// Adds images of the job to a batch.
    pub(super) fn join(&mut self, id: JobId, images: Range<usize>, batch: &mut Batch) {
        (self.open, self.running) = (self.open + 1, self.running + 1);
        let item = |image: usize| self.origin.job.image_request(image);
        batch.requests.extend(images.clone().map(item));
        batch.parts.push(JobShare { id, images, sink: Arc::clone(&self.sink), origin: Arc::clone(&self.origin) });
    }
}

/// Divides images evenly: every device gets the same number of batches of nearly one size, so that all end together.
/// A single device takes all remaining images each time, and generates as many as it can.
pub(super) fn batches(count: usize, devices: usize, most: usize) -> Batches {
    let batches = if devices == 1 { 1 } else { count.min(count.div_ceil(devices * most) * devices) };
    let (size, larger) = (count / batches, count % batches);
    let start = move |batch: usize| batch * size + batch.min(larger);
    Box::new((0..batches).map(move |batch| start(batch)..start(batch + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(count: usize, devices: usize, most: usize) -> Vec<usize> {
        let batches: Vec<_> = batches(count, devices, most).collect();
        let ends: Vec<_> = batches.iter().map(|batch| batch.end).collect();
        let starts: Vec<_> = batches.iter().skip(1).map(|batch| batch.start).collect();
        assert_eq!((starts, ends[ends.len() - 1]), (ends[..ends.len() - 1].to_vec(), count), "none is left out");
        batches.iter().map(Range::len).collect()
    }

    #[test]
    fn images_are_shared_evenly() {
        assert_eq!(sizes(2, 2, 8), [1, 1]);
        assert_eq!(sizes(8, 2, 8), [4, 4]);
        assert_eq!(sizes(3, 2, 8), [2, 1]);
        assert_eq!(sizes(1, 2, 8), [1]);
        assert_eq!(sizes(17, 2, 8), [5, 4, 4, 4], "as few rounds as batches allow");
        assert_eq!(sizes(5, 2, 1), [1; 5], "images that are made alone");
        assert_eq!(sizes(20, 1, 8), [20], "one device cuts them when it makes them");
        assert_eq!(sizes(10_000, 3, 8).iter().max(), Some(&8));
        assert_eq!(batches(usize::MAX, 2, 8).nth(1), Some(8..16), "none is made before it is taken");
    }
}
