//! What the user sees on stderr while images are made: one bar per stage, or in a log one line, notes, and the seed.

use std::io::{self, IsTerminal, Write};
use std::mem;
use std::time::{Duration, Instant};

use flux::error::escaped;
use flux::pipeline::{Progress, Stage};
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// From here on a stage is so long that its bar tells the time that is left.
const TELL_TIME_LEFT: Duration = Duration::from_secs(5);
/// From here on a run is so long that a log tells its stages.
const TELL_STAGES: Duration = Duration::from_secs(10);
/// How often a bar is drawn where nothing is done meanwhile, so that its time goes on and a terminal may be resized.
const DRAW_EVERY: Duration = Duration::from_secs(1);

/// stderr, as quiet or as verbose as the user asked for.
pub struct Console {
    quiet: bool,
    verbose: bool,
    bar: Option<(Stage, ProgressBar)>,
    log: Log,
}

impl Console {
    /// Bars are drawn on a terminal only. The run begins here.
    pub fn new(quiet: bool, verbose: bool) -> Self {
        Self { quiet, verbose, bar: None, log: Log::new(Instant::now()) }
    }

    /// Prints a note, unless quiet.
    pub fn note(&self, text: &str) {
        self.line(!self.quiet, &format!("note: {text}"));
    }

    /// Prints a line, unless quiet.
    pub fn info(&self, text: &str) {
        self.line(!self.quiet, text);
    }

    /// Prints a line if verbose.
    pub fn detail(&self, text: &str) {
        self.line(self.verbose, text);
    }

    /// The text may hold names of files and what is in them.
    fn line(&self, wanted: bool, text: &str) {
        let text = escaped(text);
        match &self.bar {
            _ if !wanted => {}
            Some((_, bar)) => bar.suspend(|| say(&text)),
            None => say(&text),
        }
    }

    /// Moves the bar of a stage on a terminal; elsewhere tells the stages of a long run when they end.
    pub fn progress(&mut self, progress: Progress) {
        if self.quiet {
            return;
        }
        if !io::stderr().is_terminal() {
            self.log.progress(progress, Instant::now()).iter().for_each(|line| say(line));
            return;
        }
        let Progress { stage, done, total } = progress;
        if self.bar.as_ref().is_none_or(|(current, _)| *current != stage) {
            self.finish();
            let bar = bar(stage, total, ProgressDrawTarget::stderr());
            bar.enable_steady_tick(DRAW_EVERY);
            self.bar = Some((stage, bar));
        }
        if let Some((_, bar)) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    /// Ends the bar of the last stage. It stays on the screen, except the bar of loading, which comes more than once.
    pub fn finish(&mut self) {
        self.log.finish(Instant::now()).iter().for_each(|line| say(line));
        match self.bar.take() {
            Some((Stage::Load, bar)) => bar.finish_and_clear(),
            Some((_, bar)) => bar.finish(),
            None => {}
        }
    }
}

/// Writes a line to stderr. A stderr that cannot be written, such as a file on a full disk, does not end the program.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// The stages of a run as lines of a log. Those of a short run are never told.
struct Log {
    start: Instant,
    current: Option<(Progress, Instant)>,
    /// Lines of stages that ended while the run was short.
    waiting: Vec<String>,
}

impl Log {
    fn new(start: Instant) -> Self {
        Self { start, current: None, waiting: Vec::new() }
    }

    /// Returns the lines to print.
    fn progress(&mut self, progress: Progress, now: Instant) -> Vec<String> {
        match &mut self.current {
            Some((last, _)) if last.stage == progress.stage => {
                *last = progress;
                Vec::new()
            }
            _ => {
                let lines = self.end_stage(now);
                self.current = Some((progress, now));
                lines
            }
        }
    }

    /// Ends the last stage. What is not told by now is done, and is not told later.
    fn finish(&mut self, now: Instant) -> Vec<String> {
        let lines = self.end_stage(now);
        self.waiting.clear();
        lines
    }

    fn end_stage(&mut self, now: Instant) -> Vec<String> {
        if let Some((Progress { stage, done, total }, began)) = self.current.take() {
            let parts = if counts_elements(stage) { String::new() } else { format!(" {done}/{total}") };
            let took_s = now.duration_since(began).as_secs_f64();
            self.waiting.push(format!("{}{parts}, {took_s:.1} s", name(stage)));
        }
        if now.duration_since(self.start) >= TELL_STAGES { mem::take(&mut self.waiting) } else { Vec::new() }
    }
}

/// A bar that is as wide as the terminal.
fn bar(stage: Stage, total: u64, target: ProgressDrawTarget) -> ProgressBar {
    ProgressBar::with_draw_target(Some(total), target).with_style(style(stage)).with_prefix(name(stage))
}

fn style(stage: Stage) -> ProgressStyle {
    let template = if counts_elements(stage) {
        "{prefix:8} [{wide_bar}] {percent}% {elapsed}{left}"
    } else {
        "{prefix:8} [{wide_bar}] {pos}/{len} {elapsed}{left}"
    };
    let style = ProgressStyle::with_template(template).expect("a test draws each of them");
    style.progress_chars("=> ").with_key("left", |state: &ProgressState, text: &mut dyn std::fmt::Write| {
        // Without a part that is done nothing can be estimated.
        let between = state.pos() > 0 && state.len().is_some_and(|len| state.pos() < len);
        if between && state.duration() > TELL_TIME_LEFT {
            let _ = write!(text, ", {:#} left", HumanDuration(state.eta()));
        }
    })
}

/// Whether the parts of a stage are too many to be told.
fn counts_elements(stage: Stage) -> bool {
    matches!(stage, Stage::Quantise | Stage::Load)
}

fn name(stage: Stage) -> &'static str {
    match stage {
        Stage::Quantise => "quantise",
        Stage::Load => "load",
        Stage::Text => "text",
        Stage::Encode => "encode",
        Stage::Denoise => "denoise",
        Stage::Decode => "decode",
    }
}

impl Drop for Console {
    /// Leaves the bar of a stage that an error or a signal ended on the screen as it was.
    fn drop(&mut self) {
        if let Some((_, bar)) = self.bar.take() {
            bar.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use indicatif::InMemoryTerm;

    const STAGES: [Stage; 6] =
        [Stage::Quantise, Stage::Load, Stage::Text, Stage::Encode, Stage::Denoise, Stage::Decode];

    /// What a terminal of so many columns shows of a bar.
    fn drawn(stage: Stage, columns: u16, [done, total]: [u64; 2], elapsed: Duration) -> String {
        let terminal = InMemoryTerm::new(10, columns);
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let bar = bar(stage, total, target).with_elapsed(elapsed);
        bar.set_position(done);
        bar.abandon(); // draws in any case
        terminal.contents()
    }

    #[test]
    fn the_bar_of_every_stage_fits_40_columns_and_fills_wider_terminals() {
        for stage in STAGES {
            for columns in [40, 80, 200] {
                let shown = drawn(stage, columns, [999, 1000], Duration::from_secs(100_000));
                assert!(shown.starts_with(name(stage)) && shown.contains("=>"), "{shown}");
                assert_eq!((shown.lines().count(), shown.chars().count()), (1, columns.into()), "{shown}");
            }
        }
    }

    #[test]
    fn a_long_stage_tells_the_time_that_is_left() {
        for stage in STAGES {
            let left = |done, seconds| drawn(stage, 80, [done, 4], Duration::from_secs(seconds)).ends_with(" left");
            assert!(left(1, 6) && !left(1, 0), "{stage:?}");
            assert!(!left(0, 6) && !left(4, 6), "nothing can be estimated, or nothing is left: {stage:?}");
        }
    }

    #[test]
    fn a_log_tells_the_stages_of_a_long_run_alone() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_millis((seconds * 1000.0) as u64);
        let progress = |stage, done| Progress { stage, done, total: 4 };
        let mut log = Log::new(start);
        let none: [&str; 0] = [];
        assert_eq!(log.progress(progress(Stage::Load, 0), at(0.0)), none);
        assert_eq!(log.progress(progress(Stage::Load, 4), at(1.0)), none);
        assert_eq!(log.progress(progress(Stage::Denoise, 0), at(1.5)), none);
        assert_eq!(log.progress(progress(Stage::Denoise, 4), at(13.0)), none);
        assert_eq!(log.progress(progress(Stage::Decode, 0), at(13.8)), ["load, 1.5 s", "denoise 4/4, 12.3 s"]);
        assert_eq!(log.finish(at(14.0)), ["decode 0/4, 0.2 s"]);
        assert_eq!(log.finish(at(15.0)), none);

        // Images that were written by then are not told of later.
        let mut log = Log::new(start);
        log.progress(progress(Stage::Text, 4), at(0.0));
        assert_eq!(log.finish(at(9.0)), none);
        log.progress(progress(Stage::Decode, 4), at(9.0));
        assert_eq!(log.finish(at(11.0)), ["decode 4/4, 2.0 s"]);
    }

    #[test]
    fn stages_may_come_again_and_end_early() {
        let mut console = Console::new(false, false);
        for stage in [Stage::Load, Stage::Text, Stage::Load, Stage::Denoise, Stage::Decode] {
            console.progress(Progress { stage, done: 0, total: 2 });
            console.progress(Progress { stage, done: 1, total: 2 });
        }
        console.finish();
        console.finish();
        assert!(console.bar.is_none());
    }
}
