//! Runs the program in a pseudo terminal.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};

/// The behaviour of a terminal.
pub struct Terminal<'a> {
    /// The answer to the last query, and its delay; `None` if the terminal never answers.
    pub answer: Option<(&'a [u8], Duration)>,
    /// Runs once the program has sent the query.
    pub then: &'a dyn Fn(&mut File, &Child),
}

/// The result of a run in the terminal.
pub struct Played {
    pub code: Option<i32>,
    /// The program's output to the terminal, and the terminal's echo.
    pub shown: String,
    pub stderr: String,
    /// `true` if the mode of the terminal is unchanged.
    pub mode_is_kept: bool,
    /// The input that is left for the next program.
    pub left: Vec<u8>,
    pub time: Duration,
}

/// The query that every terminal answers.
const LAST_QUESTION: &str = "\x1b[c";
/// Maximum wait of a test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a terminal that answers at once.
pub fn answering(answer: &[u8]) -> Terminal<'_> {
    Terminal { answer: Some((answer, Duration::ZERO)), then: &|_, _| {} }
}

/// An action once the terminal shows a text, after the texts of the earlier steps.
pub type Step<'a> = (&'a str, &'a dyn Fn(&mut File, &Child));

/// Returns an action that types a text.
pub fn types(text: &'static str) -> impl Fn(&mut File, &Child) {
    move |typed, _| typed.write_all(text.as_bytes()).expect("the terminal is open")
}

/// Returns an action that sends a signal.
pub fn sends(signal: &'static str) -> impl Fn(&mut File, &Child) {
    move |_, child| crate::program::signal(child, signal)
}

/// Runs `command` with a terminal as its standard input, error and, unless `stdout` is set, output, and takes the
/// steps in order.
pub fn converse(command: &mut Command, stdout: Option<Stdio>, steps: &[Step<'_>]) -> Played {
    converse_in(80, command, stdout, steps)
}

/// Runs `command` in a terminal of `columns` columns without input.
pub fn watch(command: &mut Command, columns: u16) -> Played {
    converse_in(columns, command, None, &[])
}

fn converse_in(columns: u16, command: &mut Command, stdout: Option<Stdio>, steps: &[Step<'_>]) -> Played {
    let (mut seen, mut steps) = (0, steps.iter());
    let mut step = steps.next();
    let played = run_in(columns, command, [stdout, None], |shown, outer, child| {
        if let Some((text, act)) = step
            && let Some(at) = shown[seen..].windows(text.len()).position(|part| part == text.as_bytes())
        {
            seen += at + text.len();
            act(outer, child);
            step = steps.next();
        }
    });
    assert!(step.is_none(), "`{}` was never shown: {}", step.map_or("", |(text, _)| text), played.shown);
    played
}

/// Runs `command` with a terminal of `columns` columns as its standard input and, unless they are set, output and
/// error. `look` gets all that was shown, each time that there may be more.
fn run_in(
    columns: u16,
    command: &mut Command,
    [stdout, stderr]: [Option<Stdio>; 2],
    mut look: impl FnMut(&[u8], &mut File, &Child),
) -> Played {
    let (mut outer, inner) = open_terminal(columns);
    let mode = || format!("{:?}", tcgetattr(&inner).expect("a terminal"));
    let (before, start) = (mode(), Instant::now());
    let side = || Stdio::from(inner.try_clone().expect("one more descriptor"));
    command.stdin(side()).stdout(stdout.unwrap_or_else(side)).stderr(stderr.unwrap_or_else(side));
    take_terminal(command);
    let mut child = command.spawn().expect("the program starts");
    let mut shown = Vec::new();
    let code = loop {
        read_what_is_there(&outer, &mut shown);
        look(&shown, &mut outer, &child);
        if let Some(status) = child.try_wait().expect("a child of ours") {
            break status.code();
        }
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("it hangs: {}", String::from_utf8_lossy(&shown));
        }
    };
    let time = start.elapsed();
    read_what_is_there(&outer, &mut shown);
    let (mode_is_kept, mut stderr) = (mode() == before, String::new());
    if let Some(mut pipe) = child.stderr.take() {
        std::io::Read::read_to_string(&mut pipe, &mut stderr).expect("UTF-8");
    }
    let shown = String::from_utf8_lossy(&shown).into_owned();
    Played { code, shown, stderr, mode_is_kept, left: left_in(&inner), time }
}

/// Opens a terminal of 24 rows of characters of 8 x 16 pixels. Returns the user's side and the program's side.
fn open_terminal(columns: u16) -> (File, OwnedFd) {
    let outer = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo terminal");
    grantpt(&outer).expect("it is ours");
    unlockpt(&outer).expect("it is ours");
    let name = ptsname(&outer, Vec::new()).expect("it has a name");
    let inner = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("it opens");
    tcsetwinsize(&inner, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 8 * columns, ws_ypixel: 384 })
        .expect("it has a size");
    (File::from(outer), inner)
}

/// Runs `command` with the terminal of 80 x 24 characters of 8 x 16 pixels as its standard input and output.
pub fn play(command: &mut Command, terminal: &Terminal<'_>) -> Played {
    let (mut asked_at, mut is_answered) = (None, false);
    run_in(80, command, [None, Some(Stdio::piped())], |shown, outer, child| {
        if asked_at.is_none() && String::from_utf8_lossy(shown).contains(LAST_QUESTION) {
            asked_at = Some(Instant::now());
            (terminal.then)(outer, child);
        }
        if let (Some(asked), Some((answer, after)), false) = (asked_at, terminal.answer, is_answered)
            && asked.elapsed() >= after
        {
            outer.write_all(answer).expect("the terminal is open");
            is_answered = true;
        }
    })
}

/// Gives a program its own session, with its standard input as the controlling terminal.
#[allow(unsafe_code)]
fn take_terminal(command: &mut Command) {
    crate::program::hear_signals();
    let take = || {
        setsid()?;
        Ok(ioctl_tiocsctty(rustix::stdio::stdin())?)
    };
    // SAFETY: both are system calls, which are allowed between fork and exec.
    unsafe { command.pre_exec(take) };
}

/// Waits a little for output, and reads the available part.
fn read_what_is_there(outer: &File, shown: &mut Vec<u8>) {
    let mut part = [0; 65536];
    let mut wait = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    while poll(&mut [PollFd::new(outer, PollFlags::IN)], Some(&wait)).is_ok_and(|ready| ready > 0) {
        match rustix::io::read(outer, &mut part) {
            Ok(0) | Err(_) => return,
            Ok(read) => shown.extend_from_slice(&part[..read]),
        }
        wait.tv_nsec = 0;
    }
}

/// Returns the unread input.
fn left_in(inner: &OwnedFd) -> Vec<u8> {
    let mut mode = tcgetattr(inner).expect("a terminal");
    mode.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
    tcsetattr(inner, OptionalActions::Now, &mode).expect("it takes a mode");
    let mut left = vec![0; 4096];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let is_there = poll(&mut [PollFd::new(inner, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0);
    let read = if is_there { rustix::io::read(inner, &mut left).unwrap_or_default() } else { 0 };
    left.truncate(read);
    left
}
