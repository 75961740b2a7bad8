//! The caller's handle of a submitted job.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::event::{Event, Message};
use super::image::Image;
use super::job::JobId;
use super::order::{Order, Output};
use super::schedule::{Scheduler, Submission};
use crate::error::{Error, Result};
use crate::stage::CancelFlag;

/// Polling interval of the cancel flag of a job without events.
const POLL: Duration = Duration::from_millis(20);

/// A submitted job. Dropping the ticket cancels the job.
pub struct Ticket {
    id: JobId,
    scheduler: Arc<Scheduler>,
    messages: Receiver<Message>,
    cancel: CancelFlag,
    is_over: bool,
}

impl Ticket {
    /// Submits a job of a model. `submission` creates it from the receiver of its messages.
    ///
    /// Errors as `submission`, and if the scheduler is closed.
    pub(super) fn new(
        scheduler: Arc<Scheduler>,
        model: usize,
        submission: impl FnOnce(mpsc::Sender<Message>) -> Result<Submission>,
    ) -> Result<Self> {
        let (sender, messages) = mpsc::channel();
        let submission = submission(sender)?;
        let cancel = submission.origin.job.cancel.clone();
        let ids = scheduler.submit(model, vec![submission])?;
        Ok(Self { id: ids[0], scheduler, messages, cancel, is_over: false })
    }

    /// Cancels the job. Waiting images are not started, and images in progress end within about a step, unless other
    /// jobs have images in the same batch.
    pub fn cancel(&self) {
        self.scheduler.cancel(self.id);
    }

    /// Returns the events in the order of the images: events of a batch wait until the batches of earlier images have
    /// ended, regardless of the speed of devices. Progress of later batches is dropped.
    pub fn in_order(self) -> InOrder {
        InOrder { ticket: self, order: Order::new(), ready: VecDeque::new(), error: None }
    }

    /// Waits for all images, and returns them in the order of their seeds.
    ///
    /// Errors if the job fails or is cancelled.
    pub fn wait(self) -> Result<Vec<Image>> {
        let image = |event| match event {
            Ok(Event::Image { image, .. }) => Some(Ok(*image)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        };
        self.in_order().filter_map(image).collect()
    }

    /// Receives the next event, with the first image of its batch. `None` after the end, pending after `until`.
    fn receive(&mut self, until: Option<Instant>) -> Poll<Option<Result<(usize, Event)>>> {
        while !self.is_over {
            // Only the caller may know the flag, so it is checked here, also while events arrive.
            if self.cancel.check().is_err() {
                self.cancel();
            }
            let left = until.map_or(POLL, |until| until.saturating_duration_since(Instant::now()));
            match self.messages.recv_timeout(left.min(POLL)) {
                Ok(Message::Event { first, event }) => return Poll::Ready(Some(Ok((first, event)))),
                Ok(Message::End(end)) => {
                    self.is_over = true;
                    return Poll::Ready(end.err().map(Err));
                }
                Err(RecvTimeoutError::Timeout) if left <= POLL && until.is_some() => return Poll::Pending,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.is_over = true;
                    return Poll::Ready(Some(Err(Error::new("the engine stopped before the job was finished"))));
                }
            }
        }
        Poll::Ready(None)
    }

    /// Lets devices start more batches of this job after the caller has received one.
    fn hand_on(&self, event: &Event) {
        if let Event::Finished { .. } = event {
            self.scheduler.batch_received(self.id);
        }
    }
}

/// The events in the order in which they happen. An error is the last item: from a device, from the request, or
/// [`ErrorKind::Cancelled`](crate::error::ErrorKind::Cancelled).
impl Iterator for Ticket {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Result<Event>> {
        let event = ready(self.receive(None))?.map(|(_, event)| event);
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

/// The events of a job in the order of its images, see [`Ticket::in_order`]. An error is the last item.
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

    /// Returns the next event as [`Iterator::next`] does, or pending if there is none within `timeout`.
    pub fn next_within(&mut self, timeout: Duration) -> Poll<Option<Result<Event>>> {
        self.next_until(Some(Instant::now() + timeout))
    }

    fn next_until(&mut self, until: Option<Instant>) -> Poll<Option<Result<Event>>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.ticket.hand_on(&event);
                return Poll::Ready(Some(Ok(event)));
            }
            if let Some(error) = self.error.take() {
                return Poll::Ready(Some(Err(error)));
            }
            match self.ticket.receive(until) {
                Poll::Ready(Some(Ok((first, event)))) => self.sort(first, event),
                // Events held back before the error are delivered as well.
                Poll::Ready(Some(Err(error))) => {
                    self.ready.extend(self.order.rest());
                    self.error = Some(error);
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Queues the events that are in order after adding an event of the batch with the first image `first`.
    fn sort(&mut self, first: usize, event: Event) {
        match event {
            Event::Queued(_) => self.ready.push_back(event),
            Event::Progress(_) if !self.order.is_current(first) => {}
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
        ready(self.next_until(None))
    }
}

/// Returns the value of a wait without a time limit.
fn ready<T>(poll: Poll<Option<T>>) -> Option<T> {
    match poll {
        Poll::Ready(value) => value,
        Poll::Pending => None,
    }
}
