//! What the caller of a job has of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::image::Origin;
use super::job::{Event, Job, TicketMessage};
use super::order::{Order, Output};
use super::schedule::{JobId, Schedule};
use crate::error::{Error, Result};
use crate::pipeline::session::shape::Shape;
use crate::pipeline::session::shared_text::SharedText;
use crate::stage::CancelFlag;

/// How often the flag of a job that says nothing is looked at.
const POLL: Duration = Duration::from_millis(20);

/// A job that was submitted. Dropping it cancels the job.
pub struct Ticket {
    id: JobId,
    schedule: Arc<Schedule>,
    messages: Receiver<TicketMessage>,
    cancel: CancelFlag,
    is_over: bool,
}

impl Ticket {
    /// Submits a job of this shape, whose images are of `origin`. Devices that make them share `text`.
    ///
    /// Errors once the schedule is closed.
    pub(super) fn new(
        schedule: &Arc<Schedule>,
        job: Job,
        origin: Arc<Origin>,
        shape: Shape,
        text: Arc<SharedText>,
    ) -> Result<Self> {
        let cancel = job.cancel.clone();
        let (id, messages) = schedule.submit(job, origin, shape, text)?;
        Ok(Self { id, schedule: Arc::clone(schedule), messages, cancel, is_over: false })
    }

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
            // A flag that only the caller knows is looked at here, also while events come.
            if self.cancel.check().is_err() {
                self.cancel();
            }
            match self.messages.recv_timeout(POLL) {
                Ok(TicketMessage::Event { first, event }) => return Some(Ok((first, event))),
                Ok(TicketMessage::End(end)) => {
                    self.is_over = true;
                    return end.err().map(Err);
                }
                Err(RecvTimeoutError::Timeout) => {}
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
/// [`Kind::Cancelled`](crate::error::ErrorKind::Cancelled).
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
