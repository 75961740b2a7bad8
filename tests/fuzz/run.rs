//! One run of the program, and the checks on it.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::expect::{Expected, Said};
use super::inputs::Snapshot;

/// Maximum processor time of a run, in seconds.
const MAX_SECONDS: f64 = 15.0;
/// Maximum duration of a run, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(90);
/// Maximum memory of a run.
const MAX_KIB: u64 = 1 << 20;

/// A prepared run.
pub struct Case {
    /// A description of the fault, for the report.
    pub what: String,
    pub command: Command,
    /// Standard input of the program.
    pub stdin: Vec<u8>,
    /// The working folder of the program, for its outputs.
    pub out: PathBuf,
    pub expected: Expected,
}

/// The result of a run.
pub struct Ended {
    pub code: Option<i32>,
    pub seconds: f64,
    /// Processor time, in seconds.
    pub processor: f64,
    pub kib: u64,
    /// The faults that were found.
    pub findings: Vec<String>,
}

/// The resource usage of an ended process.
struct Used {
    /// `None` if it was killed at the limit.
    status: Option<ExitStatus>,
    processor: f64,
    kib: u64,
}

impl Case {
    /// Runs the program. In `own`, the run's own folder, only expected files may change.
    pub fn run(mut self, own: &Path) -> Ended {
        let streams = tempfile::tempdir().expect("a temporary folder");
        let [stdin, stdout, stderr] = ["stdin", "stdout", "stderr"].map(|name| streams.path().join(name));
        fs::write(&stdin, &self.stdin).expect("a temporary folder is writable");
        let created = |path: &Path| File::create(path).expect("a temporary folder is writable");
        self.command
            .stdin(File::open(&stdin).expect("written above"))
            .stdout(created(&stdout))
            .stderr(created(&stderr))
            .current_dir(&self.out);
        let before = Snapshot::read(own);
        let start = Instant::now();
        let used = wait(&mut self.command, start);
        let seconds = start.elapsed().as_secs_f64();
        let [stdout, stderr] = [stdout, stderr].map(|path| fs::read(path).expect("written by the program"));
        let mut findings = self.look_at(own, &before, used.status, &stdout, &stderr);
        if used.processor > MAX_SECONDS {
            findings.push(format!("{:.1} s of the processor", used.processor));
        }
        if used.kib > MAX_KIB {
            findings.push(format!("{} MiB of memory", used.kib / 1024));
        }
        if !findings.is_empty() {
            let text = String::from_utf8_lossy(&stderr);
            let text = text.chars().take(800).collect::<String>().escape_debug().to_string();
            findings.push(format!("stderr: {}", text.replace("\\n", "\n        ")));
            findings.push(format!("command: {:?}", self.command).chars().take(1500).collect());
        }
        let code = used.status.and_then(|status| status.code());
        Ended { code, seconds, processor: used.processor, kib: used.kib, findings }
    }

    fn look_at(
        &self,
        own: &Path,
        before: &Snapshot,
        status: Option<ExitStatus>,
        stdout: &[u8],
        stderr: &[u8],
    ) -> Vec<String> {
        let Some(status) = status else {
            return vec![format!("it did not end within {} s", LIMIT.as_secs())];
        };
        let mut findings = Vec::new();
        match (status.code(), status.signal()) {
            (Some(0..=2), _) => {}
            (code, signal) => findings.push(format!("exit code {code:?}, signal {signal:?}")),
        }
        let succeeded = status.code() == Some(0);
        let text = String::from_utf8_lossy(stderr);
        let said = Said { text: &text, printed: stdout.len(), succeeded };
        findings.extend(self.expected.findings(&said, own));
        findings.extend(before.findings(&Snapshot::read(own), &self.out, &self.expected, succeeded));
        if let (Some(check), true) = (&self.expected.check, findings.is_empty()) {
            findings.extend(check(&said));
        }
        findings
    }
}

/// Waits until the program ends, or kills it at the limit.
#[allow(unsafe_code, clippy::zombie_processes)] // wait4 waits, because `Child` does not report the memory.
fn wait(command: &mut Command, start: Instant) -> Used {
    let child = command.spawn().expect("the program starts");
    let pid = child.id() as libc::pid_t;
    let mut limit_reached = false;
    let mut pause = Duration::from_micros(500);
    loop {
        let mut status = 0;
        // SAFETY: zeros are a valid value of this plain struct.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both places are ours, and no other code waits for this child.
        let ended = unsafe { libc::wait4(pid, &mut status, libc::WNOHANG, &mut usage) };
        assert!(ended >= 0, "the child is ours: {}", std::io::Error::last_os_error());
        if ended == pid {
            let status = (!limit_reached).then(|| ExitStatus::from_raw(status));
            let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
            let processor = seconds(usage.ru_utime) + seconds(usage.ru_stime);
            return Used { status, processor, kib: usage.ru_maxrss as u64 };
        }
        if !limit_reached && start.elapsed() > LIMIT {
            limit_reached = true;
            // SAFETY: the process was not waited for yet, so the number is still its own.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        thread::sleep(pause);
        pause = (pause * 5 / 4).min(Duration::from_millis(20));
    }
}

/// Returns a command whose input and output are set by [`Case::run`].
pub fn quiet(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_remove("FLUX_MODEL").env_remove("RUST_BACKTRACE").env("RAYON_NUM_THREADS", "1").stdin(Stdio::null());
    command
}
