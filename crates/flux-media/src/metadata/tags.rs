//! Tags in prompts of A1111's clients: `<lora:NAME:WEIGHT>`, and words with weights.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

/// `<KIND:NAME:ARGUMENTS>`
static TAG: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)<(lora|lyco|locon|loha|hypernet):([^:>]*)((?::[^>]*)?)>").expect("a regular expression")
});
/// `:1.2)`, the end of `(words:1.2)`.
static WEIGHT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^:\s*[+-]?([0-9]*\.?[0-9]+)\s*\)").expect("a regular expression"));

/// Maximum brackets that are tried as the start of JSON. Each attempt may read the rest of the prompt.
const MAX_STARTS: usize = 256;

/// A tag that requests an adapter.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterTag {
    /// The tag as written.
    pub text: String,
    /// The name as written.
    pub name: String,
    /// The weight on the transformer. `None` if it is no number, or the adapter is of another kind.
    pub weight: Option<f32>,
    /// `true` if the text encoder has another weight.
    pub has_other_text_weight: bool,
    /// The factors of blocks, behind `lbw=`.
    pub blocks: Option<String>,
}

/// Splits a prompt into its words and its tags.
pub fn split_tags(prompt: &str) -> (String, Vec<AdapterTag>) {
    let tags = TAG.captures_iter(prompt).map(|found| {
        let kind = found[1].to_lowercase();
        let (weight, has_other_text_weight) = weights(&found[3]);
        AdapterTag {
            text: found[0].to_string(),
            name: found[2].trim().to_string(),
            weight: weight.filter(|_| kind != "hypernet"),
            has_other_text_weight,
            blocks: found[3].split(':').find_map(|argument| argument.trim().strip_prefix("lbw=")).map(str::to_string),
        }
    });
    let tags: Vec<_> = tags.collect();
    if tags.is_empty() {
        return (prompt.to_string(), tags);
    }
    (TAG.replace_all(prompt, "").trim().to_string(), tags)
}

/// Returns the weight on the transformer of `:0.5`, `:TEXT:TRANSFORMER` or `:te=TEXT:unet=TRANSFORMER`, and `true` if
/// the weight on the text encoder differs.
fn weights(arguments: &str) -> (Option<f32>, bool) {
    let (mut places, mut named) = (Vec::new(), [None, None]);
    for argument in arguments.split(':').skip(1).map(str::trim) {
        match argument.split_once('=') {
            Some(("te", weight)) => named[0] = Some(weight),
            Some(("unet", weight)) => named[1] = Some(weight),
            Some(_) => {}
            None => places.push(argument),
        }
    }
    let number = |text: &str| text.trim().parse::<f32>().ok().filter(|weight| weight.is_finite());
    let text = named[0].or(places.first().copied()).unwrap_or("1");
    let transformer = named[1].or(places.get(1).copied()).unwrap_or(text);
    let weight = number(transformer);
    (weight, number(text) != weight)
}

/// Returns a prompt with the words of `(words:1.3)` in their place, and the first of these as written. Escaped
/// brackets, such as `\(`, become brackets. JSON at the end of the prompt, or in place of one, stays as it is.
pub fn split_weights(prompt: &str) -> (String, Option<&str>) {
    let end = start_of_json(prompt);
    let (mut words, mut first, mut open) = (String::with_capacity(prompt.len()), None, Vec::new());
    let mut removed = Vec::new();
    let mut rest = &prompt[..end];
    while let Some(c) = rest.chars().next() {
        let at = end - rest.len();
        rest = &rest[c.len_utf8()..];
        match c {
            '\\' if rest.starts_with(['(', ')', '[', ']', '\\']) => {
                words.push_str(&rest[..1]);
                rest = &rest[1..];
                continue;
            }
            '(' => open.push((at, words.len())),
            ')' => drop(open.pop()),
            ':' => {
                let weight = WEIGHT.captures(&prompt[at..end]);
                // A time or a ratio, such as 16:9, has no decimals.
                let is_weight = |weight: &str| weight.contains('.') || !words.ends_with(|c: char| c.is_ascii_digit());
                let weight = weight.filter(|weight| is_weight(&weight[1])).map(|weight| weight[0].len());
                if let Some((weight, (start, bracket))) = weight.and_then(|weight| Some((weight, open.pop()?))) {
                    first = first.or(Some(&prompt[start..at + weight]));
                    removed.push(bracket);
                    rest = &rest[weight - 1..];
                    continue;
                }
            }
            _ => {}
        }
        words.push(c);
    }
    removed.sort_unstable();
    let mut kept = String::with_capacity(prompt.len());
    let mut from = 0;
    for bracket in removed {
        kept.push_str(&words[from..bracket]);
        from = bracket + 1;
    }
    (kept + &words[from..] + &prompt[end..], first)
}

/// Returns the start of the JSON object or list at the end of a text, or its length.
fn start_of_json(text: &str) -> usize {
    let starts = if text.trim_end().ends_with(['}', ']']) { MAX_STARTS } else { 0 };
    let mut starts = text.match_indices(['{', '[']).map(|(start, _)| start).take(starts);
    starts.find(|start| serde_json::from_str::<Value>(&text[*start..]).is_ok()).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_leave_the_prompt() {
        let read = |prompt: &str| {
            let (words, tags) = split_tags(prompt);
            (words, tags.into_iter().map(|tag| (tag.name, tag.weight, tag.has_other_text_weight)).collect::<Vec<_>>())
        };
        let tag = |name: &str, weight, differs| (name.to_string(), weight, differs);
        assert_eq!(read("a cat <lora:ink:0.5>"), ("a cat".to_string(), vec![tag("ink", Some(0.5), false)]));
        assert_eq!(
            read("<LoRA:x/ink> a <lora:ink:2:3> cat"),
            ("a  cat".to_string(), vec![tag("x/ink", Some(1.0), false), tag("ink", Some(3.0), true)])
        );
        assert_eq!(read("<lora:ink:te=0.5:unet=1:dyn=8>").1, [tag("ink", Some(1.0), true)]);
        let blocks = |prompt: &str| split_tags(prompt).1[0].blocks.clone();
        assert_eq!(blocks("<lora:ink:1:lbw=single=0.5,other=0>").as_deref(), Some("single=0.5,other=0"));
        assert_eq!(blocks("<lora:ink:1>"), None);
        assert_eq!(read("a <lora:ink:x>").1, [tag("ink", None, false)]);
        assert_eq!(read("a <lora:ink:nan>b").1, [tag("ink", None, false)]);
        assert_eq!(read("a <hypernet:ink:1>").1, [tag("ink", None, false)]);
        for plain in ["a <lora:ink", "a <other:x:1> ", "", " a < b > c"] {
            assert_eq!(read(plain), (plain.to_string(), vec![]));
        }
    }

    #[test]
    fn words_lose_their_weights() {
        for (prompt, words, first) in [
            ("(red:1.5) heart", "red heart", Some("(red:1.5)")),
            ("a (red, big: 1.3 ) cat (y:.9)", "a red, big cat y", Some("(red, big: 1.3 )")),
            ("((a:1.2) b:0.5) c", "a b c", Some("(a:1.2)")),
            ("((x):1.1)", "(x)", Some("((x):1.1)")),
            ("(cyberpunk 2077:1.2)", "cyberpunk 2077", Some("(cyberpunk 2077:1.2)")),
            (r"miku \(a:1.2\) [b\]", "miku (a:1.2) [b]", None),
            (r"(a \(b\):2) \\", r"a (b) \", Some(r"(a \(b\):2)")),
            ("a (red) cat", "a (red) cat", None),
            ("at 12:30, (at 12:30), (16:9)", "at 12:30, (at 12:30), (16:9)", None),
            ("(note: a cat), (x:), (:1", "(note: a cat), (x:), (:1", None),
            ("a:1.2) (käse:2) ü", "a:1.2) käse ü", Some("(käse:2)")),
            ("", "", None),
            (r#"{"a": "(red:1.5) \\(x\\)"}"#, r#"{"a": "(red:1.5) \\(x\\)"}"#, None),
            (r#"(a:1.1) <b> [{"d": "(red:1.5)"}]"#, r#"a <b> [{"d": "(red:1.5)"}]"#, Some("(a:1.1)")),
        ] {
            assert_eq!(split_weights(prompt), (words.to_string(), first), "{prompt}");
        }
    }
}
