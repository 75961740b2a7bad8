//! PEFT's patterns: values for layers by regular expressions of their names.

use std::fmt;

use regex::Regex;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

/// Numbers by pattern, in the order of the file. The first pattern that fits a name counts. Source: PEFT,
/// `get_pattern_key`.
#[derive(Debug, Clone, Default)]
pub struct Patterns(Vec<(String, Matcher, f64)>);

/// A pattern that fits a name if it matches the whole name, or its end after a dot.
#[derive(Debug, Clone)]
enum Matcher {
    /// Letters, digits, underscores and dots. A dot stands for any character.
    Plain(String),
    Regex(Regex),
}

/// The max number of patterns: more than a model has layers.
const MAX: usize = 1 << 12;

impl Patterns {
    /// Returns the value for a layer with these names.
    pub fn value(&self, names: &[String]) -> Option<f64> {
        let fits = |matcher: &Matcher| names.iter().any(|name| matcher.fits(name));
        self.0.iter().find(|(_, matcher, _)| fits(matcher)).map(|(_, _, value)| *value)
    }

    /// Returns the first pattern that fits no name of these layers.
    pub fn unused<'a>(&self, layers: impl Iterator<Item = &'a [String]> + Clone) -> Option<&str> {
        let is_used = |matcher: &Matcher| layers.clone().flatten().any(|name| matcher.fits(name));
        self.0.iter().find(|(_, matcher, _)| !is_used(matcher)).map(|(text, ..)| text.as_str())
    }
}

impl Matcher {
    fn new(pattern: &str) -> Result<Self, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
        if pattern.chars().all(is_plain) {
            return Ok(Self::Plain(pattern.to_string()));
        }
        let whole = Regex::new(&format!("^(?:.*\\.)?(?:{pattern})$"));
        whole.map(Self::Regex).map_err(|_| format!("`{pattern}` is not a supported regular expression"))
    }

    fn fits(&self, name: &str) -> bool {
        match self {
            Self::Regex(regex) => regex.is_match(name),
            Self::Plain(pattern) => {
                let (name, pattern) = (name.as_bytes(), pattern.as_bytes());
                let Some(start) = name.len().checked_sub(pattern.len()) else { return false };
                let is_same = |(own, wanted): (&u8, &u8)| *wanted == b'.' || own == wanted;
                (start == 0 || name[start - 1] == b'.') && name[start..].iter().zip(pattern).all(is_same)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Patterns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(InOrder)
    }
}

struct InOrder;

impl<'de> Visitor<'de> for InOrder {
    type Value = Patterns;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object that maps patterns to numbers")
    }

    fn visit_unit<E>(self) -> Result<Patterns, E> {
        Ok(Patterns::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Patterns, A::Error> {
        let mut patterns = Vec::new();
        while let Some((pattern, value)) = map.next_entry::<String, f64>()? {
            let matcher = Matcher::new(&pattern).map_err(serde::de::Error::custom)?;
            if patterns.len() == MAX {
                return Err(serde::de::Error::custom(format!("there are more than {MAX} patterns")));
            }
            patterns.push((pattern, matcher, value));
        }
        Ok(Patterns(patterns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Patterns, String> {
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    fn value(patterns: &Patterns, name: &str) -> Option<f64> {
        patterns.value(&[name.to_string()])
    }

    #[test]
    fn the_first_pattern_in_the_file_that_ends_a_name_counts() {
        let patterns = read(r#"{"to_q": 16, "1.attn.to_q": 2, "1.attn.to_k": 3, "to_k": 4}"#).unwrap();
        assert_eq!(value(&patterns, "transformer_blocks.0.attn.to_q"), Some(16.0));
        assert_eq!(value(&patterns, "transformer_blocks.1.attn.to_q"), Some(16.0), "as PEFT takes the first");
        assert_eq!(value(&patterns, "transformer_blocks.1.attn.to_k"), Some(3.0));
        assert_eq!(value(&patterns, "transformer_blocks.11.attn.to_k"), Some(4.0), "only behind a dot");
        assert_eq!(value(&patterns, "to_k"), Some(4.0));
        assert_eq!((value(&patterns, "a.add_to_k"), value(&patterns, "")), (None, None));
        let layers = [vec!["a.to_k".to_string()], vec!["1.attn.to_k".to_string()]];
        assert_eq!(patterns.unused(layers.iter().map(Vec::as_slice)), Some("to_q"));
    }

    #[test]
    fn patterns_are_regular_expressions() {
        let patterns =
            read(r#"{"^transformer_blocks\\.[0-2]\\..*": 1, "(to_q|to_v)": 2, "attn.to_.": 3, "single.*\\.1\\d": 4}"#);
        let patterns = patterns.unwrap();
        assert_eq!(value(&patterns, "transformer_blocks.1.attn.to_q"), Some(1.0));
        assert_eq!(value(&patterns, "single_transformer_blocks.1.attn.to_v"), Some(2.0));
        assert_eq!(value(&patterns, "transformer_blocks.3.attn.to_k"), Some(3.0));
        assert_eq!(value(&patterns, "single_blocks.12"), Some(4.0));
        assert_eq!(value(&patterns, "single_blocks.12.linear1"), None, "to the end");
    }

    #[test]
    fn what_is_no_list_of_numbers_by_pattern_is_refused() {
        assert!(read("null").unwrap().value(&["a".to_string()]).is_none());
        for (text, why) in [
            ("3", "an object that maps patterns to numbers"),
            (r#"{"a": "x"}"#, "f64"),
            (r#"{"(": 1}"#, "`(` is not a supported regular expression"),
            (r#"{"(?<!x)a": 1}"#, "not a supported regular expression"),
        ] {
            assert!(read(text).unwrap_err().contains(why), "{text}: {:?}", read(text));
        }
        let many: Vec<String> = (0..=MAX).map(|i| format!("\"a{i}\": 1")).collect();
        assert!(read(&format!("{{{}}}", many.join(","))).unwrap_err().contains("4096"));
    }
}
