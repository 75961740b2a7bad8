//! Ctrl-C, SIGTERM and SIGHUP: the first signal cancels the work, a second one ends the program at once, and neither
//! leaves a file that is half written.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use flux::files::partial;
use flux::stage::CancelFlag;
use flux::{Error, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals as Received;
use signal_hook::{flag, low_level};

/// Whether a signal was received, and which.
#[derive(Default)]
pub struct Signals {
    received: Arc<AtomicBool>,
    which: Arc<AtomicUsize>,
}

impl Signals {
    /// Installs the handlers: from here on a first signal sets the flag of [`Signals::cancel_flag`].
    ///
    /// Errors when the system refuses a handler.
    pub fn listen(&self) -> Result<()> {
        let mut signals = vec![SIGINT, SIGTERM];
        // `nohup` lets a program go on when its terminal is closed.
        signals.extend(Some(SIGHUP).filter(|signal| !is_ignored(*signal)));
        for &signal in &signals {
            flag::register_usize(signal, Arc::clone(&self.which), signal as usize)
                .and_then(|_| flag::register(signal, Arc::clone(&self.received)))
                .map_err(|e| Error::new(format!("cannot listen to signal {signal}: {e}")))?;
        }
        // A signal that is caught ends nothing: a write beyond the limit on the size of files becomes an error.
        flag::register(SIGXFSZ, Arc::default())
            .map_err(|e| Error::new(format!("cannot listen to signal {SIGXFSZ}: {e}")))?;
        self.end_at_the_second(&signals)
    }

    /// Ends the program at the second of `signals`. A thread does it: a handler may not look for files to remove.
    fn end_at_the_second(&self, signals: &[i32]) -> Result<()> {
        let failed = |e| Error::new(format!("cannot listen to signals: {e}"));
        let mut received = Received::new(signals).map_err(failed)?;
        let which = Arc::clone(&self.which);
        let end = move || {
            if received.forever().nth(1).is_some() {
                partial::remove_all();
                // Without what runs at a usual end, which would wait for the GPU.
                low_level::exit(exit_code(which.load(Ordering::Relaxed) as i32));
            }
        };
        thread::Builder::new().name("signals".to_string()).spawn(end).map(drop).map_err(failed)
    }

    /// A flag that a signal sets.
    pub fn cancel_flag(&self) -> CancelFlag {
        CancelFlag::from(Arc::clone(&self.received))
    }

    /// The exit code of a program that a signal cancelled: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP.
    pub fn exit_code(&self) -> u8 {
        exit_code(self.which.load(Ordering::Relaxed) as i32) as u8
    }
}

/// Whether the program was started with this signal ignored. Linux says so; elsewhere it is taken not to be.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// The exit code that shells give to a program that a signal ended.
fn exit_code(signal: i32) -> i32 {
    128 + signal
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::io::{BufRead, BufReader, Write};
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use flux::files::atomic::AtomicFile;

    use super::*;

    /// Set for the program that [`a_second_signal_leaves_no_partial_file`] starts, which is this test again.
    const FOLDER: &str = "SIGNALS_TEST_FOLDER";

    fn begin_a_file_and_wait(folder: &Path) {
        Signals::default().listen().unwrap();
        let mut file = AtomicFile::create(&folder.join("out.png")).unwrap();
        file.write_all(b"half").unwrap();
        println!("\nbegun");
        thread::sleep(Duration::from_secs(20));
    }

    #[test]
    fn a_second_signal_leaves_no_partial_file() {
        if let Some(folder) = env::var_os(FOLDER) {
            return begin_a_file_and_wait(Path::new(&folder));
        }
        let folder = env::temp_dir().join(format!("flux-signals-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--nocapture", "a_second_signal_leaves_no_partial_file"])
            .env(FOLDER, &folder)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "begun"));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "the partial file");
        for signal in ["-TERM", "-INT"] {
            let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
            assert!(sent.unwrap().success());
        }
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "nothing");
        fs::remove_dir(&folder).unwrap();
    }
}
