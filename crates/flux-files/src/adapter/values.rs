//! Values in the header of an adapter that may be scales, and lists of words.

use flux_base::error::Error;

pub(super) const HINT: &str = "export the adapter again, with a tensor `alpha` next to the factors of each layer";
/// The relative difference up to which scales count as the same: files store them in few bits.
const SAME: f64 = 1e-2;

/// Returns `true` if two scales are the same, within the precision of files.
pub(super) fn is_same(a: f64, b: f64) -> bool {
    (a - b).abs() <= SAME * a.abs().max(b.abs())
}

/// Returns a value without spaces and quotes around it.
pub(super) fn unquoted(text: &str) -> &str {
    text.trim().trim_matches(['"', '\''])
}

/// Returns `true` if a list of words, with spaces between, contains the word.
pub(super) fn is_word_of(list: &str, word: &str) -> bool {
    list.split(' ').any(|known| known == word)
}

/// Returns `true` if a value stands for no value.
pub(super) fn is_none(text: &str) -> bool {
    text.is_empty() || ["none", "null", "false"].iter().any(|none| text.eq_ignore_ascii_case(none))
}

/// Returns the error of a value that does not tell how the factors are scaled.
pub(super) fn unclear(key: &str, text: &str) -> Error {
    const MAX_CHARS: usize = 40;
    let text: String = text.chars().take(MAX_CHARS).collect();
    Error::new(format!("the header's `{key}` is `{text}`, which does not define how the factors are scaled")).hint(HINT)
}
