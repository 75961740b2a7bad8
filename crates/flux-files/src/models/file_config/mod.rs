//! Values that a single file states about its model, besides the shapes of its tensors. They are in its own metadata or
//! in a config next to it. The place to start reading is [`FileConfig::read`]. Nothing here knows how a model uses the
//! values.
//!
//! | source | values |
//! |---|---|
//! | `config` in the metadata of the file | JSON: a config, or one by part: `{"transformer": {...}}` |
//! | keys of a GGUF file that begin with its `general.architecture` | the ones in [`keys`] |
//! | `<name of the file>.json`, then `config.json`, next to it | the same JSON, for values that the file lacks |
//! | `transformer/config.json`, or that of another part, next to it | the same JSON, if its sizes match the tensors |
//!
//! Values that contradict the tensors or each other are errors.

mod adjacent;
mod architecture;
mod keys;
mod values;

use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::values::Values;
use self::values::{object, section};
use crate::catalog::role::Role;
use crate::containers::container::Container;
use crate::containers::tensor_files::TensorFiles;
use crate::models::component::{Component, ConfigPlace, open_weights};
use flux_base::error::{Error, Result};

/// The key of the metadata that holds configs as JSON, in both kinds of files.
pub const CONFIG_KEY: &str = "config";

/// A value that tensors imply, by its key in a config.
pub type ImpliedValue = (&'static str, Value);

/// The values that a single file states about its model.
pub struct FileConfig {
    path: PathBuf,
    role: Role,
    /// Keys of the values that no shape implies.
    not_implied: &'static [&'static str],
    /// Values of the file itself, by precedence.
    own: Vec<Values>,
    /// Values of a config next to the file, if the file lacks any.
    adjacent: Option<Values>,
}

impl FileConfig {
    /// Reads the values of `component`'s single file, opened as `files`. `not_implied` are the keys of values that no
    /// shape implies, and `implied` are the values that its tensors imply.
    ///
    /// Errors if a value is malformed or contradicts the tensors, or if the file has another architecture.
    pub fn read(
        component: &Component,
        files: &TensorFiles,
        not_implied: &'static [&'static str],
        implied: &[ImpliedValue],
    ) -> Result<Self> {
        let (path, role) = (component.path(), component.role());
        let mut own = Vec::new();
        for file in files.files() {
            own.extend(own_values(file, role)?);
        }
        own.iter().try_for_each(|values| values.check(implied))?;
        let mut config = Self { path, role, not_implied, own, adjacent: None };
        config.check_agreement()?;
        if !config.missing().is_empty() {
            config.adjacent = adjacent::find(&config.path, role, implied)?;
        }
        Ok(config)
    }

    /// Returns the value of a config's key. Errors describe it as `expected`.
    ///
    /// Errors if the value is of another kind.
    pub fn get<T: DeserializeOwned>(&self, key: &str, expected: &str) -> Result<Option<T>> {
        let said = self.sources().map(|values| values.get(key, expected)).find(|found| !matches!(found, Ok(None)));
        said.unwrap_or(Ok(None))
    }

    /// Errors if a value that no shape implies is missing, unless the sizes are those of a published model, whose
    /// values are known.
    pub fn check_complete(&self, is_published: bool) -> Result<()> {
        let missing = self.missing();
        if is_published || missing.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = missing.iter().map(|key| format!("`{key}`")).collect();
        let name = adjacent::own_name(&self.path);
        Err(Error::new(format!(
            "the file does not specify {}, which its tensor shapes do not imply, and its sizes match no published \
             model",
            names.join(", ")
        ))
        .at_path(&self.path)
        .hint(format!(
            "put the config of this {} next to it as `{name}` or `config.json`; files from `flux convert` include it",
            self.role.title()
        )))
    }

    /// Returns the source of the values that no shape implies.
    pub fn place(&self) -> ConfigPlace {
        self.adjacent.iter().chain(&self.own).next().map_or_else(|| ConfigPlace::shapes(&self.path), Values::place)
    }

    /// Returns the source of the values that no shape implies, for messages.
    pub fn source(&self) -> String {
        match (&self.adjacent, self.missing().is_empty()) {
            (Some(values), _) => values.place().path().to_string(),
            (None, true) => "the metadata of the file".to_string(),
            (None, false) => "as in the published model of these sizes".to_string(),
        }
    }

    fn sources(&self) -> impl Iterator<Item = &Values> {
        self.own.iter().chain(&self.adjacent)
    }

    /// Returns the keys of values that neither a shape nor a source gives.
    fn missing(&self) -> Vec<&'static str> {
        self.not_implied.iter().filter(|key| !self.sources().any(|values| values.has(key))).copied().collect()
    }

    /// Errors if the file contradicts itself.
    fn check_agreement(&self) -> Result<()> {
        self.own
            .iter()
            .enumerate()
            .try_for_each(|(i, values)| self.own[i + 1..].iter().try_for_each(|other| other.check_against(values)))
    }
}

impl Component {
    /// Returns the values that a single file holds for the whole model, like a `model_index.json`; `None` if the
    /// component is no single file, or its file has no config.
    ///
    /// Errors if the metadata is malformed.
    pub fn said_of_the_model(&self) -> Result<Option<Values>> {
        let Some(path) = self.single_file() else { return Ok(None) };
        let file = open_weights(path)?;
        let Some(text) = metadata(&file)? else { return Ok(None) };
        object(text).and_then(|map| Values::from_model_metadata(path, map)).map(Some).map_err(|e| e.at_path(path))
    }

    /// Returns notes for the user on metadata of its GGUF file that is unknown. A file that cannot be opened has none,
    /// because opening it reports the error.
    pub fn unknown_metadata(&self) -> Vec<String> {
        match self.single_file().map(open_weights) {
            Some(Ok(Container::Gguf(file))) => keys::notes(&file, self.role()),
            _ => Vec::new(),
        }
    }
}

/// Returns the values of a part of a model in the file itself.
fn own_values(file: &Container, role: Role) -> Result<Vec<Values>> {
    let mut found = Vec::new();
    if let Some(text) = metadata(file)? {
        let section = object(text).and_then(|map| section(map, role)).map_err(|e| e.at_path(file.path()))?;
        found.extend(section.map(|map| Values::from_metadata(file.path(), map)));
    }
    if let Container::Gguf(file) = file {
        architecture::check(file, role)?;
        found.push(keys::values(file, role)?);
    }
    Ok(found)
}

/// Returns the configs in the metadata of a file, as text.
fn metadata(file: &Container) -> Result<Option<&str>> {
    match file {
        Container::Safetensors(file) => Ok(file.metadata().get(CONFIG_KEY).map(String::as_str)),
        Container::Gguf(file) => file.has(CONFIG_KEY).then(|| file.string(CONFIG_KEY)).transpose(),
        Container::Pickle(_) => Ok(None),
    }
}
