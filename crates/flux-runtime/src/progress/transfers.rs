//! Progress of downloads: one bar for all files on a terminal, lines elsewhere.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

use flux_base::error::shown as escaped;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{DRAW_EVERY, Shown, say};

/// The interval of progress lines for a file.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// The template of the bar.
const TEMPLATE: &str = "{prefix:.bold} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec}, {eta} left";

/// The progress display of a download on stderr.
pub struct Transfers {
    quiet: bool,
    is_shown: bool,
    bar: Option<ProgressBar>,
    done: u64,
    total: u64,
    /// The bytes downloaded by this run since `start`.
    fetched: u64,
    start: Instant,
    last_told: Instant,
}

impl Transfers {
    /// Creates a display. With `quiet`, prints nothing.
    pub fn new(quiet: bool, shown: Shown) -> Self {
        let now = Instant::now();
        let is_shown = !quiet && shown != Shown::Nothing;
        let has_bar = is_shown && shown != Shown::Lines && io::stderr().is_terminal();
        let bar = has_bar.then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            bar.set_style(style());
            bar
        });
        Self { quiet, is_shown, bar, done: 0, total: 0, fetched: 0, start: now, last_told: now }
    }

    /// Prints a line, unless quiet.
    pub fn line(&self, text: &str) {
        let text = escaped(text);
        match &self.bar {
            _ if self.quiet => {}
            Some(bar) => bar.suspend(|| say(&text)),
            None => say(&text),
        }
    }

    /// Starts a download of `total` bytes.
    pub fn begin(&mut self, total: u64) {
        (self.total, self.done, self.fetched) = (total, 0, 0);
        self.start = Instant::now();
        self.last_told = self.start;
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.reset();
            bar.enable_steady_tick(DRAW_EVERY);
        }
    }

    /// Shows the current file.
    pub fn file(&self, path: &str, _size: u64) {
        if let Some(bar) = &self.bar {
            bar.set_prefix(escaped(path));
        }
    }

    /// Shows that an existing file is being verified.
    pub fn checking(&self, path: &Path) {
        match &self.bar {
            Some(bar) => bar.set_prefix(escaped(&format!("checking {}", path.display()))),
            None if self.is_shown => self.line(&format!("checking {}", path.display())),
            None => {}
        }
    }

    /// Adds received bytes.
    pub fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        self.fetched += bytes;
        match &self.bar {
            Some(bar) => bar.set_position(self.done),
            None if self.is_shown && self.last_told.elapsed() >= TELL_EVERY => {
                self.last_told = Instant::now();
                self.line(&so_far(self.done, self.total, self.fetched, self.start.elapsed()));
            }
            None => {}
        }
    }

    /// Subtracts bytes that must be downloaded again.
    pub fn go_back(&mut self, bytes: u64) {
        self.done = self.done.saturating_sub(bytes);
        self.fetched = self.fetched.saturating_sub(bytes);
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
        }
    }

    /// Reports a finished file.
    pub fn fetched(&self, path: &str, is_checked: bool) {
        match (is_checked, &self.bar) {
            (false, _) => self.line(&format!("{path}: fetched, only its size was checked")),
            (true, None) if self.is_shown => self.line(&format!("{path}: fetched and checked")),
            (true, _) => {}
        }
    }

    /// Clears the bar after the last file.
    pub fn finish(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Transfers {
    /// Leaves the bar on the screen if an error or a signal ended the download.
    fn drop(&mut self) {
        if let Some(bar) = self.bar.as_ref().filter(|bar| !bar.is_finished() && self.total > 0) {
            bar.abandon();
        }
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template(TEMPLATE).expect("the template is valid").progress_chars("=> ")
}

/// Formats the progress of a download.
fn so_far(done: u64, total: u64, fetched: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(0.001);
    let rate = fetched as f64 / seconds;
    let left = if rate > 0.0 { total.saturating_sub(done) as f64 / rate } else { 0.0 };
    let left = HumanDuration(Duration::from_secs_f64(left.min(1e9)));
    format!("{} of {}, {:.1} MB/s, {left:#} left", gigabytes(done), gigabytes(total), rate / 1e6)
}

/// Formats a size in bytes for users.
pub fn gigabytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} bytes"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::super::screen::Screen;
    use super::*;

    #[test]
    fn the_bar_is_as_wide_as_the_terminal() {
        let terminal = Screen::new(10, 100);
        let bar =
            ProgressBar::with_draw_target(Some(1 << 30), ProgressDrawTarget::term_like(Box::new(terminal.clone())));
        bar.set_style(style());
        bar.set_prefix("vae");
        bar.set_position(1 << 29);
        bar.abandon();
        let shown = terminal.contents();
        assert!(shown.starts_with("vae [==") && shown.contains("512.00 MiB/1.00 GiB"), "{shown}");
        assert_eq!((shown.lines().count(), shown.chars().count()), (1, 100), "{shown}");
    }

    #[test]
    fn a_line_tells_bytes_rate_and_time() {
        let line = so_far(4_000_000_000, 16_000_000_000, 2_000_000_000, Duration::from_secs(20));
        assert_eq!(line, "4.0 GB of 16.0 GB, 100.0 MB/s, 2m left");
        assert_eq!(so_far(0, 10, 0, Duration::ZERO), "0 bytes of 10 bytes, 0.0 MB/s, 0s left");
    }
}
