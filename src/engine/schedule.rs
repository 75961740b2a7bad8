//! Which batch a device makes next: jobs that wait, in their order, and how they are divided and joined.
//!
//! A job of several images is divided evenly, so that all devices end together; see [`batches`]. How it is divided
//! depends on the numbers of its images and of devices alone, never on which device is faster, so the same images are
//! made together each time. Jobs that wait are joined as far as one batch of the first one's shape has room: what waits
//! behind a busy device is made together, and an idle device waits for nothing.

use std::cmp::Reverse;
use std::iter::Peekable;
use std::ops::Range;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::EngineStats;
use super::image::Origin;
use super::job::{Event, Job, TicketMessage};
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::Request;
use crate::pipeline::session::shape::Shape;
use crate::pipeline::session::shared_text::{SharedText, TextSource};
use crate::stage::CancelFlag;

/// Batches of a job that a device may be ahead of those that the caller has, so that what waits for it is bounded.
const AHEAD: usize = 2;

/// What tells jobs apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct JobId(u64);

/// The jobs of an engine, and which of their images devices make.
#[derive(Default)]
pub(super) struct Schedule {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Those of a high priority first, then the older ones.
    jobs: Vec<Waiting>,
    /// What devices make.
    running: Vec<Running>,
    /// Which of the devices wait for a batch, and which do not answer.
    idle: Vec<bool>,
    late: Vec<bool>,
    submitted: u64,
    /// Batches that were taken.
    taken: u64,
    made: usize,
    closed: bool,
}

/// Made as they are taken, however many images there are.
type Batches = Box<dyn Iterator<Item = Range<usize>> + Send>;

/// A job that is not over.
struct Waiting {
    id: JobId,
    job: Job,
    origin: Arc<Origin>,
    shape: Shape,
    sender: Sender<TicketMessage>,
    /// What comes back of batches, as the first that wait.
    first: Vec<Range<usize>>,
    /// What was not taken yet.
    rest: Peekable<Batches>,
    /// The text features that the device of the first batch makes for all, where there are several batches.
    text: Option<Arc<SharedText>>,
    /// Whether it is made with no other job: an error of a batch is one of a single job then.
    alone: bool,
    /// Batches that were taken and not handed on.
    open: usize,
    /// Batches that were taken and have not ended.
    running: usize,
    /// Images that no device has begun.
    left: usize,
    failed: Option<Error>,
}

/// Images of a job in a batch.
pub(super) struct JobShare {
    id: JobId,
    images: Range<usize>,
    sender: Sender<TicketMessage>,
    pub(super) origin: Arc<Origin>,
    pub(super) embeddings: bool,
    pub(super) latents: bool,
    pub(super) previews: bool,
}

impl JobShare {
    /// The images of the job, by their places in it.
    pub(super) fn images(&self) -> Range<usize> {
        self.images.clone()
    }

    pub(super) fn send(&self, event: Event) {
        // Without a receiver the job was cancelled, which the session finds out.
        let _ = self.sender.send(TicketMessage::Event { first: self.images.start, event });
    }
}

/// Images that a device makes at once, as far as it has memory for all.
pub(super) struct Batch {
    number: u64,
    pub(super) parts: Vec<JobShare>,
    /// Of each image, in the order of the parts.
    pub(super) requests: Vec<Request>,
    pub(super) reader: TextSource,
    pub(super) cancel: CancelFlag,
}

/// A batch that a device makes.
struct Running {
    number: u64,
    images: usize,
    jobs: Vec<JobId>,
    cancel: CancelFlag,
}

impl Schedule {
    /// Adds devices. Returns the number of the first.
    pub(super) fn add(&self, devices: usize) -> usize {
        let mut state = self.state();
        let first = state.idle.len();
        state.idle.resize(first + devices, false);
        state.late.resize(first + devices, false);
        first
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job, and returns what is said of it. `text` are the text features that devices share which make its
    /// images.
    ///
    /// Errors once the schedule is closed.
    pub(super) fn submit(
        &self,
        job: Job,
        origin: Arc<Origin>,
        shape: Shape,
        text: Arc<SharedText>,
    ) -> Result<(JobId, Receiver<TicketMessage>)> {
        let (sender, messages) = mpsc::channel();
        let mut state = self.state();
        if state.closed {
            return Err(Error::new("the engine takes no more jobs").hint("send the job to another one"));
        }
        let devices = state.idle.len();
        state.submitted += 1;
        let id = JobId(state.submitted);
        let divided = devices > 1 && job.count > 1;
        let shares_text = divided && job.request.embeddings.is_none();
        let rest = batches(job.count, devices, shape.most_at_once()).peekable();
        let waiting = Waiting {
            id,
            origin,
            shape,
            sender,
            first: Vec::new(),
            rest,
            text: shares_text.then_some(text),
            alone: job.most_together <= 1,
            open: 0,
            running: 0,
            left: job.count,
            failed: None,
            job: Job { cancel: job.cancel.child(), ..job },
        };
        let place = state.jobs.partition_point(|other| other.job.priority >= waiting.job.priority);
        let ahead = state.jobs[..place].iter().map(|job| job.left).sum();
        waiting.send(0, Event::Queued(ahead));
        state.jobs.insert(place, waiting);
        self.changed.notify_all();
        Ok((id, messages))
    }

    /// The next batch for a device; waits for one. `None` once the schedule is closed and nothing is left to make.
    pub(super) fn take(&self, device: usize) -> Option<Batch> {
        let mut state = self.state();
        state.idle[device] = true;
        let taken = loop {
            // The first of several idle devices takes what there is: it is the one that begins to load weights for it.
            if !state.idle[..device].contains(&true)
                && let Some(batch) = state.next(device)
            {
                break Some(batch);
            }
            if state.closed && state.jobs.is_empty() {
                break None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        state.idle[device] = false;
        self.changed.notify_all();
        taken
    }

    /// Says whether a device answers: what one has in hand that does not, is not waited for.
    pub(super) fn set_late(&self, device: usize, late: bool) {
        let mut state = self.state();
        if state.late[device] != late {
            state.late[device] = late;
            self.changed.notify_all();
        }
    }

    /// Whether none of the devices answers.
    pub(super) fn all_are_late(&self) -> bool {
        self.state().late.iter().all(|late| *late)
    }

    /// Whether there are several devices, which their errors tell apart.
    pub(super) fn has_several(&self) -> bool {
        self.state().idle.len() > 1
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// The device that took `batch` makes its first `count` images. Others come back, as the first that wait.
    pub(super) fn keep(&self, batch: &mut Batch, count: usize) {
        let mut state = self.state();
        let mut left = count;
        for part in &mut batch.parts {
            let kept = part.images.len().min(left);
            left -= kept;
            let back = part.images.start + kept..part.images.end;
            part.images.end = back.start;
            if let Some(job) = state.job(part.id) {
                job.put_back(back);
            }
        }
        batch.requests.truncate(count);
        if let Some(running) = state.running.iter_mut().find(|running| running.number == batch.number) {
            running.images = count;
        }
        self.changed.notify_all();
    }

    /// An image was made.
    pub(super) fn made(&self) {
        self.state().made += 1;
    }

    /// A device has done with a batch, of whose images it made the first `made`.
    pub(super) fn end(&self, batch: &Batch, made: usize, result: Result<()>) {
        batch.reader.abandon();
        let mut state = self.state();
        state.running.retain(|running| running.number != batch.number);
        let joined = batch.parts.len() > 1;
        let mut left = made;
        for part in &batch.parts {
            let made = part.images.len().min(left);
            left -= made;
            let Some(job) = state.job(part.id) else { continue };
            job.running -= 1;
            match &result {
                Ok(()) => {}
                Err(error) if joined && error.kind() != ErrorKind::Cancelled && job.failed.is_none() => {
                    // The error may be that of another job, so each is tried once by itself.
                    job.alone = true;
                    let back = part.images.start + made..part.images.end;
                    if made == 0 {
                        job.open -= 1;
                    } else {
                        let images = part.images.start..back.start;
                        part.send(Event::Finished { images, device: Arc::from(""), timings: Box::default() });
                    }
                    job.put_back(back);
                }
                Err(error) => job.fail(error.clone()),
            }
            state.end_if_over(part.id);
        }
        self.changed.notify_all();
    }

    /// The caller of a job has all of a batch.
    pub(super) fn handed_on(&self, id: JobId) {
        if let Some(job) = self.state().job(id) {
            job.open = job.open.saturating_sub(1);
        }
        self.changed.notify_all();
    }

    /// See [`Ticket::cancel`](super::Ticket::cancel).
    pub(super) fn cancel(&self, id: JobId) {
        self.state().cancel(id);
        self.changed.notify_all();
    }

    /// Takes no more jobs, and waits until those that are there are over. Returns whether they are; those that are not
    /// by `deadline` are cancelled.
    pub(super) fn close(&self, deadline: Instant) -> bool {
        let mut state = self.state();
        state.closed = true;
        self.changed.notify_all();
        while !state.jobs.is_empty() {
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                let ids: Vec<JobId> = state.jobs.iter().map(|job| job.id).collect();
                ids.into_iter().for_each(|id| state.cancel(id));
                self.changed.notify_all();
                return false;
            };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    pub(super) fn stats(&self) -> EngineStats {
        let state = self.state();
        EngineStats {
            devices: state.idle.len(),
            waiting: state.jobs.iter().map(|job| job.left).sum(),
            running: state.running.iter().map(|running| running.images).sum(),
            made: state.made,
        }
    }
}

impl State {
    fn job(&mut self, id: JobId) -> Option<&mut Waiting> {
        self.jobs.iter_mut().find(|job| job.id == id)
    }

    /// The batch that a device makes next, of those that wait.
    fn next(&mut self, device: usize) -> Option<Batch> {
        let cancelled: Vec<JobId> =
            self.jobs.iter().filter(|job| job.job.cancel.check().is_err()).map(|job| job.id).collect();
        cancelled.into_iter().for_each(|id| self.cancel(id));
        let first_is_late = self.late.first() == Some(&true);
        let most_open = AHEAD * self.idle.len();
        let (place, images) = self.jobs.iter_mut().enumerate().find_map(|(place, job)| {
            // The first device reads the prompt for all: it has loaded what that takes.
            let is_kept = job.text.is_some() && job.is_new() && device > 0 && !first_is_late;
            let images = if job.open < most_open && !is_kept { job.take() } else { None };
            images.map(|images| (place, images))
        })?;
        self.taken += 1;
        let number = self.taken;
        let first = &self.jobs[place];
        let reader = match &first.text {
            None => TextSource::Own,
            Some(text) if images.start == 0 => TextSource::First(Arc::clone(text)),
            Some(text) => TextSource::Other(Arc::clone(text)),
        };
        let mut batch =
            Batch { number, parts: Vec::new(), requests: Vec::new(), reader, cancel: CancelFlag::default() };
        self.jobs[place].join(images, &mut batch);
        if self.jobs[place].text.is_none() && !self.jobs[place].alone {
            self.fill(place, &mut batch);
        }
        if batch.parts.len() == 1 {
            batch.cancel = self.jobs[place].job.cancel.child();
        }
        let jobs = batch.parts.iter().map(|part| part.id).collect();
        self.running.push(Running { number, images: batch.requests.len(), jobs, cancel: batch.cancel.clone() });
        Some(batch)
    }

    /// Joins jobs to a batch that begins with one of job `place`, as far as there is room for all that is left of each.
    fn fill(&mut self, place: usize, batch: &mut Batch) {
        let (before, from) = self.jobs.split_at_mut(place + 1);
        let Some(first) = before.last() else { return };
        let mut most = first.shape.most_at_once().min(first.job.most_together);
        for job in from {
            let suits = !job.alone && job.text.is_none() && job.is_new() && job.shape == first.shape;
            let most_with = most.min(job.job.most_together);
            if suits
                && batch.requests.len().saturating_add(job.job.count) <= most_with
                && let Some(images) = job.take()
            {
                most = most_with;
                job.join(images, batch);
            }
        }
    }

    /// Begins nothing more of a job, and ends what is begun where no other job is in the same batch.
    fn cancel(&mut self, id: JobId) {
        let Some(job) = self.job(id) else { return };
        job.fail(Error::cancelled());
        for place in 0..self.running.len() {
            let jobs = self.running[place].jobs.clone();
            if jobs.contains(&id) && jobs.iter().all(|id| self.is_cancelled(*id)) {
                self.running[place].cancel.cancel();
            }
        }
        self.end_if_over(id);
    }

    fn is_cancelled(&self, id: JobId) -> bool {
        self.jobs.iter().find(|job| job.id == id).is_none_or(|job| job.failed.is_some())
    }

    /// Takes a job out of those that wait once all of it is made, or nothing more of it.
    fn end_if_over(&mut self, id: JobId) {
        let Some(place) = self.jobs.iter().position(|job| job.id == id) else { return };
        if self.jobs[place].running > 0 || self.jobs[place].has_more() {
            return;
        }
        let job = self.jobs.remove(place);
        // Without a receiver nobody asks any more.
        let _ = job.sender.send(TicketMessage::End(job.failed.map_or(Ok(()), Err)));
    }
}

impl Waiting {
    fn send(&self, first: usize, event: Event) {
        let _ = self.sender.send(TicketMessage::Event { first, event });
    }

    /// Whether nothing of it was taken.
    fn is_new(&mut self) -> bool {
        self.first.is_empty() && self.rest.peek().is_some_and(|images| images.start == 0)
    }

    fn has_more(&mut self) -> bool {
        !self.first.is_empty() || self.rest.peek().is_some()
    }

    /// The next images to make at once.
    fn take(&mut self) -> Option<Range<usize>> {
        let images = self.first.pop().or_else(|| self.rest.next())?;
        // One device takes all that are left each time.
        let most = self.shape.most_at_once();
        if images.len() > most {
            self.first.push(images.start + most..images.end);
        }
        let images = images.start..images.end.min(images.start + most);
        self.left -= images.len();
        Some(images)
    }

    fn put_back(&mut self, images: Range<usize>) {
        if !images.is_empty() && self.failed.is_none() {
            self.left += images.len();
            self.first.push(images);
            self.first.sort_by_key(|images| Reverse(images.start));
        }
    }

    /// Adds images of it to a batch.
    fn join(&mut self, images: Range<usize>, batch: &mut Batch) {
        (self.open, self.running) = (self.open + 1, self.running + 1);
        let item = |image: usize| self.job.request.part(image..image + 1);
        batch.requests.extend(images.clone().map(item));
        batch.parts.push(JobShare {
            id: self.id,
            embeddings: self.job.embeddings && images.start == 0,
            latents: self.job.latents,
            previews: self.job.previews,
            images,
            sender: self.sender.clone(),
            origin: Arc::clone(&self.origin),
        });
    }

    /// Begins nothing more of it, and ends what is begun. Batches that end because of it do not say why.
    fn fail(&mut self, error: Error) {
        self.first.clear();
        self.left = 0;
        self.rest = (Box::new(std::iter::empty()) as Batches).peekable();
        match &self.failed {
            Some(known) if known.kind() != ErrorKind::Cancelled || error.kind() == ErrorKind::Cancelled => {}
            _ => self.failed = Some(error),
        }
        self.job.cancel.cancel();
    }
}

/// Divides images evenly: every device gets as many batches of nearly one size, so that all end together. One device
/// takes all that are left each time, and makes as many as it can.
fn batches(count: usize, devices: usize, most: usize) -> Batches {
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
