//! The answer of the language model: its text, cleaned, checked and reconciled with the boxes.

use flux::engine::Recipe;
use flux::engine::boxes::reconcile;
use flux::error::{Error, Result, shortened};
use flux::pipeline::MAX_PROMPT_BYTES;
use serde_json::Value;

use crate::request::MAX_TOKENS;

/// Beginnings of refusals, in lower case and with plain apostrophes.
const REFUSALS: [&str; 8] =
    ["i can't", "i cannot", "i'm sorry", "i am sorry", "sorry", "i'm unable", "i am unable", "as an ai"];
/// Maximum characters of a quoted part in a note.
const MAX_QUOTED: usize = 60;

/// Returns the prompt in an answer of `/chat/completions` to the request in `recipe`.
///
/// Errors if the answer has no text, or was cut.
pub fn prompt(answer: &Value, recipe: &Recipe) -> Result<String> {
    let wrong = |what: String| Error::new(what).hint("try another language model with `--upsample-model`");
    let choice = &answer["choices"][0];
    let message = &choice["message"];
    if choice["finish_reason"] == "length" {
        return Err(wrong(format!("the answer of the language model was cut at {MAX_TOKENS} tokens")));
    }
    let text = match &message["content"] {
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        content => content.as_str().unwrap_or_default().to_string(),
    };
    let text = cleaned(&text);
    if text.is_empty() {
        return Err(wrong(match message["refusal"].as_str().filter(|refusal| !refusal.is_empty()) {
            Some(refusal) => format!("the language model refuses: {}", shortened(refusal, MAX_QUOTED)),
            None => "the answer of the language model is empty".to_string(),
        }));
    }
    let text = match recipe.boxes.is_empty() {
        true => text,
        false => reconcile(&joined(text), &recipe.boxes, !recipe.inputs.is_empty()),
    };
    if text.len() > MAX_PROMPT_BYTES {
        let bytes = text.len();
        return Err(wrong(format!(
            "the answer of the language model is {bytes} bytes long, expected at most {MAX_PROMPT_BYTES}"
        )));
    }
    Ok(text)
}

/// Removes what surrounds a caption: a block of thoughts, a Markdown fence, quotes around all of it, and control
/// characters, which no prompt may contain.
fn cleaned(text: &str) -> String {
    let text = text.trim();
    let text = match text.strip_prefix("<think>") {
        Some(thoughts) => thoughts.split_once("</think>").map_or("", |(_, rest)| rest),
        None => text,
    };
    let text = text.trim();
    let fenced = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    let text = fenced.and_then(|rest| rest.split_once('\n')).map_or(text, |(_, inside)| inside.trim());
    let quoted = |open: char, close: char| {
        let inside = text.strip_prefix(open)?.strip_suffix(close)?;
        (!inside.contains([open, close])).then_some(inside)
    };
    let text = quoted('"', '"').or_else(|| quoted('“', '”')).unwrap_or(text);
    let is_allowed = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
    text.replace("\r\n", "\n").chars().filter(is_allowed).collect::<String>().trim().to_string()
}

/// Returns the text of an answer that is a JSON object with a caption and rows: both, one after the other.
fn joined(text: String) -> String {
    let object = serde_json::from_str::<Value>(&text).unwrap_or_default();
    match (object["caption"].as_str(), object["rows"].as_array()) {
        (Some(caption), Some(rows)) => format!("{} {}", caption.trim(), Value::from(rows.clone())),
        (Some(caption), None) => caption.trim().to_string(),
        (None, _) => text,
    }
}

/// Returns notes about a prompt that may not be what was requested: it looks like a refusal, or lacks a text that the
/// request has in quotes.
pub fn notes(prompt: &str, request: &str) -> Vec<String> {
    let start: String = prompt.chars().take(20).collect::<String>().to_lowercase().replace('’', "'");
    let refusal = REFUSALS
        .iter()
        .any(|refusal| start.starts_with(refusal))
        .then(|| format!("the language model seems to refuse: `{}`", shortened(prompt, MAX_QUOTED)));
    let lost = quoted_texts(request).into_iter().filter(|text| !prompt.contains(text));
    let lost = lost.map(|text| format!("the written prompt lacks the text `{}`", shortened(text, MAX_QUOTED)));
    refusal.into_iter().chain(lost).collect()
}

/// Returns the texts in double quotes.
fn quoted_texts(request: &str) -> Vec<&str> {
    let parts = request.split(['"', '“', '”']).collect::<Vec<_>>();
    // An odd number of parts: each quote is closed.
    let count = if parts.len() % 2 == 1 { parts.len() } else { 0 };
    parts[..count].iter().skip(1).step_by(2).map(|text| text.trim()).filter(|text| !text.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(content: &str) -> Result<String> {
        let answer = json!({"choices": [{"message": {"content": content}, "finish_reason": "stop"}]});
        prompt(&answer, &Recipe::new("x", 1))
    }

    #[test]
    fn only_the_caption_is_left() {
        for content in [
            "a cat",
            " a cat\n",
            "\"a cat\"",
            "“a cat”",
            "<think>\nwhich?\n</think>\n\na cat",
            "```\na cat\n```",
            "```text\na cat\n```",
            "<think></think>```\n\"a cat\"\n```",
            "a\u{1b} cat\r\n",
        ] {
            assert_eq!(read(content).unwrap(), "a cat", "{content:?}");
        }
        for kept in ["\"A\" and \"B\"", "a sign \"SALE\"", "two\nlines", "{\"scene\": \"a cat\"}"] {
            assert_eq!(read(kept).unwrap(), kept);
        }
    }

    #[test]
    fn an_answer_without_a_caption_is_an_error() {
        for content in ["", " \n", "\"\"", "<think>and so on"] {
            assert!(read(content).unwrap_err().what().contains("empty"), "{content:?}");
        }
        assert!(read(&"x".repeat(70_000)).unwrap_err().what().contains("70000 bytes"));
        let read = |answer: Value| prompt(&answer, &Recipe::new("x", 1));
        assert!(read(json!({})).is_err() && read(json!({"choices": []})).is_err() && read(json!(1)).is_err());
        let cut = json!({"choices": [{"message": {"content": "a"}, "finish_reason": "length"}]});
        assert!(read(cut).unwrap_err().what().contains("3584 tokens"));
        let refused = json!({"choices": [{"message": {"content": null, "refusal": "No."}}]});
        assert!(read(refused).unwrap_err().what().contains("refuses: No."));
        let parts = json!({"choices": [{"message": {"content": [{"type": "text", "text": "a cat"}]}}]});
        assert_eq!(read(parts).unwrap(), "a cat");
    }

    #[test]
    fn a_caption_and_rows_are_reconciled_with_the_boxes() {
        let boxes = serde_json::from_str(r#"[{"id": "cat_1", "bbox": [0, 0, 500, 500]}]"#).unwrap();
        let recipe = Recipe { boxes, ..Recipe::new("a cat", 1) };
        let rows = r#"[{"id": "kitten_1", "bbox": [0, 0, 500, 499], "desc": "grey"}]"#;
        let object = format!(r#"{{"caption": "A kitten <kitten_1>.", "rows": {rows}}}"#);
        for content in [object, format!("A kitten <kitten_1>. {rows}")] {
            let answer = json!({"choices": [{"message": {"content": content}}]});
            let expected = r#"A kitten <cat_1>. [{"id": "cat_1", "bbox": [0, 0, 500, 500], "desc": "grey"}]"#;
            assert_eq!(prompt(&answer, &recipe).unwrap(), expected);
        }
    }

    #[test]
    fn a_refusal_and_a_lost_text_are_noted() {
        assert!(notes("I can’t help with that.", "x")[0].contains("seems to refuse"));
        assert!(notes("Sorry, no", "x")[0].contains("Sorry, no"));
        let request = "a sign \"SALE\" and “50% off”";
        assert!(notes("A sign that reads \"SALE\" and \"50% off\".", request).is_empty());
        assert!(matches!(&notes("A sign \"SALE\".", request)[..], [note] if note.contains("`50% off`")));
        assert!(notes("a screen", "a 19\" screen").is_empty(), "a quote that is not closed is an inch");
    }
}
