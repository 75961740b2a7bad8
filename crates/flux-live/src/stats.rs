//! Statistics of a live stream: frame counts, latency and flicker.

use std::time::{Duration, Instant};

use flux::compare::{Framed, flicker};
use flux::pipeline::TokenCount;
use flux::rgb::Rgb;
use parking_lot::Mutex;
use serde::Serialize;

/// Latencies are counted in bins of a tenth of a millisecond, up to ten seconds, so memory use is constant.
const LATENCIES: usize = 100_000;
const LATENCY_MS: f64 = 0.1;

/// Counters that all threads share.
#[derive(Debug)]
pub struct Stats(Mutex<State>);

#[derive(Debug)]
struct State {
    counts: Counts,
    whole: Window,
    /// Statistics since the last report.
    last: Window,
    /// The previous frame and its image.
    before: Option<(Rgb, Rgb)>,
    /// The number of images before measurement starts.
    warm_up: u64,
}

/// Frame counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Frames received.
    pub read: u64,
    /// Frames skipped by `--every`. `replaced` counts frames that newer ones replaced.
    pub left_out: u64,
    pub replaced: u64,
    /// Frames that could not be decoded.
    pub broken: u64,
    /// Images generated.
    pub made: u64,
    /// Images written. With a fixed rate, an image may be written several times or never.
    pub written: u64,
}

/// Statistics over a period.
#[derive(Debug)]
struct Window {
    began: Instant,
    made: u64,
    latencies: Vec<u32>,
    flicker: (f64, u64),
    tokens: TokenCount,
    /// Frames with all tokens computed. `again` counts frames with none.
    whole: u64,
    again: u64,
}

/// A statistics report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StatsReport {
    /// The length of the measured period.
    pub seconds: f64,
    #[serde(flatten)]
    pub counts: Counts,
    /// Images per second.
    pub frames_per_s: f64,
    /// Median latency from a frame to its image, in ms; `p95_ms` is the 95th percentile.
    pub p50_ms: Option<f64>,
    pub p95_ms: Option<f64>,
    /// Mean difference in levels between images whose frames are equal, see [`flicker`].
    pub flicker: Option<f64>,
    /// The computed part, if tokens of earlier frames are reused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reused: Option<Reused>,
}

/// The computed part of frames.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Reused {
    /// The share of all tokens.
    pub computed: f64,
    /// Frames with all tokens computed: the first, frames that changed much, and one from time to time.
    pub whole: u64,
    /// Frames without changes, for which the previous image was repeated.
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

    fn report(&self, counts: Counts) -> StatsReport {
        let seconds = self.began.elapsed().as_secs_f64();
        let (sum, count) = self.flicker;
        StatsReport {
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

    /// Returns a percentile of the latency, in ms.
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
    /// Creates the counters. Measurement starts after `warm_up` images, counting from the first.
    pub fn new(warm_up: u64) -> Self {
        let (counts, whole, last) = (Counts::default(), Window::new(), Window::new());
        Self(Mutex::new(State { counts, whole, last, before: None, warm_up }))
    }

    pub fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.0.lock().counts);
    }

    /// Records the number of computed tokens of a frame.
    pub fn computed(&self, tokens: TokenCount) {
        let mut state = self.0.lock();
        let State { whole, last, .. } = &mut *state;
        for window in [whole, last] {
            window.tokens = window.tokens.plus(tokens);
            window.whole += u64::from(tokens.computed == tokens.all);
            window.again += u64::from(tokens.computed == 0);
        }
    }

    /// Records a finished image of a frame.
    pub fn made(&self, frame: Option<&Rgb>, image: &Rgb, took: Duration) {
        let mut state = self.0.lock();
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

    /// Returns the statistics since the last call.
    pub fn since_last(&self) -> StatsReport {
        let mut state = self.0.lock();
        let counts = state.counts;
        std::mem::replace(&mut state.last, Window::new()).report(counts)
    }

    /// Returns the statistics since the start.
    pub fn whole(&self) -> StatsReport {
        let state = self.0.lock();
        state.whole.report(state.counts)
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
