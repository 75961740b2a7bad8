//! The request to the language model: messages and sampling.

use flux::engine::boxes::table;
use flux::engine::{EmbeddedFiles, Recipe};
use flux::error::{Error, Field, Result};
use flux::files::digest::sha256;
use flux::model::ModelInfo;
use serde_json::{Map, Value, json};

use crate::pictures::data_urls;
use crate::system::{Mode, System};

/// Maximum tokens of an answer.
pub const MAX_TOKENS: usize = 3584;
/// Fields of the request that some servers do not know, and the words with which an error names them.
const OPTIONAL: [(&str, &str); 6] = [
    ("chat_template_kwargs", "chat_template_kwargs"),
    ("chat_template_kwargs", "enable_thinking"),
    ("reasoning_effort", "reasoning_effort"),
    ("response_format", "response_format"),
    ("max_tokens", "max_tokens"),
    ("temperature", "temperature"),
];

/// A request for a prompt.
#[derive(Debug, Clone)]
pub struct Request {
    /// The recipe whose prompt is rewritten.
    pub(crate) recipe: Recipe,
    /// The system prompt.
    pub(crate) system: String,
    /// The text of the user.
    text: String,
    /// The input images as data URLs.
    pictures: Vec<String>,
    /// `true` if the answer must be a JSON object of caption and rows.
    is_structured: bool,
}

impl Request {
    /// Creates the request for the prompt of a recipe; `files` has the bytes of its input images.
    ///
    /// Errors if the recipe has no prompt, the model does not read its boxes, or an image cannot be read.
    pub fn new(recipe: &Recipe, files: &EmbeddedFiles, info: &ModelInfo, system: &System) -> Result<Self> {
        let recipe = recipe.clone().before_upsampling();
        recipe.check()?;
        if recipe.embeddings.is_some() {
            let what = format!("`{:#}` cannot be used with `{:#}`", Field::Upsample, Field::Embeddings);
            return Err(Error::usage(what).for_field(Field::Upsample).hint("leave one of them out"));
        }
        if recipe.prompt.trim().is_empty() {
            let what = "there is no prompt that a language model could rewrite";
            return Err(Error::usage(what).for_field(Field::Upsample).hint("write a prompt, or leave the option out"));
        }
        let mode = Mode {
            edits: !recipe.inputs.is_empty(),
            boxes: !recipe.boxes.is_empty(),
            captions: info.kind.wants_captions,
        };
        if mode.boxes {
            info.check_boxes()?;
        }
        let (system, is_own) = system.prompt(mode)?;
        let pictures = data_urls(&recipe, files)?;
        let text = text(&recipe, info.default_image_size);
        Ok(Self { system: system.to_string(), text, pictures, is_structured: mode.boxes && is_own, recipe })
    }

    /// Returns the key of the answer in the cache.
    pub fn key(&self, model: &str, extra: &Map<String, Value>) -> String {
        let Self { recipe, system, text, pictures, .. } = self;
        let digests: Vec<_> = pictures.iter().map(|url| sha256(url.as_bytes())).collect();
        sha256(json!([system, text, recipe.boxes, digests, model, extra]).to_string().as_bytes())
    }

    /// Returns the JSON body. `extra` replaces and adds fields; `null` removes one.
    pub fn body(&self, model: &str, extra: &Map<String, Value>) -> Map<String, Value> {
        let text = |text: &str| json!({"type": "text", "text": text});
        let picture = |url: &String| json!({"type": "image_url", "image_url": {"url": url}});
        let user = match self.pictures.is_empty() {
            true => Value::from(self.text.as_str()),
            false => self.pictures.iter().map(picture).chain([text(&self.text)]).collect::<Value>(),
        };
        let mut body = Map::from_iter([
            ("model".to_string(), model.into()),
            (
                "messages".to_string(),
                json!([{"role": "system", "content": self.system}, {"role": "user", "content": user}]),
            ),
            ("stream".to_string(), false.into()),
            ("temperature".to_string(), 0.into()),
            ("max_tokens".to_string(), MAX_TOKENS.into()),
            // Thinking is switched off: llama.cpp, vLLM and SGLang read the first field, Ollama and OpenAI the second.
            ("chat_template_kwargs".to_string(), json!({"enable_thinking": false})),
            ("reasoning_effort".to_string(), "none".into()),
        ]);
        if self.is_structured {
            body.insert("response_format".to_string(), schema(!self.recipe.inputs.is_empty()));
        }
        body.extend(extra.clone());
        body.retain(|_, value| !value.is_null());
        body
    }
}

/// Removes a field that the error of a server names, or gives it the name that the server expects. Returns `false` if
/// the error names none.
pub fn without_named(body: &mut Map<String, Value>, error: &str) -> bool {
    let named = OPTIONAL.iter().find(|(field, word)| body.contains_key(*field) && error.contains(word));
    let Some((field, _)) = named else { return false };
    let value = body.remove(*field);
    if let Some(value) = value.filter(|_| *field == "max_tokens" && error.contains("max_completion_tokens")) {
        body.insert("max_completion_tokens".to_string(), value);
    }
    true
}

/// Returns the text of the user: the request with canvas, boxes and images. A model of Black Forest Labs was trained on
/// these words.
///
/// Source: `format_layout_request` and `I2I_SCAFFOLD` of the FLUX.3 prompt upsampler in diffusers. The line with the
/// canvas is in its system prompts for new images.
fn text(recipe: &Recipe, [height, width]: [usize; 2]) -> String {
    let (edits, prompt) = (!recipe.inputs.is_empty(), recipe.prompt.trim());
    let request = match recipe.boxes.is_empty() {
        true => prompt.to_string(),
        false => format!(
            "ORIGINAL PROMPT:\n{prompt}\n\nLOCKED BOUNDING-BOX ANNOTATIONS ([y_min, x_min, y_max, x_max] on a 0-1000 \
             canvas, with (0, 0) at the top-left). This is an authoritative JSON list of dictionaries; preserve every \
             supplied identity, provenance value, null, and coordinate exactly:\n{}",
            table(&recipe.boxes, edits)
        ),
    };
    match (edits, recipe.boxes.is_empty()) {
        (false, _) => {
            let [width, height] = [recipe.width.unwrap_or(width), recipe.height.unwrap_or(height)];
            let divisor = divisor(width, height).max(1);
            format!("TARGET CANVAS: {}:{}\n{request}", width / divisor, height / divisor)
        }
        (true, true) => format!(
            "Reference images follow in order (the first image, the second image, ...).\nUser request: \
             {request}\nOutput the caption."
        ),
        (true, false) => format!(
            "Reference images follow in attachment order: ref_image_0, ref_image_1, ...\nUser editing instruction: \
             {request}\nDecide the edit, imagine the target image, and output the annotation record."
        ),
    }
}

/// Returns the greatest common divisor.
fn divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// Returns the form of an answer with caption and rows.
fn schema(edits: bool) -> Value {
    let integers = json!({"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 4});
    let text = json!({"type": "string"});
    let place = json!({"anyOf": [integers, {"type": "null"}]});
    let row = match edits {
        false => json!({"id": text, "bbox": integers, "desc": text}),
        true => json!({"id": text, "from": text, "src_bbox": place, "tgt_bbox": place, "desc": text}),
    };
    let object = |properties: Value| {
        let keys: Vec<_> = properties.as_object().into_iter().flat_map(Map::keys).cloned().collect();
        json!({"type": "object", "properties": properties, "required": keys, "additionalProperties": false})
    };
    let answer = object(json!({"caption": text, "rows": {"type": "array", "items": object(row)}}));
    json!({"type": "json_schema", "json_schema": {"name": "caption", "strict": true, "schema": answer}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(boxes: bool, edits: bool) -> Recipe {
        let row = r#"[{"id": "cat_1", "bbox": [0, 100, 500, 900], "desc": "ä"}]"#;
        let boxes = if boxes { serde_json::from_str(row).unwrap() } else { Vec::new() };
        let inputs = if edits { vec!["a.png".into()] } else { Vec::new() };
        Recipe { boxes, inputs, width: Some(768), ..Recipe::new(" a cat ", 1) }
    }

    #[test]
    fn texts_are_those_of_the_reference() {
        let text = |boxes, edits| text(&recipe(boxes, edits), [512, 1024]);
        assert_eq!(text(false, false), "TARGET CANVAS: 3:2\na cat");
        let edit = "Reference images follow in order (the first image, the second image, ...).\nUser request: a \
                    cat\nOutput the caption.";
        assert_eq!(text(false, true), edit);
        let boxes = |rows: &str| {
            format!(
                "ORIGINAL PROMPT:\na cat\n\nLOCKED BOUNDING-BOX ANNOTATIONS ([y_min, x_min, y_max, x_max] on a 0-1000 \
                 canvas, with (0, 0) at the top-left). This is an authoritative JSON list of dictionaries; preserve \
                 every supplied identity, provenance value, null, and coordinate exactly:\n{rows}"
            )
        };
        let rows = r#"[{"id": "cat_1", "bbox": [0, 100, 500, 900], "desc": "ä"}]"#;
        assert_eq!(text(true, false), format!("TARGET CANVAS: 3:2\n{}", boxes(rows)));
        let rows =
            r#"[{"id": "cat_1", "from": "target", "src_bbox": null, "tgt_bbox": [0, 100, 500, 900], "desc": "ä"}]"#;
        let expected = format!(
            "Reference images follow in attachment order: ref_image_0, ref_image_1, ...\nUser editing instruction: \
             {}\nDecide the edit, imagine the target image, and output the annotation record.",
            boxes(rows)
        );
        assert_eq!(text(true, true), expected);
    }

    fn request() -> Request {
        let (system, text) = ("s".to_string(), "t".to_string());
        Request { recipe: recipe(true, true), system, text, pictures: vec!["data:x".to_string()], is_structured: true }
    }

    #[test]
    fn a_body_has_pictures_before_the_text_and_a_schema() {
        let extra = json!({"top_k": 1, "reasoning_effort": null}).as_object().unwrap().clone();
        let body = Value::Object(request().body("m", &extra));
        let content = json!([{"type": "image_url", "image_url": {"url": "data:x"}}, {"type": "text", "text": "t"}]);
        assert_eq!(body["messages"], json!([{"role": "system", "content": "s"}, {"role": "user", "content": content}]));
        assert_eq!((&body["max_tokens"], &body["temperature"], &body["top_k"]), (&json!(3584), &json!(0), &json!(1)));
        let rows = &body["response_format"]["json_schema"]["schema"]["properties"]["rows"]["items"]["properties"];
        assert!(rows["src_bbox"].is_object() && body.get("reasoning_effort").is_none());
    }

    #[test]
    fn a_field_that_an_error_names_is_left_out() {
        let mut body = request().body("m", &Map::new());
        assert!(
            without_named(&mut body, "unknown field `enable_thinking`") && !body.contains_key("chat_template_kwargs")
        );
        assert!(!without_named(&mut body, "unknown field `enable_thinking`"), "only once");
        assert!(without_named(&mut body, "'max_tokens' is not supported, use 'max_completion_tokens'"));
        assert_eq!((body.get("max_tokens"), &body["max_completion_tokens"]), (None, &json!(MAX_TOKENS)));
        assert!(!without_named(&mut body, "no such model"));
    }

    #[test]
    fn all_that_changes_an_answer_changes_the_key() {
        let (first, none) = (request(), Map::new());
        let key = first.key("m", &none);
        assert_eq!((key.len(), key == request().key("m", &none)), (64, true));
        let extra = json!({"top_k": 1}).as_object().unwrap().clone();
        let others = [
            Request { system: "other".to_string(), ..request() },
            Request { text: "other".to_string(), ..request() },
            Request { pictures: vec!["other".to_string()], ..request() },
            Request { recipe: recipe(false, true), ..request() },
        ];
        let others = others.iter().map(|other| other.key("m", &none));
        let keys: Vec<_> = others.chain([first.key("other", &none), first.key("m", &extra)]).collect();
        assert!(keys.iter().all(|other| *other != key));
    }
}
