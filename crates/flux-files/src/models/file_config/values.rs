//! Values by the keys of a config, with their sources.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{CONFIG_KEY, ImpliedValue};
use crate::catalog::own_models::{OWN_MODELS, is_class};
use crate::catalog::role::Role;
use crate::catalog::variant::Variant;
use crate::models::component::ConfigPlace;
use flux_base::error::{Error, Result, shortened};

/// The hint for wrong metadata.
pub const WRITE_AGAIN: &str = "the file is malformed: fetch it again, or write it again with `flux convert`";
const OTHER_CONFIG: &str = "this config belongs to another file: put the right one next to this file";
/// The max length of a value in messages.
const MAX_SHOWN: usize = 60;

/// Values by the keys of a config.
pub struct Values {
    place: ConfigPlace,
    said: Vec<Said>,
}

/// A value with its key and its name.
pub struct Said {
    /// The key in a config.
    pub key: String,
    /// The name at its source, for messages.
    pub name: String,
    /// The value; not null.
    pub value: Value,
}

impl Values {
    /// Creates the values of entries in the metadata of a file.
    pub fn new(path: &Path, said: Vec<Said>) -> Self {
        Self { place: ConfigPlace::new(path, WRITE_AGAIN), said }
    }

    /// Creates the values of a config in the metadata of a file.
    pub fn from_metadata(path: &Path, map: Map<String, Value>) -> Self {
        Self::new(path, entries(map, |key| format!("`{key}` in `{CONFIG_KEY}`")))
    }

    /// Creates the values of a config at `path`.
    pub fn from_config(path: &Path, map: Map<String, Value>) -> Self {
        Self { place: ConfigPlace::new(path, OTHER_CONFIG), said: entries(map, |key| format!("`{key}`")) }
    }

    /// Creates the values for the whole model from the metadata of a file.
    ///
    /// Errors if a part is no config.
    pub fn from_model_metadata(path: &Path, mut map: Map<String, Value>) -> Result<Self> {
        Role::ALL.iter().try_for_each(|role| section(map.clone(), *role).map(drop))?;
        // An object without parts is the config of a part, and has no values for the model.
        let parts = Role::ALL.iter().filter_map(|role| map.remove(role.folder())).count();
        if parts == 0 {
            map.clear();
        }
        Ok(Self::from_metadata(path, map))
    }

    /// Returns the training of the model, if a value tells it.
    ///
    /// Errors if a value is of another kind.
    pub fn variant(&self) -> Result<Option<Variant>> {
        let class: Option<String> = self.get("_class_name", "a class")?;
        let is_distilled = self.get("is_distilled", "true or false")?;
        let says = class.is_some() || is_distilled.is_some();
        Ok(says.then(|| Variant::from_index(class.as_deref(), is_distilled)))
    }

    /// Returns `true` if there are no values.
    pub fn is_empty(&self) -> bool {
        self.said.is_empty()
    }

    /// Returns the source of the values.
    pub fn place(&self) -> ConfigPlace {
        self.place.clone()
    }

    /// Returns `true` if there is a value for the key.
    pub fn has(&self, key: &str) -> bool {
        self.all(key).next().is_some()
    }

    /// Returns the value of a key. Errors describe it as `expected`.
    ///
    /// Errors if the value is of another kind.
    pub fn get<T: DeserializeOwned>(&self, key: &str, expected: &str) -> Result<Option<T>> {
        let Some(said) = self.all(key).next() else { return Ok(None) };
        let wrong = |_| self.place.wrong(format!("{} is {}, expected {expected}", said.name, shown(&said.value)));
        serde_json::from_value(said.value.clone()).map(Some).map_err(wrong)
    }

    /// Errors with the first value that differs from the one that the tensors imply.
    pub fn check(&self, implied: &[ImpliedValue]) -> Result<()> {
        implied.iter().try_for_each(|(key, value)| self.check_value(key, value, "expected"))
    }

    /// Errors with the first value that differs from one of `others`.
    pub fn check_against(&self, others: &Self) -> Result<()> {
        others
            .said
            .iter()
            .try_for_each(|said| self.check_value(&said.key, &said.value, &format!("but {} is", said.name)))
    }

    fn check_value(&self, key: &str, value: &Value, but: &str) -> Result<()> {
        match self.all(key).find(|said| !same(&said.value, value)) {
            Some(said) => {
                let what = format!("{} is {}, {but} {}", said.name, shown(&said.value), shown(value));
                Err(self.place.wrong(what))
            }
            None => Ok(()),
        }
    }

    fn all(&self, key: &str) -> impl Iterator<Item = &Said> {
        self.said.iter().filter(move |said| said.key == key)
    }
}

/// Returns the entries of a config, with nested objects of rotary positions flattened.
fn entries(map: Map<String, Value>, name: impl Fn(&str) -> String) -> Vec<Said> {
    const NESTED: [&str; 2] = ["rope_parameters", "rope_scaling"];
    let mut said = Vec::new();
    for (key, value) in map {
        match value {
            Value::Null => {}
            Value::Object(inner) if NESTED.contains(&key.as_str()) => {
                for (inner_key, value) in inner.into_iter().filter(|(_, value)| !value.is_null()) {
                    let name = name(&format!("{key}.{inner_key}"));
                    // The key of the type in older configs.
                    let key = if inner_key == "type" { "rope_type".to_string() } else { inner_key };
                    said.push(Said { key, name, value });
                }
            }
            value => said.push(Said { name: name(&key), key, value }),
        }
    }
    said
}

/// Parses the JSON object of a text.
///
/// Errors if the text is no JSON object.
pub fn object(text: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(text)
        .map_err(|e| Error::new(format!("`{CONFIG_KEY}` in the metadata is not a JSON object: {e}")).hint(WRITE_AGAIN))
}

/// Returns the config of a part of a model: the object under its name, or the whole object if that has no parts; `None`
/// if it is about something else.
///
/// Errors if the part's value is no config, or has another class.
pub fn section(mut map: Map<String, Value>, role: Role) -> Result<Option<Map<String, Value>>> {
    let found = match map.remove(role.folder()) {
        Some(Value::Object(section)) => section,
        // The library and class of a part, as in a `model_index.json`.
        Some(Value::Array(_)) | None => {
            let has_parts = Role::ALL.iter().any(|other| map.get(other.folder()).is_some());
            if has_parts || !is_config(&map, role) {
                return Ok(None);
            }
            map
        }
        Some(other) => {
            let what = format!("`{}` in `{CONFIG_KEY}` is {}, expected a config", role.folder(), shown(&other));
            return Err(Error::new(what).hint(WRITE_AGAIN));
        }
    };
    // The text half of a model with vision.
    let found = match found.get("text_config") {
        Some(Value::Object(text)) if role == Role::TextEncoder => text.clone(),
        _ => found,
    };
    match class(&found, role) {
        Some(class) if !is_class(role, class) => {
            let expected = OWN_MODELS.map(|model| format!("`{}`", model.part(role).classes[0])).to_vec();
            let expected = listed(expected);
            let what = format!("the config is for a `{}`, expected {expected}", shortened(class, MAX_SHOWN));
            let names = OWN_MODELS.map(|model| model.name).join(" and ");
            Err(Error::new(what).hint(format!("name the file of another model; this program runs {names} models")))
        }
        _ => Ok(Some(found)),
    }
}

/// Joins names with `or`, each once.
fn listed(mut names: Vec<String>) -> String {
    names.dedup();
    names.join(" or ")
}

/// Returns the class that a config names.
fn class(map: &Map<String, Value>, role: Role) -> Option<&str> {
    map.get(if role == Role::TextEncoder { "model_type" } else { "_class_name" })?.as_str()
}

/// Returns `true` if an object is the config of a part of this kind, of any class: by its class, or by keys that only
/// such a config has.
fn is_config(map: &Map<String, Value>, role: Role) -> bool {
    let (keys, words): (&[&str], &[&str]) = match role {
        Role::TextEncoder => (&["rms_norm_eps", "num_key_value_heads", "text_config"], &[""]),
        Role::Transformer => (&["axes_dims_rope", "num_single_layers"], &["Transformer", "UNet"]),
        Role::Vae => (&["norm_num_groups", "batch_norm_eps"], &["Autoencoder"]),
    };
    let is_class = |class: &str| !class.ends_with("Pipeline") && words.iter().any(|word| class.contains(word));
    keys.iter().any(|key| map.contains_key(*key)) || class(map, role).is_some_and(is_class)
}

/// Returns `true` if two values are equal. Floats are compared as float32, to which some files round them.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Number(a), Value::Number(b)) => match (a.as_u64(), b.as_u64()) {
            (Some(a), Some(b)) => a == b,
            _ => a.as_f64().map(|a| a as f32) == b.as_f64().map(|b| b as f32),
        },
        _ => a == b,
    }
}

/// Formats a value for messages.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("`{}`", shortened(text, MAX_SHOWN)),
        other => shortened(&other.to_string(), MAX_SHOWN).into_owned(),
    }
}
