//! The one error type: what is wrong, where, and how to mend it.

use std::fmt;
use std::path::Path;

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Whether the request itself was wrong (exit code 2), carrying it out failed (exit code 1), or it was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The request cannot be carried out as it was written.
    Usage,
    /// Something went wrong while carrying it out.
    Failure,
    /// It was ended early because the user asked for that.
    Cancelled,
}

/// An error in the user's words: the fact, the place (file, flag or op) and a remedy.
#[derive(Debug, Clone)]
pub struct Error(Box<Parts>);

#[derive(Debug, Clone)]
struct Parts {
    kind: Kind,
    what: String,
    place: Option<String>,
    hint: Option<String>,
}

impl Error {
    /// A failure; `what` is lower case, without a full stop, values in backticks.
    pub fn new(what: impl Into<String>) -> Self {
        Self(Box::new(Parts { kind: Kind::Failure, what: what.into(), place: None, hint: None }))
    }

    /// A request that cannot be carried out as written.
    pub fn usage(what: impl Into<String>) -> Self {
        let mut error = Self::new(what);
        error.0.kind = Kind::Usage;
        error
    }

    /// Work that was ended because the user asked for that.
    pub fn cancelled() -> Self {
        let mut error = Self::new("cancelled");
        error.0.kind = Kind::Cancelled;
        error
    }

    /// A thread that the system does not start.
    pub fn no_thread(error: &std::io::Error) -> Self {
        Self::new(format!("cannot start a thread: {error}"))
            .hint("raise the limits on processes (`ulimit -u`) and on memory (`ulimit -v`)")
    }

    /// Says where; the innermost place wins.
    pub fn at(mut self, place: impl Into<String>) -> Self {
        self.0.place.get_or_insert(place.into());
        self
    }

    /// [`Error::at`] a file or folder.
    pub fn at_path(self, path: &Path) -> Self {
        self.at(path.display().to_string())
    }

    /// Says how to mend it; the innermost hint wins.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint.get_or_insert(hint.into());
        self
    }

    /// The fact alone, without place and hint.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// Usage, failure or cancelled.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.what)?;
        if let Some(place) = &self.0.place {
            write!(f, "\n  in: {place}")?;
        }
        if let Some(hint) = &self.0.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}
