//! Allowed output of a run.

use std::path::{Path, PathBuf};

/// Maximum bytes on standard error: messages shorten the content of files.
const MAX_TEXT: usize = 12 << 10;

/// Allowed content of standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prints {
    Nothing,
    /// The requested output, or nothing after an error.
    OnSuccess,
    Always,
}

/// Allowed ends of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Any,
    Success,
    Error,
    /// An error, or success with something on standard error.
    NotSilent,
}

/// The content of a file that a run writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    Image,
    Tensors,
}

/// Returns the faults in the output, beyond the checks of every run.
pub type Check = Box<dyn Fn(&Said<'_>) -> Vec<String>>;

/// The expectations of a case.
pub struct Expected {
    pub prints: Prints,
    pub end: End,
    /// `true` if an error must name its place; a usage error need not.
    pub of_a_file: bool,
    /// An error must contain one of these: the file or flag at fault.
    pub blames: Vec<String>,
    /// The files that a successful run writes.
    pub writes: Vec<(PathBuf, Content)>,
    /// Existing files that a successful run may change, and folders in which it may change anything.
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

/// The output of a run.
pub struct Said<'a> {
    /// Standard error.
    pub text: &'a str,
    /// Bytes on standard output.
    pub printed: usize,
    pub succeeded: bool,
}

impl Expected {
    /// Returns the faults in the output of a run in `own`.
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
        if text.len() > MAX_TEXT {
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
        // A missing file is named in the first line.
        let says_where = place.is_some() || text.contains("error: no such ");
        if self.of_a_file && !(says_where && text.contains("  hint: ")) {
            find("an error without where, or without a hint".to_string());
        }
        if let Some(place) = place {
            // The run's own folder contains all inputs, so no error may blame the folder.
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

/// Returns `true` for characters that move the cursor or the direction of text.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
