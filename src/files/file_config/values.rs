//! Values by the keys of a config, and where each of them was said.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::super::component::ConfigPlace;
use super::super::own_models::{OWN_MODELS, is_class};
use super::super::role::Role;
use super::super::variant::Variant;
use super::{CONFIG_KEY, Told};
use crate::error::{Error, Result, shortened};

/// What to do about metadata that are wrong.
pub const WRITE_AGAIN: &str = "the file was written wrongly: fetch it again, or write it again with `flux convert`";
const OTHER_CONFIG: &str = "this is not the config of this file: put the right one beside it";
/// How much of a value is shown.
const MOST_SHOWN: usize = 60;
/// The parts whose configs may be in one object.
const ROLES: [Role; 3] = [Role::TextEncoder, Role::Transformer, Role::Vae];

/// Values by the keys of a config.
pub struct Values {
    place: ConfigPlace,
    said: Vec<Said>,
}

/// A value.
pub struct Said {
    /// Its key in a config.
    pub key: String,
    /// What it is called where it was said.
    pub name: String,
    /// It; not null.
    pub value: Value,
}

impl Values {
    /// Those of these entries, in the metadata of a file.
    pub fn new(path: &Path, said: Vec<Said>) -> Self {
        Self { place: ConfigPlace::new(path, WRITE_AGAIN), said }
    }

    /// Those of a config in the metadata of a file.
    pub fn of_metadata(path: &Path, map: Map<String, Value>) -> Self {
        Self::new(path, entries(map, |key| format!("`{key}` in `{CONFIG_KEY}`")))
    }

    /// Those of a config at `path`.
    pub fn of_config(path: &Path, map: Map<String, Value>) -> Self {
        Self { place: ConfigPlace::new(path, OTHER_CONFIG), said: entries(map, |key| format!("`{key}`")) }
    }

    /// Those of the whole model in the metadata of a file.
    ///
    /// Errors when a part is no config.
    pub fn of_model(path: &Path, mut map: Map<String, Value>) -> Result<Self> {
        ROLES.iter().try_for_each(|role| section(map.clone(), *role).map(drop))?;
        // What has no parts is the config of one, and says nothing of the model.
        let parts = ROLES.iter().filter_map(|role| map.remove(role.folder())).count();
        if parts == 0 {
            map.clear();
        }
        Ok(Self::of_metadata(path, map))
    }

    /// How the model was trained, where they say it.
    ///
    /// Errors when that is of another kind.
    pub fn variant(&self) -> Result<Option<Variant>> {
        let class: Option<String> = self.get("_class_name", "a class")?;
        let is_distilled = self.get("is_distilled", "true or false")?;
        let says = class.is_some() || is_distilled.is_some();
        Ok(says.then(|| Variant::of_index(class.as_deref(), is_distilled)))
    }

    /// Whether they say nothing.
    pub fn is_empty(&self) -> bool {
        self.said.is_empty()
    }

    /// Where they were said.
    pub fn place(&self) -> ConfigPlace {
        self.place.clone()
    }

    /// Whether there is a value.
    pub fn has(&self, key: &str) -> bool {
        self.all(key).next().is_some()
    }

    /// A value, which is `expected`.
    ///
    /// Errors when it is of another kind.
    pub fn get<T: DeserializeOwned>(&self, key: &str, expected: &str) -> Result<Option<T>> {
        let Some(said) = self.all(key).next() else { return Ok(None) };
        let wrong = |_| self.place.wrong(format!("{} is {}, expected {expected}", said.name, shown(&said.value)));
        serde_json::from_value(said.value.clone()).map(Some).map_err(wrong)
    }

    /// Errors with the first value that is not what the tensors tell.
    pub fn check(&self, told: &[Told]) -> Result<()> {
        told.iter().try_for_each(|(key, value)| self.check_value(key, value, "expected"))
    }

    /// Errors with the first value that is not what the others say.
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

/// The entries of a config; those of the nested object of rotary positions under names of their own.
fn entries(map: Map<String, Value>, name: impl Fn(&str) -> String) -> Vec<Said> {
    const NESTED: [&str; 2] = ["rope_parameters", "rope_scaling"];
    let mut said = Vec::new();
    for (key, value) in map {
        match value {
            Value::Null => {}
            Value::Object(inner) if NESTED.contains(&key.as_str()) => {
                for (inner_key, value) in inner.into_iter().filter(|(_, value)| !value.is_null()) {
                    let name = name(&format!("{key}.{inner_key}"));
                    // Older configs call the type so.
                    let key = if inner_key == "type" { "rope_type".to_string() } else { inner_key };
                    said.push(Said { key, name, value });
                }
            }
            value => said.push(Said { name: name(&key), key, value }),
        }
    }
    said
}

/// The JSON object of a text.
///
/// Errors when it is none.
pub fn object(text: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(text)
        .map_err(|e| Error::new(format!("`{CONFIG_KEY}` in the metadata is no JSON object: {e}")).hint(WRITE_AGAIN))
}

/// The config of a part of a model: what stands under its name, or all of it where no part has a name; none where it is
/// about something else.
///
/// Errors when it is a config of another class.
pub fn section(mut map: Map<String, Value>, role: Role) -> Result<Option<Map<String, Value>>> {
    let found = match map.remove(role.folder()) {
        Some(Value::Object(section)) => section,
        // As in a `model_index.json`: the library and class of a part.
        Some(Value::Array(_)) | None => {
            let has_parts = ROLES.iter().any(|other| map.get(other.folder()).is_some());
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
    // The text half of a model that sees images, too.
    let found = match found.get("text_config") {
        Some(Value::Object(text)) if role == Role::TextEncoder => text.clone(),
        _ => found,
    };
    match class(&found, role) {
        Some(class) if !is_class(role, class) => {
            let expected = OWN_MODELS.map(|model| format!("`{}`", model.part(role).classes[0])).to_vec();
            let expected = listed(expected);
            let what = format!("the config is that of a `{}`, expected {expected}", shortened(class, MOST_SHOWN));
            let names = OWN_MODELS.map(|model| model.name).join(" and ");
            Err(Error::new(what).hint(format!("name the file of another model; this program runs {names} models")))
        }
        _ => Ok(Some(found)),
    }
}

/// Each once, with `or` between them.
fn listed(mut names: Vec<String>) -> String {
    names.dedup();
    names.join(" or ")
}

/// What a config says that it is of.
fn class(map: &Map<String, Value>, role: Role) -> Option<&str> {
    map.get(if role == Role::TextEncoder { "model_type" } else { "_class_name" })?.as_str()
}

/// Whether an object is the config of a part of this kind, of whatever class: by its class, or by keys that it alone
/// has.
fn is_config(map: &Map<String, Value>, role: Role) -> bool {
    let (keys, words): (&[&str], &[&str]) = match role {
        Role::TextEncoder => (&["rms_norm_eps", "num_key_value_heads", "text_config"], &[""]),
        Role::Transformer => (&["axes_dims_rope", "num_single_layers"], &["Transformer", "UNet"]),
        Role::Vae => (&["norm_num_groups", "batch_norm_eps"], &["Autoencoder"]),
    };
    let is_class = |class: &str| !class.ends_with("Pipeline") && words.iter().any(|word| class.contains(word));
    keys.iter().any(|key| map.contains_key(*key)) || class(map, role).is_some_and(is_class)
}

/// Whether two values are the same; floats of 32 bits as those of 64 that they were rounded from.
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

/// A value for messages.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("`{}`", shortened(text, MOST_SHOWN)),
        other => shortened(&other.to_string(), MOST_SHOWN).into_owned(),
    }
}
