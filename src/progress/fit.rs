//! Lines that fit a terminal: broken between words, never inside one.

use std::borrow::Cow;
use std::io;

use textwrap::{Options, WordSeparator, WordSplitter};

/// The columns of the terminal that stderr is; none where it is none, or does not tell.
fn columns() -> Option<usize> {
    terminal_size::terminal_size_of(io::stderr()).map(|(width, _)| usize::from(width.0)).filter(|columns| *columns > 0)
}

/// Whether all lines of a text fit the terminal; no line is too long for anything else.
pub fn fits(text: &str) -> bool {
    columns().is_none_or(|columns| text.lines().all(|line| textwrap::core::display_width(line) <= columns))
}

/// A text as the terminal shows it without a break inside a word.
pub fn fitted(text: &str) -> Cow<'_, str> {
    match columns() {
        Some(columns) if !fits(text) => Cow::Owned(wrapped(text, columns)),
        _ => Cow::Borrowed(text),
    }
}

fn wrapped(text: &str, columns: usize) -> String {
    let line = |line: &str| {
        let indent = line.len() - line.trim_start_matches(' ').len();
        let next = " ".repeat((indent + 2).min(columns / 2));
        let options = Options::new(columns)
            .break_words(false)
            .word_separator(WordSeparator::AsciiSpace)
            .word_splitter(WordSplitter::NoHyphenation)
            .subsequent_indent(&next);
        textwrap::wrap(line, options).join("\n")
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words_and_long_words_stay_whole() {
        let text = "note: the prompt is cut off\n  hint: a-word-with-many-hyphens-that-is-long\nshort";
        assert_eq!(
            wrapped(text, 20),
            "note: the prompt is\n  cut off\n  hint:\n    a-word-with-many-hyphens-that-is-long\nshort"
        );
        assert_eq!(wrapped("", 20), "");
        let long = "wörter und bilder ".repeat(50);
        assert!(wrapped(&long, 40).lines().all(|line| textwrap::core::display_width(line) <= 40));
        let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
        assert_eq!(words(&wrapped(&long, 40)), words(&long));
    }
}
