//! PEFT's config of an adapter: in the header of the file, or in a file next to it.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::patterns::Patterns;
use super::values::is_word_of;
use crate::io::regular;
use flux_base::error::{Error, Result};

/// The key of the config in the header, as diffusers writes it.
const KEY: &str = "lora_adapter_metadata";
/// Prefixes of the transformer's fields, and of fields for a component that adapters do not change here.
const PREFIX: &str = "transformer.";
const OTHERS: &str = "text_encoder";
/// The max size of a config, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Fields that may have any value: they are read by name, describe the training, or list the layers that have tensors.
const NO_MATTER: &str = "_custom_modules alpha_pattern auto_mapping base_model_name_or_path corda_config eva_config exclude_modules \
    inference_mode layers_pattern loftq_config lora_alpha lora_dropout lora_ga_config megatron_core peft_version \
    qalora_group_size r rank_pattern revision runtime_config target_modules task_type";
/// Fields that change the meaning of factors.
const OWN: &str = "peft_type init_lora_weights use_rslora use_dora use_qalora bias lora_bias fan_in_fan_out modules_to_save \
    layers_to_transform layer_replication target_parameters trainable_token_indices alora_invocation_tokens";
/// Values of `init_lora_weights` that initialize factors only. Other values change the weights of the model, too.
const INITIAL: [&str; 5] = ["gaussian", "eva", "orthogonal", "mica", "true"];
const HINT: &str = "convert the adapter to a plain LoRA, or use another";

/// PEFT's config of an adapter.
#[derive(Debug, Clone)]
pub struct Peft {
    /// The file or key of the config, for messages.
    source: String,
    alpha: Option<f64>,
    rank: Option<f64>,
    alphas: Patterns,
    ranks: Patterns,
    use_rslora: bool,
    use_dora: Option<bool>,
    /// A field that is unknown and may have no effect.
    unknown: Option<String>,
}

/// The fields whose order counts, with or without the prefix.
#[derive(Deserialize)]
struct InOrder {
    #[serde(default, alias = "transformer.alpha_pattern")]
    alpha_pattern: Patterns,
    #[serde(default, alias = "transformer.rank_pattern")]
    rank_pattern: Patterns,
}

impl Peft {
    /// Reads the config from the header's metadata; `None` if there is none.
    ///
    /// Errors if it is no JSON object, or a field has another type or a value that this program does not apply.
    pub fn from_header(header: &HashMap<String, String>) -> Result<Option<Self>> {
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
        Self::from_fields(text, &fields, source).map(Some)
    }

    /// Reads a config in PEFT's format that another writer stored in the header. Fields that PEFT does not have are the
    /// writer's own settings and are ignored.
    ///
    /// Errors as [`Peft::from_header`].
    pub fn from_other_writer(text: &str, fields: &Map<String, Value>, source: String) -> Result<Self> {
        let mut own = fields.clone();
        own.retain(|name, _| is_word_of(NO_MATTER, name) || is_word_of(OWN, name));
        // The text of a Python dictionary is not JSON; without the original text, the order of the fields is lost.
        let text = if serde_json::from_str::<Map<String, Value>>(text).is_ok() {
            text.to_string()
        } else {
            Value::Object(own.clone()).to_string()
        };
        Self::from_fields(&text, &own, source)
    }

    /// Reads the file of a config.
    ///
    /// Errors as [`Peft::from_header`], and if the file cannot be read or has no `lora_alpha`.
    pub fn from_file(path: &Path) -> Result<Self> {
        let read = || {
            let text = String::from_utf8(regular::read(path, MAX_BYTES)?);
            let text = text.map_err(|_| Error::new("the config of the adapter is not text"))?;
            let source = format!("`{}`", path.file_name().unwrap_or_default().to_string_lossy());
            let peft = Self::from_fields(&text, &object(&text, &source)?, source.clone())?;
            match peft.alpha {
                Some(_) => Ok(peft),
                None => Err(Error::new(format!("{source} has no `lora_alpha`, which scales the factors"))),
            }
        };
        read().map_err(|e| e.at_path(path).hint("fetch the complete adapter again"))
    }

    fn from_fields(text: &str, fields: &Map<String, Value>, source: String) -> Result<Self> {
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
                "lora_alpha" | "r" => true,
                "bias" => value == "none",
                known => is_word_of(NO_MATTER, known),
            };
            if !is_fine && value.is_string() && !["peft_type", "init_lora_weights", "bias"].contains(&name.as_str()) {
                unknown.get_or_insert_with(|| name.clone());
            } else if !is_fine {
                return Err(unread(&source, name, value));
            }
        }
        let number = |name: &str| match fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let of_text = || value.as_str().and_then(|text| text.trim().parse().ok());
                let number = value.as_f64().or_else(of_text).filter(|number: &f64| number.is_finite());
                number.map(Some).ok_or_else(|| not_a_number(&source, name, value))
            }
        };
        let flag = |name: &str| fields.get(name).and_then(Value::as_bool);
        let InOrder { alpha_pattern: alphas, rank_pattern: ranks } =
            serde_json::from_str(text).map_err(|e| unreadable(&source, &e))?;
        let (alpha, rank) = (number("lora_alpha")?, number("r")?);
        let (use_rslora, use_dora) = (flag("use_rslora") == Some(true), flag("use_dora"));
        Ok(Self { alpha, rank, alphas, ranks, use_rslora, use_dora, unknown, source })
    }

    /// Returns the file or key of the config, for messages.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Errors if the config has `use_dora` and a layer's `has_magnitude` differs from it.
    pub fn check_dora(&self, layer: &str, has_magnitude: bool) -> Result<()> {
        let said = match self.use_dora {
            Some(true) if !has_magnitude => "has no magnitude",
            Some(false) if has_magnitude => "has a magnitude",
            _ => return Ok(()),
        };
        let use_dora = self.use_dora == Some(true);
        Err(Error::new(format!("{}: `use_dora` is {use_dora}, but `{layer}` {said}", self.source))
            .hint("the files belong to different adapters: fetch all of them again"))
    }

    /// Returns the scale of the product of a layer's factors of this `rank`; `None` if the config has no alpha. `names`
    /// are all names of the layer.
    ///
    /// Errors if the config gives another rank.
    pub fn scale(&self, names: &[String], rank: usize) -> Result<Option<f64>> {
        let said = self.ranks.value(names).or(self.rank);
        if let Some(said) = said.filter(|said| *said != rank as f64) {
            let name = names.first().map_or("", String::as_str);
            let what = format!("{} specifies rank {said} for `{name}`, but its factors have rank {rank}", self.source);
            return Err(Error::new(what).hint("the files belong to different adapters: fetch all of them again"));
        }
        let divisor = if self.use_rslora { (rank as f64).sqrt() } else { rank as f64 };
        Ok(self.alphas.value(names).or(self.alpha).map(|alpha| alpha / divisor))
    }

    /// Returns notes for the user. `layers` are the names of each layer of the adapter.
    pub fn notes<'a>(&self, layers: impl Iterator<Item = &'a [String]> + Clone) -> Vec<String> {
        let unused = self.alphas.unused(layers.clone()).or_else(|| self.ranks.unused(layers));
        let unused = unused.map(|text| format!("{} has the pattern `{text}`, which matches no layer", self.source));
        let unknown = self.unknown.as_ref().map(|name| format!("{} has `{name}`, which is ignored", self.source));
        unused.into_iter().chain(unknown).collect()
    }
}

/// Returns `true` if a field is neither null, nor false, nor empty.
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
    Error::new(format!("{source}: `{name}` is {value}, expected a number")).hint("fetch the adapter again")
}

fn unread(source: &str, name: &str, value: &Value) -> Error {
    const MAX_CHARS: usize = 60;
    let mut text = value.to_string();
    if text.chars().count() > MAX_CHARS {
        text = text.chars().take(MAX_CHARS).chain("...".chars()).collect();
    }
    Error::new(format!("{source}: `{name}` is {text}, which is not supported")).hint(HINT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<Peft>> {
        Peft::from_header(&HashMap::from([(KEY.to_string(), text.to_string())]))
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
        assert_eq!(scale(r#"{"lora_alpha": "2", "r": " 4"}"#, "a", 4), Some(0.5), "as text");
        let other = read(text).unwrap().unwrap().scale(&["a.to_k".to_string()], 4).unwrap_err().to_string();
        assert!(other.contains("rank 8 for `a.to_k`") && other.contains("rank 4"), "{other}");
    }

    #[test]
    fn fields_of_other_components_do_not_count() {
        assert!(read(r#"{"text_encoder.lora_alpha": 2, "text_encoder_2.bias": "all"}"#).unwrap().is_none());
        assert!(Peft::from_header(&HashMap::new()).unwrap().is_none());
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
            assert!(error.contains(&format!("`{field}` is")) && error.contains("hint: "), "{field}: {error}");
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
            r#"{"lora_alpha": 1e999}"#,
            r#"{"transformer.r": [1]}"#,
            r#"{"transformer.alpha_pattern": 3}"#,
            r#"{"alpha_pattern": {"a": "b"}}"#,
        ] {
            assert!(read(bad).unwrap_err().to_string().contains("hint: "), "{bad}");
        }
    }
}
