//! Runs programs from outside and returns their output, and temporary folders.

// Each test crate uses its own part of this module.
#![allow(dead_code)]

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Once;

/// The result of a run.
pub struct Run {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    pub fn new(command: &mut Command) -> Self {
        hear_signals();
        Self::from_output(command.output().expect("the program starts"))
    }

    /// Runs a command with this input.
    pub fn with_input(command: &mut Command, input: &[u8]) -> Self {
        hear_signals();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        // A program that ends before it has read everything breaks the pipe.
        let _ = child.stdin.take().expect("a pipe").write_all(input);
        Self::from_output(child.wait_with_output().expect("it ends"))
    }

    pub fn from_output(Output { status, stdout, stderr }: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Self { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
    }

    /// Exit code 0.
    #[track_caller]
    pub fn succeeds(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self
    }

    /// Ends with `code` and an error in which every one of `words` occurs; no panic, nothing on stdout.
    #[track_caller]
    pub fn fails(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "stderr: {}", self.stderr);
        assert!(self.stderr.contains("error: ") && !self.stderr.contains("panicked"), "{}", self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "`{word}` is not in: {}", self.stderr);
        }
        // With --json the error is there, too.
        assert!(self.stdout.is_empty() || self.stdout.starts_with("{\"error\":"), "{}", self.stdout);
        self
    }
}

/// Has programs that start from here on hear SIGINT and SIGHUP, which they inherit as ignored where the tests run in
/// the background of a script or under `nohup`. A signal with a handler is not ignored, and a program that starts has
/// the default in place of the handler. The tests go on without hearing them.
///
/// Not between fork and exec: a process that has something to do there is copied with its page tables for each program.
#[allow(unsafe_code)]
pub fn hear_signals() {
    extern "C" fn nothing(_: libc::c_int) {}
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for signal in [libc::SIGINT, libc::SIGHUP] {
            // SAFETY: the handler has the signature of one and does nothing. What was not ignored is put back.
            unsafe {
                let before = libc::signal(signal, nothing as *const () as libc::sighandler_t);
                assert_ne!(before, libc::SIG_ERR, "{}", std::io::Error::last_os_error());
                if before != libc::SIG_IGN {
                    libc::signal(signal, before);
                }
            }
        }
    });
}

/// Sends a signal, such as `TERM`, to a program.
#[track_caller]
pub fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()));
}

/// A temporary folder, which is removed when it is dropped.
pub struct Folder(tempfile::TempDir);

/// Creates a temporary folder.
pub fn folder() -> Folder {
    Folder(tempfile::tempdir().expect("a temporary folder"))
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.0.path()
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        self
    }
}

impl AsRef<OsStr> for Folder {
    fn as_ref(&self) -> &OsStr {
        self.as_os_str()
    }
}

/// The names in a folder, hidden ones too, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .expect("a folder")
        .map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// A file below the project's root, where the workspace has its lock file.
pub fn project(name: &str) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = package.ancestors().find(|folder| folder.join("Cargo.lock").exists()).expect("a workspace");
    root.join(name)
}
