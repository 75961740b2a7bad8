//! A part of a model: a folder with a config, or one file whose shapes imply its sizes.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::catalog::names::Names;
use crate::catalog::own_models::{Architecture, OWN_MODELS, OwnModel};
use crate::catalog::role::Role;
use crate::containers::container::Container;
use crate::containers::inspect;
use crate::containers::safetensors::Safetensors;
use crate::containers::tensor_files::TensorFiles;
use crate::io::name_of;
use crate::models::folder::{FETCH_AGAIN, Folder};
use crate::models::quantized_config::QuantizedConfig;
use flux_base::error::{Error, Result};

/// The part of a file's name that marks a text encoder with vision.
const SEES_IN_NAME: &str = "vl";
/// The file name of a part's config.
pub(crate) const CONFIG: &str = "config.json";

/// A part of a model: a folder with a config, or one file whose shapes imply its sizes.
#[derive(Debug, Clone)]
pub struct Component {
    role: Role,
    pub(crate) source: ComponentSource,
}

#[derive(Debug, Clone)]
pub(crate) enum ComponentSource {
    /// `config.json` and weights.
    Folder(Folder),
    File(PathBuf),
    /// Neither named by the user nor found.
    Missing(Error),
}

/// The source of a model's sizes: a config, or the shapes in a file of weights.
#[derive(Debug, Clone)]
pub struct ConfigPlace {
    path: String,
    hint: &'static str,
}

impl ConfigPlace {
    /// Creates the source at `path`, with the hint for wrong sizes.
    pub(crate) fn new(path: &Path, hint: &'static str) -> Self {
        Self { path: path.display().to_string(), hint }
    }

    /// Creates the source of sizes that the tensors of the file `path` imply.
    pub(crate) fn shapes(path: &Path) -> Self {
        Self::new(path, "the shapes in this file do not match a klein model: fetch another file")
    }

    /// Creates the source of a config at `path`.
    pub fn config(path: String) -> Self {
        Self { path, hint: "this is not the config of a klein model: fetch the whole folder again" }
    }

    /// Returns the path, for messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the error of sizes that are wrong.
    pub fn wrong(&self, what: impl Into<String>) -> Error {
        Error::new(what).at(self.path.as_str()).hint(self.hint)
    }

    /// Errors with the name of the first size that is out of its range.
    pub fn check_sizes(&self, sizes: &[(&str, usize, RangeInclusive<usize>)]) -> Result<()> {
        match sizes.iter().find(|(_, size, range)| !range.contains(size)) {
            Some((key, size, range)) => {
                Err(self.wrong(format!("{key} is {size}, expected {} to {}", range.start(), range.end())))
            }
            None => Ok(()),
        }
    }
}

impl Component {
    /// Creates a component of a folder in the layout of diffusers or transformers.
    pub fn folder(role: Role, folder: Folder) -> Self {
        Self { role, source: ComponentSource::Folder(folder) }
    }

    /// Creates a component of a single file.
    pub fn file(role: Role, path: PathBuf) -> Self {
        Self { role, source: ComponentSource::File(path) }
    }

    /// Creates a component that does not exist, with the error that reports it.
    pub fn missing(role: Role, error: Error) -> Self {
        Self { role, source: ComponentSource::Missing(error) }
    }

    /// Returns the component's role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Errors if the component does not exist.
    pub fn check_present(&self) -> Result<()> {
        match &self.source {
            ComponentSource::Missing(error) => Err(error.clone()),
            ComponentSource::Folder(_) | ComponentSource::File(_) => Ok(()),
        }
    }

    /// Returns the folder or file, for messages.
    pub fn path(&self) -> PathBuf {
        match &self.source {
            ComponentSource::Folder(folder) => folder.path("").components().as_path().to_path_buf(),
            ComponentSource::File(path) => path.clone(),
            ComponentSource::Missing(_) => PathBuf::from(format!("<no {}>", self.role.title())),
        }
    }

    /// Returns the file, if the component is a single file.
    pub fn single_file(&self) -> Option<&Path> {
        match &self.source {
            ComponentSource::File(path) => Some(path),
            ComponentSource::Folder(_) | ComponentSource::Missing(_) => None,
        }
    }

    /// Returns the source of the component's sizes.
    pub fn place(&self) -> ConfigPlace {
        match &self.source {
            ComponentSource::Folder(folder) => ConfigPlace::config(folder.display(CONFIG)),
            ComponentSource::File(_) | ComponentSource::Missing(_) => ConfigPlace::shapes(&self.path()),
        }
    }

    /// Returns the config, or `None` for a single file.
    ///
    /// Errors if the config cannot be read, is no JSON, lacks a key, or declares a quantization that is not read, and
    /// if the component does not exist.
    pub fn config<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        match &self.source {
            ComponentSource::Folder(folder) => {
                folder.json::<QuantizedConfig>(CONFIG)?.check().map_err(|e| e.at(folder.display(CONFIG)))?;
                folder.json(CONFIG).map(Some)
            }
            ComponentSource::File(_) => Ok(None),
            ComponentSource::Missing(error) => Err(error.clone()),
        }
    }

    /// Opens the files of weights.
    pub(crate) fn containers(&self) -> Result<Vec<Container>> {
        match &self.source {
            ComponentSource::Folder(folder) => {
                let files = folder.weights(self.role.stem())?;
                if folder.exists(CONFIG) && folder.json::<QuantizedConfig>(CONFIG)?.has_scales() {
                    files.iter().filter_map(Container::as_safetensors).try_for_each(Safetensors::check_scales)?;
                }
                Ok(files)
            }
            ComponentSource::File(path) => Ok(vec![open_weights(path)?]),
            ComponentSource::Missing(error) => Err(error.clone()),
        }
    }

    /// Returns notes for the user on the files. A file that cannot be opened has no note: opening it reports the
    /// reason.
    pub fn notes(&self) -> Vec<String> {
        let Ok(files) = self.containers() else { return Vec::new() };
        let config = match &self.source {
            ComponentSource::Folder(folder) => folder.json::<QuantizedConfig>(CONFIG).ok(),
            ComponentSource::File(_) | ComponentSource::Missing(_) => None,
        };
        let unknown = config.and_then(|config| config.note(&self.path().join(CONFIG)));
        files.iter().flat_map(Container::notes).chain(note_of_no_part(&files)).chain(unknown).collect()
    }

    /// Returns the architecture of a transformer, if its config or its tensors tell it.
    pub fn architecture(&self) -> Option<Architecture> {
        match &self.source {
            ComponentSource::Folder(folder) => Architecture::from_class(&folder.class(CONFIG).ok()??),
            ComponentSource::File(_) => {
                let kind = inspect::kind(&self.containers().ok()?);
                kind.part(self.role).map(|names| names.layers.architecture)
            }
            ComponentSource::Missing(_) => None,
        }
    }

    /// Returns `true` if this is a text encoder with vision.
    pub fn has_vision(&self) -> bool {
        let kind = self.containers().map(|files| inspect::kind(&files));
        kind.is_ok_and(|kind| kind.model(self.role).is_some_and(|model| model.text_encoder_sees))
    }

    /// Returns the model family whose text encoder this is, as far as the tensors or the file's name tell.
    pub fn text_encoder_of(&self) -> &'static OwnModel {
        let is_named = |file: &Path| name_of(file).to_lowercase().contains(SEES_IN_NAME);
        let sees = self.single_file().is_some_and(is_named) || self.has_vision();
        OWN_MODELS.into_iter().find(|model| model.text_encoder_sees == sees).unwrap_or(OWN_MODELS[0])
    }

    /// Opens the weights, under the names that models use.
    ///
    /// Errors if a file is missing, is no file of weights, is cut off, or has a wrong header.
    pub fn tensors(&self) -> Result<TensorFiles> {
        let files = self.containers()?;
        inspect::check_forms(&files)?;
        let kind = inspect::kind(&files);
        let names = if kind.part(self.role).is_some() {
            kind.expect(self.role)?.clone()
        } else {
            // The tensors do not identify this part. Missing ones are reported when a model loads them, by the names of
            // the architecture in the config.
            let layers = self.architecture().map_or(Names::OWN.layers, |own| own.model().layers);
            Names { layers, ..Names::OWN }
        };
        TensorFiles::named(files, &names, |key| kind.owns(self.role, key))
    }
}

/// Opens a file of weights.
///
/// Errors if the file is of no kind that is read, is cut off, or has a wrong header.
pub fn open_weights(path: &Path) -> Result<Container> {
    Container::open(path, FETCH_AGAIN)
}

/// Returns a note on tensors that belong to no part of a model in a single file.
fn note_of_no_part(files: &[Container]) -> Option<String> {
    let kind = inspect::kind(files);
    if !kind.has_several() {
        return None;
    }
    let (key, path) = files.iter().find_map(|file| {
        let unknown = file.names().filter(|key| kind.owner(key).is_none()).min()?;
        Some((unknown, file.path()))
    })?;
    Some(format!("ignored tensors of `{}` that are not part of a klein model, such as `{key}`", path.display()))
}
