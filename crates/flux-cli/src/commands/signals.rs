//! Handling of Ctrl-C, SIGTERM and SIGHUP. The first signal cancels the work and the second one ends the program at
//! once. Neither leaves a half-written file.
//!
//! An interactive session alternates between working and waiting for a line. While it waits there is nothing to cancel,
//! so a signal ends the program, except for Ctrl-C in the line editor.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use flux::files::partial;
use flux::stage::CancelFlag;
use flux::{Error, Result};
use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals as Received;
use signal_hook::{flag, low_level};

use crate::terminal;

/// The interval and the maximum number of attempts to make an editor end its line.
const WAKE_EVERY: Duration = Duration::from_millis(50);
const WAKE_TIMES: usize = 20;

/// The flag of the installed signal handlers.
static LISTENED_TO: OnceLock<CancelFlag> = OnceLock::new();

/// Returns the flag that the installed handlers set. Without handlers the flag is never set.
pub fn cancel_flag() -> CancelFlag {
    LISTENED_TO.get().cloned().unwrap_or_default()
}

/// The source of an interactive session's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// A line editor, which handles Ctrl-C itself. It has changed the terminal's mode and restores it when SIGINT ends
    /// its line.
    Editor,
    /// Plain reads, which leave no state to restore.
    Plain,
}

/// The state of an interactive session.
#[derive(Debug, Clone, Copy, Default)]
enum Turn {
    #[default]
    Works,
    Waits(Reader),
}

/// The received signal, if any. Clones share their state.
#[derive(Clone, Default)]
pub struct Signals {
    received: Arc<AtomicBool>,
    which: Arc<AtomicUsize>,
    turn: Arc<Mutex<Turn>>,
    #[cfg(feature = "server")]
    reload: Arc<AtomicBool>,
}

impl Signals {
    /// Installs the handlers. From here on the first signal sets the flag of [`Signals::cancel_flag`].
    ///
    /// Errors when the system refuses a handler.
    pub fn listen(&self) -> Result<()> {
        let signals = ending_signals();
        self.listen_to(&signals)?;
        self.listen_to_limits()?;
        self.end_at_the_second(&signals)
    }

    /// [`Signals::listen`] for a server: SIGHUP reloads its files.
    ///
    /// Errors when the system refuses a handler.
    #[cfg(feature = "server")]
    pub fn listen_as_server(&self) -> Result<()> {
        let signals = [SIGINT, SIGTERM];
        self.listen_to(&signals)?;
        flag::register(SIGHUP, Arc::clone(&self.reload))
            .map_err(|e| Error::new(format!("cannot listen for signal {SIGHUP}: {e}")))?;
        self.listen_to_limits()?;
        self.end_at_the_second(&signals)
    }

    /// Returns `true` if a signal requested the end of the program.
    #[cfg(any(feature = "queue", feature = "server"))]
    pub fn received(&self) -> bool {
        self.received.load(Ordering::Relaxed)
    }

    /// Returns `true` once for each request to reload the files.
    #[cfg(feature = "server")]
    pub fn take_reload(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }

    /// Registers the flags that ending signals set.
    fn listen_to(&self, signals: &[i32]) -> Result<()> {
        for &signal in signals {
            flag::register_usize(signal, Arc::clone(&self.which), signal as usize)
                .and_then(|_| flag::register(signal, Arc::clone(&self.received)))
                .map_err(|e| Error::new(format!("cannot listen for signal {signal}: {e}")))?;
        }
        Ok(())
    }

    /// Installs the handlers of an interactive session, which waits in [`Signals::waiting`]. While it works, the first
    /// signal sets the flag of [`Signals::cancel_flag`] and the second one ends the program at once.
    ///
    /// Errors when the system refuses a handler.
    pub fn listen_in_turn(&self) -> Result<()> {
        self.listen_to_limits()?;
        let failed = |e| Error::new(format!("cannot listen for signals: {e}"));
        let mut received = Received::new(ending_signals()).map_err(failed)?;
        let signals = self.clone();
        // One thread handles all signals, so that a signal does not count for both the work that it cancelled and the
        // next.
        let listen = move || {
            let _ = received.forever().find(|signal| !signals.handle_interactive(*signal));
        };
        thread::Builder::new().name("signals".to_string()).spawn(listen).map(drop).map_err(failed)
    }

    /// Catches SIGXFSZ, so that a write beyond the file size limit becomes an error instead of ending the program.
    fn listen_to_limits(&self) -> Result<()> {
        LISTENED_TO.get_or_init(|| self.cancel_flag());
        flag::register(SIGXFSZ, Arc::default())
            .map(drop)
            .map_err(|e| Error::new(format!("cannot listen for signal {SIGXFSZ}: {e}")))
    }

    /// Reads a line of an interactive session. Resets a Ctrl-C that was received before it.
    ///
    /// Errors as cancelled when a signal ends the session, or as `read`.
    pub fn waiting<T>(&self, reader: Reader, read: impl FnOnce() -> Result<T>) -> Result<T> {
        self.turn_to(Turn::Waits(reader))?;
        let read = read();
        self.turn_to(Turn::Works)?;
        read
    }

    fn turn_to(&self, next: Turn) -> Result<()> {
        let mut turn = self.turn.lock();
        *turn = next;
        self.reset();
        self.cancel_flag().check()
    }

    /// Handles a signal of an interactive session. Returns `true` if the thread should wait for the next signal.
    fn handle_interactive(&self, signal: i32) -> bool {
        let turn = self.turn.lock();
        match *turn {
            Turn::Works if !self.received.load(Ordering::Relaxed) => self.set(signal),
            Turn::Waits(Reader::Editor) if signal == SIGINT => {} // the editor handles it
            Turn::Waits(Reader::Editor) => {
                self.set(signal);
                drop(turn);
                self.end_the_line();
                return false;
            }
            Turn::Works | Turn::Waits(Reader::Plain) => end(signal),
        }
        true
    }

    fn set(&self, signal: i32) {
        self.which.store(signal as usize, Ordering::Relaxed);
        self.received.store(true, Ordering::Relaxed);
    }

    /// Makes the editor end its line, after which [`Signals::waiting`] ends the session. The signal is repeated because
    /// the editor may miss it just before it reads and while it asks a question.
    fn end_the_line(&self) {
        for _ in 0..WAKE_TIMES {
            let _ = low_level::raise(SIGINT);
            thread::sleep(WAKE_EVERY);
            if matches!(*self.turn.lock(), Turn::Works) {
                return;
            }
        }
        end(self.which.load(Ordering::Relaxed) as i32);
    }

    /// Resets a received Ctrl-C. Returns `true` if the signal was Ctrl-C, `false` if it ends the program.
    pub fn reset(&self) -> bool {
        let is_interrupt = self.which.load(Ordering::Relaxed) == SIGINT as usize;
        if is_interrupt {
            self.received.store(false, Ordering::Relaxed);
        }
        is_interrupt
    }

    /// Ends the program at the second of `signals`. This needs a thread: a signal handler must not remove files.
    fn end_at_the_second(&self, signals: &[i32]) -> Result<()> {
        let failed = |e| Error::new(format!("cannot listen for signals: {e}"));
        let mut received = Received::new(signals).map_err(failed)?;
        let which = Arc::clone(&self.which);
        let end = move || {
            if received.forever().nth(1).is_some() {
                end(which.load(Ordering::Relaxed) as i32);
            }
        };
        thread::Builder::new().name("signals".to_string()).spawn(end).map(drop).map_err(failed)
    }

    /// Returns the flag that a signal sets.
    pub fn cancel_flag(&self) -> CancelFlag {
        CancelFlag::from(Arc::clone(&self.received))
    }

    /// Returns the exit code of a cancelled program: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP.
    pub fn exit_code(&self) -> u8 {
        exit_code(self.which.load(Ordering::Relaxed) as i32) as u8
    }
}

/// Returns the signals that end the program. SIGHUP is left out if it is ignored, as under `nohup`.
fn ending_signals() -> Vec<i32> {
    let mut signals = vec![SIGINT, SIGTERM];
    signals.extend(Some(SIGHUP).filter(|signal| !is_ignored(*signal)));
    signals
}

/// Removes partial files, restores the terminal and ends the program at once.
fn end(signal: i32) -> ! {
    partial::remove_all();
    terminal::restore();
    // Skips the exit handlers, which would wait for the GPU.
    low_level::exit(exit_code(signal))
}

/// Returns `true` if the program was started with this signal ignored. Only Linux reports this; elsewhere the result is
/// `false`.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Returns the exit code that shells use for a program ended by a signal.
fn exit_code(signal: i32) -> i32 {
    128 + signal
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::io::{BufRead, BufReader, Write};
    use std::path::Path;
    use std::process::{Command, Stdio};

    use flux::files::atomic::AtomicFile;

    use super::*;

    /// Set for the child process of [`a_second_signal_leaves_no_partial_file`], which runs this test again.
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
