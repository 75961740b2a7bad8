//! `--log FILE`: what is said, also in a file. Each line has the time in front, in UTC, and no colour.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use flux::error::{escaped, shell_word};
use flux::{Error, Result};

/// The first line of a log begins with a time, as in this one.
const TIME: &[u8; 20] = b"0000-00-00T00:00:00.";

static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    /// None once it is withdrawn.
    file: Mutex<Option<File>>,
    path: PathBuf,
    /// Its bytes when it was opened; none where it was made.
    before: Option<u64>,
}

/// Opens the file, to whose end lines are added from here on.
///
/// Errors when it cannot be written, or something is there that is no log.
pub fn open(path: &Path) -> Result<()> {
    let failed =
        |what: String| Error::new(format!("cannot write the log: {what}")).at(format!("--log {}", path.display()));
    let before = path.metadata().ok();
    // A pipe would wait for its reader.
    if before.as_ref().is_some_and(|found| !found.is_file()) {
        return Err(failed("what is there is no regular file".to_string()).hint("name a file"));
    }
    let file = File::options().append(true).create(true).open(path).map_err(|e| {
        let folder = path.parent().filter(|folder| *folder != Path::new("") && !folder.exists());
        let hint = match folder {
            Some(folder) => format!("create its folder first, as with `mkdir -p {}`", shell_word(folder)),
            None => "name a file that you may write".to_string(),
        };
        failed(e.to_string()).hint(hint)
    })?;
    let before = before.map(|found| found.len());
    if before.is_some_and(|bytes| bytes > 0) && !is_log(path) {
        return Err(failed("the file that is there is no log".to_string())
            .hint("name a new file, or one that `--log` has made: lines are added to its end"));
    }
    let _ = LOG.set(Log { file: Mutex::new(Some(file)), path: path.to_path_buf(), before }); // it is opened once
    Ok(())
}

/// Whether a file begins as a log does.
fn is_log(path: &Path) -> bool {
    let mut start = [0; TIME.len()];
    let is_read = File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok();
    is_read && start.map(|byte| if byte.is_ascii_digit() { b'0' } else { byte }) == *TIME
}

/// The file of the log, if there is one.
pub fn path() -> Option<&'static Path> {
    LOG.get().map(|log| log.path.as_path())
}

/// Takes back what was written, and writes no more: the file is one that the program reads or writes.
pub fn withdraw() {
    let Some(log) = LOG.get() else { return };
    let Some(file) = log.file.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    // What is not possible here leaves a few lines there, and the program ends with an error in any case.
    let _ = file.set_len(log.before.unwrap_or(0));
    if log.before.is_none() {
        let _ = fs::remove_file(&log.path);
    }
}

/// Whether there is a log.
pub fn is_open() -> bool {
    LOG.get().is_some()
}

/// Adds the lines of a text. A log that cannot be written any more, as on a full disk, does not end the program.
pub fn write(text: &str) {
    let Some(log) = LOG.get() else { return };
    let lines = stamped(text, SystemTime::now());
    // One write, so that lines of several programs do not mix.
    if let Some(file) = log.file.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        let _ = file.write_all(lines.as_bytes());
    }
}

/// Each line of a text with the time in front.
fn stamped(text: &str, now: SystemTime) -> String {
    let now = utc(now);
    text.lines().map(|line| format!("{now} {}\n", escaped(line))).collect()
}

/// A time as in 2026-11-26T06:20:14.123Z.
fn utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, ms) = (since.as_secs(), since.subsec_millis());
    let (year, month, day) = date(seconds / 86400);
    let [hour, minute, second] = [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60];
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// The date that is `days` after 1970-01-01. Years begin in March here, so that the day that some years have more is
/// their last; 400 years have 146097 days, and begin in 0000.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (of_month, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    (era * 400 + year + u64::from(month <= 2), month, of_month)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |seconds: u64| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59.000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000Z");
        assert_eq!(at(951_868_800), "2000-03-01T00:00:00.000Z");
        assert_eq!(at(1_795_674_014), "2026-11-26T06:20:14.000Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000Z");
    }

    #[test]
    fn each_line_has_its_time_and_nothing_that_a_terminal_obeys() {
        let lines = stamped("error: a\n  hint: \u{1b}[31mb", UNIX_EPOCH);
        assert_eq!(lines, "1970-01-01T00:00:00.000Z error: a\n1970-01-01T00:00:00.000Z   hint: \\u{1b}[31mb\n");
    }
}
