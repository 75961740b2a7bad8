//! The batches of a request, which devices take one after the other.

use std::cmp::Reverse;
use std::iter::Peekable;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Batches that a device may be ahead of those that were handed on, so that what waits for its turn is bounded.
const AHEAD: usize = 2;

/// Batches of images, by their place among all that were asked for.
///
/// How images are divided depends on their number and that of devices alone, never on which device is faster, so the
/// same images are made together each time.
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// How many batches may be taken and not handed on.
    most_open: usize,
}

/// Made as they are taken, however many images there are.
type Batches = Box<dyn Iterator<Item = Range<usize>> + Send>;

struct State {
    /// What came back.
    first: Vec<Range<usize>>,
    /// What was not taken yet.
    waiting: Peekable<Batches>,
    /// Batches that were taken and not handed on.
    open: usize,
    /// Those of them of which some images may come back.
    undecided: usize,
    stopped: bool,
}

impl Queue {
    /// `count` images for `devices` devices, of which each makes at most `most` at once.
    pub(super) fn new(count: usize, devices: usize, most: usize) -> Self {
        let waiting = batches(count, devices, most).peekable();
        let state = State { first: Vec::new(), waiting, open: 0, undecided: 0, stopped: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), most_open: AHEAD * devices }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first batch that is left, for which [`Queue::keep`] is called next; `None` once there are no more. Waits
    /// while images may come back, and while too many batches were not handed on.
    pub(super) fn take(&self) -> Option<Range<usize>> {
        let mut state = self.state();
        loop {
            let is_empty = state.first.is_empty() && state.waiting.peek().is_none();
            if state.stopped || (is_empty && state.undecided == 0) {
                return None;
            }
            // The batch that is handed on next is open, or the first that waits: then one place is free for it, which
            // was that of the batch it was a part of.
            if state.open < self.most_open
                && let Some(batch) = state.next()
            {
                state.open += 1;
                state.undecided += 1;
                return Some(batch);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The device that took `batch` makes its first `count` images; the others come back, as the first that wait.
    pub(super) fn keep(&self, batch: &Range<usize>, count: usize) {
        let mut state = self.state();
        state.undecided -= 1;
        let left = batch.start + count..batch.end;
        if !left.is_empty() {
            state.first.push(left);
            state.first.sort_by_key(|batch| Reverse(batch.start));
        }
        self.changed.notify_all();
    }

    /// A batch was handed on as a whole.
    pub(super) fn handed_on(&self) {
        self.state().open -= 1;
        self.changed.notify_all();
    }

    /// No more batches are taken.
    pub(super) fn stop(&self) {
        self.state().stopped = true;
        self.changed.notify_all();
    }
}

impl State {
    fn next(&mut self) -> Option<Range<usize>> {
        self.first.pop().or_else(|| self.waiting.next())
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
    use std::mem;
    use std::sync::{Barrier, mpsc};
    use std::thread;
    use std::time::Duration;

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

    #[test]
    fn what_does_not_fit_comes_back_before_all_else() {
        let queue = Queue::new(8, 2, 8);
        let (first, second) = (queue.take().unwrap(), queue.take().unwrap());
        assert_eq!((first.clone(), second.clone()), (0..4, 4..8));
        queue.keep(&second, 1);
        queue.keep(&first, 2);
        assert_eq!(queue.take(), Some(2..4));
        queue.handed_on();
        assert_eq!(queue.take(), Some(5..8));
        assert_eq!(Queue::new(2, 1, 8).take(), Some(0..2));
    }

    #[test]
    fn a_device_waits_for_what_may_come_back() {
        let queue = Queue::new(2, 2, 8);
        let (first, second) = (queue.take().unwrap(), queue.take().unwrap());
        queue.keep(&first, 1);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.take());
            thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished());
            queue.keep(&second, 0);
            assert_eq!(waiting.join().unwrap(), Some(1..2));
        });
    }

    #[test]
    fn no_device_runs_far_ahead() {
        let queue = Queue::new(100, 2, 1);
        let take = || queue.take().inspect(|batch| queue.keep(batch, batch.len()));
        for place in 0..4 {
            assert_eq!(take(), Some(place..place + 1));
        }
        let (sender, taken) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| sender.send(take()));
            assert!(taken.recv_timeout(Duration::from_millis(20)).is_err());
            queue.handed_on();
            assert_eq!(taken.recv(), Ok(Some(4..5)));
            scope.spawn(|| sender.send(take()));
            queue.stop();
            assert_eq!(taken.recv(), Ok(None));
        });
    }

    /// A device with room for one image and one with room for three make all images, each once, whoever is slower.
    #[test]
    fn devices_of_unequal_memory_take_what_they_can() {
        for slow in [0, 1] {
            let queue = Queue::new(19, 2, 8);
            let ((sender, made), both) = (mpsc::channel(), &Barrier::new(2));
            thread::scope(|scope| {
                for (device, room) in [1, 3].into_iter().enumerate() {
                    let (sender, queue) = (sender.clone(), &queue);
                    scope.spawn(move || {
                        let mut is_first = true;
                        while let Some(batch) = queue.take() {
                            if mem::take(&mut is_first) {
                                both.wait(); // each has a batch
                            }
                            let count = batch.len().min(room);
                            queue.keep(&batch, count);
                            thread::sleep(Duration::from_millis(if device == slow { 3 } else { 0 }));
                            sender.send((device, batch.start..batch.start + count)).unwrap();
                            queue.handed_on();
                        }
                    });
                }
            });
            drop(sender);
            let mut made: Vec<(usize, Range<usize>)> = made.iter().collect();
            made.sort_by_key(|(_, batch)| batch.start);
            assert!(made.iter().any(|(device, batch)| *device == 1 && batch.len() == 3), "{made:?}");
            assert!(made.iter().all(|(device, batch)| batch.len() <= [1, 3][*device]), "{made:?}");
            let images: Vec<usize> = made.into_iter().flat_map(|(_, batch)| batch).collect();
            assert_eq!(images, Vec::from_iter(0..19));
        }
    }
}
