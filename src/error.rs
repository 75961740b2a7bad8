//! The one error type: what is wrong, where, and how to mend it.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

/// The most characters of a part of a message that are shown.
pub const MOST_SHOWN: usize = 2000;

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

    /// Says where; the innermost place wins, and an empty one is none.
    pub fn at(mut self, place: impl Into<String>) -> Self {
        let place = place.into();
        if !place.is_empty() {
            self.0.place.get_or_insert(place);
        }
        self
    }

    /// Says which of several devices it happened on, in front of the fact.
    pub fn on(mut self, device: &str) -> Self {
        self.0.what.insert_str(0, &format!("{device}: "));
        self
    }

    /// Says in front of the fact what it is the reason of.
    pub fn prefixed(mut self, what: &str) -> Self {
        self.0.what.insert_str(0, &format!("{what}: "));
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

    /// Says how to mend it, in place of what was said before.
    pub fn hint_instead(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
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
        write!(f, "{}", shown(&self.0.what))?;
        if let Some(place) = &self.0.place {
            write!(f, "\n  in: {}", shown(place))?;
        }
        if let Some(hint) = &self.0.hint {
            write!(f, "\n  hint: {}", shown(hint))?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// A path as one word of a shell's command.
pub fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    // Such a path begins with what a command takes for a flag.
    let text = if text.starts_with('-') { format!("./{text}") } else { text };
    shlex::try_quote(&text).map(Cow::into_owned).unwrap_or(text)
}

/// A part of a message as it is shown: [`escaped`], and no longer than a screen. File names, what is in files and what
/// stands behind flags may have any length; of each that is too long, both ends stay.
pub fn shown(text: &str) -> String {
    /// The most characters of what stands between backticks, and in turn of what does not.
    const MOST_BETWEEN: [usize; 2] = [800, 240];
    let parts = text.split('`').enumerate().map(|(place, part)| shortened(part, MOST_BETWEEN[place % 2]));
    escaped(&shortened(&parts.collect::<Vec<_>>().join("`"), MOST_SHOWN)).into_owned()
}

/// A text of at most `most` characters, or both ends of a longer one.
pub fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    let Some(half) = text.char_indices().nth(most).and_then(|_| text.char_indices().nth(most / 2)) else {
        return Cow::Borrowed(text);
    };
    let end = text.char_indices().rev().nth(most / 2 - 1).map_or(text.len(), |(start, _)| start);
    Cow::Owned(format!("{}...{}", &text[..half.0], &text[end..]))
}

/// One line of text in which what a terminal obeys instead of showing it is spelled out, as in `\u{1b}`: control
/// characters, line ends too, and what changes the direction of text. File names, prompts and what is in files may hold
/// any of these.
pub fn escaped(text: &str) -> Cow<'_, str> {
    let is_obeyed = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_obeyed(c) {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    Cow::Owned(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_spelled_out_and_all_else_stays() {
        for text in ["", "a `b` c", "käse 🧀 \u{200d}", "C:\\folder", "עברית"] {
            assert!(matches!(escaped(text), Cow::Borrowed(same) if same == text), "{text}");
        }
        assert_eq!(escaped("\x1b[2J\r\n\t\0\x7f"), r"\u{1b}[2J\r\n\t\u{0}\u{7f}");
        assert_eq!(escaped("é\u{9b}31m\u{85}"), r"é\u{9b}31m\u{85}");
        for c in "\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}".chars() {
            assert_eq!(escaped(&c.to_string()), format!("\\u{{{:x}}}", c as u32));
        }
        let spelled = escaped("\x1b").into_owned();
        assert_eq!(escaped(&spelled), spelled, "what is spelled out stays as it is");
    }

    #[test]
    fn a_shell_takes_a_path_as_one_word() {
        for (path, word) in [
            ("models/a.png", "models/a.png"),
            ("my models", "'my models'"),
            ("a$(b)`c`", "'a$(b)`c`'"),
            ("it's", "\"it's\""),
            ("-o", "./-o"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(Path::new(path)), word);
        }
    }

    #[test]
    fn long_names_keep_both_ends_and_a_message_stays_on_a_screen() {
        let long = format!("begin{}end", "ä".repeat(1 << 20));
        let error = Error::new(format!("tensor `{long}` is missing in `{long}`, expected `w`"));
        let text = error.at(long.as_str()).hint(format!("use `{long}`")).to_string();
        assert!(text.chars().count() < 2000, "{}", text.chars().count());
        for words in
            ["tensor `beginä", "äend` is missing in `begin", "äend`, expected `w`\n  in: begin", "ä...ä", "use `begin"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(Error::new("`".repeat(1 << 20)).to_string().len() < 2100);
        assert!(shown(&"`a` ".repeat(1 << 18)).len() < 2100);
        let path = format!("/{}", "a/".repeat(110));
        assert_eq!(shown(&format!("`{path}` is there")), format!("`{path}` is there"));
        assert_eq!([3, 4].map(|count| shortened(&"ä".repeat(count), 3).into_owned()), ["äää", "ä...ä"]);
    }

    #[test]
    fn every_part_of_an_error_is_one_line() {
        let error = Error::new("a\nb").at_path(Path::new("c\x1bd")).hint("e\rf");
        assert_eq!(error.to_string(), "a\\nb\n  in: c\\u{1b}d\n  hint: e\\rf");
    }
}
