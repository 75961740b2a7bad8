//! Groups that engines have: how long they will take, and whether they move.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::record::JobRecord;

/// A group that an engine has.
pub struct Running {
    pub number: u64,
    pub records: Vec<Arc<JobRecord>>,
    /// Seconds of all its images, where they are known.
    takes: Option<f64>,
    given: Instant,
    started: Option<Instant>,
    /// The last time that something happened to one of its images.
    moved: Instant,
    /// Steps that were done, of so many, and when the last one was.
    stepped: Option<([u64; 2], Instant)>,
}

/// Something that happens to an image of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    Started,
    /// A step is done, of so many.
    Step([u64; 2]),
    Other,
}

/// How long a group may do nothing.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Beyond what a step takes.
    pub beyond: Duration,
    /// Where no step was timed yet.
    pub at_first: Duration,
}

/// What groups did so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pace {
    /// The longest time from one move to the next.
    longest: Option<Duration>,
    /// The last move of any group.
    moved: Option<Instant>,
}

impl Running {
    pub fn new(number: u64, records: Vec<Arc<JobRecord>>, takes: Option<f64>, now: Instant) -> Self {
        Self { number, records, takes, given: now, started: None, moved: now, stepped: None }
    }

    /// Something happens to one of its images.
    pub fn moves(&mut self, to: Move, pace: &mut Pace, now: Instant) {
        match to {
            Move::Started => self.started = self.started.or(Some(now)),
            Move::Step(steps) => self.stepped = Some((steps, now)),
            Move::Other => {}
        }
        if self.started.is_some_and(|started| started < now) {
            pace.longest = pace.longest.max(Some(now.saturating_duration_since(self.moved)));
        }
        (self.moved, pace.moved) = (now, Some(now));
    }

    /// Seconds until it is made, where that is known: by what such images took before, or by its own steps.
    pub fn seconds_left(&self, now: Instant) -> Option<f64> {
        let since = |then: Instant| now.saturating_duration_since(then).as_secs_f64();
        let Some(started) = self.started else { return self.takes };
        let by_rate = self.takes.map(|takes| takes - since(started));
        let by_steps = self.stepped.filter(|([done, _], _)| *done > 0).map(|([done, of], at)| {
            let step = at.saturating_duration_since(started).as_secs_f64() / done as f64;
            step * of.saturating_sub(done) as f64 - since(at)
        });
        let left = by_rate.into_iter().chain(by_steps).reduce(f64::max)?;
        Some(left.max(0.0))
    }

    /// Whether it does nothing for longer than it should. One that waits in its engine is late where nothing at all
    /// moves there.
    pub fn is_late(&self, pace: &Pace, patience: Patience, now: Instant) -> bool {
        let last = match self.started {
            Some(_) => self.moved,
            None => pace.moved.map_or(self.given, |moved| moved.max(self.given)),
        };
        // A larger image has longer steps, which take less than all of it.
        let whole = self.takes.map(|takes| Duration::from_secs_f64((2.0 * takes).clamp(0.0, 1e6)));
        let known = pace.longest.max(whole);
        now.saturating_duration_since(last) > known.map_or(patience.at_first, |longest| longest + patience.beyond)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience { beyond: Duration::from_secs(30), at_first: Duration::from_secs(600) };

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn the_first_group_of_all_is_late_where_it_hangs() {
        let (start, mut pace) = (Instant::now(), Pace::default());
        let mut group = Running::new(1, Vec::new(), None, start);
        assert!(!group.is_late(&pace, PATIENCE, after(start, 599)));
        assert!(group.is_late(&pace, PATIENCE, after(start, 601)), "it never started");
        group.moves(Move::Started, &mut pace, after(start, 1));
        assert!(!group.is_late(&pace, PATIENCE, after(start, 600)));
        assert!(group.is_late(&pace, PATIENCE, after(start, 602)), "no step was timed");
        group.moves(Move::Step([1, 4]), &mut pace, after(start, 3));
        assert!(!group.is_late(&pace, PATIENCE, after(start, 34)), "its longest step and 30 s");
        assert!(group.is_late(&pace, PATIENCE, after(start, 36)));
    }

    #[test]
    fn a_group_that_waits_behind_one_that_moves_is_not_late() {
        let (start, mut pace) = (Instant::now(), Pace::default());
        let mut first = Running::new(1, Vec::new(), None, start);
        let second = Running::new(2, Vec::new(), Some(1.0), start);
        first.moves(Move::Started, &mut pace, start);
        for seconds in 1..100 {
            first.moves(Move::Step([seconds, 100]), &mut pace, after(start, seconds));
        }
        assert!(!second.is_late(&pace, PATIENCE, after(start, 100)));
        assert!(second.is_late(&pace, PATIENCE, after(start, 140)));
    }

    #[test]
    fn a_large_image_has_the_time_of_its_own_steps() {
        let (start, mut pace) = (Instant::now(), Pace::default());
        let mut small = Running::new(1, Vec::new(), None, start);
        small.moves(Move::Started, &mut pace, start);
        small.moves(Move::Step([1, 1]), &mut pace, after(start, 1));
        let large = Running::new(2, Vec::new(), Some(100.0), after(start, 1));
        assert!(!large.is_late(&pace, PATIENCE, after(start, 200)));
        assert!(large.is_late(&pace, PATIENCE, after(start, 240)));
    }

    #[test]
    fn what_is_left_is_told_by_the_steps_or_by_earlier_images() {
        let (start, mut pace) = (Instant::now(), Pace::default());
        let mut group = Running::new(1, Vec::new(), None, start);
        assert_eq!(group.seconds_left(after(start, 5)), None);
        group.moves(Move::Started, &mut pace, after(start, 10));
        assert_eq!(group.seconds_left(after(start, 11)), None, "no step is done");
        group.moves(Move::Step([1, 4]), &mut pace, after(start, 12));
        assert_eq!(group.seconds_left(after(start, 12)), Some(6.0));
        assert_eq!(group.seconds_left(after(start, 13)), Some(5.0));
        assert_eq!(group.seconds_left(after(start, 60)), Some(0.0));
        let mut known = Running::new(2, Vec::new(), Some(4.0), start);
        assert_eq!(known.seconds_left(after(start, 60)), Some(4.0), "it waits in its engine");
        known.moves(Move::Started, &mut pace, after(start, 60));
        assert_eq!(known.seconds_left(after(start, 61)), Some(3.0));
    }
}
