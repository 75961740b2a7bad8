//! Progress display on stderr: a bar per stage on a terminal, lines elsewhere, and notes. It knows stages and counts,
//! not what is computed. Start reading at [`Console`].

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
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use flux_base::error::{KEYS, Names, named, shown};
use flux_base::stage::{Observer, Progress, Stage};
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use self::log::Log;
pub use self::mirror::{open as open_log, path as log_path, withdraw as withdraw_log};
pub use self::transfers::{Transfers, gigabytes};

/// The names of fields in notes.
static NAMES: OnceLock<Names> = OnceLock::new();

/// Sets the names of fields in notes, such as flags instead of keys; only the first call has an effect.
pub fn name_fields(names: Names) {
    let _ = NAMES.set(names);
}

/// The duration of a stage after which its bar shows the remaining time.
const TELL_TIME_LEFT: Duration = Duration::from_secs(5);
/// The duration of a run after which its stages are printed as lines.
const TELL_STAGES: Duration = Duration::from_secs(10);
/// The redraw interval of an idle bar, which updates its time and follows the terminal's size.
const DRAW_EVERY: Duration = Duration::from_secs(1);

/// The display of a run's stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// Bars on a terminal; elsewhere lines for long runs.
    Auto,
    /// Bars on a terminal.
    Bars,
    /// A line for each stage, however short.
    Lines,
    Nothing,
}

/// The output on stderr, as quiet or verbose as the user requested.
pub struct Console {
    quiet: bool,
    verbose: bool,
    stages: Stages,
    /// The stages for the `--log` file, which do not depend on the display.
    log: Option<Log>,
}

/// The display of stages.
enum Stages {
    Nothing,
    Bars(Option<(Stage, ProgressBar)>),
    /// One bar for the stages of many images.
    Images(ProgressBar),
    Lines(Log),
}

impl Console {
    /// Creates a console at the start of a run.
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
            console.note("standard error is not a terminal that supports bars, so each stage is printed as a line");
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

    /// Prints a command to paste, unless quiet. It stays on one line, regardless of the terminal's width. The command
    /// must already be escaped for the terminal.
    pub fn command(&self, before: &str, command: &str) {
        let text = format!("{before}{command}");
        mirror::write(&text);
        if !self.quiet {
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    /// Prints a line if verbose.
    pub fn detail(&self, text: &str) {
        self.line(self.verbose, text);
    }

    /// Prints an error, even if quiet. The text may have several lines and must already be escaped for the terminal.
    pub fn error(&self, text: &str) {
        self.say(&format!("error: {text}"));
    }

    /// Shows an empty bar for many images, if bars are shown.
    pub fn begin_images(&mut self, total: u64) {
        if matches!(self.stages, Stages::Bars(_)) {
            self.images(0, total);
        }
    }

    /// Shows the stage of one of many images next to their bar.
    pub fn stage_of_images(&mut self, Progress { stage, done, total }: Progress) {
        let Stages::Images(bar) = &self.stages else { return };
        let parts = match counts_elements(stage) {
            true => format!("{}%", done * 100 / total.max(1)),
            false => format!("{done}/{total}"),
        };
        bar.set_message(format!(", {} {parts}", stage.name()));
    }

    /// Updates the number of finished images: one bar for all of them, or a line at intervals.
    pub fn images(&mut self, done: u64, total: u64) {
        match &mut self.stages {
            Stages::Nothing => {}
            Stages::Lines(log) => {
                let now = Instant::now();
                // Earlier stages have ended.
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

    /// Ends the display of many images.
    pub fn end_images(&mut self) {
        if let Stages::Images(bar) = &self.stages {
            bar.finish_and_clear();
            self.stages = Stages::Bars(None);
        }
        self.finish();
    }

    /// Prints or only logs a text, which may contain field names, file names and file contents.
    fn line(&self, wanted: bool, text: &str) {
        let text = shown(&named(text, *NAMES.get().unwrap_or(&KEYS)));
        if wanted { self.say(&text) } else { mirror::write(&text) }
    }

    /// Prints a text above the progress display.
    fn say(&self, text: &str) {
        match &self.stages {
            Stages::Bars(Some((_, bar))) | Stages::Images(bar) => bar.suspend(|| say(text)),
            _ => say(text),
        }
    }

    /// Updates a stage's bar, or prints a line when a stage ends.
    pub fn progress(&mut self, progress: Progress) {
        let now = Instant::now();
        self.log.iter_mut().for_each(|log| log.progress(progress, now).iter().for_each(|line| mirror::write(line)));
        let current = match &mut self.stages {
            Stages::Nothing => return,
            Stages::Images(_) => return self.stage_of_images(progress),
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
        self.end(mirror::write, show);
    }

    /// Drops a stage that an error or a signal ended: its bar disappears, and no line reports it as done.
    pub fn break_off(&mut self) {
        self.end(|_| {}, |_| {});
    }

    /// Ends the last stage. The lines that report it as done go to the log and to the terminal.
    fn end(&mut self, log_line: fn(&str), show_line: fn(&str)) {
        let now = Instant::now();
        self.log.iter_mut().for_each(|log| log.finish(now).iter().for_each(|line| log_line(line)));
        match &mut self.stages {
            Stages::Nothing | Stages::Images(_) => {}
            Stages::Bars(current) => clear(current),
            Stages::Lines(log) => log.finish(now).iter().for_each(|line| show_line(line)),
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

/// Removes a bar from the screen, because stages can repeat, and the printed lines report the results.
fn clear(current: &mut Option<(Stage, ProgressBar)>) {
    if let Some((_, bar)) = current.take() {
        bar.finish_and_clear();
    }
}

/// Writes a text to stderr, wrapped at words for a terminal, and to the `--log` file. A failed write, such as to a file
/// on a full disk, does not end the program.
pub fn say(text: &str) {
    mirror::write(text);
    show(text);
}

/// Writes a text only to stderr.
fn show(text: &str) {
    let _ = writeln!(io::stderr(), "{}", fit::fitted(text));
}

/// Returns `true` if a terminal of this kind can move its cursor, which bars need.
fn moves_its_cursor(kind: Option<&OsStr>) -> bool {
    kind.is_none_or(|kind| kind != "dumb")
}

/// Returns a bar as wide as the terminal.
fn bar(stage: Stage, total: u64, target: ProgressDrawTarget) -> ProgressBar {
    ProgressBar::with_draw_target(Some(total), target).with_style(style(stage)).with_prefix(stage.name())
}

fn style(stage: Stage) -> ProgressStyle {
    let template = if counts_elements(stage) {
        "{prefix:8} [{wide_bar}] {percent}% {elapsed}{left}"
    } else {
        "{prefix:8} [{wide_bar}] {pos}/{len} {elapsed}{left}"
    };
    let style = ProgressStyle::with_template(template).expect("the template is valid");
    style.progress_chars("=> ").with_key("left", |state: &ProgressState, text: &mut dyn std::fmt::Write| {
        // An estimate needs some progress.
        let between = state.pos() > 0 && state.len().is_some_and(|len| state.pos() < len);
        if between && state.duration() > TELL_TIME_LEFT {
            let _ = write!(text, ", {:#} left", HumanDuration(state.eta()));
        }
    })
}

/// Returns `true` if the parts of a stage are too many to show a count.
fn counts_elements(stage: Stage) -> bool {
    matches!(stage, Stage::Quantize | Stage::Load)
}

impl Drop for Console {
    /// Leaves the bar of a stage on the screen if an error or a signal ended it.
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
        [Stage::Quantize, Stage::Load, Stage::Text, Stage::Encode, Stage::Denoise, Stage::Decode];

    /// Returns the text of a bar on a terminal with this many columns.
    fn drawn(stage: Stage, columns: u16, [done, total]: [u64; 2], elapsed: Duration) -> String {
        let terminal = Screen::new(10, columns);
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let bar = bar(stage, total, target).with_elapsed(elapsed);
        bar.set_position(done);
        bar.abandon(); // forces a redraw
        terminal.contents()
    }

    #[test]
    fn the_bar_of_every_stage_fits_40_columns_and_fills_wider_terminals() {
        for stage in STAGES {
            for columns in [40, 80, 200] {
                let shown = drawn(stage, columns, [999, 1000], Duration::from_secs(100_000));
                assert!(shown.starts_with(stage.name()) && shown.contains("=>"), "{shown}");
                assert_eq!((shown.lines().count(), shown.chars().count()), (1, columns.into()), "{shown}");
            }
        }
    }

    #[test]
    fn a_long_stage_tells_the_time_that_is_left() {
        for stage in STAGES {
            let left = |done, seconds| drawn(stage, 80, [done, 4], Duration::from_secs(seconds)).ends_with(" left");
            assert!(left(1, 6) && !left(1, 0), "{stage:?}");
            assert!(!left(0, 6) && !left(4, 6), "no estimate at the beginning and at the end: {stage:?}");
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
