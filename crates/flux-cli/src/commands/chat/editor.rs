//! A line editor with history and completion.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use etcetera::AppStrategy;
use flux::{Error, Result};
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, ExternalPrinter, Helper};

use super::line::{self, COMMANDS};
use crate::cli::settings;
use crate::commands::ahead::Ahead;

/// Maximum number of lines in the history.
const HISTORY: usize = 1000;
/// Commands that take a file.
const WITH_FILES: [&str; 4] = ["!lora ", "!mask ", "!load ", "!save "];

/// The result of reading a line.
#[derive(Debug)]
pub enum Entered {
    Line(String),
    /// An invalid line, with its error.
    Wrong(Error),
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-D, or the end of a file.
    End,
}

/// Reads lines from a terminal.
pub struct Editor {
    editor: rustyline::Editor<Words, FileHistory>,
    history: Option<PathBuf>,
    /// With a printer, the editor also waits for signals that another thread receives.
    _printer: Box<dyn ExternalPrinter>,
}

impl Editor {
    /// Returns `None` if lines cannot be edited: standard input or output is not a terminal, or the terminal cannot
    /// move its cursor.
    ///
    /// Errors when the terminal cannot be read.
    pub fn new() -> Result<Option<Self>> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(None);
        }
        let failed = |e: ReadlineError| Error::new(format!("cannot read from the terminal: {e}"));
        let config =
            Config::builder().completion_type(CompletionType::List).max_history_size(HISTORY).map_err(failed)?;
        let mut editor = rustyline::Editor::with_config(config.build()).map_err(failed)?;
        let Ok(printer) = editor.create_external_printer() else { return Ok(None) };
        editor.set_helper(Some(Words { files: FilenameCompleter::new(), ahead: None }));
        let history = history();
        if let Some(history) = &history {
            // The file does not exist at first.
            let _ = editor.load_history(history);
        }
        Ok(Some(Self { editor, history, _printer: Box::new(printer) }))
    }

    /// Reads the next line.
    ///
    /// Errors when the terminal cannot be read.
    ///
    /// `ahead` receives the prompt while it is typed.
    pub fn read(&mut self, prompt: &str, ahead: Option<Ahead>) -> Result<Entered> {
        if let Some(words) = self.editor.helper_mut() {
            words.ahead = ahead;
        }
        let read = self.editor.readline(prompt);
        if let Some(words) = self.editor.helper_mut() {
            words.ahead = None;
        }
        match read {
            Ok(line) => {
                // Pasted text with several lines is one prompt.
                let line = line.replace('\n', " ");
                if !line.trim().is_empty() {
                    let _ = self.editor.add_history_entry(&line);
                    // Failures are ignored: the history is optional.
                    let _ = self.history.as_ref().map(|history| self.editor.append_history(history));
                }
                Ok(Entered::Line(line))
            }
            Err(ReadlineError::Interrupted) => Ok(Entered::Interrupt),
            Err(ReadlineError::Eof) => Ok(Entered::End),
            Err(e) => Err(Error::new(format!("cannot read from the terminal: {e}"))),
        }
    }
}

/// Returns the history file, in the user's state folder.
fn history() -> Option<PathBuf> {
    let folder = settings::folders()?.state_dir()?;
    fs::create_dir_all(&folder).ok()?;
    // Reading a pipe or a device might never end.
    Some(folder.join("history")).filter(|path| path.is_file() || path.symlink_metadata().is_err())
}

/// Completes commands and file names, and passes each change of a line to `ahead`.
struct Words {
    files: FilenameCompleter,
    ahead: Option<Ahead>,
}

impl Completer for Words {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, context: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        if WITH_FILES.iter().any(|command| line.starts_with(command)) {
            return self.files.complete(line, at, context);
        }
        let Some(begun) = line[..at].strip_prefix('!') else { return Ok((at, Vec::new())) };
        let pair = |name: &str| Pair { display: format!("!{name}"), replacement: format!("!{name} ") };
        let known = COMMANDS.iter().map(|(name, ..)| *name).filter(|name| name.starts_with(begun));
        Ok((0, known.map(pair).collect()))
    }
}

impl Helper for Words {}
impl Highlighter for Words {}
impl Validator for Words {}
impl Hinter for Words {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        if let Some(ahead) = &self.ahead {
            ahead.typed(line::prompt_of(line).unwrap_or_default());
        }
        None
    }
}
