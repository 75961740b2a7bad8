//! The text in which A1111's web UI, Forge and many other programs store how an image was made:
//!
//! ```text
//! a prompt,
//! of several lines
//! Negative prompt: and another one
//! Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: 5, Size: 512x768, Lora hashes: "ink: 1f, oil: 2e", Version: v1.10.1
//! ```
//!
//! Source: `parse_generation_parameters` in A1111's `modules/infotext_utils.py`.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

/// Fewer pairs count as the last line of a prompt.
const MIN_PAIRS: usize = 3;
const NEGATIVE: &str = "Negative prompt:";

/// A key, up to its value.
static KEY: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\s*(\w[\w \-/]+):\s*").expect("a regular expression"));

/// The parts of such a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Infotext {
    /// The lines before the negative prompt.
    pub prompt: String,
    /// The lines before the settings.
    pub negative: String,
    /// The settings, in their order.
    pub pairs: Vec<(String, String)>,
}

impl Infotext {
    /// Reads a text. A text without settings is all prompt.
    pub fn parse(text: &str) -> Self {
        let lines: Vec<&str> = text.trim().split('\n').collect();
        let settings = settings_line(&lines);
        let (words, settings) = lines.split_at(settings.unwrap_or(lines.len()));
        let (mut prompt, mut negative, mut is_negative) = (Vec::new(), Vec::new(), false);
        for line in words.iter().map(|line| line.trim()) {
            match line.strip_prefix(NEGATIVE) {
                Some(rest) => {
                    is_negative = true;
                    negative.push(rest.trim());
                }
                None if is_negative => negative.push(line),
                None => prompt.push(line),
            }
        }
        Self {
            prompt: prompt.join("\n"),
            negative: negative.join("\n").trim().to_string(),
            pairs: settings.iter().flat_map(|line| pairs(line)).collect(),
        }
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }
}

/// Returns the line of the settings: the last line, or a line that begins as settings do, if other programs added
/// lines.
fn settings_line(lines: &[&str]) -> Option<usize> {
    let is_settings = |line: &str| pairs(line).len() >= MIN_PAIRS;
    let begins = |line: &&str| line.trim_start().starts_with("Steps: ");
    let last = lines.len().checked_sub(1)?;
    let begun = lines.iter().rposition(begins).filter(|place| is_settings(lines[*place]));
    begun.or_else(|| Some(last).filter(|last| is_settings(lines[*last])))
}

/// Returns the keys and values of a line.
fn pairs(line: &str) -> Vec<(String, String)> {
    let (mut pairs, mut rest, mut may_be_json) = (Vec::new(), line, true);
    while let Some((whole, key)) = KEY.captures(rest).and_then(|found| Some((found.get(0)?, found.get(1)?.as_str()))) {
        let behind = &rest[whole.end()..];
        let taken = quoted(behind).or_else(|| {
            let json = may_be_json.then(|| json(behind)).flatten();
            // Otherwise an unclosed value would be parsed again after each key.
            may_be_json &= json.is_some() || !behind.starts_with(['[', '{']);
            json
        });
        let (value, length) = taken.unwrap_or_else(|| {
            let end = behind.find(',').unwrap_or(behind.len());
            (behind[..end].trim_end().to_string(), end)
        });
        pairs.push((key.to_string(), value));
        rest = &behind[length..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    pairs
}

/// Parses a quoted value, followed by a comma or the end, and returns its length.
fn quoted(text: &str) -> Option<(String, usize)> {
    let mut is_escaped = false;
    let inside = text.strip_prefix('"')?;
    let end = inside.bytes().position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    })?;
    let length = end + 2;
    let value = serde_json::from_str(&text[..length]).unwrap_or_else(|_| inside[..end].to_string());
    ends(text, length).then_some((value, length))
}

/// Parses a JSON list or object, followed by a comma or the end, and returns its length.
fn json(text: &str) -> Option<(String, usize)> {
    if !text.starts_with(['[', '{']) {
        return None;
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    values.next()?.ok()?;
    let length = values.byte_offset();
    ends(text, length).then(|| (text[..length].to_string(), length))
}

fn ends(text: &str, length: usize) -> bool {
    let rest = text[length..].trim_start();
    rest.is_empty() || rest.starts_with(',')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (String, String, Vec<(String, String)>) {
        let Infotext { prompt, negative, pairs } = Infotext::parse(text);
        (prompt, negative, pairs)
    }

    #[test]
    fn prompts_and_settings_are_told_apart() {
        let settings = "Steps: 20, Sampler: DPM++ 2M, Seed: 5, Size: 512x768";
        let pairs = ["Steps 20", "Sampler DPM++ 2M", "Seed 5", "Size 512x768"];
        let pairs =
            pairs.map(|pair| pair.split_once(' ').map(|(key, value)| (key.to_string(), value.to_string())).unwrap());
        for (words, prompt, negative) in [
            ("a cat, (red:1.2)\nNegative prompt: dog, text", "a cat, (red:1.2)", "dog, text"),
            ("a cat,\r\n\r\nNote: a hat\nNegative prompt: dog\nand: more", "a cat,\n\nNote: a hat", "dog\nand: more"),
            ("a cat", "a cat", ""),
            ("Negative prompt: dog", "", "dog"),
            ("a Negative prompt: x", "a Negative prompt: x", ""),
        ] {
            let read = read(&format!("{words}\n{settings}"));
            assert_eq!(read, (prompt.to_string(), negative.to_string(), pairs.to_vec()), "{words}");
        }
        assert_eq!(read(settings), (String::new(), String::new(), pairs.to_vec()));
        let words = "a cat\nA: b, c";
        assert_eq!(read(words), (words.to_string(), String::new(), Vec::new()), "too few pairs");
        let added = read(&format!("a cat\n{settings}\nTemplate: \"a {{cat|dog}}, x\""));
        assert_eq!((added.0.as_str(), &added.2[4].1[..]), ("a cat", "a {cat|dog}, x"));
        assert_eq!(read(""), Default::default());
    }

    #[test]
    fn values_may_hold_commas_in_quotes_and_in_json() {
        let text = concat!(
            r#"x"#,
            "\n",
            r#"Steps: 20, Lora hashes: "ink: 1f, \"oil\": 2e", Hashes: {"model": "a, b", "n": [1, 2]}, Sampler: Euler, "#,
            r#"Civitai resources: [{"type":"checkpoint","id":1},{"type":"lora"}], Broken: [1, Empty: , Open: "a, Seed: 5"#
        );
        let info = Infotext::parse(text);
        assert_eq!(info.get("Lora hashes"), Some("ink: 1f, \"oil\": 2e"));
        assert_eq!(info.get("Hashes"), Some(r#"{"model": "a, b", "n": [1, 2]}"#));
        assert_eq!(info.get("Civitai resources"), Some(r#"[{"type":"checkpoint","id":1},{"type":"lora"}]"#));
        assert_eq!([info.get("Broken"), info.get("Empty")], [Some("[1"), Some("")]);
        assert_eq!([info.get("Open"), info.get("Seed"), info.get("None")], [Some("\"a"), Some("5"), None]);
    }

    #[test]
    fn long_texts_take_no_more_than_their_length() {
        let start = std::time::Instant::now();
        for part in ["ab: [", "ab: \"", "ab: [\"x\", ", "ab: {\"ab: ", "a: ", "\n", "Steps: 1, a: 2, b: 3\n", "a b-"] {
            let _ = Infotext::parse(&part.repeat(200_000));
        }
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }
}
