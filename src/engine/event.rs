//! Events of jobs.

use std::ops::Range;
use std::sync::Arc;

use super::Image;
use crate::error::Result;
use crate::pipeline::{Embeddings, Latents, Timings};
use crate::rgb::Rgb;
use crate::stage::Progress;

/// An event of a job. Images are counted from 0, in the order of their seeds.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// The job waits behind this number of images of other jobs.
    Queued(usize),
    /// A device starts a batch.
    Started {
        /// Images of this job in the batch.
        images: Range<usize>,
        /// Number of images in the batch.
        batch: usize,
        /// Placement of adapters in the transformer, for verbose output.
        remark: Option<String>,
    },
    /// Progress of a batch.
    Progress(Progress),
    /// Preview of a step: an eighth of the image's sides, or with a preview decoder (see
    /// [`EngineArgs`](super::EngineArgs)) up to 512 pixels a side. There is none after the last step, because the
    /// image follows, and none if several devices generate an image together.
    Preview {
        /// Index of the image.
        place: usize,
        /// Number of finished steps, and number of all steps.
        steps: [usize; 2],
        /// Preview image.
        image: Rgb,
    },
    /// The requested text features.
    Embeddings(Embeddings),
    /// An image is finished.
    Image {
        /// Index of the image.
        place: usize,
        /// The image.
        image: Box<Image>,
        /// Final latents, if requested.
        latents: Option<Latents>,
    },
    /// The image of a job that enlarges one is finished.
    Enlarged(Box<Rgb>),
    /// All images of a batch are finished.
    Finished {
        /// Images of this job in the batch.
        images: Range<usize>,
        /// Name of the device, or of the devices of a group.
        device: Arc<str>,
        /// Timings of the batch.
        timings: Box<Timings>,
    },
}

/// A message about a job.
#[derive(Debug)]
pub enum Message {
    /// An event of a batch.
    Event {
        /// First image of the batch.
        first: usize,
        /// The event.
        event: Event,
    },
    /// The end of the job; an error if not all images were generated.
    End(Result<()>),
}

/// A receiver of the messages of a job. It must not block or use the engine.
pub type Sink = Arc<dyn Fn(Message) + Send + Sync>;
