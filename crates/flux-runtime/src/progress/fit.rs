//! Line breaking that fits the terminal and never splits words.

use std::borrow::Cow;
use std::io;

use textwrap::core::Word;
use textwrap::{Options, WordSeparator, WordSplitter};

/// Returns the columns of the terminal on stderr. `None` if stderr is not a terminal or its size is unknown.
fn columns() -> Option<usize> {
    terminal_size::terminal_size_of(io::stderr()).map(|(width, _)| usize::from(width.0)).filter(|columns| *columns > 0)
}

/// Returns `true` if all lines of a text fit the terminal, or stderr is not a terminal.
fn fits(text: &str) -> bool {
    columns().is_none_or(|columns| text.lines().all(|line| textwrap::core::display_width(line) <= columns))
}

/// Wraps a text at word boundaries if it does not fit the terminal.
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
            .word_separator(WordSeparator::Custom(words))
            .word_splitter(WordSplitter::NoHyphenation)
            .subsequent_indent(&next);
        textwrap::wrap(line, options).join("\n")
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// Splits a line into words. Quoted arguments of commands in backticks are kept whole, because a line break would
/// change them.
fn words(line: &str) -> Box<dyn Iterator<Item = Word<'_>> + '_> {
    let (mut words, mut start, mut in_command, mut in_quotes) = (Vec::new(), 0, false, false);
    let mut chars = line.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '`' => (in_command, in_quotes) = (!in_command, false),
            '\'' if in_command => in_quotes = !in_quotes,
            ' ' if !in_quotes && chars.peek().is_none_or(|(_, next)| *next != ' ') => {
                words.push(Word::from(&line[start..=at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    words.extend((start < line.len()).then(|| Word::from(&line[start..])));
    Box::new(words.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_word_of_a_command_stays_whole() {
        let text = "  hint: create it with `mkdir -p 'my new folder'`, it's not there";
        let lines = wrapped(text, 20);
        assert!(lines.contains("'my new folder'`,"), "{lines}");
        assert!(lines.lines().count() > 3, "{lines}");
    }

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
