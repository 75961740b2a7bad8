//! Where the lines of a conversation come from: an editor on a terminal, or plain reads.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use flux::pipeline::{MAX_PROMPT_BYTES, PROMPT_TOO_LONG};
use flux::{Error, Result};

use super::editor::{Editor, Entered};
use crate::commands::ahead::Ahead;
use crate::commands::signals::{Reader, Signals};

/// The most bytes of a line: a prompt, and what says how to draw it.
const MOST_BYTES: usize = MAX_PROMPT_BYTES + 1024;

/// Lines.
pub enum Input {
    Edited(Box<Editor>),
    Plain,
}

impl Input {
    /// An editor where standard input and output are a terminal: elsewhere its prompt would be taken for a result.
    ///
    /// Errors when the terminal cannot be read.
    pub fn new() -> Result<Self> {
        Ok(Editor::new()?.map_or(Self::Plain, |editor| Self::Edited(Box::new(editor))))
    }

    /// The next line.
    ///
    /// Errors when a signal ends the conversation, or nothing can be read.
    ///
    /// `ahead` hears of the prompt that is typed, where lines are edited.
    pub fn read(&mut self, prompt: &str, ahead: Option<Ahead>, signals: &Signals) -> Result<Entered> {
        match self {
            Self::Edited(editor) => signals.waiting(Reader::Editor, || editor.read(prompt, ahead)).map(checked),
            Self::Plain => signals.waiting(Reader::Plain, || {
                let mut stderr = io::stderr();
                if io::stdin().is_terminal() && stderr.is_terminal() {
                    let _ = write!(stderr, "{prompt}");
                }
                // Locked for no longer: questions to the user are answered there, too.
                next_line(&mut io::stdin().lock())
            }),
        }
    }
}

fn checked(entered: Entered) -> Entered {
    match entered {
        Entered::Line(line) if line.len() > MOST_BYTES => Entered::Wrong(too_long()),
        entered => entered,
    }
}

/// The next line of `from`. Of one that is too long no more is kept than it may have.
///
/// Errors when nothing can be read.
fn next_line(from: &mut dyn BufRead) -> Result<Entered> {
    let failed = |e: io::Error| Error::usage(format!("cannot read the line: {e}")).at("standard input");
    let mut bytes = Vec::new();
    // A line end more, of two bytes.
    from.take(MOST_BYTES as u64 + 2).read_until(b'\n', &mut bytes).map_err(failed)?;
    if bytes.is_empty() {
        return Ok(Entered::End);
    }
    let is_whole = bytes.ends_with(b"\n");
    let text = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    if text.len() > MOST_BYTES {
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
    Error::usage(format!("the line is longer than {MOST_BYTES} bytes")).hint(PROMPT_TOO_LONG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_or_no_text_is_wrong_and_the_next_one_is_read() {
        let longest = "x".repeat(MOST_BYTES);
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
        assert!(next().contains("not valid UTF-8 from byte 2 on"));
        assert_eq!((next(), next()), ("last".to_string(), "the end".to_string()));
    }

    #[test]
    fn a_line_without_end_takes_little_memory() {
        let endless = io::repeat(b'x').take(1 << 26);
        let entered = next_line(&mut io::BufReader::new(endless)).unwrap();
        assert!(matches!(entered, Entered::Wrong(_)), "{entered:?}");
    }
}
