//! Asks the terminal, and leaves it as it was.
//!
//! While the answers are waited for, the terminal neither shows what comes nor waits for line ends. It is set back when
//! [`Quiet`] is dropped, also by a panic. Keys that send signals come as bytes meanwhile, and send them afterwards. A
//! signal of another origin must not end the program in between: where signals are listened to, the first one does not,
//! and what the second one runs calls [`restore`].

use std::io::{self, IsTerminal, Write};
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpgrp, getpid, kill_process};
use rustix::stdio::stdin;
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr,
};

use super::answers::Answers;

/// How long the answers may take in all; over a network longer.
const PATIENCE: Duration = Duration::from_millis(200);
const PATIENCE_SSH: Duration = Duration::from_secs(1);
/// How long after the questions an answer is still kept from whoever reads the terminal next.
const LATE: Duration = Duration::from_millis(600);
const LATE_SSH: Duration = Duration::from_secs(2);
/// The most bytes that are read.
const MOST: usize = 4096;

/// What standard input is set back to while it is quiet.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Sets standard input back to what it was, where it is quiet at this moment.
pub fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        let _ = tcsetattr(stdin(), OptionalActions::Flush, &before);
    }
}

/// A terminal that shows nothing of what comes in, until this is dropped.
pub(super) struct Quiet<'a> {
    terminal: BorrowedFd<'a>,
    before: Termios,
    /// Whether what comes after this is to be thrown away.
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
        // Before the terminal changes: a signal may come right after that.
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before.clone());
        let made = Self { terminal, before, throws_away: false };
        tcsetattr(terminal, OptionalActions::Now, &quiet)?;
        Ok(made)
    }

    /// The signal that a key sends where the terminal is not quiet.
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

    /// Reads until `is_enough`, the time is over, or there is no more. Ends early at a key that sends a signal, and
    /// returns that.
    pub(super) fn read(
        &self,
        bytes: &mut Vec<u8>,
        until: Instant,
        is_enough: impl Fn(&[u8]) -> bool,
    ) -> Option<Signal> {
        while bytes.len() < MOST && !is_enough(bytes) {
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
        BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// What may still come of a terminal that had no time to answer all questions. When this is dropped, what came is
/// thrown away: whoever reads the terminal next would take it for typed.
pub struct Unanswered {
    until: Instant,
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let terminal = stdin();
        let Ok(mut quiet) = Quiet::new(terminal) else { return };
        quiet.throws_away = true;
        let signal = quiet.read(&mut Vec::new(), self.until, |bytes| Answers::of(bytes).is_complete);
        drop(quiet);
        raise(signal);
    }
}

/// Whether standard input and output are a terminal that may be asked: nobody else reads its answers.
pub fn can_ask() -> bool {
    // A program in the background would be stopped when it changes the terminal.
    let is_in_front = tcgetpgrp(stdin()).map_or(true, |group| group == getpgrp());
    io::stdin().is_terminal() && io::stdout().is_terminal() && is_in_front
}

/// Asks the terminal. Without an answer to all questions within the time, what came until then is returned, and what is
/// to be done about the rest.
pub fn ask(questions: &str, is_ssh: bool) -> (Answers, Option<Unanswered>) {
    let (patience, late) = if is_ssh { (PATIENCE_SSH, LATE_SSH) } else { (PATIENCE, LATE) };
    let start = Instant::now();
    let Ok(mut quiet) = Quiet::new(stdin()) else { return Default::default() };
    // What was typed before stays for whoever reads it; an answer of an earlier program does not.
    let mut stdout = io::stdout();
    if stdout.write_all(questions.as_bytes()).and_then(|()| stdout.flush()).is_err() {
        return Default::default();
    }
    let mut bytes = Vec::new();
    let signal = quiet.read(&mut bytes, start + patience, |bytes| Answers::of(bytes).is_complete);
    let answers = Answers::of(&bytes);
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
