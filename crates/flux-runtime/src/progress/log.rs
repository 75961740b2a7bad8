//! Stages of a run as log lines.

use std::time::{Duration, Instant};

use flux_base::stage::{Progress, Stage};
use indicatif::HumanDuration;

use super::counts_elements;
use super::images::rate;

/// The interval of progress lines for a stage.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Log of stages: one line when each stage ends, and progress lines for long ones.
pub struct Log {
    start: Instant,
    /// The elapsed time of a run after which its stages are logged.
    from: Duration,
    /// The stages since the last written images, in order.
    stages: Vec<Seen>,
    /// The current stage and its start.
    current: Option<(Stage, Instant)>,
    last_told: Instant,
    /// The time and number of images when counting started.
    images: Option<(Instant, u64)>,
}

/// A stage, which may run several times.
struct Seen {
    progress: Progress,
    spent: Duration,
    is_told: bool,
}

impl Log {
    /// Creates the log of a run that began at `start`. Stages are logged if the run takes longer than `from`.
    pub fn new(start: Instant, from: Duration) -> Self {
        Self { start, from, stages: Vec::new(), current: None, last_told: start, images: None }
    }

    /// Updates a stage, and returns the lines to print.
    pub fn progress(&mut self, progress: Progress, now: Instant) -> Vec<String> {
        self.count(now);
        let mut lines = self.ended(now, |seen| seen.progress.stage != progress.stage && seen.is_done());
        self.current = Some((progress.stage, now));
        match self.stages.iter_mut().find(|seen| seen.progress.stage == progress.stage) {
            Some(seen) => seen.progress = progress,
            None => self.stages.push(Seen { progress, spent: Duration::ZERO, is_told: false }),
        }
        let is_quiet = now.duration_since(self.last_told) >= TELL_EVERY && self.is_long(now);
        if lines.is_empty() && is_quiet && progress.done < progress.total {
            lines.extend(self.stages.iter().find(|seen| seen.progress.stage == progress.stage).map(Seen::so_far));
        }
        if !lines.is_empty() {
            self.last_told = now;
        }
        lines
    }

    /// Returns a progress line for many images, at intervals.
    pub fn images(&mut self, done: u64, total: u64, now: Instant) -> Option<String> {
        let (since, before) = *self.images.get_or_insert((now, done));
        if now.duration_since(self.last_told) < TELL_EVERY || done >= total {
            return None;
        }
        self.last_told = now;
        let seconds = now.duration_since(since).as_secs_f64();
        let per_second = if seconds > 0.0 { (done - before) as f64 / seconds } else { 0.0 };
        let left = if per_second > 0.0 {
            let left = Duration::from_secs_f64((total - done) as f64 / per_second);
            format!(", {:#} left", HumanDuration(left))
        } else {
            String::new()
        };
        Some(format!("{done} of {total} images, {}{left}", rate(per_second)))
    }

    /// Ends all stages, and returns the remaining lines.
    pub fn finish(&mut self, now: Instant) -> Vec<String> {
        self.count(now);
        let lines = self.ended(now, |_| true);
        self.stages.clear();
        lines
    }

    fn is_long(&self, now: Instant) -> bool {
        now.duration_since(self.start) >= self.from
    }

    /// Adds the time of the current stage until now.
    fn count(&mut self, now: Instant) {
        let Some((stage, since)) = self.current.take() else { return };
        if let Some(seen) = self.stages.iter_mut().find(|seen| seen.progress.stage == stage) {
            seen.spent += now.duration_since(since);
        }
    }

    /// Returns the lines of stages for which `has_ended` is true, each once.
    fn ended(&mut self, now: Instant, has_ended: impl Fn(&Seen) -> bool) -> Vec<String> {
        if !self.is_long(now) {
            return Vec::new();
        }
        let ended = self.stages.iter_mut().filter(|seen| !seen.is_told && has_ended(seen));
        ended
            .map(|seen| {
                seen.is_told = true;
                seen.line()
            })
            .collect()
    }
}

impl Seen {
    /// Returns `true` if the stage is complete. Loading counts as complete, because a thread that loads weights may not
    /// report all of them.
    fn is_done(&self) -> bool {
        self.progress.done >= self.progress.total || self.progress.stage == Stage::Load
    }

    fn line(&self) -> String {
        let Progress { stage, done, total } = self.progress;
        let parts = if counts_elements(stage) || done < total { String::new() } else { format!(" {done}/{total}") };
        format!("{}{parts}, {:.1} s", stage.name(), self.spent.as_secs_f64())
    }

    fn so_far(&self) -> String {
        let Progress { stage, done, total } = self.progress;
        let parts =
            if counts_elements(stage) { format!("{}%", done * 100 / total.max(1)) } else { format!("{done}/{total}") };
        format!("{} {parts} so far, {:.1} s", stage.name(), self.spent.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [&str; 0] = [];

    fn at(start: Instant, seconds: f64) -> Instant {
        start + Duration::from_millis((seconds * 1000.0) as u64)
    }

    fn progress_at(stage: Stage, done: u64) -> Progress {
        Progress { stage, done, total: 4 }
    }

    #[test]
    fn a_log_tells_the_stages_of_a_long_run_alone() {
        let start = Instant::now();
        let mut log = Log::new(start, Duration::from_secs(10));
        assert_eq!(log.progress(progress_at(Stage::Load, 0), at(start, 0.0)), NONE);
        assert_eq!(log.progress(progress_at(Stage::Load, 3), at(start, 1.0)), NONE);
        assert_eq!(log.progress(progress_at(Stage::Denoise, 0), at(start, 1.5)), NONE);
        assert_eq!(log.progress(progress_at(Stage::Denoise, 4), at(start, 13.0)), ["load, 1.5 s"]);
        assert_eq!(log.progress(progress_at(Stage::Decode, 0), at(start, 13.8)), ["denoise 4/4, 12.3 s"]);
        assert_eq!(log.finish(at(start, 14.0)), ["decode, 0.2 s"]);
        assert_eq!(log.finish(at(start, 15.0)), NONE);

        // Stages of images that are already written are not logged later.
        let mut log = Log::new(start, Duration::from_secs(10));
        log.progress(progress_at(Stage::Text, 4), at(start, 0.0));
        assert_eq!(log.finish(at(start, 9.0)), NONE);
        log.progress(progress_at(Stage::Decode, 4), at(start, 9.0));
        assert_eq!(log.finish(at(start, 11.0)), ["decode 4/4, 2.0 s"]);
    }

    #[test]
    fn a_stage_that_comes_again_is_told_once_with_all_of_its_time() {
        let start = Instant::now();
        let mut log = Log::new(start, Duration::ZERO);
        let mut lines = Vec::new();
        // Weights are loaded for each step, and the last step is reported while the decoder is running.
        for (time, stage, done) in [
            (0.0, Stage::Load, 0),
            (1.0, Stage::Denoise, 0),
            (2.0, Stage::Load, 0),
            (3.0, Stage::Denoise, 2),
            (4.0, Stage::Decode, 0),
            (5.0, Stage::Denoise, 4),
            (6.0, Stage::Decode, 4),
        ] {
            lines.extend(log.progress(progress_at(stage, done), at(start, time)));
        }
        lines.extend(log.finish(at(start, 7.0)));
        assert_eq!(lines, ["load, 1.0 s", "denoise 4/4, 3.0 s", "decode 4/4, 2.0 s"]);
    }

    #[test]
    fn how_far_a_long_stage_is_is_told_every_ten_seconds() {
        let start = Instant::now();
        let mut log = Log::new(start, Duration::from_secs(10));
        let mut denoise = |time, done| log.progress(progress_at(Stage::Denoise, done), at(start, time));
        assert_eq!((denoise(0.0, 0), denoise(9.0, 1)), (vec![], vec![]));
        assert_eq!(denoise(18.0, 2), ["denoise 2/4 so far, 18.0 s"]);
        assert_eq!((denoise(27.0, 3), denoise(29.0, 4)), (vec![], vec![]), "the stage has ended");
        assert_eq!(log.finish(at(start, 30.0)), ["denoise 4/4, 30.0 s"]);
        let mut log = Log::new(start, Duration::ZERO);
        log.progress(Progress { stage: Stage::Load, done: 0, total: 3_000_000 }, start);
        let far = log.progress(Progress { stage: Stage::Load, done: 1_000_000, total: 3_000_000 }, at(start, 11.0));
        assert_eq!(far, ["load 33% so far, 11.0 s"]);
    }
}
