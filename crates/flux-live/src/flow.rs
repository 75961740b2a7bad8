//! The exchange between threads: the newest frame on its way in, and the next image on its way out. Nothing queues.

use std::sync::Arc;
use std::time::Instant;

use flux::rgb::Rgb;
use flux::{Error, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};
use scopeguard::guard_on_unwind;

/// A received frame.
#[derive(Debug)]
pub struct Arrived {
    /// `None` if images are generated from prompts alone.
    pub frame: Option<Rgb>,
    pub at: Instant,
}

/// An image generated from a frame.
#[derive(Debug)]
pub struct Made {
    pub image: Rgb,
    pub of: Arrived,
}

/// The next item for the writer.
#[derive(Debug)]
pub enum Handed {
    Image(Box<Made>),
    /// No image was ready before the deadline.
    Nothing,
    End,
}

/// Frames in and images out, shared by all threads.
#[derive(Debug, Default)]
pub struct Flow {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The newest frame that no lane has taken.
    arrived: Option<Arrived>,
    /// True if there are no more frames.
    is_read: bool,
    /// The number of frames taken.
    turns: u64,
    /// The turn whose image is written next.
    next: u64,
    made: Option<Box<Made>>,
    /// Lanes that are still running.
    lanes: usize,
    is_written: bool,
    is_closed: bool,
    error: Option<Error>,
}

impl State {
    fn is_made(&self) -> bool {
        self.lanes == 0 && self.made.is_none()
    }
}

impl Flow {
    /// Creates a flow for a number of lanes.
    pub fn new(lanes: usize) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { lanes, ..State::default() }), changed: Condvar::new() })
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state.lock());
        self.changed.notify_all();
        changed
    }

    /// Waits until a condition holds. Returns `None` if the flow is closed.
    fn wait_for(&self, mut holds: impl FnMut(&State) -> bool) -> Option<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| !state.is_closed && !holds(state));
        (!state.is_closed).then_some(state)
    }

    /// Puts in a frame and replaces an untaken one. Returns whether a frame was replaced, or `None` if the flow is
    /// closed.
    pub fn offer(&self, arrived: Arrived) -> Option<bool> {
        self.change(|state| (!state.is_closed).then(|| state.arrived.replace(arrived).is_some()))
    }

    /// Puts in a frame and waits until it is taken. Returns `None` if the flow is closed.
    pub fn submit(&self, arrived: Arrived) -> Option<()> {
        self.wait_for(|state| state.arrived.is_none())?.arrived = Some(arrived);
        self.changed.notify_all();
        self.wait_for(|state| state.arrived.is_none()).map(drop)
    }

    /// Marks the end of the frames.
    pub fn end_reading(&self) {
        self.change(|state| state.is_read = true);
    }

    /// Ends the frames with an error. Earlier frames still become images before the error is returned.
    pub fn break_reading(&self, error: Error) {
        self.change(|state| {
            state.error.get_or_insert(error);
            state.is_read = true;
        });
    }

    /// Waits for a frame, and returns it with its turn. `None` at the end.
    pub fn take(&self) -> Option<(u64, Arrived)> {
        let mut state = self.wait_for(|state| state.arrived.is_some() || state.is_read)?;
        let arrived = state.arrived.take()?;
        Some(self.taken(state, arrived))
    }

    /// Assigns a turn to a taken frame.
    fn taken(&self, mut state: MutexGuard<'_, State>, arrived: Arrived) -> (u64, Arrived) {
        state.turns += 1;
        let turn = state.turns - 1;
        drop(state);
        self.changed.notify_all();
        (turn, arrived)
    }

    /// [`Flow::take`] without waiting: `None` if no frame is ready.
    pub fn take_if_there(&self) -> Option<(u64, Arrived)> {
        let mut state = self.state.lock();
        let arrived = state.arrived.take().filter(|_| !state.is_closed)?;
        Some(self.taken(state, arrived))
    }

    /// Puts out the image of a turn, after the images of earlier turns. Returns `None` if the flow is closed.
    pub fn hand_over(&self, turn: u64, made: Made) -> Option<()> {
        let mut state = self.wait_for(|state| state.next == turn && state.made.is_none())?;
        state.made = Some(Box::new(made));
        state.next += 1;
        drop(state);
        self.changed.notify_all();
        Some(())
    }

    /// Marks the end of a lane.
    pub fn end_lane(&self) {
        self.change(|state| state.lanes = state.lanes.saturating_sub(1));
    }

    /// Returns the next image. Waits until the deadline, or without limit.
    pub fn next(&self, until: Option<Instant>) -> Handed {
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return Handed::End;
            }
            if let Some(made) = state.made.take() {
                self.changed.notify_all();
                return Handed::Image(made);
            }
            if state.is_made() {
                return Handed::End;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            match left {
                Some(left) if left.is_zero() => return Handed::Nothing,
                Some(left) => drop(self.changed.wait_for(&mut state, left)),
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// Marks that all images are written.
    pub fn end_writing(&self) {
        self.change(|state| state.is_written = true);
    }

    /// Closes the flow, with an error if there is one.
    pub fn close(&self, error: Option<Error>) {
        self.change(|state| {
            state.is_closed = true;
            state.error = state.error.take().or(error);
        });
    }

    /// Closes the flow if this thread panics before the result is dropped, because other threads would wait forever.
    pub fn close_on_panic(self: &Arc<Self>) -> impl Sized + use<> {
        let closed = |flow: Arc<Self>| flow.close(Some(Error::new("a thread panicked, which is a bug in flux")));
        guard_on_unwind(Arc::clone(self), closed)
    }

    /// Waits up to `within` for the end, and returns the result. `None` if the flow is still open.
    pub fn ended(&self, within: std::time::Duration) -> Option<Result<()>> {
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |state| !state.is_closed && !state.is_written, within);
        (state.is_closed || state.is_written).then(|| state.error.take().map_or(Ok(()), Err))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn image(level: u8) -> Rgb {
        Rgb { width: 1, height: 1, bytes: vec![level; 3] }
    }

    fn arrived(level: u8) -> Arrived {
        Arrived { frame: Some(image(level)), at: Instant::now() }
    }

    fn level(arrived: &Arrived) -> u8 {
        arrived.frame.as_ref().unwrap().bytes[0]
    }

    #[test]
    fn the_newest_frame_is_taken_and_the_last_one_is_not_lost() {
        let flow = Flow::new(1);
        assert_eq!([1, 2, 3].map(|level| flow.offer(arrived(level))), [Some(false), Some(true), Some(true)]);
        let (turn, newest) = flow.take().unwrap();
        assert_eq!((turn, level(&newest)), (0, 3));
        assert!(flow.take_if_there().is_none(), "no new frame");
        flow.offer(arrived(4));
        flow.end_reading();
        assert_eq!(flow.take_if_there().map(|(turn, arrived)| (turn, level(&arrived))), Some((1, 4)));
        assert!(flow.take().is_none());
    }

    #[test]
    fn images_are_handed_on_in_the_order_of_their_frames() {
        let flow = Flow::new(2);
        let lane = |turn: u64, wait: u64| {
            let flow = Arc::clone(&flow);
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(wait));
                flow.hand_over(turn, Made { image: image(turn as u8), of: arrived(0) }).unwrap();
                flow.end_lane();
            })
        };
        let lanes = [lane(1, 0), lane(0, 40)];
        for turn in 0..2 {
            let Handed::Image(made) = flow.next(None) else { panic!("{turn}") };
            assert_eq!(made.image, image(turn));
        }
        assert!(matches!(flow.next(None), Handed::End));
        lanes.into_iter().for_each(|lane| lane.join().unwrap());
        flow.end_writing();
        assert!(flow.ended(Duration::ZERO).is_some_and(|ended| ended.is_ok()));
    }

    #[test]
    fn frames_in_front_of_an_error_become_images_and_the_first_error_is_told() {
        let flow = Flow::new(1);
        flow.offer(arrived(1));
        flow.break_reading(Error::new("damaged"));
        assert!(flow.ended(Duration::ZERO).is_none(), "a frame is pending");
        let (turn, of) = flow.take().unwrap();
        flow.hand_over(turn, Made { image: image(1), of }).unwrap();
        assert!(flow.take().is_none());
        flow.end_lane();
        assert!(matches!(flow.next(None), Handed::Image(_)) && matches!(flow.next(None), Handed::End));
        flow.close(Some(Error::new("the receiver has gone")));
        assert_eq!(flow.ended(Duration::ZERO).unwrap().unwrap_err().what(), "damaged");
    }

    #[test]
    fn nobody_waits_any_more_once_it_is_closed() {
        let flow = Flow::new(1);
        let waits: [fn(&Flow); 4] = [
            |flow| assert!(flow.take().is_none()),
            |flow| assert!(flow.submit(arrived(1)).is_none()),
            |flow| assert!(flow.hand_over(7, Made { image: image(1), of: arrived(1) }).is_none()),
            |flow| assert!(matches!(flow.next(None), Handed::End)),
        ];
        // Each wait has its own flow, because one would take the frame of another.
        for wait in waits {
            let flow = Flow::new(1);
            let waiting = thread::spawn({
                let flow = Arc::clone(&flow);
                move || wait(&flow)
            });
            thread::sleep(Duration::from_millis(20));
            flow.close(Some(Error::new("over")));
            waiting.join().unwrap();
            assert_eq!(flow.ended(Duration::ZERO).unwrap().unwrap_err().what(), "over");
        }
        assert!(flow.ended(Duration::from_millis(5)).is_none(), "the flow is still open");
        assert!(matches!(flow.next(Some(Instant::now())), Handed::Nothing));
        let panics = flow.close_on_panic();
        assert!(
            thread::spawn(move || {
                let _panics = panics;
                panic!("for the test")
            })
            .join()
            .is_err()
        );
        assert!(flow.ended(Duration::ZERO).unwrap().is_err());
    }
}
