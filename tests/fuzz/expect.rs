//! What a run may say and write.

use std::path::{Path, PathBuf};

/// The longest text that a run may print to standard error, in bytes: what is in files is shortened in it.
const MOST_TEXT: usize = 12 << 10;

/// What may be on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prints {
    Nothing,
    /// What was asked for, or nothing after an error.
    OnSuccess,
    Always,
}

/// How a run may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Any,
    Success,
    Error,
    /// An error, or success with something on standard error.
    NotSilent,
}

/// What a file that a run writes holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    Image,
    Tensors,
}

/// What is wrong with what was said, beyond what every run may say.
pub type Check = Box<dyn Fn(&Said<'_>) -> Vec<String>>;

/// What a case expects of its run.
pub struct Expected {
    pub prints: Prints,
    pub end: End,
    /// Whether an error must say where, which a usage error of the command line need not.
    pub of_a_file: bool,
    /// An error must have one of these in it: the file or flag that is at fault.
    pub blames: Vec<String>,
    /// The files that a run that succeeds writes.
    pub writes: Vec<(PathBuf, Content)>,
    /// What a run that succeeds may change though it was there before, and folders in which it may change anything.
    pub may_change: Vec<PathBuf>,
    pub check: Option<Check>,
}

impl Default for Expected {
    fn default() -> Self {
        Self {
            prints: Prints::Nothing,
            end: End::Any,
            of_a_file: true,
            blames: Vec::new(),
            writes: Vec::new(),
            may_change: Vec::new(),
            check: None,
        }
    }
}

/// What a run said.
pub struct Said<'a> {
    /// Standard error.
    pub text: &'a str,
    /// Bytes on standard output.
    pub printed: usize,
    pub succeeded: bool,
}

impl Expected {
    /// What is wrong with what a run in `own` said.
    pub fn findings(&self, said: &Said<'_>, own: &Path) -> Vec<String> {
        let mut findings = Vec::new();
        let mut find = |what: String| findings.push(what);
        let Said { text, printed, succeeded } = *said;
        if text.contains("panicked") || text.contains("internal:") {
            find("a panic".to_string());
        }
        if let Some(control) = text.chars().find(|c| *c != '\n' && is_control(*c)) {
            find(format!("{control:?} on standard error"));
        }
        if text.len() > MOST_TEXT {
            find(format!("{} bytes on standard error", text.len()));
        }
        match self.end {
            End::Success if !succeeded => find("it failed".to_string()),
            End::Error if succeeded => find("it succeeded, expected an error".to_string()),
            End::NotSilent if succeeded && text.trim().is_empty() => {
                find("it succeeded and said nothing, expected an error or a note".to_string());
            }
            _ => {}
        }
        if !succeeded {
            self.look_at_error(text, own, &mut find);
        }
        let prints = self.prints == Prints::Always || self.prints == Prints::OnSuccess && succeeded;
        if printed > 0 && !prints {
            find(format!("{printed} bytes on standard output"));
        }
        findings
    }

    fn look_at_error(&self, text: &str, own: &Path, find: &mut impl FnMut(String)) {
        if !text.contains("error: ") {
            find("it failed without an error".to_string());
        }
        let place = text.lines().find_map(|line| line.strip_prefix("  in: "));
        // What is not there is named in the first line.
        let says_where = place.is_some() || text.contains("error: no such ");
        if self.of_a_file && !(says_where && text.contains("  hint: ")) {
            find("an error without where, or without a hint".to_string());
        }
        if let Some(place) = place {
            // The run's own folder holds all that is given, so it is at fault for nothing.
            let is_above = Path::new(place).is_absolute() && own.starts_with(place);
            if place.trim().is_empty() || is_above {
                find(format!("the error is in `{place}`, which says nothing"));
            }
        }
        if !self.blames.is_empty() && !self.blames.iter().any(|name| text.contains(name)) {
            find(format!("the error names none of {:?}", self.blames));
        }
    }
}

/// Characters that move the cursor or the direction of text.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
