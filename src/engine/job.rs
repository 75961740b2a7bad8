//! What an engine is asked for, and what happens to it.

use std::ops::Range;
use std::sync::Arc;

use super::{Inputs, JobImage, OfImages, Recipe};
use crate::error::Result;
use crate::pipeline::session::shape::Shape;
use crate::pipeline::{Embeddings, Latents, Request, Timings};
use crate::rgb::Rgb;
use crate::stage::{CancelFlag, Progress};

/// Images to make.
#[derive(Debug, Clone)]
pub struct Job {
    /// The first image; the others have the seeds that follow its seed.
    pub request: Request,
    /// Images, at least one.
    pub count: usize,
    /// The images of the request, see [`Inputs::apply`]: results come back onto them when they are written.
    pub inputs: Arc<Inputs>,
    /// What the request was made of. Image files carry it, so that the image can be made again.
    pub recipe: Option<Arc<Recipe>>,
    /// Which of the images of a file of noise or latents it is, where the request has that one alone.
    pub of: Option<OfImages>,
    /// A hash of what is asked for, which image files carry.
    pub key: Option<String>,
    /// Whether image files say in XMP that a model made them.
    pub provenance: bool,
    /// Jobs of a higher priority begin first; of one priority, those that were submitted first.
    pub priority: i32,
    /// The most images of a batch that it shares with other jobs; 1 makes it alone.
    pub most_together: usize,
    /// Whether the text features are wanted, too.
    pub embeddings: bool,
    /// Whether the final latents of each image are wanted, too.
    pub latents: bool,
    /// Whether a small image is wanted of what each step leads to.
    pub previews: bool,
    /// Ends the job, as [`Ticket::cancel`](super::Ticket::cancel).
    pub cancel: CancelFlag,
}

impl Job {
    /// `count` images of a request, whose seeds are its own and those that follow it.
    pub fn new(request: Request, count: usize) -> Self {
        Self {
            request,
            count,
            inputs: Arc::default(),
            recipe: None,
            of: None,
            key: None,
            provenance: true,
            priority: 0,
            most_together: usize::MAX,
            embeddings: false,
            latents: false,
            previews: false,
            cancel: CancelFlag::default(),
        }
    }
}

/// With which others an image may be made as one batch: those of an equal shape.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchShape(pub(super) Shape);

impl BatchShape {
    /// Images that take less time in one batch than one after the other, where memory does not decide.
    pub fn most_at_once(&self) -> usize {
        self.0.most_at_once()
    }
}

/// What happens to a job. Its images are counted from 0, in the order of their seeds.
#[derive(Debug, Clone)]
pub enum Event {
    /// The job waits behind so many images of other jobs.
    Queued(usize),
    /// A device makes a batch.
    Started {
        /// The images of this job in it.
        images: Range<usize>,
        /// All images in it.
        batch: usize,
        /// Where the transformer has the adapters, for the curious.
        remark: Option<String>,
    },
    /// How far a batch is.
    Progress(Progress),
    /// What the steps so far lead to: of an eighth of the image's sides, or with a preview decoder
    /// (see [`EngineArgs`](super::EngineArgs)) of up to 512 pixels a side. There is none after the last step, which the
    /// image follows, and none where several devices make an image together.
    Preview {
        /// Which image it is of.
        place: usize,
        /// Steps that were done, of so many.
        steps: [usize; 2],
        /// What it looks like.
        image: Rgb,
    },
    /// The text features that were asked for.
    Embeddings(Embeddings),
    /// An image is made.
    Image {
        /// Which one.
        place: usize,
        /// What was made.
        image: Box<JobImage>,
        /// Its final latents, where they were asked for.
        latents: Option<Latents>,
    },
    /// All of a batch is made.
    Finished {
        /// The images of this job in it.
        images: Range<usize>,
        /// The device, or the devices of a group.
        device: Arc<str>,
        /// Where the time of the batch went.
        timings: Box<Timings>,
    },
}

/// What the schedule sends of a job.
pub(super) enum TicketMessage {
    /// Of the batch whose first image is `first`.
    Event { first: usize, event: Event },
    /// The last of it; an error where not all images are made.
    End(Result<()>),
}
