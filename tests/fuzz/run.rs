//! One run of the program, and what may not happen in it.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use flux::input::read;

/// The longest that a run may take.
const LIMIT: Duration = Duration::from_secs(20);
/// The most memory that a run may hold.
const MOST_KIB: u64 = 1 << 20;

/// A run that is prepared.
pub struct Case {
    /// What is wrong, for the report.
    pub what: String,
    pub command: Command,
    /// What the program reads from standard input.
    pub stdin: Vec<u8>,
    /// Where images go; nothing else may be there afterwards.
    pub out: PathBuf,
    pub prints: Prints,
    /// Whether an error must say where, which a usage error of the command line need not.
    pub of_a_file: bool,
}

/// What may be on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prints {
    Nothing,
    /// What was asked for, or nothing after an error.
    OnSuccess,
    Always,
}

/// How a run ended.
pub struct Ended {
    pub code: Option<i32>,
    pub seconds: f64,
    pub kib: u64,
    /// What should not have happened.
    pub findings: Vec<String>,
}

impl Case {
    /// Runs the program in `folder`, which is the run's own.
    pub fn run(mut self, folder: &Path) -> Ended {
        let [stdin, stdout, stderr] = ["stdin", "stdout", "stderr"].map(|name| folder.join(name));
        fs::write(&stdin, &self.stdin).expect("a temporary folder is writable");
        let created = |path: &Path| File::create(path).expect("a temporary folder is writable");
        self.command
            .stdin(File::open(&stdin).expect("written above"))
            .stdout(created(&stdout))
            .stderr(created(&stderr))
            .current_dir(&self.out);
        let start = Instant::now();
        let (status, kib) = wait(&mut self.command, start);
        let seconds = start.elapsed().as_secs_f64();
        let [stdout, stderr] = [stdout, stderr].map(|path| fs::read(path).expect("written by the program"));
        let mut findings = self.look_at(status, &stdout, &stderr);
        if kib > MOST_KIB {
            findings.push(format!("{} MiB of memory", kib / 1024));
        }
        if !findings.is_empty() {
            let text = String::from_utf8_lossy(&stderr);
            findings.push(format!("stderr: {}", text.chars().take(600).collect::<String>().escape_debug()));
        }
        Ended { code: status.and_then(|status| status.code()), seconds, kib, findings }
    }

    fn look_at(&self, status: Option<ExitStatus>, stdout: &[u8], stderr: &[u8]) -> Vec<String> {
        let mut findings = Vec::new();
        let mut find = |what: String| findings.push(what);
        let Some(status) = status else {
            find(format!("it did not end within {} s", LIMIT.as_secs()));
            return findings;
        };
        match (status.code(), status.signal()) {
            (Some(0..=2), _) => {}
            (code, signal) => find(format!("exit code {code:?}, signal {signal:?}")),
        }
        let text = String::from_utf8_lossy(stderr);
        if text.contains("panicked") || text.contains("internal:") {
            find("a panic".to_string());
        }
        if let Some(control) = text.chars().find(|c| *c != '\n' && is_control(*c)) {
            find(format!("{control:?} on standard error"));
        }
        let failed = status.code() != Some(0);
        if failed && !text.contains("error: ") {
            find("it failed without an error".to_string());
        }
        if failed && self.of_a_file && !(text.contains("  in: ") && text.contains("  hint: ")) {
            find("an error without where, or without a hint".to_string());
        }
        let prints = self.prints == Prints::Always || self.prints == Prints::OnSuccess && !failed;
        if !stdout.is_empty() && !prints {
            find(format!("{} bytes on standard output", stdout.len()));
        }
        for path in super::folder::files(&self.out) {
            if failed {
                find(format!("a run that failed left {path:?}"));
            } else if path.extension().is_some_and(|extension| extension == "png")
                && let Err(error) = read(&path)
            {
                find(format!("{path:?} is no image: {error}"));
            } else if path.extension().is_some_and(|extension| extension == "part") {
                find(format!("{path:?} was left"));
            }
        }
        findings
    }
}

/// Characters that move the cursor or the direction of text.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Waits until the program ends, or ends it at the limit. Returns its status, none where it was ended, and the most
/// memory that it held in KiB.
#[allow(unsafe_code, clippy::zombie_processes)] // wait4 waits, because `Child` does not say how much memory was held.
fn wait(command: &mut Command, start: Instant) -> (Option<ExitStatus>, u64) {
    let child = command.spawn().expect("the program starts");
    let pid = child.id() as libc::pid_t;
    let mut limit_reached = false;
    let mut pause = Duration::from_millis(2);
    loop {
        let mut status = 0;
        // SAFETY: zeros are a valid value of this plain struct.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both places are ours, and the process is a child that nobody else waits for.
        let ended = unsafe { libc::wait4(pid, &mut status, libc::WNOHANG, &mut usage) };
        assert!(ended >= 0, "the child is ours: {}", std::io::Error::last_os_error());
        if ended == pid {
            let status = (!limit_reached).then(|| ExitStatus::from_raw(status));
            return (status, usage.ru_maxrss as u64);
        }
        if !limit_reached && start.elapsed() > LIMIT {
            limit_reached = true;
            // SAFETY: the process was not waited for yet, so the number is still its own.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(20));
    }
}

/// A command whose input and output are set by [`Case::run`].
pub fn quiet(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_remove("FLUX_MODEL").env_remove("RUST_BACKTRACE").env("RAYON_NUM_THREADS", "1").stdin(Stdio::null());
    command
}
