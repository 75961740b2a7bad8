//! Changes between frames: JSON lines from a FIFO or socket, and a file with the prompt.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use flux::error::named;
use flux::files::open_regular;
use flux::pipeline::MAX_PROMPT_BYTES;
use flux::{Error, Result};
use serde_json::json;

use crate::cli::{flag, prompt_text};
use flux_live::{Change, Setting, Settings};
use flux_runtime::progress::say;

/// Maximum length of a line in bytes, without its line break.
const MAX_LINE: usize = 1 << 20;
/// The poll interval of the prompt file.
const LOOK: Duration = Duration::from_millis(100);
/// The pause after a failed connection.
const PAUSE: Duration = Duration::from_secs(1);

/// The source of changes.
pub enum Control {
    Fifo(File),
    Socket(UnixListener, SocketFile),
}

/// The file of a socket, removed on drop.
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Control {
    /// Opens the FIFO at a path, or creates a socket there that only its owner may use.
    ///
    /// Errors when the path is another kind of file.
    pub fn open(path: &Path) -> Result<Self> {
        let wrong = |what: String| {
            Error::usage(what)
                .at("--control")
                .hint("name a FIFO, as created by `mkfifo`, or a path that does not exist yet")
        };
        match fs::symlink_metadata(path).map(|found| found.file_type()) {
            // With a writer of its own, the FIFO never reports end of file and opening it does not block.
            Ok(kind) if kind.is_fifo() => OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .map(Self::Fifo)
                .map_err(|e| wrong(format!("cannot open `{}`: {e}", path.display()))),
            Ok(kind) if kind.is_socket() => match UnixStream::connect(path) {
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => Self::listen_at(path, wrong),
                _ => Err(wrong(format!("another program is listening on `{}`", path.display()))),
            },
            Ok(_) => Err(wrong(format!("`{}` is neither a FIFO nor a socket", path.display()))),
            Err(_) => Self::listen_at(path, wrong),
        }
    }

    /// Sets the permissions of the socket before it gets its final name.
    fn listen_at(path: &Path, wrong: impl Fn(String) -> Error) -> Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let made = SocketFile(path.with_file_name(format!(".{name}.{}", std::process::id())));
        let listen = || {
            let listener = UnixListener::bind(&made.0)?;
            fs::set_permissions(&made.0, fs::Permissions::from_mode(0o600))?;
            fs::rename(&made.0, path).map(|()| listener)
        };
        let listener = listen().map_err(|e| wrong(format!("cannot listen on `{}`: {e}", path.display())))?;
        Ok(Self::Socket(listener, SocketFile(path.to_path_buf())))
    }

    /// Starts threads that receive changes. `checks` returns an error if the model cannot apply a change. Keep the
    /// returned value for as long as changes are received.
    ///
    /// Errors when the system cannot start a thread.
    pub fn start(
        self,
        settings: &Arc<Settings>,
        checks: impl Fn(&Setting) -> Result<()> + Clone + Send + 'static,
    ) -> Result<Option<SocketFile>> {
        let settings = Arc::clone(settings);
        let handle = move |line: Result<&[u8]>| change(&settings, line?, &checks);
        match self {
            Self::Fifo(file) => {
                let handle = move |line: Result<&[u8]>| {
                    if let Err(error) = handle(line) {
                        print_refused(&error);
                    }
                    Ok(())
                };
                spawn(move || lines(file, handle))?;
                Ok(None)
            }
            Self::Socket(listener, file) => {
                spawn(move || accept(&listener, &handle))?;
                Ok(Some(file))
            }
        }
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new().name("control".to_string()).spawn(work).map(drop).map_err(|e| Error::no_thread(&e))
}

/// Accepts connections, each on its own thread.
fn accept(listener: &UnixListener, handle: &(impl Fn(Result<&[u8]>) -> Result<()> + Clone + Send + 'static)) {
    for connection in listener.incoming() {
        let Ok(connection) = connection else {
            thread::sleep(PAUSE);
            continue;
        };
        let handle = handle.clone();
        // If the thread cannot start, the connection closes.
        let _ = spawn(move || {
            let Ok(mut answers) = connection.try_clone() else { return };
            lines(connection, |line| {
                let answer = match handle(line) {
                    Ok(()) => json!({"ok": true}),
                    Err(error) => json!({"error": named(&error.to_string(), flag)}),
                };
                answers.write_all(format!("{answer}\n").as_bytes())
            });
        });
    }
}

/// Calls `handle` for each line that is not blank, until the end. An overlong line is an error and is skipped.
fn lines(from: impl Read, mut handle: impl FnMut(Result<&[u8]>) -> io::Result<()>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    let mut next = || {
        line.clear();
        if from.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line)? == 0 {
            return Ok(false);
        }
        let is_whole = line.len() <= MAX_LINE || line.ends_with(b"\n");
        match line.trim_ascii() {
            _ if !is_whole => {
                handle(Err(
                    Error::usage(format!("the line has more than {MAX_LINE} bytes")).hint("send a shorter line")
                ))?;
                from.skip_until(b'\n')?;
            }
            b"" => {}
            line => handle(Ok(line))?,
        }
        io::Result::Ok(true)
    };
    while matches!(next(), Ok(true)) {}
}

/// Applies the change in a line.
///
/// Errors when the line is invalid or the change is rejected.
fn change(settings: &Settings, line: &[u8], checks: &impl Fn(&Setting) -> Result<()>) -> Result<()> {
    let change: Change = serde_json::from_slice(line).map_err(|e| {
        Error::usage(format!("the line is not a valid change: {e}"))
            .hint("send a JSON object, as in {\"prompt\": \"a cat\"}")
    })?;
    settings.change(|setting| {
        let setting = setting.changed(change.clone())?;
        checks(&setting).map(|()| setting)
    })
}

fn print_refused(error: &Error) {
    say(&format!("note: the settings are unchanged: {}", error.shown_with(flag)));
}

/// Reads the prompt in a file.
///
/// Errors when the file cannot be read, or is not UTF-8.
pub fn prompt_of(file: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    open_regular(file, "name a text file")?
        .take(MAX_PROMPT_BYTES as u64 + 8)
        .read_to_end(&mut bytes)
        .map_err(|e| Error::new(format!("cannot read the prompt: {e}")).at_path(file))?;
    prompt_text(bytes).map_err(|e| e.at_path(file))
}

/// Starts a thread that reloads the prompt when its file changes.
///
/// Errors when the system cannot start a thread.
pub fn watch_prompt(
    file: PathBuf,
    settings: &Arc<Settings>,
    checks: impl Fn(&Setting) -> Result<()> + Send + 'static,
) -> Result<()> {
    let settings = Arc::clone(settings);
    let mut known = settings.now().recipe.prompt.clone();
    spawn(move || {
        loop {
            thread::sleep(LOOK);
            // An unreadable or empty file is skipped: an editor may be writing it. The content is compared, because the
            // file is short and modification times are coarse.
            let read = prompt_of(&file).ok().filter(|prompt| !prompt.is_empty() && *prompt != known);
            let Some(prompt) = read else { continue };
            known.clone_from(&prompt);
            let changed = settings.change(|setting| {
                let change = Change { prompt: Some(prompt.clone()), ..Change::default() };
                let setting = setting.changed(change)?;
                checks(&setting).map(|()| setting)
            });
            if let Err(error) = changed {
                print_refused(&error);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(bytes: &[u8]) -> Vec<std::result::Result<Vec<u8>, String>> {
        let mut read = Vec::new();
        lines(bytes, |line| {
            read.push(line.map(<[u8]>::to_vec).map_err(|e| e.to_string()));
            Ok(())
        });
        read
    }

    #[test]
    fn a_line_that_is_too_long_is_refused_once_and_passed_over() {
        // The rest of the line after the limit must not count as a change of its own.
        let long = [&vec![b' '; MAX_LINE + 1][..], br#"{"seed": 8}"#].concat();
        let all = received(&[&long[..], b"\n\n{\"seed\": 9}\n", &long].concat());
        let [Err(first), Ok(second), Err(third)] = &all[..] else { panic!("{} were read", all.len()) };
        assert!(first.contains("1048576") && third == first, "{first}");
        assert_eq!(second, br#"{"seed": 9}"#);
        let longest = [&vec![b'x'; MAX_LINE][..], b"\n"].concat();
        assert_eq!(received(&longest), [Ok(vec![b'x'; MAX_LINE])]);
    }
}
