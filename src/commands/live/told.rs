//! What is told of frames while they come and go.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use flux::{Error, Result};

use crate::cli::Live;
use crate::live::{self, Stats};
use crate::progress::{Console, say};

const EVERY: Duration = Duration::from_secs(1);

/// Where lines of JSON go.
enum To {
    Nobody,
    Stderr,
    File(File),
}

/// See the module.
pub struct Told {
    to: To,
    /// When it is due, once there is something to tell.
    next: Option<Instant>,
}

impl Told {
    /// Errors when the file cannot be written.
    pub fn open(args: &Live) -> Result<Self> {
        let to = match &args.stats {
            None => To::Nobody,
            Some(file) if file == Path::new("-") => To::Stderr,
            Some(file) => To::File(OpenOptions::new().create(true).append(true).open(file).map_err(|e| {
                Error::usage(format!("cannot open the file: {e}")).at_path(file).hint("name one that may be written")
            })?),
        };
        Ok(Self { to, next: None })
    }

    /// Tells what was measured, where that is due.
    ///
    /// Errors when it cannot be written.
    pub fn tick(&mut self, stats: &Stats) -> Result<()> {
        let now = Instant::now();
        let next = self.next.get_or_insert(now + EVERY);
        if now < *next || matches!(self.to, To::Nobody) {
            return Ok(());
        }
        *next += EVERY;
        self.tell(&stats.since_last())
    }

    fn tell(&mut self, told: &live::Told) -> Result<()> {
        let line = serde_json::to_string(told).map_err(|e| Error::new(format!("cannot write the figures: {e}")))?;
        match &mut self.to {
            To::Nobody => Ok(()),
            To::Stderr => {
                say(&line);
                Ok(())
            }
            To::File(file) => file
                .write_all(format!("{line}\n").as_bytes())
                .map_err(|e| Error::new(format!("cannot write the figures: {e}")).at("--stats")),
        }
    }

    /// Tells what was measured in all.
    ///
    /// Errors when it cannot be written.
    pub fn end(&mut self, stats: &Stats, console: &Console) -> Result<()> {
        let whole = stats.whole();
        self.tell(&whole)?;
        if whole.counts.read > 0 {
            console.info(&in_words(&whole));
        }
        Ok(())
    }
}

fn in_words(told: &live::Told) -> String {
    let live::Told { seconds, counts, frames_per_s, p50_ms, p95_ms, flicker, reused } = told;
    let mut text = format!(
        "{} of {} frames became images in {seconds:.1} s: {frames_per_s:.2} a second",
        counts.made, counts.read,
    );
    if let Some((half, most)) = p50_ms.zip(*p95_ms) {
        text += &format!(", {half:.0} ms from frame to image (95%: {most:.0})");
    }
    if let Some(flicker) = flicker {
        text += &format!(", flicker {flicker:.2}");
    }
    if let Some(reused) = reused {
        text += &format!(", {:.0} % of the tokens computed", 100.0 * reused.computed);
    }
    if counts.broken > 0 {
        text += &format!("; broken frames: {}", counts.broken);
    }
    text
}
