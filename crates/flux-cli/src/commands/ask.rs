//! Questions to the user on a terminal.

use std::io::{self, IsTerminal, Read, Write};

use flux::stage::CancelFlag;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::stdin;

use super::signals;

/// The poll interval for signals.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Returns `true` if a question can be asked: standard input and standard error are terminals.
pub fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks a question. An empty answer means no, and so does a handled signal.
pub fn agrees(question: &str) -> bool {
    let mut stderr = io::stderr();
    let _ = write!(stderr, "{} [y/N] ", flux::error::escaped(question));
    let _ = stderr.flush();
    if !is_answered(&signals::cancel_flag()) {
        let _ = writeln!(stderr);
        return false;
    }
    is_yes(&mut io::stdin())
}

/// Waits for a line on the terminal. Returns `false` when cancelled before.
fn is_answered(cancel: &CancelFlag) -> bool {
    while cancel.check().is_ok() {
        match poll(&mut [PollFd::new(&stdin(), PollFlags::IN)], Some(&LOOK_EVERY)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            _ => return true,
        }
    }
    false
}

/// Returns `true` if the next line is a yes. Reads no byte beyond it.
fn is_yes(from: &mut dyn Read) -> bool {
    let mut answer = Vec::new();
    let mut byte = [0];
    while answer.len() < 64 && from.read(&mut byte).is_ok_and(|count| count == 1) && byte[0] != b'\n' {
        answer.push(byte[0]);
    }
    matches!(String::from_utf8_lossy(&answer).trim().to_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yes_is_said_in_words_and_the_rest_is_left() {
        for (text, yes) in
            [("y\n", true), ("YES \n", true), ("\n", false), ("", false), ("no\n", false), ("yep\n", false)]
        {
            assert_eq!(is_yes(&mut text.as_bytes()), yes, "{text:?}");
        }
        let mut input = &b"y\na prompt"[..];
        assert!(is_yes(&mut input));
        assert_eq!(input, b"a prompt");
    }
}
