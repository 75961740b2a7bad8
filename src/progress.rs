//! What the user sees on stderr while images are made: one bar per stage, or in a log one line, notes, and the seed.

mod fit;
mod images;
mod log;
mod mirror;
#[cfg(test)]
mod screen;
mod transfers;

use std::env;
use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use flux::engine::Observer;
use flux::error::{named, shown};
use flux::stage::{Progress, Stage};
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

pub use self::fit::fits;
use self::log::Log;
pub use self::mirror::{open as open_log, path as log_path, withdraw as withdraw_log};
pub use self::transfers::{Transfers, gigabytes};
use crate::cli::flag;

/// From here on a stage is so long that its bar tells the time that is left.
const TELL_TIME_LEFT: Duration = Duration::from_secs(5);
/// From here on a run is so long that a log tells its stages.
const TELL_STAGES: Duration = Duration::from_secs(10);
/// How often a bar is drawn where nothing is done meanwhile, so that its time goes on and a terminal may be resized.
const DRAW_EVERY: Duration = Duration::from_secs(1);

/// How the stages of a run are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// Bars on a terminal; elsewhere lines, when a run is long.
    Auto,
    /// Bars, where there is a terminal.
    Bars,
    /// A line of each stage, however short.
    Lines,
    Nothing,
}

/// stderr, as quiet or as verbose as the user asked for.
pub struct Console {
    quiet: bool,
    verbose: bool,
    stages: Stages,
    /// The stages as the file of `--log` has them, however they are shown.
    log: Option<Log>,
}

/// The stages as they are shown.
enum Stages {
    Nothing,
    Bars(Option<(Stage, ProgressBar)>),
    /// Those of many images, of which one bar tells them all.
    Images(ProgressBar),
    Lines(Log),
}

impl Console {
    /// The run begins here.
    pub fn new(quiet: bool, verbose: bool, shown: Shown) -> Self {
        let is_terminal = io::stderr().is_terminal() && moves_its_cursor(env::var_os("TERM").as_deref());
        let lines = |from| Stages::Lines(Log::new(Instant::now(), from));
        let stages = match shown {
            _ if quiet => Stages::Nothing,
            Shown::Nothing => Stages::Nothing,
            Shown::Auto | Shown::Bars if is_terminal => Stages::Bars(None),
            Shown::Auto => lines(TELL_STAGES),
            Shown::Bars | Shown::Lines => lines(Duration::ZERO),
        };
        let log = mirror::is_open().then(|| Log::new(Instant::now(), Duration::ZERO));
        let console = Self { quiet, verbose, stages, log };
        if shown == Shown::Bars && !is_terminal {
            console.note("standard error is no terminal that shows bars, so each stage is a line in place of its bar");
        }
        console
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

    /// Prints an error, also if quiet. The text is one that may be shown as it is, in several lines.
    pub fn error(&self, text: &str) {
        self.say(&format!("error: {text}"));
    }

    /// How many of many images are done: one bar for all of them, or in a log a line from time to time.
    pub fn images(&mut self, done: u64, total: u64) {
        match &mut self.stages {
            Stages::Nothing => {}
            Stages::Lines(log) => {
                let now = Instant::now();
                // What came before the first image is over.
                let before = log.finish(now);
                before.iter().chain(&log.images(done, total, now)).for_each(|line| say(line));
            }
            Stages::Images(bar) => bar.set_position(done),
            Stages::Bars(current) => {
                clear(current);
                let bar = images::bar(total, ProgressDrawTarget::stderr());
                bar.enable_steady_tick(DRAW_EVERY);
                bar.set_position(done);
                self.stages = Stages::Images(bar);
            }
        }
    }

    /// All images are done.
    pub fn end_images(&mut self) {
        if let Stages::Images(bar) = &self.stages {
            bar.finish_and_clear();
            self.stages = Stages::Bars(None);
        }
        self.finish();
    }

    /// The text may name fields, and hold names of files and what is in them.
    fn line(&self, wanted: bool, text: &str) {
        let text = shown(&named(text, flag));
        if wanted { self.say(&text) } else { mirror::write(&text) }
    }

    /// Prints a text above what is drawn of the stages.
    fn say(&self, text: &str) {
        match &self.stages {
            Stages::Bars(Some((_, bar))) | Stages::Images(bar) => bar.suspend(|| say(text)),
            _ => say(text),
        }
    }

    /// Moves the bar of a stage; in a log tells the stages when they end.
    pub fn progress(&mut self, progress: Progress) {
        let now = Instant::now();
        self.log.iter_mut().for_each(|log| log.progress(progress, now).iter().for_each(|line| mirror::write(line)));
        let current = match &mut self.stages {
            Stages::Nothing | Stages::Images(_) => return,
            Stages::Lines(log) => return log.progress(progress, now).iter().for_each(|line| show(line)),
            Stages::Bars(current) => current,
        };
        let Progress { stage, done, total } = progress;
        if current.as_ref().is_none_or(|(current, _)| *current != stage) {
            clear(current);
            let bar = bar(stage, total, ProgressDrawTarget::stderr());
            bar.enable_steady_tick(DRAW_EVERY);
            *current = Some((stage, bar));
        }
        if let Some((_, bar)) = current {
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    /// Ends the last stage.
    pub fn finish(&mut self) {
        let now = Instant::now();
        self.log.iter_mut().for_each(|log| log.finish(now).iter().for_each(|line| mirror::write(line)));
        match &mut self.stages {
            Stages::Nothing | Stages::Images(_) => {}
            Stages::Bars(current) => clear(current),
            Stages::Lines(log) => log.finish(now).iter().for_each(|line| show(line)),
        }
    }

    /// Forgets a stage that an error or a signal has ended: its bar goes, and no line tells it as done.
    pub fn break_off(&mut self) {
        let now = Instant::now();
        self.log.iter_mut().for_each(|log| drop(log.finish(now)));
        match &mut self.stages {
            Stages::Nothing | Stages::Images(_) => {}
            Stages::Bars(current) => clear(current),
            Stages::Lines(log) => drop(log.finish(now)),
        }
    }
}

impl Observer for Console {
    fn note(&mut self, text: &str) {
        Console::note(self, text);
    }

    fn detail(&mut self, text: &str) {
        Console::detail(self, text);
    }

    fn progress(&mut self, progress: Progress) {
        Console::progress(self, progress);
    }

    fn finish(&mut self) {
        Console::finish(self);
    }
}

/// Takes a bar off the screen: stages come more than once, and the lines that stay tell what was done.
fn clear(current: &mut Option<(Stage, ProgressBar)>) {
    if let Some((_, bar)) = current.take() {
        bar.finish_and_clear();
    }
}

/// Writes a text to stderr, on a terminal without a break inside a word, and to the file of `--log`. A stderr that
/// cannot be written, such as a file on a full disk, does not end the program.
pub fn say(text: &str) {
    mirror::write(text);
    show(text);
}

/// The same, to stderr alone.
fn show(text: &str) {
    let _ = writeln!(io::stderr(), "{}", fit::fitted(text));
}

/// Whether a terminal of this kind can draw over what it shows, as bars need it.
fn moves_its_cursor(kind: Option<&OsStr>) -> bool {
    kind.is_none_or(|kind| kind != "dumb")
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
        if let Stages::Bars(Some((_, bar))) | Stages::Images(bar) = &self.stages {
            bar.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::screen::Screen;

    const STAGES: [Stage; 6] =
        [Stage::Quantise, Stage::Load, Stage::Text, Stage::Encode, Stage::Denoise, Stage::Decode];

    /// What a terminal of so many columns shows of a bar.
    fn drawn(stage: Stage, columns: u16, [done, total]: [u64; 2], elapsed: Duration) -> String {
        let terminal = Screen::new(10, columns);
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
    fn stages_may_come_again_and_end_early_however_they_are_shown() {
        for shown in [Shown::Auto, Shown::Bars, Shown::Lines, Shown::Nothing] {
            let mut console = Console::new(false, false, shown);
            for stage in [Stage::Load, Stage::Text, Stage::Load, Stage::Denoise, Stage::Decode] {
                console.progress(Progress { stage, done: 0, total: 2 });
                console.progress(Progress { stage, done: 1, total: 2 });
            }
            console.finish();
            console.finish();
        }
    }

    #[test]
    fn a_bar_that_has_ended_is_off_the_screen() {
        let terminal = Screen::new(10, 40);
        let shown = bar(Stage::Denoise, 4, ProgressDrawTarget::term_like(Box::new(terminal.clone())));
        shown.set_position(2);
        shown.tick();
        assert!(terminal.contents().contains("denoise"));
        clear(&mut Some((Stage::Denoise, shown)));
        assert_eq!(terminal.contents(), "");
    }
}
