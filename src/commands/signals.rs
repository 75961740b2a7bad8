//! Ctrl-C, SIGTERM and SIGHUP: the first signal cancels the work, a second one ends the program at once, and neither
//! leaves a file that is half written.
//!
//! A conversation works and waits in turn. While it waits there is nothing to cancel: a signal ends the program, except
//! for Ctrl-C where lines are edited.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use flux::files::partial;
use flux::stage::CancelFlag;
use flux::{Error, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals as Received;
use signal_hook::{flag, low_level};

use crate::terminal;

/// How often, and how many times, an editor is asked to end its line.
const WAKE_EVERY: Duration = Duration::from_millis(50);
const WAKE_TIMES: usize = 20;

/// The flag of the signals that are listened to.
static LISTENED_TO: OnceLock<CancelFlag> = OnceLock::new();

/// A flag that the signals set which the program listens to; none sets it where it listens to none.
pub fn cancel_flag() -> CancelFlag {
    LISTENED_TO.get().cloned().unwrap_or_default()
}

/// What reads the lines of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// An editor, which hears Ctrl-C itself. It has changed the terminal, and sets it back when SIGINT ends its line.
    Editor,
    /// Plain reads, of which nothing is left behind.
    Plain,
}

/// What a conversation does.
#[derive(Debug, Clone, Copy, Default)]
enum Turn {
    #[default]
    Works,
    Waits(Reader),
}

/// Whether a signal was received, and which. Clones are the same.
#[derive(Clone, Default)]
pub struct Signals {
    received: Arc<AtomicBool>,
    which: Arc<AtomicUsize>,
    turn: Arc<Mutex<Turn>>,
    #[cfg(feature = "server")]
    reload: Arc<AtomicBool>,
}

impl Signals {
    /// Installs the handlers: from here on a first signal sets the flag of [`Signals::cancel_flag`].
    ///
    /// Errors when the system refuses a handler.
    pub fn listen(&self) -> Result<()> {
        let signals = ending_signals();
        self.listen_to(&signals)?;
        self.listen_to_limits()?;
        self.end_at_the_second(&signals)
    }

    /// [`Signals::listen`] for a server: SIGHUP asks it to read its files again.
    ///
    /// Errors when the system refuses a handler.
    #[cfg(feature = "server")]
    pub fn listen_as_server(&self) -> Result<()> {
        let signals = [SIGINT, SIGTERM];
        self.listen_to(&signals)?;
        flag::register(SIGHUP, Arc::clone(&self.reload))
            .map_err(|e| Error::new(format!("cannot listen to signal {SIGHUP}: {e}")))?;
        self.listen_to_limits()?;
        self.end_at_the_second(&signals)
    }

    /// Whether a signal asked the program to end.
    #[cfg(any(feature = "queue", feature = "server"))]
    pub fn received(&self) -> bool {
        self.received.load(Ordering::Relaxed)
    }

    /// Whether files are to be read again; once for each time that it was asked for.
    #[cfg(feature = "server")]
    pub fn take_reload(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }

    /// The flags that signals which end the program set.
    fn listen_to(&self, signals: &[i32]) -> Result<()> {
        for &signal in signals {
            flag::register_usize(signal, Arc::clone(&self.which), signal as usize)
                .and_then(|_| flag::register(signal, Arc::clone(&self.received)))
                .map_err(|e| Error::new(format!("cannot listen to signal {signal}: {e}")))?;
        }
        Ok(())
    }

    /// Installs handlers for a conversation, which [`Signals::waiting`] knows of: while it works, a first signal sets
    /// the flag of [`Signals::cancel_flag`], and a second one ends the program at once.
    ///
    /// Errors when the system refuses a handler.
    pub fn listen_in_turn(&self) -> Result<()> {
        self.listen_to_limits()?;
        let failed = |e| Error::new(format!("cannot listen to signals: {e}"));
        let mut received = Received::new(ending_signals()).map_err(failed)?;
        let signals = self.clone();
        // A thread decides what each of them does, so that none counts twice: for what it ended, and for what follows.
        let hear = move || {
            let _ = received.forever().find(|signal| !signals.hear_in_turn(*signal));
        };
        thread::Builder::new().name("signals".to_string()).spawn(hear).map(drop).map_err(failed)
    }

    /// A signal that is caught ends nothing: a write beyond the limit on the size of files becomes an error.
    fn listen_to_limits(&self) -> Result<()> {
        LISTENED_TO.get_or_init(|| self.cancel_flag());
        flag::register(SIGXFSZ, Arc::default())
            .map(drop)
            .map_err(|e| Error::new(format!("cannot listen to signal {SIGXFSZ}: {e}")))
    }

    /// Reads a line of a conversation. A Ctrl-C that came before it is over, with what it ended.
    ///
    /// Errors as cancelled when a signal ends the conversation, or as `read`.
    pub fn waiting<T>(&self, reader: Reader, read: impl FnOnce() -> Result<T>) -> Result<T> {
        self.turn_to(Turn::Waits(reader))?;
        let read = read();
        self.turn_to(Turn::Works)?;
        read
    }

    fn turn_to(&self, next: Turn) -> Result<()> {
        let mut turn = self.turn();
        *turn = next;
        self.reset();
        self.cancel_flag().check()
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what a signal does to a conversation. Returns whether the next one counts, too.
    fn hear_in_turn(&self, signal: i32) -> bool {
        let turn = self.turn();
        match *turn {
            Turn::Works if !self.received.load(Ordering::Relaxed) => self.set(signal),
            Turn::Waits(Reader::Editor) if signal == SIGINT => {} // the editor hears it
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

    /// Has the editor end its line, after which [`Signals::waiting`] ends the conversation. It may hear nothing in the
    /// moment before it reads, and while it asks something itself.
    fn end_the_line(&self) {
        for _ in 0..WAKE_TIMES {
            let _ = low_level::raise(SIGINT);
            thread::sleep(WAKE_EVERY);
            if matches!(*self.turn(), Turn::Works) {
                return;
            }
        }
        end(self.which.load(Ordering::Relaxed) as i32);
    }

    /// Takes back what Ctrl-C has set. Returns whether it was Ctrl-C, and no signal that ends the program.
    pub fn reset(&self) -> bool {
        let is_interrupt = self.which.load(Ordering::Relaxed) == SIGINT as usize;
        if is_interrupt {
            self.received.store(false, Ordering::Relaxed);
        }
        is_interrupt
    }

    /// Ends the program at the second of `signals`. A thread does it: a handler may not look for files to remove.
    fn end_at_the_second(&self, signals: &[i32]) -> Result<()> {
        let failed = |e| Error::new(format!("cannot listen to signals: {e}"));
        let mut received = Received::new(signals).map_err(failed)?;
        let which = Arc::clone(&self.which);
        let end = move || {
            if received.forever().nth(1).is_some() {
                end(which.load(Ordering::Relaxed) as i32);
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

/// The signals that end a program. `nohup` lets one go on when its terminal is closed.
fn ending_signals() -> Vec<i32> {
    let mut signals = vec![SIGINT, SIGTERM];
    signals.extend(Some(SIGHUP).filter(|signal| !is_ignored(*signal)));
    signals
}

/// Ends the program at once.
fn end(signal: i32) -> ! {
    partial::remove_all();
    terminal::restore();
    // Without what runs at a usual end, which would wait for the GPU.
    low_level::exit(exit_code(signal))
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
