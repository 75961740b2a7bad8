//! Grouping of errors of many lines: after the first few, errors of the same kind are only counted.

use flux::Error;
use flux::error::{Names, named, shown};

/// Maximum number of printed errors of one kind.
const MAX_PRINTED: usize = 3;
/// Maximum number of kinds.
const MAX_KINDS: usize = 100;

/// The errors so far, by kind.
#[derive(Default)]
pub struct Alike(Vec<Kind>);

struct Kind {
    /// The text without values, numbers and names.
    kind: String,
    /// The first error.
    what: String,
    seen: usize,
    /// The number of errors that were not printed, and the line numbers of the first and the last of them.
    counted: usize,
    lines: [usize; 2],
}

impl Alike {
    /// Returns the text to print for an error. `None` if the error is only counted.
    pub fn print(&mut self, line: usize, error: &Error, names: Names) -> Option<String> {
        let text = || Some(format!("line {line}: {}", error.shown_with(names)));
        let kind = kind_of(error.what());
        let at = self.0.iter().position(|known| known.kind == kind);
        let Some(at) = at.or_else(|| (self.0.len() < MAX_KINDS).then_some(self.0.len())) else { return text() };
        if at == self.0.len() {
            let what = shown(&named(error.what(), names));
            self.0.push(Kind { kind, what, seen: 0, counted: 0, lines: [0; 2] });
        }
        let known = &mut self.0[at];
        known.seen += 1;
        if known.seen <= MAX_PRINTED {
            return text();
        }
        known.counted += 1;
        known.lines = [if known.counted == 1 { line } else { known.lines[0] }, line];
        None
    }

    /// Returns a line for each kind of error counted since the last call.
    pub fn take_counted(&mut self) -> Vec<String> {
        let counted = self.0.iter_mut().filter(|known| known.counted > 0);
        let line = |known: &mut Kind| {
            let (more, [first, last]) = (std::mem::take(&mut known.counted), known.lines);
            let lines = if more == 1 { format!("line {first}") } else { format!("lines {first} to {last}") };
            format!("and {more} more like this, {lines}: {}", known.what)
        };
        counted.map(line).collect()
    }
}

/// Removes quoted parts and numbers from a text.
fn kind_of(what: &str) -> String {
    let mut within = None;
    let kept = what.chars().filter(|c| match within {
        Some(quote) => {
            within = Some(quote).filter(|quote| quote != c);
            false
        }
        None => {
            within = Some(*c).filter(|c| matches!(c, '`' | '"'));
            !c.is_ascii_digit()
        }
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use flux::error::KEYS;

    use super::*;

    #[test]
    fn errors_of_one_kind_are_counted_after_the_third() {
        let mut alike = Alike::default();
        let mut print = |line, what: String| alike.print(line, &Error::usage(what), KEYS);
        let printed = (1..=100).filter_map(|line| print(line, format!("`a{line}.png` is 7{line} wide"))).count();
        assert_eq!(printed, 3);
        assert!(print(101, "something else".to_string()).is_some());
        let counted = alike.take_counted();
        assert_eq!(counted, ["and 97 more like this, lines 4 to 100: `a1.png` is 71 wide"]);
        assert!(alike.take_counted().is_empty());
        assert!(alike.print(102, &Error::usage("`b.png` is 1 wide"), KEYS).is_none());
        assert_eq!(alike.take_counted(), ["and 1 more like this, line 102: `a1.png` is 71 wide"]);
    }
}
