//! How many frames come and go, how long each takes, and how much images flicker.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flux::compare::{Framed, flicker};
use flux::pipeline::TokenCount;
use flux::rgb::Rgb;
use serde::Serialize;

/// Latencies are counted in tenths of a millisecond, up to ten seconds: however long it runs, they take no more room.
const LATENCIES: usize = 100_000;
const LATENCY_MS: f64 = 0.1;

/// What is counted; all who share it count.
#[derive(Debug)]
pub struct Stats(Mutex<State>);

#[derive(Debug)]
struct State {
    counts: Counts,
    whole: Window,
    /// Since somebody asked for the last time.
    last: Window,
    /// The image before, and its frame.
    before: Option<(Rgb, Rgb)>,
    /// Images that are still to be made before any is measured.
    warm_up: u64,
}

/// Frames since the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// That came.
    pub read: u64,
    /// Of which `--every` left out so many, and newer ones took the place of so many.
    pub left_out: u64,
    pub replaced: u64,
    /// That could not be read.
    pub broken: u64,
    /// Images that were made.
    pub made: u64,
    /// Images that were written: one may be written more often, or never, where they are paced.
    pub written: u64,
}

/// What is measured over some time.
#[derive(Debug)]
struct Window {
    began: Instant,
    made: u64,
    latencies: Vec<u32>,
    flicker: (f64, u64),
    tokens: TokenCount,
    /// Frames of which all tokens were computed, and none.
    whole: u64,
    again: u64,
}

/// What somebody is told.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Told {
    /// Of the time that was measured.
    pub seconds: f64,
    #[serde(flatten)]
    pub counts: Counts,
    /// Images a second.
    pub frames_per_s: f64,
    /// From a frame to its image, in ms: of half of them, of 95 in 100.
    pub p50_ms: Option<f64>,
    pub p95_ms: Option<f64>,
    /// Levels by which images differ where their frames do not, see [`flicker`].
    pub flicker: Option<f64>,
    /// What was computed, where some tokens are those of an earlier frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reused: Option<Reused>,
}

/// What was computed of frames.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Reused {
    /// The share of all tokens.
    pub computed: f64,
    /// Frames of which all tokens were computed: the first, those that changed much, and from time to time one.
    pub whole: u64,
    /// Frames in which nothing changed, so that the image was given again.
    pub again: u64,
}

impl Window {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            made: 0,
            latencies: vec![0; LATENCIES],
            flicker: (0.0, 0),
            tokens: TokenCount::default(),
            whole: 0,
            again: 0,
        }
    }

    fn told(&self, counts: Counts) -> Told {
        let seconds = self.began.elapsed().as_secs_f64();
        let (sum, count) = self.flicker;
        Told {
            seconds: rounded(seconds),
            counts,
            frames_per_s: rounded(self.made as f64 / seconds.max(1e-9)),
            p50_ms: self.latency(0.5),
            p95_ms: self.latency(0.95),
            flicker: (count > 0).then(|| rounded(sum / count as f64)),
            reused: (self.tokens.all > 0).then(|| Reused {
                computed: rounded(self.tokens.computed as f64 / self.tokens.all as f64),
                whole: self.whole,
                again: self.again,
            }),
        }
    }

    /// That of a share of all images at most, in ms.
    fn latency(&self, share: f64) -> Option<f64> {
        let wanted = (share * self.made as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let place = self.latencies.iter().position(|count| {
            seen += u64::from(*count);
            seen >= wanted
        })?;
        Some(rounded((place + 1) as f64 * LATENCY_MS))
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

impl Stats {
    /// Images are counted from the first, and measured once `warm_up` are made.
    pub fn new(warm_up: u64) -> Self {
        let (counts, whole, last) = (Counts::default(), Window::new(), Window::new());
        Self(Mutex::new(State { counts, whole, last, before: None, warm_up }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.state().counts);
    }

    /// So many tokens of a frame were computed.
    pub fn computed(&self, tokens: TokenCount) {
        let mut state = self.state();
        let State { whole, last, .. } = &mut *state;
        for window in [whole, last] {
            window.tokens = window.tokens.plus(tokens);
            window.whole += u64::from(tokens.computed == tokens.all);
            window.again += u64::from(tokens.computed == 0);
        }
    }

    /// An image was made of a frame, and is on its way out since then.
    pub fn made(&self, frame: Option<&Rgb>, image: &Rgb, took: Duration) {
        let mut state = self.state();
        let before = state.before.take();
        let now = frame.map(|frame| Framed { frame, image });
        let flickers = before.as_ref().zip(now).and_then(|((frame, image), now)| flicker(Framed { frame, image }, now));
        let place = ((took.as_secs_f64() * 1000.0 / LATENCY_MS) as usize).min(LATENCIES - 1);
        let is_measured = state.counts.made >= state.warm_up;
        let State { whole, last, .. } = &mut *state;
        for window in [whole, last] {
            if !is_measured {
                *window = Window::new();
                continue;
            }
            window.made += 1;
            window.latencies[place] += 1;
            if let Some(flickers) = flickers {
                window.flicker = (window.flicker.0 + flickers, window.flicker.1 + 1);
            }
        }
        state.counts.made += 1;
        state.before = frame.map(|frame| (frame.clone(), image.clone()));
    }

    /// What was measured since the last time that somebody asked this.
    pub fn since_last(&self) -> Told {
        let mut state = self.state();
        let counts = state.counts;
        std::mem::replace(&mut state.last, Window::new()).told(counts)
    }

    /// What was measured since the beginning.
    pub fn whole(&self) -> Told {
        let state = self.state();
        state.whole.told(state.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_and_flicker_are_those_of_the_window() {
        let stats = Stats::new(0);
        let grey = |level: u8| Rgb { width: 16, height: 16, bytes: vec![level; 3 * 256] };
        (1..=100).for_each(|ms| stats.made(Some(&grey(9)), &grey((ms % 2) as u8), Duration::from_millis(ms)));
        let told = stats.since_last();
        assert_eq!((told.counts.made, told.flicker), (100, Some(1.0)));
        assert!((49.9..=50.3).contains(&told.p50_ms.unwrap()) && (94.9..=95.3).contains(&told.p95_ms.unwrap()));
        let empty = stats.since_last();
        assert_eq!((empty.p50_ms, empty.flicker, empty.frames_per_s), (None, None, 0.0));
        stats.made(None, &grey(0), Duration::from_secs(100));
        assert_eq!((stats.since_last().p50_ms, stats.whole().counts.made), (Some(10_000.0), 101));
        let reused = Stats::new(0);
        [0, 30, 100].into_iter().for_each(|computed| reused.computed(TokenCount { computed, all: 100 }));
        assert_eq!(reused.whole().reused, Some(Reused { computed: 0.433, whole: 1, again: 1 }));
        assert!(stats.whole().reused.is_none());
        let stats = Stats::new(2);
        [5, 9, 9, 8]
            .into_iter()
            .for_each(|level| stats.made(Some(&grey(9)), &grey(level), Duration::from_millis(level.into())));
        let told = stats.whole();
        assert_eq!((told.counts.made, told.p95_ms, told.flicker), (4, Some(9.1), Some(0.5)));
    }
}
