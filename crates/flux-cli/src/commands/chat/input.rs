//! The source of interactive lines: an editor on a terminal, or plain reads.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use flux::pipeline::{MAX_PROMPT_BYTES, PROMPT_TOO_LONG};
use flux::{Error, Result};

use super::editor::{Editor, Entered};
use crate::commands::ahead::Ahead;
use crate::commands::signals::{Reader, Signals};

/// Maximum length of a line in bytes: a prompt, plus sizes and image references.
const MAX_BYTES: usize = MAX_PROMPT_BYTES + 1024;

/// The source of lines.
pub enum Input {
    Edited(Box<Editor>),
    Plain,
}

impl Input {
    /// Creates an editor if standard input and output are both terminals. Otherwise the editor's prompt would mix with
    /// the results.
    ///
    /// Errors when the terminal cannot be read.
    pub fn new() -> Result<Self> {
        Ok(Editor::new()?.map_or(Self::Plain, |editor| Self::Edited(Box::new(editor))))
    }

    /// Reads the next line.
    ///
    /// Errors when a signal ends the session, or the line cannot be read.
    ///
    /// In the editor, `ahead` receives the prompt while it is typed.
    pub fn read(&mut self, prompt: &str, ahead: Option<Ahead>, signals: &Signals) -> Result<Entered> {
        match self {
            Self::Edited(editor) => signals.waiting(Reader::Editor, || editor.read(prompt, ahead)).map(checked),
            Self::Plain => signals.waiting(Reader::Plain, || {
                let mut stderr = io::stderr();
                if io::stdin().is_terminal() && stderr.is_terminal() {
                    let _ = write!(stderr, "{prompt}");
                }
                // The lock is held only for this line, because answers to questions are read from stdin, too.
                next_line(&mut io::stdin().lock())
            }),
        }
    }
}

fn checked(entered: Entered) -> Entered {
    match entered {
        Entered::Line(line) if line.len() > MAX_BYTES => Entered::Wrong(too_long()),
        entered => entered,
    }
}

/// Reads the next line of `from`. Of an overlong line only the first bytes are kept.
///
/// Errors when the line cannot be read.
fn next_line(from: &mut dyn BufRead) -> Result<Entered> {
    let failed = |e: io::Error| Error::usage(format!("cannot read the line: {e}")).at("standard input");
    let mut bytes = Vec::new();
    // Two more bytes, for the line ending.
    from.take(MAX_BYTES as u64 + 2).read_until(b'\n', &mut bytes).map_err(failed)?;
    if bytes.is_empty() {
        return Ok(Entered::End);
    }
    let is_whole = bytes.ends_with(b"\n");
    let text = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    if text.len() > MAX_BYTES {
        if !is_whole {
            from.skip_until(b'\n').map_err(failed)?;
        }
        return Ok(Entered::Wrong(too_long()));
    }
    Ok(match std::str::from_utf8(text) {
        Ok(line) => Entered::Line(line.to_string()),
        Err(e) => Entered::Wrong(
            Error::usage(format!("the line is not valid UTF-8 from byte {} on", e.valid_up_to() + 1))
                .at("standard input"),
        ),
    })
}

fn too_long() -> Error {
    Error::usage(format!("the line is longer than {MAX_BYTES} bytes")).hint(PROMPT_TOO_LONG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_or_no_text_is_wrong_and_the_next_one_is_read() {
        let longest = "x".repeat(MAX_BYTES);
        let text = format!("a cat\r\n\n{longest}\r\n{longest}x\n{longest}{longest}\n\u{0}");
        let bytes = [text.as_bytes(), b"\xff\nlast"].concat();
        let mut from = &*bytes;
        let mut next = || match next_line(&mut from).unwrap() {
            Entered::Line(line) => line,
            Entered::Wrong(error) => error.what().to_string(),
            Entered::Interrupt | Entered::End => "the end".to_string(),
        };
        assert_eq!((next(), next()), ("a cat".to_string(), String::new()));
        assert!(next() == longest);
        assert_eq!((next(), next()), (too_long().what().to_string(), too_long().what().to_string()));
        assert!(next().contains("byte 2 "));
        assert_eq!((next(), next()), ("last".to_string(), "the end".to_string()));
    }

    #[test]
    fn a_line_without_end_takes_little_memory() {
        let endless = io::repeat(b'x').take(1 << 26);
        let entered = next_line(&mut io::BufReader::new(endless)).unwrap();
        assert!(matches!(entered, Entered::Wrong(_)), "{entered:?}");
    }
}
