//! `--log FILE`: messages are also written to a file. Each line begins with the time in UTC, without colours.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use flux_base::error::{escaped, shell_word};
use flux_base::{Error, Result};
use parking_lot::Mutex;

/// The format of the time at the start of a log.
const TIME: &[u8; 20] = b"0000-00-00T00:00:00.";

static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    /// `None` after [`withdraw`].
    file: Mutex<Option<File>>,
    path: PathBuf,
    /// The file's size when it was opened; `None` if it was created.
    before: Option<u64>,
}

/// Opens the log; lines are appended from here on.
///
/// Errors when it cannot be written, or the existing file is not a log.
pub fn open(path: &Path) -> Result<()> {
    let failed =
        |what: String| Error::new(format!("cannot write the log: {what}")).at(format!("--log {}", path.display()));
    let before = path.metadata().ok();
    // Opening a pipe would block.
    if before.as_ref().is_some_and(|found| !found.is_file()) {
        return Err(failed("the path is not a regular file".to_string()).hint("name a regular file"));
    }
    let file = File::options().append(true).create(true).open(path).map_err(|e| {
        let folder = path.parent().filter(|folder| *folder != Path::new("") && !folder.exists());
        let hint = match folder {
            Some(folder) => format!("create its folder first, for example with `mkdir -p {}`", shell_word(folder)),
            None => "name a writable file".to_string(),
        };
        failed(e.to_string()).hint(hint)
    })?;
    let before = before.map(|found| found.len());
    if before.is_some_and(|bytes| bytes > 0) && !is_log(path) {
        return Err(failed("the existing file is not a log".to_string())
            .hint("name a new file, or one created by `--log`: lines are appended to it"));
    }
    let _ = LOG.set(Log { file: Mutex::new(Some(file)), path: path.to_path_buf(), before }); // called only once
    Ok(())
}

/// Returns `true` if a file begins like a log.
fn is_log(path: &Path) -> bool {
    let mut start = [0; TIME.len()];
    let is_read = File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok();
    is_read && start.map(|byte| if byte.is_ascii_digit() { b'0' } else { byte }) == *TIME
}

/// Returns the path of the log, if there is one.
pub fn path() -> Option<&'static Path> {
    LOG.get().map(|log| log.path.as_path())
}

/// Removes the written lines and closes the log, because the file is also an input or output of the program.
pub fn withdraw() {
    let Some(log) = LOG.get() else { return };
    let Some(file) = log.file.lock().take() else { return };
    // A failure leaves a few lines in the file. The program ends with an error in any case.
    let _ = file.set_len(log.before.unwrap_or(0));
    if log.before.is_none() {
        let _ = fs::remove_file(&log.path);
    }
}

/// Returns `true` if there is a log.
pub fn is_open() -> bool {
    LOG.get().is_some()
}

/// Appends the lines of a text. A failed write, such as on a full disk, does not end the program.
pub fn write(text: &str) {
    let Some(log) = LOG.get() else { return };
    let lines = stamped(text, SystemTime::now());
    // One write, so that lines of several processes do not mix.
    if let Some(file) = log.file.lock().as_mut() {
        let _ = file.write_all(lines.as_bytes());
    }
}

/// Prefixes each line with the time.
fn stamped(text: &str, now: SystemTime) -> String {
    let now = humantime::format_rfc3339_millis(now.max(UNIX_EPOCH));
    text.lines().map(|line| format!("{now} {}\n", escaped(line))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_its_time_and_nothing_that_a_terminal_obeys() {
        let lines = stamped("error: a\n  hint: \u{1b}[31mb", UNIX_EPOCH);
        assert_eq!(lines, "1970-01-01T00:00:00.000Z error: a\n1970-01-01T00:00:00.000Z   hint: \\u{1b}[31mb\n");
    }
}
