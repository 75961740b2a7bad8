//! Statistics of live frames, reported while the stream runs.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use flux::{Error, Result};

use super::super::json::json_line;
use crate::cli::Live;
use flux_live::Stats;
use flux_runtime::progress::{Console, say};

const EVERY: Duration = Duration::from_secs(1);

/// The destination of the JSON lines.
enum Destination {
    None,
    Stderr,
    File(File),
}

/// Reports statistics at intervals.
pub struct Reporter {
    to: Destination,
    /// The time of the next report, set by the first call of [`Reporter::tick`].
    next: Option<Instant>,
}

impl Reporter {
    /// Opens the destination. Errors when the file cannot be written.
    pub fn open(args: &Live) -> Result<Self> {
        let to = match &args.stats {
            None => Destination::None,
            Some(file) if file == Path::new("-") => Destination::Stderr,
            Some(file) => Destination::File(OpenOptions::new().create(true).append(true).open(file).map_err(|e| {
                Error::usage(format!("cannot open the file: {e}"))
                    .at_path(file)
                    .hint("name a file that you can write to")
            })?),
        };
        Ok(Self { to, next: None })
    }

    /// Reports the statistics, if a report is due.
    ///
    /// Errors when they cannot be written.
    pub fn tick(&mut self, stats: &Stats) -> Result<()> {
        let now = Instant::now();
        let next = self.next.get_or_insert(now + EVERY);
        if now < *next || matches!(self.to, Destination::None) {
            return Ok(());
        }
        *next += EVERY;
        self.report(&stats.since_last())
    }

    fn report(&mut self, report: &flux_live::StatsReport) -> Result<()> {
        let line = json_line(report)?;
        match &mut self.to {
            Destination::None => Ok(()),
            Destination::Stderr => {
                say(&line);
                Ok(())
            }
            Destination::File(file) => file
                .write_all(format!("{line}\n").as_bytes())
                .map_err(|e| Error::new(format!("cannot write the statistics: {e}")).at("--stats")),
        }
    }

    /// Reports the statistics of the whole run.
    ///
    /// Errors when they cannot be written.
    pub fn end(&mut self, stats: &Stats, console: &Console) -> Result<()> {
        let whole = stats.whole();
        self.report(&whole)?;
        if whole.counts.read > 0 {
            console.info(&in_words(&whole));
        }
        Ok(())
    }
}

fn in_words(report: &flux_live::StatsReport) -> String {
    let flux_live::StatsReport { seconds, counts, frames_per_s, p50_ms, p95_ms, flicker, reused } = report;
    let mut text =
        format!("{} images from {} frames in {seconds:.1} s: {frames_per_s:.2} per second", counts.made, counts.read,);
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
