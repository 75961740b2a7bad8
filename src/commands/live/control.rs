//! What changes between frames: lines of JSON at a FIFO or a socket, and a file with the prompt.

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
use crate::live::{Change, Setting, Settings};
use crate::progress::say;

/// The longest line, in bytes without its end.
const MOST_LINE: usize = 1 << 20;
/// How often the file of the prompt is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// A pause after a connection that could not be taken.
const PAUSE: Duration = Duration::from_secs(1);

/// Where changes are heard.
pub enum Control {
    Fifo(File),
    Socket(UnixListener, SocketFile),
}

/// The file of a socket, which leaves with the program.
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Control {
    /// Opens the FIFO at a path, or makes a socket there that its owner may use.
    ///
    /// Errors when there is something else.
    pub fn open(path: &Path) -> Result<Self> {
        let wrong = |what: String| {
            Error::usage(what)
                .at("--control")
                .hint("name a FIFO, as `mkfifo` makes one, or a path at which is nothing yet")
        };
        match fs::symlink_metadata(path).map(|found| found.file_type()) {
            // Who also may write never hears an end, and waits for nobody.
            Ok(kind) if kind.is_fifo() => OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .map(Self::Fifo)
                .map_err(|e| wrong(format!("cannot open `{}`: {e}", path.display()))),
            Ok(kind) if kind.is_socket() => match UnixStream::connect(path) {
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => Self::listen_at(path, wrong),
                _ => Err(wrong(format!("another program listens at `{}`", path.display()))),
            },
            Ok(_) => Err(wrong(format!("`{}` is neither a FIFO nor a socket", path.display()))),
            Err(_) => Self::listen_at(path, wrong),
        }
    }

    /// The socket has its mode before anybody can find it.
    fn listen_at(path: &Path, wrong: impl Fn(String) -> Error) -> Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let made = SocketFile(path.with_file_name(format!(".{name}.{}", std::process::id())));
        let listen = || {
            let listener = UnixListener::bind(&made.0)?;
            fs::set_permissions(&made.0, fs::Permissions::from_mode(0o600))?;
            fs::rename(&made.0, path).map(|()| listener)
        };
        let listener = listen().map_err(|e| wrong(format!("cannot listen at `{}`: {e}", path.display())))?;
        Ok(Self::Socket(listener, SocketFile(path.to_path_buf())))
    }

    /// Hears changes on threads of its own; `checks` says whether the model can make what a change asks for. Returns
    /// what is to be kept as long as it hears.
    ///
    /// Errors when the system starts no thread.
    pub fn start(
        self,
        settings: &Arc<Settings>,
        checks: impl Fn(&Setting) -> Result<()> + Clone + Send + 'static,
    ) -> Result<Option<SocketFile>> {
        let settings = Arc::clone(settings);
        let hear = move |line: Result<&[u8]>| change(&settings, line?, &checks);
        match self {
            Self::Fifo(file) => {
                let hear = move |line: Result<&[u8]>| {
                    if let Err(error) = hear(line) {
                        tell_wrong(&error);
                    }
                    Ok(())
                };
                spawn(move || lines(file, hear))?;
                Ok(None)
            }
            Self::Socket(listener, file) => {
                spawn(move || accept(&listener, &hear))?;
                Ok(Some(file))
            }
        }
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new().name("control".to_string()).spawn(work).map(drop).map_err(|e| Error::no_thread(&e))
}

/// Answers whoever connects, each on a thread of its own.
fn accept(listener: &UnixListener, hear: &(impl Fn(Result<&[u8]>) -> Result<()> + Clone + Send + 'static)) {
    for connection in listener.incoming() {
        let Ok(connection) = connection else {
            thread::sleep(PAUSE);
            continue;
        };
        let hear = hear.clone();
        // Without a thread the connection ends.
        let _ = spawn(move || {
            let Ok(mut answers) = connection.try_clone() else { return };
            lines(connection, |line| {
                let answer = match hear(line) {
                    Ok(()) => json!({"ok": true}),
                    Err(error) => json!({"error": named(&error.to_string(), flag)}),
                };
                answers.write_all(format!("{answer}\n").as_bytes())
            });
        });
    }
}

/// Hands on each line that is not blank, until the end. One that is too long is an error, and passed over.
fn lines(from: impl Read, mut hear: impl FnMut(Result<&[u8]>) -> io::Result<()>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    let mut next = || {
        line.clear();
        if from.by_ref().take(MOST_LINE as u64 + 1).read_until(b'\n', &mut line)? == 0 {
            return Ok(false);
        }
        let is_whole = line.len() <= MOST_LINE || line.ends_with(b"\n");
        match line.trim_ascii() {
            _ if !is_whole => {
                hear(
                    Err(Error::usage(format!("the line has more than {MOST_LINE} bytes")).hint("send a shorter one")),
                )?;
                from.skip_until(b'\n')?;
            }
            b"" => {}
            line => hear(Ok(line))?,
        }
        io::Result::Ok(true)
    };
    while matches!(next(), Ok(true)) {}
}

/// Makes the change that a line says.
///
/// Errors when it cannot be made.
fn change(settings: &Settings, line: &[u8], checks: &impl Fn(&Setting) -> Result<()>) -> Result<()> {
    let change: Change = serde_json::from_slice(line).map_err(|e| {
        Error::usage(format!("the line is no change: {e}")).hint("write an object, as in {\"prompt\": \"a cat\"}")
    })?;
    settings.change(|setting| {
        let setting = setting.changed(change.clone())?;
        checks(&setting).map(|()| setting)
    })
}

fn tell_wrong(error: &Error) {
    say(&format!("note: all stays as it is: {}", error.shown_with(flag)));
}

/// The prompt in a file.
///
/// Errors when it cannot be read, or is no text.
pub fn prompt_of(file: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    open_regular(file, "name a file of text")?
        .take(MAX_PROMPT_BYTES as u64 + 8)
        .read_to_end(&mut bytes)
        .map_err(|e| Error::new(format!("cannot read the prompt: {e}")).at_path(file))?;
    prompt_text(bytes).map_err(|e| e.at_path(file))
}

/// Reads the prompt again whenever its file changes.
///
/// Errors when the system starts no thread.
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
            // An editor may be writing it, and then it is there soon. It is short, and times of files are coarse.
            let read = prompt_of(&file).ok().filter(|prompt| !prompt.is_empty() && *prompt != known);
            let Some(prompt) = read else { continue };
            known.clone_from(&prompt);
            let changed = settings.change(|setting| {
                let change = Change { prompt: Some(prompt.clone()), ..Change::default() };
                let setting = setting.changed(change)?;
                checks(&setting).map(|()| setting)
            });
            if let Err(error) = changed {
                tell_wrong(&error);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(bytes: &[u8]) -> Vec<std::result::Result<Vec<u8>, String>> {
        let mut heard = Vec::new();
        lines(bytes, |line| {
            heard.push(line.map(<[u8]>::to_vec).map_err(|e| e.to_string()));
            Ok(())
        });
        heard
    }

    #[test]
    fn a_line_that_is_too_long_is_refused_once_and_passed_over() {
        // What is behind its first mebibyte is a change of its own.
        let long = [&vec![b' '; MOST_LINE + 1][..], br#"{"seed": 8}"#].concat();
        let all = heard(&[&long[..], b"\n\n{\"seed\": 9}\n", &long].concat());
        let [Err(first), Ok(second), Err(third)] = &all[..] else { panic!("{} were heard", all.len()) };
        assert!(first.contains("more than 1048576 bytes") && third == first, "{first}");
        assert_eq!(second, br#"{"seed": 9}"#);
        let longest = [&vec![b'x'; MOST_LINE][..], b"\n"].concat();
        assert_eq!(heard(&longest), [Ok(vec![b'x'; MOST_LINE])]);
    }
}
