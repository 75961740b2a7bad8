//! The model of cost: times of images from those of earlier ones, positions and times of waiting jobs, and the patience
//! with a batch.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use crate::stage::{Progress, Stage};

/// The weight of the newest time in the moving average.
const NEWEST: f64 = 0.2;
/// Max remembered costs.
const MAX_COSTS: usize = 256;

/// The max time without progress, as a multiple of the time that images of this cost took.
const TIMED: f64 = 10.0;
/// As [`TIMED`], if only other sizes or step counts were timed. It is larger since attention is quadratic in the
/// tokens: an image with many references takes several times its share of a small image.
const SCALED: f64 = 20.0;
/// Added to each limit, for a busy machine and pauses between stages.
const FLOOR: Duration = Duration::from_secs(30);
/// Tokens that are granted the start time if no image of the model was timed. More tokens get proportionally more.
const TOKENS_OF_START: f64 = 512.0;
/// The max of any time limit, in seconds.
const MAX_SECONDS: f64 = 1e7;

/// The cost of an image: the tokens that a step computes, and the evaluations of the transformer, two per step with
/// guidance. Images of one model and of equal costs take about equally long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Cost {
    pub(crate) model: usize,
    pub(crate) tokens: usize,
    pub(crate) evaluations: usize,
}

impl Cost {
    /// Returns the work, in tokens.
    pub(crate) fn work(self) -> u64 {
        (self.tokens * self.evaluations.max(1)) as u64
    }
}

/// Generation times in seconds.
#[derive(Debug, Default)]
pub(super) struct Rates {
    of_cost: HashMap<Cost, f64>,
    /// Seconds per token, by model.
    per_token: HashMap<usize, f64>,
    /// Seconds per token of the first image, by model. It is slower than other images, so it only limits the time
    /// without progress.
    first: HashMap<usize, f64>,
}

impl Rates {
    /// Records the seconds that an image took.
    pub(super) fn learn(&mut self, cost: Cost, seconds: f64) {
        let per_token = seconds / cost.work().max(1) as f64;
        if let Entry::Vacant(first) = self.first.entry(cost.model) {
            first.insert(per_token);
            return;
        }
        if self.of_cost.len() >= MAX_COSTS && !self.of_cost.contains_key(&cost) {
            self.of_cost.clear();
        }
        let mean = |known: &mut f64, new: f64| *known += NEWEST * (new - *known);
        self.of_cost.entry(cost).and_modify(|known| mean(known, seconds)).or_insert(seconds);
        self.per_token.entry(cost.model).and_modify(|known| mean(known, per_token)).or_insert(per_token);
    }

    /// Returns the estimated seconds of an image, or `None` if no image of its model was timed.
    pub(super) fn estimate(&self, cost: Cost) -> Option<f64> {
        self.of_cost.get(&cost).copied().or_else(|| Some(self.per_token.get(&cost.model)? * cost.work() as f64))
    }

    /// Returns the max time without progress for a batch of such images. If no image of the model was timed, `start` is
    /// the time for a small image.
    fn patience(&self, cost: Cost, images: usize, start: Duration) -> Duration {
        let per_token = || self.per_token.get(&cost.model).or_else(|| self.first.get(&cost.model));
        let seconds = match (self.of_cost.get(&cost), per_token()) {
            (Some(seconds), _) => TIMED * seconds,
            (None, Some(per_token)) => SCALED * per_token * cost.work() as f64,
            (None, None) => {
                let starts = (cost.tokens * images) as f64 / TOKENS_OF_START;
                return Duration::from_secs_f64((start.as_secs_f64() * starts.max(1.0)).min(MAX_SECONDS));
            }
        };
        FLOOR + Duration::from_secs_f64((seconds * images as f64).clamp(0.0, MAX_SECONDS))
    }
}

/// The position of an unfinished job.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Ahead {
    /// Images to be generated before its first one. `None` once the job has started.
    pub images: Option<usize>,
    /// The estimated seconds until it is done, if known.
    pub eta_s: Option<f64>,
}

/// A simulation of devices that share a queue: the time at which each device is free, in seconds from now. `None` once
/// work of unknown length was assigned.
#[derive(Debug)]
pub(super) struct Lanes(Option<Vec<f64>>);

impl Lanes {
    /// Creates devices that are free now.
    pub(super) fn new(devices: usize) -> Self {
        Self(Some(vec![0.0; devices.max(1)]))
    }

    /// Assigns work of this many seconds to the device that is free first. Returns the time at which the work is done,
    /// if known.
    pub(super) fn give(&mut self, seconds: Option<f64>) -> Option<f64> {
        let Some(seconds) = seconds else {
            self.0 = None;
            return None;
        };
        let first = self.0.as_mut()?.iter_mut().min_by(|a, b| a.total_cmp(b))?;
        *first += seconds;
        Some(*first)
    }

    /// Returns the time at which all work is done, if known.
    pub(super) fn end(&self) -> Option<f64> {
        self.0.as_ref()?.iter().copied().reduce(f64::max)
    }
}

/// The progress of a batch on a device.
#[derive(Debug)]
pub(super) struct Pace {
    cost: Cost,
    images: usize,
    /// The estimated seconds of all its images, if known.
    takes: Option<f64>,
    /// `true` once there was any progress.
    has_begun: bool,
    /// `true` while weights are loading.
    is_loading: bool,
    /// The time at which everything before the first step was done.
    started: Option<Instant>,
    /// The time of the last progress.
    moved: Instant,
    /// The number of completed steps and of all steps, with the time of the last step.
    stepped: Option<([u64; 2], Instant)>,
}

impl Pace {
    pub(super) fn new(cost: Cost, images: usize, rates: &Rates, now: Instant) -> Self {
        let takes = rates.estimate(cost).map(|seconds| seconds * images as f64);
        let (has_begun, is_loading, started, stepped) = (false, false, None, None);
        Self { cost, images, takes, has_begun, is_loading, started, moved: now, stepped }
    }

    /// Records that steps begin, with memory for this many images.
    pub(super) fn start(&mut self, images: usize, now: Instant) {
        (self.images, self.started) = (images, Some(now));
        (self.has_begun, self.is_loading, self.moved) = (true, false, now);
    }

    /// Records progress.
    pub(super) fn progress(&mut self, Progress { stage, done, total }: Progress, now: Instant) {
        if matches!(stage, Stage::Denoise | Stage::Upscale) {
            self.stepped = Some(([done, total], now));
        }
        (self.has_begun, self.is_loading, self.moved) = (true, matches!(stage, Stage::Load | Stage::Quantize), now);
    }

    /// Records the seconds per image of a finished batch.
    pub(super) fn learn(&self, rates: &mut Rates, now: Instant) {
        if let Some(started) = self.started {
            rates.learn(self.cost, now.saturating_duration_since(started).as_secs_f64() / self.images.max(1) as f64);
        }
    }

    /// Returns the remaining seconds, if known: from earlier images, or from its own steps.
    pub(super) fn seconds_left(&self, now: Instant) -> Option<f64> {
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
}

/// Returns `true` if a batch has made no progress for too long. A batch that is loading weights may take at least
/// `start`. A batch that has not begun may wait for the memory of others: it is late only if no batch makes progress
/// for the longest of all limits.
pub(super) fn is_any_late<'a>(
    batches: impl Iterator<Item = &'a Pace> + Clone,
    rates: &Rates,
    start: Duration,
    now: Instant,
) -> bool {
    let patience = |pace: &Pace| {
        let patience = rates.patience(pace.cost, pace.images, start);
        if pace.is_loading { patience.max(start) } else { patience }
    };
    let longest = batches.clone().map(patience).max().unwrap_or_default();
    let moved = batches.clone().map(|pace| pace.moved).max();
    batches.into_iter().any(|pace| {
        let (last, patience) = match pace.has_begun {
            true => (pace.moved, patience(pace)),
            false => (moved.unwrap_or(pace.moved), longest),
        };
        now.saturating_duration_since(last) > patience
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(600);

    fn cost(model: usize, tokens: usize, evaluations: usize) -> Cost {
        Cost { model, tokens, evaluations }
    }

    #[test]
    fn times_of_other_costs_are_estimated_by_their_work() {
        let cost = |steps| cost(0, 16, steps);
        let mut rates = Rates::default();
        rates.learn(cost(4), 100.0);
        assert_eq!(rates.estimate(cost(4)), None, "the first image is slower than others");
        rates.learn(cost(4), 2.0);
        assert_eq!((rates.estimate(cost(4)), rates.estimate(cost(8))), (Some(2.0), Some(4.0)));
        rates.learn(cost(4), 3.0);
        assert!((rates.estimate(cost(4)).unwrap() - 2.2).abs() < 1e-9, "the newest counts a fifth");
    }

    #[test]
    fn patience_grows_with_the_work_and_with_the_time_of_earlier_images() {
        let (small, large) = (cost(0, 528, 1), cost(0, 16_896, 4));
        let patience = |rates: &Rates, cost, images| rates.patience(cost, images, START);
        let mut rates = Rates::default();
        let untimed = [small, large].map(|cost| patience(&rates, cost, 1).as_secs());
        assert!(untimed[0] >= 600 && untimed[1] >= 32 * 600, "{untimed:?}");
        // On a CPU whose first image takes 80 s, steps take more than 45 minutes. On a GPU they take under a second.
        rates.learn(small, 80.0);
        assert!(patience(&rates, large, 1) > Duration::from_secs(10 * 60 * 45));
        rates = Rates::default();
        rates.learn(small, 0.2);
        let gpu = patience(&rates, large, 1).as_secs();
        assert!((60..1800).contains(&gpu), "a device that hangs is found: {gpu}");
        rates.learn(small, 0.05);
        let after_small = patience(&rates, large, 1).as_secs();
        assert!((60..1800).contains(&after_small), "{after_small}");
        rates.learn(large, 4.0);
        assert_eq!(patience(&rates, large, 1), FLOOR + Duration::from_secs(40));
        assert_eq!(patience(&rates, large, 8), FLOOR + Duration::from_secs(320));
        assert!(patience(&rates, cost(1, 16_896, 4), 1) > START, "of another model nothing is known");
    }

    #[test]
    fn devices_share_the_work_and_work_behind_something_unknown_is_unknown() {
        let done = |devices: usize, all: &[f64]| {
            let mut lanes = Lanes::new(devices);
            (all.iter().map(|seconds| lanes.give(Some(*seconds)).unwrap()).collect::<Vec<_>>(), lanes.end())
        };
        assert_eq!(done(1, &[1.0, 2.0, 3.0]), (vec![1.0, 3.0, 6.0], Some(6.0)));
        assert_eq!(done(2, &[4.0, 1.0, 1.0, 1.0]), (vec![4.0, 1.0, 2.0, 3.0], Some(4.0)));
        assert_eq!(done(0, &[1.0, 1.0]), (vec![1.0, 2.0], Some(2.0)), "there is at least one");
        let mut lanes = Lanes::new(2);
        assert_eq!((lanes.give(Some(1.0)), lanes.give(None), lanes.give(Some(1.0))), (Some(1.0), None, None));
        assert_eq!(lanes.end(), None);
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    fn step(done: u64, total: u64) -> Progress {
        Progress { stage: Stage::Denoise, done, total }
    }

    #[test]
    fn a_batch_that_hangs_is_late_when_its_patience_is_over() {
        let (start, own, mut rates) = (Instant::now(), cost(0, 512, 1), Rates::default());
        [7.0, 7.0].iter().for_each(|seconds| rates.learn(own, *seconds));
        let mut pace = Pace::new(own, 1, &rates, start);
        let is_late = |pace: &Pace, seconds| is_any_late([pace].into_iter(), &rates, START, after(start, seconds));
        assert!(!is_late(&pace, 100) && is_late(&pace, 101), "it never began");
        pace.start(1, after(start, 50));
        assert!(!is_late(&pace, 150) && is_late(&pace, 151));
        pace.progress(step(1, 4), after(start, 52));
        assert!(!is_late(&pace, 152) && is_late(&pace, 153), "a quick step does not set the pace of others");
        pace.progress(Progress { stage: Stage::Load, done: 1, total: 4 }, after(start, 60));
        assert!(!is_late(&pace, 660) && is_late(&pace, 661), "weights have the time of a start");
        pace.progress(step(2, 4), after(start, 61));
        assert!(is_late(&pace, 162));
    }

    #[test]
    fn a_batch_that_waits_for_memory_is_late_only_if_none_makes_progress() {
        let (start, slow, quick, mut rates) = (Instant::now(), cost(0, 512, 8), cost(0, 512, 1), Rates::default());
        [(quick, 1.0), (quick, 1.0), (slow, 97.0)].iter().for_each(|(cost, seconds)| rates.learn(*cost, *seconds));
        let mut paces = [slow, quick].map(|cost| Pace::new(cost, 1, &rates, start));
        paces[0].start(1, start);
        let is_late = |paces: &[Pace; 2], seconds| is_any_late(paces.iter(), &rates, START, after(start, seconds));
        assert!(!is_late(&paces, 1000), "a step of the first may take its time");
        assert!(is_late(&paces, 1001));
        paces[0].progress(step(1, 4), after(start, 1000));
        assert!(!is_late(&paces, 1900));
    }

    #[test]
    fn the_time_left_is_known_by_the_steps_or_by_earlier_images() {
        let (start, own, mut rates) = (Instant::now(), cost(0, 512, 1), Rates::default());
        let mut pace = Pace::new(own, 1, &rates, start);
        assert_eq!(pace.seconds_left(after(start, 5)), None);
        pace.start(1, after(start, 10));
        assert_eq!(pace.seconds_left(after(start, 11)), None, "no step is done");
        pace.progress(step(1, 4), after(start, 12));
        assert_eq!(pace.seconds_left(after(start, 12)), Some(6.0));
        assert_eq!(pace.seconds_left(after(start, 13)), Some(5.0));
        assert_eq!(pace.seconds_left(after(start, 60)), Some(0.0));
        [4.0, 4.0].iter().for_each(|seconds| rates.learn(own, *seconds));
        let mut known = Pace::new(own, 1, &rates, start);
        assert_eq!(known.seconds_left(after(start, 60)), Some(4.0), "its steps have not begun");
        known.start(1, after(start, 60));
        assert_eq!(known.seconds_left(after(start, 61)), Some(3.0));
    }
}
