//! A part of a model: a folder with a config, or one file whose shapes tell its sizes.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::container::Container;
use super::folder::{FETCH_AGAIN, Folder};
use super::inspect;
use super::names::Names;
use super::own_models::{Architecture, OWN_MODELS, OwnModel};
use super::role::Role;
use super::tensor_files::TensorFiles;
use crate::error::{Error, Result};

/// What names of files of text encoders have that see images.
const SEES_IN_NAME: &str = "vl";
/// The name of the config of a part.
pub(super) const CONFIG: &str = "config.json";

/// A part of a model: a folder with a config, or one file whose shapes tell its sizes.
#[derive(Debug, Clone)]
pub struct Component {
    role: Role,
    pub(super) source: ComponentSource,
}

#[derive(Debug, Clone)]
pub(super) enum ComponentSource {
    /// `config.json` and weights.
    Folder(Folder),
    File(PathBuf),
    /// Nobody named it, and it was not found.
    Missing(Error),
}

/// Where the sizes of a model are told: a config, or a file of weights by its shapes.
#[derive(Debug, Clone)]
pub struct ConfigPlace {
    path: String,
    hint: &'static str,
}

impl ConfigPlace {
    /// What is said at `path`, and what to do where it is wrong.
    pub(super) fn new(path: &Path, hint: &'static str) -> Self {
        Self { path: path.display().to_string(), hint }
    }

    /// The shapes of the tensors of the file `path`.
    pub(super) fn shapes(path: &Path) -> Self {
        Self::new(path, "the shapes in this file are not those of a klein model: fetch another file")
    }

    /// A config at `path`.
    pub fn config(path: String) -> Self {
        Self { path, hint: "this is not the config of a klein model: fetch the whole folder again" }
    }

    /// The path, for messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The error of sizes that are wrong.
    pub fn wrong(&self, what: impl Into<String>) -> Error {
        Error::new(what).at(self.path.as_str()).hint(self.hint)
    }

    /// Errors with the name of the first size that is not in its range.
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
    /// A folder in the layout of diffusers or transformers.
    pub fn folder(role: Role, folder: Folder) -> Self {
        Self { role, source: ComponentSource::Folder(folder) }
    }

    /// A single file.
    pub fn file(role: Role, path: PathBuf) -> Self {
        Self { role, source: ComponentSource::File(path) }
    }

    /// One that is not there, with the error that says so.
    pub fn missing(role: Role, error: Error) -> Self {
        Self { role, source: ComponentSource::Missing(error) }
    }

    /// What it is.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Errors when it is not there.
    pub fn check_present(&self) -> Result<()> {
        match &self.source {
            ComponentSource::Missing(error) => Err(error.clone()),
            ComponentSource::Folder(_) | ComponentSource::File(_) => Ok(()),
        }
    }

    /// Its folder or file, for messages.
    pub fn path(&self) -> PathBuf {
        match &self.source {
            ComponentSource::Folder(folder) => folder.path("").components().as_path().to_path_buf(),
            ComponentSource::File(path) => path.clone(),
            ComponentSource::Missing(_) => PathBuf::from(format!("<no {}>", self.role.title())),
        }
    }

    /// Its file, if it is a single one.
    pub fn single_file(&self) -> Option<&Path> {
        match &self.source {
            ComponentSource::File(path) => Some(path),
            ComponentSource::Folder(_) | ComponentSource::Missing(_) => None,
        }
    }

    /// Where its sizes are told.
    pub fn place(&self) -> ConfigPlace {
        match &self.source {
            ComponentSource::Folder(folder) => ConfigPlace::config(folder.display(CONFIG)),
            ComponentSource::File(_) | ComponentSource::Missing(_) => ConfigPlace::shapes(&self.path()),
        }
    }

    /// Its config; none of a single file.
    ///
    /// Errors when it cannot be read, is no JSON, lacks a key, or says that the weights are quantised in a way that is
    /// not read; and when the component is missing.
    pub fn config<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        match &self.source {
            ComponentSource::Folder(folder) => {
                let quantised: Quantised = folder.json(CONFIG)?;
                quantised.check().map_err(|e| e.at(folder.display(CONFIG)))?;
                folder.json(CONFIG).map(Some)
            }
            ComponentSource::File(_) => Ok(None),
            ComponentSource::Missing(error) => Err(error.clone()),
        }
    }

    /// Its files of weights.
    pub(super) fn containers(&self) -> Result<Vec<Container>> {
        match &self.source {
            ComponentSource::Folder(folder) => folder.weights(self.role.stem()),
            ComponentSource::File(path) => Ok(vec![open_weights(path)?]),
            ComponentSource::Missing(error) => Err(error.clone()),
        }
    }

    /// What someone should know about its files. One that cannot be opened has no note: opening it tells the reason.
    pub fn notes(&self) -> Vec<String> {
        let Ok(files) = self.containers() else { return Vec::new() };
        files.iter().filter_map(Container::note).chain(note_of_no_part(&files)).collect()
    }

    /// What it computes, where it is a transformer whose config or tensors tell that.
    pub fn architecture(&self) -> Option<Architecture> {
        #[derive(Deserialize)]
        struct Class {
            #[serde(rename = "_class_name")]
            class_name: Option<String>,
        }
        match &self.source {
            ComponentSource::Folder(folder) => {
                let class: Class = folder.json(CONFIG).ok()?;
                Architecture::of_class(&class.class_name?)
            }
            ComponentSource::File(_) => {
                let kind = inspect::kind(&self.containers().ok()?);
                kind.part(self.role).map(|names| Architecture::of_layers(names.layers))
            }
            ComponentSource::Missing(_) => None,
        }
    }

    /// Whether it is a text encoder with the half that sees images.
    pub fn has_vision(&self) -> bool {
        let kind = self.containers().map(|files| inspect::kind(&files));
        kind.is_ok_and(|kind| kind.model(self.role).is_some_and(|model| model.text_encoder_sees))
    }

    /// The kind of models whose text encoder it is, as far as its tensors or the name of its file tell.
    pub fn text_encoder_of(&self) -> &'static OwnModel {
        let is_named = |file: &Path| {
            let name = file.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
            name.contains(SEES_IN_NAME)
        };
        let sees = self.single_file().is_some_and(is_named) || self.has_vision();
        OWN_MODELS.into_iter().find(|model| model.text_encoder_sees == sees).unwrap_or(OWN_MODELS[0])
    }

    /// Its weights, by the names that models ask for.
    ///
    /// Errors when a file is missing, no file of weights, cut off, or its header is wrong.
    pub fn tensors(&self) -> Result<TensorFiles> {
        let files = self.containers()?;
        inspect::check_forms(&files)?;
        let kind = inspect::kind(&files);
        // Where its sign is missing, what is missing is told when it is asked for.
        let names = if kind.part(self.role).is_some() { kind.expect(self.role)?.clone() } else { Names::OWN };
        TensorFiles::named(files, &names, |key| kind.owns(self.role, key))
    }
}

/// Opens a file of weights.
///
/// Errors when it is none of a kind that is read, is cut off, or its header is wrong.
pub fn open_weights(path: &Path) -> Result<Container> {
    Container::open(path, FETCH_AGAIN)
}

/// What a config says of weights that are quantised.
#[derive(Deserialize)]
struct Quantised {
    quantization_config: Option<Method>,
    /// What MLX calls it.
    quantization: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Method {
    quant_method: Option<String>,
}

impl Quantised {
    /// Errors with the method's name when no weights of it are read.
    fn check(&self) -> Result<()> {
        let method = match (&self.quantization_config, &self.quantization) {
            (None, None) => return Ok(()),
            (Some(Method { quant_method: Some(method) }), _) => method,
            (_, Some(_)) => "MLX",
            (Some(_), None) => "an unnamed method",
        };
        if method == "bitsandbytes" {
            return Ok(());
        }
        Err(Error::new(format!("the weights are quantised by `{method}`, which is not read"))
            .hint("use the same model as GGUF or fp8 in one file, by bitsandbytes, or in bf16: all of these are read"))
    }
}

/// What someone should know of tensors that belong to no part of a model that is in one file.
fn note_of_no_part(files: &[Container]) -> Option<String> {
    let kind = inspect::kind(files);
    if !kind.has_several() {
        return None;
    }
    let (key, path) = files.iter().find_map(|file| {
        let unknown = file.names().filter(|key| kind.owner(key).is_none()).min()?;
        Some((unknown, file.path()))
    })?;
    Some(format!("left out tensors of `{}` that no part of a klein model has, such as `{key}`", path.display()))
}
