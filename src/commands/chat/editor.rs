//! Lines from a terminal, with history and completion.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use etcetera::{AppStrategy, AppStrategyArgs};
use flux::{Error, Result};
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, ExternalPrinter, Helper};

use super::line::{self, COMMANDS};
use crate::commands::ahead::Ahead;

/// Lines that the history keeps.
const HISTORY: usize = 1000;
/// Commands behind which a file is named.
const WITH_FILES: [&str; 4] = ["!lora ", "!mask ", "!load ", "!save "];

/// What was entered.
#[derive(Debug)]
pub enum Entered {
    Line(String),
    /// A line that cannot be heard, and why.
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
    /// With it the editor waits for signals, too, whichever thread gets them.
    _printer: Box<dyn ExternalPrinter>,
}

impl Editor {
    /// None where no line can be edited: standard input and output are not both a terminal, or one that cannot move its
    /// cursor.
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
            // There is none at first.
            let _ = editor.load_history(history);
        }
        Ok(Some(Self { editor, history, _printer: Box::new(printer) }))
    }

    /// The next line.
    ///
    /// Errors when the terminal cannot be read.
    ///
    /// `ahead` hears of the prompt that is typed.
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
                // A text of several lines that was pasted is one prompt.
                let line = line.replace('\n', " ");
                if !line.trim().is_empty() {
                    let _ = self.editor.add_history_entry(&line);
                    // A history that cannot be written is one that is not there the next time.
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

/// Where the lines are kept: the user's folder for what programs remember.
fn history() -> Option<PathBuf> {
    let strategy = etcetera::choose_app_strategy(AppStrategyArgs {
        top_level_domain: String::new(),
        author: String::new(),
        app_name: "flux".to_string(),
    });
    let folder = strategy.ok().and_then(|strategy| strategy.state_dir())?;
    fs::create_dir_all(&folder).ok()?;
    Some(folder.join("history"))
}

/// Completes commands, and files behind those that name one. Hears of every change of a line.
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
