//! Tags in prompts of A1111's clients: `<lora:NAME:WEIGHT>`, and words with weights.

use std::sync::LazyLock;

use regex::Regex;

/// `<KIND:NAME:ARGUMENTS>`
static TAG: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)<(lora|lyco|locon|loha|hypernet):([^:>]*)((?::[^>]*)?)>").expect("a regular expression")
});
/// `(words:1.2)`
static WEIGHTED: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\(([^()]*):\s*[0-9]*\.?[0-9]+\s*\)").expect("a regular expression"));

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

/// Returns `true` if words of a prompt have weights, as in `(red:1.3)`.
pub fn has_weighted_words(prompt: &str) -> bool {
    WEIGHTED.is_match(prompt)
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
        assert_eq!(read("a <lora:ink:x>").1, [tag("ink", None, false)]);
        assert_eq!(read("a <lora:ink:nan>b").1, [tag("ink", None, false)]);
        assert_eq!(read("a <hypernet:ink:1>").1, [tag("ink", None, false)]);
        for plain in ["a <lora:ink", "a <other:x:1> ", "", " a < b > c"] {
            assert_eq!(read(plain), (plain.to_string(), vec![]));
        }
    }

    #[test]
    fn weights_of_words_are_noticed() {
        for prompt in ["a (red:1.3) cat", "(a, b:0.5)", "((x):.9) (y: 1.2 )"] {
            assert!(has_weighted_words(prompt), "{prompt}");
        }
        for prompt in ["a (red) cat", "at 12:30", "(note: a cat)", "(x:)"] {
            assert!(!has_weighted_words(prompt), "{prompt}");
        }
    }
}
