//! What the user sees on stderr while images are made: one bar per stage, notes, and the seed.

use std::io::{self, IsTerminal, Write};

use flux::error::escaped;
use flux::pipeline::{Progress, Stage};
use indicatif::{ProgressBar, ProgressStyle};

/// stderr, as quiet or as verbose as the user asked for.
pub struct Console {
    quiet: bool,
    verbose: bool,
    bar: Option<(Stage, ProgressBar)>,
}

impl Console {
    /// Bars are drawn on a terminal only.
    pub fn new(quiet: bool, verbose: bool) -> Self {
        Self { quiet, verbose, bar: None }
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

    /// Moves the bar of a stage, on a terminal.
    pub fn progress(&mut self, Progress { stage, done, total }: Progress) {
        if self.quiet || !io::stderr().is_terminal() {
            return;
        }
        if self.bar.as_ref().is_none_or(|(current, _)| *current != stage) {
            self.finish();
            self.bar = Some((stage, ProgressBar::new(total).with_style(style(stage)).with_prefix(name(stage))));
        }
        if let Some((_, bar)) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    /// Ends the bar of the last stage. It stays on the screen, except the bar of loading, which comes more than once.
    pub fn finish(&mut self) {
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

fn style(stage: Stage) -> ProgressStyle {
    let template = match stage {
        Stage::Quantise | Stage::Load => "{prefix:8} [{bar:30}] {percent}% {elapsed}",
        Stage::Denoise => "{prefix:8} [{bar:30}] {pos}/{len} {elapsed} {per_sec}",
        Stage::Text | Stage::Decode => "{prefix:8} [{bar:30}] {pos}/{len} {elapsed}",
    };
    ProgressStyle::with_template(template).expect("a test draws each of them").progress_chars("=> ")
}

fn name(stage: Stage) -> &'static str {
    match stage {
        Stage::Quantise => "quantise",
        Stage::Load => "load",
        Stage::Text => "text",
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

    #[test]
    fn every_stage_has_a_style_and_a_name() {
        for stage in [Stage::Quantise, Stage::Load, Stage::Text, Stage::Denoise, Stage::Decode] {
            let bar = ProgressBar::hidden().with_style(style(stage)).with_prefix(name(stage));
            bar.set_length(4);
            bar.inc(1);
            assert!(!bar.prefix().is_empty());
        }
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
