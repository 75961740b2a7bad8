//! What PEFT says of an adapter beside its tensors: in the header of the file, or in a file beside it.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::patterns::Patterns;
use crate::error::{Error, Result};
use crate::files::regular;

/// Where it is in the header. diffusers writes it there.
const KEY: &str = "lora_adapter_metadata";
/// In front of the fields that are of the transformer, and of those of a component that no adapter changes here.
const PREFIX: &str = "transformer.";
const OTHERS: &str = "text_encoder";
/// The longest config.
const MOST_BYTES: usize = 1 << 20;
/// Fields that are of no matter: they say how it was trained, or which layers have tensors.
const NO_MATTER: [&str; 22] = [
    "_custom_modules",
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
];
/// How factors may begin before training. Others change the weights of the model, too.
const INITIAL: [&str; 5] = ["gaussian", "eva", "orthogonal", "mica", "true"];
const HINT: &str = "convert the adapter to a plain LoRA, or use another";

/// What PEFT says.
#[derive(Debug, Clone)]
pub struct Peft {
    /// Where it says it, for messages.
    source: String,
    alpha: Option<f64>,
    rank: Option<f64>,
    alphas: Patterns,
    ranks: Patterns,
    use_rslora: bool,
    use_dora: Option<bool>,
    /// A field that is not known, and may be of no matter.
    unknown: Option<String>,
}

/// The fields whose order counts, with the prefix or without.
#[derive(Deserialize)]
struct InOrder {
    #[serde(default, alias = "transformer.alpha_pattern")]
    alpha_pattern: Patterns,
    #[serde(default, alias = "transformer.rank_pattern")]
    rank_pattern: Patterns,
}

impl Peft {
    /// Reads it from the header's metadata; none where there is none.
    ///
    /// Errors when it is no JSON object, a field is of another type, or says what this program does not do.
    pub fn of_header(header: &HashMap<String, String>) -> Result<Option<Self>> {
        let Some(text) = header.get(KEY) else { return Ok(None) };
        let source = format!("the metadata `{KEY}`");
        let mut fields = Map::new();
        for (name, value) in object(text, &source)? {
            match name.strip_prefix(PREFIX) {
                Some(own) => drop(fields.insert(own.to_string(), value)),
                None if name.starts_with(OTHERS) => {}
                None if name.contains('.') => return Err(unread(&source, &name, &value)),
                None => drop(fields.insert(name, value)),
            }
        }
        if fields.is_empty() {
            return Ok(None);
        }
        Self::of_fields(text, &fields, source).map(Some)
    }

    /// Reads the config of an adapter.
    ///
    /// Errors as [`Peft::of_header`], when it cannot be read, or says no `lora_alpha`.
    pub fn of_file(path: &Path) -> Result<Self> {
        let read = || {
            let text = String::from_utf8(regular::read(path, MOST_BYTES)?);
            let text = text.map_err(|_| Error::new("the config of the adapter is no text"))?;
            let source = format!("`{}`", path.file_name().unwrap_or_default().to_string_lossy());
            let peft = Self::of_fields(&text, &object(&text, &source)?, source.clone())?;
            match peft.alpha {
                Some(_) => Ok(peft),
                None => Err(Error::new(format!("{source} has no `lora_alpha`, by which factors are scaled"))),
            }
        };
        read().map_err(|e| e.at_path(path).hint("fetch the adapter again as a whole"))
    }

    fn of_fields(text: &str, fields: &Map<String, Value>, source: String) -> Result<Self> {
        let is_kind = |kind: &Value| kind.as_str().is_some_and(|kind| kind.eq_ignore_ascii_case("lora"));
        let is_initial = |how: &Value| {
            how.is_boolean() || how.as_str().is_some_and(|how| INITIAL.contains(&how.to_ascii_lowercase().as_str()))
        };
        let mut unknown = None;
        for (name, value) in fields.iter().filter(|(_, value)| is_on(value)) {
            let is_fine = match name.as_str() {
                "peft_type" => is_kind(value),
                "init_lora_weights" => is_initial(value),
                "use_rslora" | "use_dora" => value.is_boolean(),
                "bias" => value == "none",
                known => NO_MATTER.contains(&known),
            };
            if !is_fine && value.is_string() && !["peft_type", "init_lora_weights", "bias"].contains(&name.as_str()) {
                unknown.get_or_insert_with(|| name.clone());
            } else if !is_fine {
                return Err(unread(&source, name, value));
            }
        }
        let number = |name: &str| match fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or_else(|| not_a_number(&source, name, value)),
        };
        let flag = |name: &str| fields.get(name).and_then(Value::as_bool);
        let InOrder { alpha_pattern: alphas, rank_pattern: ranks } =
            serde_json::from_str(text).map_err(|e| unreadable(&source, &e))?;
        let (alpha, rank) = (number("lora_alpha")?, number("r")?);
        let (use_rslora, use_dora) = (flag("use_rslora") == Some(true), flag("use_dora"));
        Ok(Self { alpha, rank, alphas, ranks, use_rslora, use_dora, unknown, source })
    }

    /// Where it is said.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Errors unless a layer `has_magnitude` where DoRA is said, and has none where it is said that there is none.
    pub fn check_dora(&self, layer: &str, has_magnitude: bool) -> Result<()> {
        let said = match self.use_dora {
            Some(true) if !has_magnitude => "has no magnitude",
            Some(false) if has_magnitude => "has a magnitude",
            _ => return Ok(()),
        };
        let use_dora = self.use_dora == Some(true);
        Err(Error::new(format!("{} says `use_dora` is {use_dora}, and `{layer}` {said}", self.source))
            .hint("the two are not of one adapter: fetch it again as a whole"))
    }

    /// What the product of the factors of a layer is multiplied by, which have `rank` rows and columns; none where it
    /// is not said. The layer is known by all of `names`.
    ///
    /// Errors when another rank is said.
    pub fn scale(&self, names: &[String], rank: usize) -> Result<Option<f64>> {
        let said = self.ranks.value(names).or(self.rank);
        if let Some(said) = said.filter(|said| *said != rank as f64) {
            let name = names.first().map_or("", String::as_str);
            let what = format!("{} says rank {said} of `{name}`, whose factors are of rank {rank}", self.source);
            return Err(Error::new(what).hint("the two are not of one adapter: fetch it again as a whole"));
        }
        let divisor = if self.use_rslora { (rank as f64).sqrt() } else { rank as f64 };
        Ok(self.alphas.value(names).or(self.alpha).map(|alpha| alpha / divisor))
    }

    /// What the user should know of it. `layers` are the names of each layer of the adapter.
    pub fn notes<'a>(&self, layers: impl Iterator<Item = &'a [String]> + Clone) -> Vec<String> {
        let unused = self.alphas.unused(layers.clone()).or_else(|| self.ranks.unused(layers));
        let unused = unused.map(|text| format!("{} has the pattern `{text}`, which fits no layer", self.source));
        let unknown = self.unknown.as_ref().map(|name| format!("{} has `{name}`, which is not read", self.source));
        unused.into_iter().chain(unknown).collect()
    }
}

/// Whether a field says anything.
fn is_on(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::String(text) => !text.is_empty(),
        _ => true,
    }
}

fn object(text: &str, source: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(text).map_err(|e| unreadable(source, &e))
}

fn unreadable(source: &str, why: &serde_json::Error) -> Error {
    Error::new(format!("{source} cannot be read: {why}")).hint("the file is damaged: fetch it again")
}

fn not_a_number(source: &str, name: &str, value: &Value) -> Error {
    Error::new(format!("{source} says `{name}` is {value}, expected a number")).hint("fetch the adapter again")
}

fn unread(source: &str, name: &str, value: &Value) -> Error {
    const MOST_CHARS: usize = 60;
    let mut text = value.to_string();
    if text.chars().count() > MOST_CHARS {
        text = text.chars().take(MOST_CHARS).chain("...".chars()).collect();
    }
    Error::new(format!("{source} says `{name}` is {text}, which this program does not read")).hint(HINT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<Peft>> {
        Peft::of_header(&HashMap::from([(KEY.to_string(), text.to_string())]))
    }

    fn scale(text: &str, name: &str, rank: usize) -> Option<f64> {
        read(text).unwrap().unwrap().scale(&[name.to_string()], rank).unwrap()
    }

    #[test]
    fn alpha_is_divided_by_the_rank_or_by_its_root() {
        let text = r#"{"transformer.r": 8, "transformer.lora_alpha": 4, "transformer.rank_pattern": {"to_v": 2},
            "transformer.alpha_pattern": {"to_q": 16}, "transformer.layers_pattern": null}"#;
        assert_eq!(scale(text, "transformer_blocks.0.attn.to_k", 8), Some(0.5));
        assert_eq!(scale(text, "transformer_blocks.0.attn.to_q", 8), Some(2.0));
        assert_eq!(scale(text, "transformer_blocks.0.attn.to_v", 2), Some(2.0));
        assert_eq!(scale(r#"{"transformer.lora_alpha": 4.0, "transformer.use_rslora": true}"#, "a", 16), Some(1.0));
        assert_eq!(scale(r#"{"lora_alpha": 2}"#, "a", 4), Some(0.5), "without the prefix");
        let other = read(text).unwrap().unwrap().scale(&["a.to_k".to_string()], 4).unwrap_err().to_string();
        assert!(other.contains("says rank 8 of `a.to_k`, whose factors are of rank 4"), "{other}");
    }

    #[test]
    fn fields_of_other_components_do_not_count() {
        assert!(read(r#"{"text_encoder.lora_alpha": 2, "text_encoder_2.bias": "all"}"#).unwrap().is_none());
        assert!(Peft::of_header(&HashMap::new()).unwrap().is_none());
        assert_eq!(scale(r#"{"r": 4}"#, "a", 4), None);
    }

    #[test]
    fn what_changes_the_sums_in_another_way_is_refused_by_name() {
        for (field, value) in [
            ("peft_type", r#""IA3""#),
            ("peft_type", r#""LOHA""#),
            ("bias", r#""all""#),
            ("modules_to_save", r#"["proj_out"]"#),
            ("layers_to_transform", "[0, 1]"),
            ("target_parameters", r#"["a"]"#),
            ("init_lora_weights", r#""pissa""#),
            ("init_lora_weights", r#""olora""#),
            ("fan_in_fan_out", "true"),
            ("use_qalora", "true"),
            ("lora_bias", "true"),
            ("layer_replication", "[[0, 1]]"),
            ("alora_invocation_tokens", "[1]"),
            ("trainable_token_indices", "[1]"),
            ("kasa_config", r#"{"a": 1}"#),
            ("use_dora", "1"),
            ("use_what_is_to_come", "true"),
            ("denoiser.lora_alpha", "3"),
        ] {
            let error = read(&format!(r#"{{"lora_alpha": 1, "{field}": {value}}}"#)).unwrap_err().to_string();
            assert!(error.contains(&format!("says `{field}` is")) && error.contains("hint: "), "{field}: {error}");
        }
        for fine in [
            r#""peft_type": "LORA", "bias": "none", "init_lora_weights": true, "modules_to_save": null"#,
            r#""init_lora_weights": "gaussian", "target_modules": ["to_q"], "lora_dropout": 0.1, "use_dora": false"#,
            r#""lora_bias": false, "layers_to_transform": [], "loftq_config": {}, "what_is_to_come": null"#,
        ] {
            let peft = read(&format!(r#"{{"lora_alpha": 1, {fine}}}"#)).unwrap().unwrap();
            assert!(peft.notes([].into_iter()).is_empty(), "{fine}");
        }
        let noted = read(r#"{"lora_alpha": 1, "author": "x", "alpha_pattern": {"to_z": 2}}"#).unwrap().unwrap();
        let layers = [vec!["a.to_q".to_string()]];
        let notes = noted.notes(layers.iter().map(Vec::as_slice));
        assert!(notes[0].contains("`to_z`") && notes[1].contains("`author`"), "{notes:?}");
    }

    #[test]
    fn what_is_no_number_or_no_object_is_refused() {
        for bad in [
            "",
            "[]",
            "{",
            r#"{"lora_alpha": "x"}"#,
            r#"{"lora_alpha": "16"}"#,
            r#"{"lora_alpha": 1e999}"#,
            r#"{"transformer.r": [1]}"#,
            r#"{"transformer.alpha_pattern": 3}"#,
            r#"{"alpha_pattern": {"a": "b"}}"#,
        ] {
            assert!(read(bad).unwrap_err().to_string().contains("hint: "), "{bad}");
        }
    }
}
