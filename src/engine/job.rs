//! What an engine is asked for, and what comes back.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::order::{Order, Output};
use super::schedule::{JobId, Schedule};
use crate::error::{Error, Result};
use crate::pipeline::{CancelFlag, Decoded, Embeddings, Latents, Progress, Request, Timings};

/// How often a job that says nothing is looked at, whether its caller has cancelled it.
const POLL: Duration = Duration::from_millis(20);

/// Images to make.
#[derive(Debug, Clone)]
pub struct Job {
    /// The first image; the others have the seeds that follow its seed.
    pub request: Request,
    /// Images, at least one.
    pub count: usize,
    /// Jobs of a higher priority begin first; of one priority, those that were submitted first.
    pub priority: i32,
    /// Whether the text features are wanted, too.
    pub embeddings: bool,
    /// Whether the final latents of each image are wanted, too.
    pub latents: bool,
    /// Ends the job, as [`Ticket::cancel`].
    pub cancel: CancelFlag,
}

impl Job {
    /// `count` images of a request, whose seeds are its own and those that follow it.
    pub fn new(request: Request, count: usize) -> Self {
        Self { request, count, priority: 0, embeddings: false, latents: false, cancel: CancelFlag::default() }
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
    /// The text features that were asked for.
    Embeddings(Embeddings),
    /// An image is made.
    Image {
        /// Which one.
        place: usize,
        /// RGB bytes, and how they were made.
        image: Box<Decoded>,
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
pub(super) enum Message {
    /// Of the batch whose first image is `first`.
    Event { first: usize, event: Event },
    /// The last of it; an error where not all images are made.
    End(Result<()>),
}

/// A job that was submitted. Dropping it cancels the job.
pub struct Ticket {
    pub(super) id: JobId,
    pub(super) schedule: Arc<Schedule>,
    pub(super) messages: Receiver<Message>,
    pub(super) cancel: CancelFlag,
    pub(super) is_over: bool,
}

impl Ticket {
    /// Cancels the job: its images that wait are not begun, and those that devices make end within about a step, unless
    /// other jobs have images in the same batch.
    pub fn cancel(&self) {
        self.schedule.cancel(self.id);
    }

    /// The events in the order of images: what is said of a batch waits until all was said of the batches of earlier
    /// images, whichever device is faster. Of later ones, no progress is told.
    pub fn in_order(self) -> InOrder {
        InOrder { ticket: self, order: Order::new(), ready: VecDeque::new(), error: None }
    }

    /// What comes next, and the first image of the batch that it is of. `None` after the end.
    fn receive(&mut self) -> Option<Result<(usize, Event)>> {
        while !self.is_over {
            match self.messages.recv_timeout(POLL) {
                Ok(Message::Event { first, event }) => return Some(Ok((first, event))),
                Ok(Message::End(end)) => {
                    self.is_over = true;
                    return end.err().map(Err);
                }
                Err(RecvTimeoutError::Timeout) => {
                    if self.cancel.check().is_err() {
                        self.cancel();
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.is_over = true;
                    return Some(Err(Error::new("the engine ended before the job")));
                }
            }
        }
        None
    }

    /// Lets devices begin more batches of this job, once its caller has one.
    fn hand_on(&self, event: &Event) {
        if let Event::Finished { .. } = event {
            self.schedule.handed_on(self.id);
        }
    }
}

/// The events in the order in which they happen. An error is the last: that of a device or of the request, or
/// [`Kind::Cancelled`](crate::error::Kind::Cancelled).
impl Iterator for Ticket {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Result<Event>> {
        let event = self.receive()?.map(|(_, event)| event);
        event.iter().for_each(|event| self.hand_on(event));
        Some(event)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_over {
            self.cancel();
        }
    }
}

/// The events of a job in the order of its images, see [`Ticket::in_order`]. An error is the last.
pub struct InOrder {
    ticket: Ticket,
    order: Order<Event>,
    ready: VecDeque<Event>,
    error: Option<Error>,
}

impl InOrder {
    /// See [`Ticket::cancel`].
    pub fn cancel(&self) {
        self.ticket.cancel();
    }

    /// What may be told once this was said of the batch whose first image is `first`.
    fn sort(&mut self, first: usize, event: Event) {
        match event {
            Event::Queued(_) => self.ready.push_back(event),
            Event::Progress(_) if !self.order.hears(first) => {}
            Event::Progress(_) => self.ready.push_back(event),
            Event::Finished { ref images, .. } => {
                let images = images.len();
                self.ready.extend(self.order.sort(first, Output::Item(event)));
                self.ready.extend(self.order.sort(first, Output::End(images)));
            }
            event => self.ready.extend(self.order.sort(first, Output::Item(event))),
        }
    }
}

impl Iterator for InOrder {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Result<Event>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.ticket.hand_on(&event);
                return Some(Ok(event));
            }
            if let Some(error) = self.error.take() {
                return Some(Err(error));
            }
            match self.ticket.receive()? {
                Ok((first, event)) => self.sort(first, event),
                // What was made before is handed on as well.
                Err(error) => {
                    self.ready.extend(self.order.rest());
                    self.error = Some(error);
                }
            }
        }
    }
}
