//! The metadata with which PEFT says how the factors of an adapter are scaled.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// Where it is in the header.
const KEY: &str = "lora_adapter_metadata";
/// In front of the fields that are of the transformer.
const PREFIX: &str = "transformer.";

/// How factors are scaled, where the header says so.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Metadata {
    lora_alpha: Option<f32>,
    #[serde(default)]
    alpha_pattern: HashMap<String, f32>,
    #[serde(default)]
    use_rslora: bool,
}

impl Metadata {
    /// Reads it from the header's metadata; none where there is none.
    ///
    /// Errors when it is no JSON object, or a field is of another type.
    pub fn read(header: &HashMap<String, String>) -> Result<Option<Self>> {
        let Some(text) = header.get(KEY) else { return Ok(None) };
        let wrong = |e: serde_json::Error| {
            Error::new(format!("the metadata `{KEY}` cannot be read: {e}")).hint("the file is damaged: fetch it again")
        };
        let fields: Map<String, Value> = serde_json::from_str(text).map_err(wrong)?;
        let of_transformer = |(name, value): (String, Value)| match name.strip_prefix(PREFIX) {
            Some(name) => Some((name.to_string(), value)),
            None => (!name.contains('.')).then_some((name, value)),
        };
        let fields = fields.into_iter().filter_map(of_transformer).filter(|(_, value)| !value.is_null()).collect();
        serde_json::from_value(Value::Object(fields)).map(Some).map_err(wrong)
    }

    /// What the product of the factors of `module` is multiplied by, which have `rank` rows and columns; none where the
    /// metadata does not say.
    pub fn scale(&self, module: &str, rank: usize) -> Option<f32> {
        // A pattern is the name of a module or its end behind a dot.
        let fits =
            |pattern: &str| module.strip_suffix(pattern).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        let patterns = self.alpha_pattern.iter().filter(|(pattern, _)| fits(pattern));
        let alpha = patterns.max_by_key(|(pattern, _)| pattern.len()).map(|(_, alpha)| *alpha).or(self.lora_alpha)?;
        Some(alpha / if self.use_rslora { (rank as f32).sqrt() } else { rank as f32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<Metadata>> {
        Metadata::read(&HashMap::from([(KEY.to_string(), text.to_string())]))
    }

    #[test]
    fn alpha_is_that_of_the_longest_pattern_that_ends_the_name() {
        let text = r#"{"transformer.r": 8, "transformer.lora_alpha": 4, "transformer.rank_pattern": {},
            "transformer.alpha_pattern": {"to_q": 16, "1.attn.to_q": 2}, "transformer.layers_pattern": null}"#;
        let metadata = read(text).unwrap().unwrap();
        assert_eq!(metadata.scale("transformer_blocks.0.attn.to_k", 8), Some(0.5));
        assert_eq!(metadata.scale("transformer_blocks.0.attn.to_q", 8), Some(2.0));
        assert_eq!(metadata.scale("transformer_blocks.1.attn.to_q", 8), Some(0.25));
        assert_eq!(metadata.scale("a.add_to_q", 8), Some(0.5), "only behind a dot");
        let root = read(r#"{"transformer.lora_alpha": 4.0, "transformer.use_rslora": true}"#).unwrap().unwrap();
        assert_eq!(root.scale("a", 16), Some(1.0));
    }

    #[test]
    fn fields_without_the_prefix_count_and_those_of_other_components_do_not() {
        assert_eq!(read(r#"{"lora_alpha": 2}"#).unwrap().unwrap().scale("a", 4), Some(0.5));
        assert_eq!(read(r#"{"text_encoder.lora_alpha": 2}"#).unwrap().unwrap().scale("a", 4), None);
        assert_eq!(Metadata::read(&HashMap::new()).unwrap(), None);
        for bad in ["", "[]", "{", r#"{"lora_alpha": "x"}"#, r#"{"transformer.alpha_pattern": 3}"#] {
            assert!(read(bad).unwrap_err().to_string().contains("hint: "), "{bad}");
        }
    }
}
