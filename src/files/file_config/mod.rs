//! What a single file says of its model in words, beside the shapes of its tensors: in its own metadata, else in a
//! config that lies beside it.
//!
//! | where | what counts |
//! |---|---|
//! | `config` in the metadata of a safetensors or GGUF file | JSON: a config, or one for each part, as `{"transformer": {...}}` |
//! | keys of a GGUF file that begin with its `general.architecture` | what [`keys`] lists |
//! | `<name of the file>.json`, then `config.json`, beside it | the same JSON, for what the file itself does not say |
//! | `transformer/config.json`, or that of another part, beside it | the same, where its sizes are those of the file |
//!
//! Values that contradict the tensors or each other are errors.

mod architecture;
mod beside;
mod keys;
mod values;

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::values::Values;
use self::values::{object, section};
use super::component::{Component, ConfigPlace, open_weights};
use super::container::Container;
use super::role::Role;
use super::tensor_files::TensorFiles;
use crate::error::{Error, Result};

/// The key of the metadata that holds configs as JSON, in files of both kinds.
pub const CONFIG_KEY: &str = "config";

/// A value that tensors tell, by its key in a config.
pub type Told = (&'static str, Value);

/// What a single file says of its model in words.
pub struct FileConfig {
    path: PathBuf,
    role: Role,
    /// The values that no shape tells.
    untold: &'static [&'static str],
    /// Of the file itself, from the first that counts to the last.
    own: Vec<Values>,
    /// Of a config beside it, where the file does not say all.
    beside: Option<Values>,
}

impl FileConfig {
    /// Reads what the single file of `component`, opened as `files`, says. `untold` are the values that no shape tells,
    /// `told` those that its tensors tell.
    ///
    /// Errors when it says something that is malformed or contradicts the tensors, or that it is of another
    /// architecture.
    pub fn read(
        component: &Component,
        files: &TensorFiles,
        untold: &'static [&'static str],
        told: &[Told],
    ) -> Result<Self> {
        let (path, role) = (component.path(), component.role());
        let mut own = Vec::new();
        for file in files.files() {
            own.extend(own_values(file, role)?);
        }
        own.iter().try_for_each(|values| values.check(told))?;
        let mut config = Self { path, role, untold, own, beside: None };
        config.check_agreement()?;
        if !config.missing().is_empty() {
            config.beside = beside::find(&config.path, role, told)?;
        }
        Ok(config)
    }

    /// A value, in the words of a config, which is `expected`.
    ///
    /// Errors when it is of another kind.
    pub fn get<T: DeserializeOwned>(&self, key: &str, expected: &str) -> Result<Option<T>> {
        let said = self.sources().map(|values| values.get(key, expected)).find(|found| !matches!(found, Ok(None)));
        said.unwrap_or(Ok(None))
    }

    /// Errors when a value that no shape tells is said nowhere, unless the sizes are those of a published model, whose
    /// values are known.
    pub fn check_complete(&self, is_published: bool) -> Result<()> {
        let missing = self.missing();
        if is_published || missing.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = missing.iter().map(|key| format!("`{key}`")).collect();
        let name = beside::own_name(&self.path);
        Err(Error::new(format!(
            "the file does not say {}, which the shapes of its tensors do not tell, and its sizes are those of no \
             published model",
            names.join(", ")
        ))
        .at_path(&self.path)
        .hint(format!(
            "put the config of this {} beside it, as `{name}` or `config.json`; files of `flux convert` carry it",
            self.role.title()
        )))
    }

    /// Where the values that no shape tells are from.
    pub fn place(&self) -> ConfigPlace {
        self.beside.iter().chain(&self.own).next().map_or_else(|| ConfigPlace::shapes(&self.path), Values::place)
    }

    /// Where the values that no shape tells are from, in words.
    pub fn source(&self) -> String {
        match (&self.beside, self.missing().is_empty()) {
            (Some(values), _) => values.place().path().to_string(),
            (None, true) => "the metadata of the file".to_string(),
            (None, false) => "as in the published model of these sizes".to_string(),
        }
    }

    fn sources(&self) -> impl Iterator<Item = &Values> {
        self.own.iter().chain(&self.beside)
    }

    /// The values that no shape tells and nothing says.
    fn missing(&self) -> Vec<&'static str> {
        self.untold.iter().filter(|key| !self.sources().any(|values| values.has(key))).copied().collect()
    }

    /// Errors when the file says two things of one value.
    fn check_agreement(&self) -> Result<()> {
        self.own
            .iter()
            .enumerate()
            .try_for_each(|(i, values)| self.own[i + 1..].iter().try_for_each(|other| other.check_against(values)))
    }
}

impl Component {
    /// What its single file says of the whole model: what a `model_index.json` says elsewhere. None where it is no
    /// single file, or says nothing.
    ///
    /// Errors when its metadata are malformed.
    pub fn said_of_the_model(&self) -> Result<Option<Values>> {
        let Some(path) = self.single_file() else { return Ok(None) };
        let file = open_weights(path)?;
        let Some(text) = metadata(&file)? else { return Ok(None) };
        object(text).and_then(|map| Values::of_model(path, map)).map(Some).map_err(|e| e.at_path(path))
    }

    /// What someone should know about what its GGUF file says and this program does not know. A file that cannot be
    /// opened has other errors.
    pub fn unknown_metadata(&self) -> Vec<String> {
        match self.single_file().map(open_weights) {
            Some(Ok(Container::Gguf(file))) => keys::notes(&file, self.role()),
            _ => Vec::new(),
        }
    }
}

/// What a file itself says of a part of a model.
fn own_values(file: &Container, role: Role) -> Result<Vec<Values>> {
    let mut found = Vec::new();
    if let Some(text) = metadata(file)? {
        let section = object(text).and_then(|map| section(map, role)).map_err(|e| e.at_path(file.path()))?;
        found.extend(section.map(|map| Values::of_metadata(file.path(), map)));
    }
    if let Container::Gguf(file) = file {
        architecture::check(file, role)?;
        found.push(keys::values(file, role)?);
    }
    Ok(found)
}

/// The configs in the metadata of a file.
fn metadata(file: &Container) -> Result<Option<&str>> {
    match file {
        Container::Safetensors(file) => Ok(file.metadata().get(CONFIG_KEY).map(String::as_str)),
        Container::Gguf(file) => file.has(CONFIG_KEY).then(|| file.string(CONFIG_KEY)).transpose(),
    }
}

/// What the path of a config is called without folders.
fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
