//! Queries to the terminal, restoring its settings afterwards.
//!
//! While waiting for replies, the terminal neither echoes input nor waits for line breaks. Its settings are restored
//! when [`Quiet`] is dropped, also by a panic. Keys that send signals arrive as bytes meanwhile, and their signals are
//! sent afterwards. Other signals must not end the program in between: with handlers installed, the first signal does
//! not, and the handler of the second calls [`restore`].

use std::io::{self, IsTerminal, Write};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpgrp, getpid, kill_process};
use rustix::stdio::stdin;
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr,
};

use super::answers::Answers;

/// Maximum time for all replies; longer over a network.
const PATIENCE: Duration = Duration::from_millis(200);
const PATIENCE_SSH: Duration = Duration::from_secs(1);
/// The time after the queries during which late replies are still discarded.
const LATE: Duration = Duration::from_millis(600);
const LATE_SSH: Duration = Duration::from_secs(2);
/// Maximum number of bytes read.
const MAX: usize = 4096;

/// The settings to restore on standard input, set while it is quiet.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Restores the settings of standard input, if it is quiet at this moment.
pub fn restore() {
    let before = BEFORE.lock().take();
    if let Some(before) = before {
        let _ = tcsetattr(stdin(), OptionalActions::Flush, &before);
    }
}

/// A terminal without echo, until this value is dropped.
pub(super) struct Quiet<'a> {
    terminal: BorrowedFd<'a>,
    before: Termios,
    /// True if input after this value is dropped should be discarded.
    throws_away: bool,
}

impl<'a> Quiet<'a> {
    pub(super) fn new(terminal: BorrowedFd<'a>) -> rustix::io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut quiet = before.clone();
        quiet.local_modes -=
            LocalModes::ICANON | LocalModes::ECHO | LocalModes::ECHONL | LocalModes::ISIG | LocalModes::IEXTEN;
        quiet.input_modes -= InputModes::ICRNL | InputModes::INLCR | InputModes::IGNCR | InputModes::ISTRIP;
        quiet.special_codes[SpecialCodeIndex::VMIN] = 0;
        quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
        // Set before the terminal changes, because a signal may arrive right after.
        *BEFORE.lock() = Some(before.clone());
        let made = Self { terminal, before, throws_away: false };
        tcsetattr(terminal, OptionalActions::Now, &quiet)?;
        Ok(made)
    }

    /// Returns the signal that a key sends in normal mode.
    fn signal_of(&self, key: u8) -> Option<Signal> {
        let codes = &self.before.special_codes;
        let signals = [
            (SpecialCodeIndex::VINTR, Signal::INT),
            (SpecialCodeIndex::VQUIT, Signal::QUIT),
            (SpecialCodeIndex::VSUSP, Signal::TSTP),
        ];
        let sends = self.before.local_modes.contains(LocalModes::ISIG) && key != 0;
        signals.into_iter().find(|(code, _)| sends && codes[*code] == key).map(|(_, signal)| signal)
    }

    /// Reads until `is_enough`, the time is over, or the input ends. A key that sends a signal ends reading early and
    /// returns the signal.
    pub(super) fn read(
        &self,
        bytes: &mut Vec<u8>,
        until: Instant,
        is_enough: impl Fn(&[u8]) -> bool,
    ) -> Option<Signal> {
        while bytes.len() < MAX && !is_enough(bytes) {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            match poll(&mut [PollFd::from_borrowed_fd(self.terminal, PollFlags::IN)], Some(&timeout)) {
                Err(rustix::io::Errno::INTR) if !left.is_zero() => continue,
                Ok(1..) => {}
                _ => return None,
            }
            let mut part = [0; 256];
            let read = match rustix::io::read(self.terminal, &mut part) {
                Ok(0) => return None,
                Ok(read) => &part[..read],
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => continue,
                Err(_) => return None,
            };
            bytes.extend_from_slice(read);
            if let Some(signal) = read.iter().find_map(|key| self.signal_of(*key)) {
                return Some(signal);
            }
        }
        None
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        let action = if self.throws_away { OptionalActions::Flush } else { OptionalActions::Now };
        let _ = tcsetattr(self.terminal, action, &self.before);
        BEFORE.lock().take();
    }
}

/// A terminal whose replies may still arrive. On drop, late replies are discarded, because the next reader would take
/// them for typed text.
pub struct Unanswered {
    until: Instant,
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let terminal = stdin();
        let Ok(mut quiet) = Quiet::new(terminal) else { return };
        quiet.throws_away = true;
        let signal = quiet.read(&mut Vec::new(), self.until, |bytes| Answers::parse(bytes).is_complete);
        drop(quiet);
        raise(signal);
    }
}

/// Returns `true` if standard input and output are a terminal and this process is in the foreground.
pub fn can_ask() -> bool {
    // A background process would be stopped when it changes the terminal.
    let is_in_front = tcgetpgrp(stdin()).map_or(true, |group| group == getpgrp());
    io::stdin().is_terminal() && io::stdout().is_terminal() && is_in_front
}

/// Queries the terminal. If replies are missing when the time is over, returns the replies so far and a value that
/// discards late ones.
pub fn ask(questions: &str, is_ssh: bool) -> (Answers, Option<Unanswered>) {
    let (patience, late) = if is_ssh { (PATIENCE_SSH, LATE_SSH) } else { (PATIENCE, LATE) };
    let start = Instant::now();
    let Ok(mut quiet) = Quiet::new(stdin()) else { return Default::default() };
    // Input typed before is kept for the next reader. Replies to an earlier program are skipped.
    let mut stdout = io::stdout();
    if stdout.write_all(questions.as_bytes()).and_then(|()| stdout.flush()).is_err() {
        return Default::default();
    }
    let mut bytes = Vec::new();
    let signal = quiet.read(&mut bytes, start + patience, |bytes| Answers::parse(bytes).is_complete);
    let answers = Answers::parse(&bytes);
    quiet.throws_away = !answers.is_complete;
    drop(quiet);
    let unanswered = (!answers.is_complete).then_some(Unanswered { until: start + late });
    raise(signal);
    (answers, unanswered)
}

/// Sends the signal of a key that was pressed meanwhile.
fn raise(signal: Option<Signal>) {
    if let Some(signal) = signal {
        let _ = kill_process(getpid(), signal);
    }
}
