//! What a user gave as a model: a folder, some files, or the model that the program carries.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::component::{CONFIG, Component, ConfigPlace};
use super::folder::{EmbeddedFile, Folder};
use super::named_paths::ModelPaths;
use super::own_models::FLUX2_KLEIN;
use super::role::Role;
use super::variant::Variant;
use crate::error::{Error, Result, shortened};

pub(super) const INDEX: &str = "model_index.json";
/// What a folder has in its place whose parts may be in other repositories.
const MODULAR_INDEX: &str = "modular_model_index.json";
const SCHEDULER_FOLDER: &str = "scheduler";
const SCHEDULER: &str = "scheduler_config.json";
const TOKENIZER_FOLDER: &str = "tokenizer";
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// Where the tokenizer is.
#[derive(Debug, Clone)]
pub enum TokenizerFile {
    /// A `tokenizer.json` of this name in a folder.
    Json(Folder, String),
    /// In a GGUF file of a text encoder.
    Gguf(PathBuf),
    /// The one that the program carries.
    Carried,
}

/// The files of a model, each found, but not yet opened.
#[derive(Debug, Clone)]
pub struct ModelFiles {
    pub(super) name: String,
    /// Where its `model_index.json` is.
    pub(super) index: Option<Folder>,
    pub(super) text_encoder: Component,
    pub(super) transformer: Component,
    pub(super) vae: Component,
    pub(super) tokenizer: TokenizerFile,
    pub(super) variant: Option<Variant>,
    pub(super) notes: Vec<String>,
    /// What was named to find it.
    pub(super) paths: ModelPaths,
}

impl ModelFiles {
    /// The model that the program carries.
    pub fn embedded(files: &'static [EmbeddedFile]) -> Self {
        Self::of_folder(Folder::Embedded(files, String::new()), "tiny".to_string())
    }

    /// A folder in the diffusers layout.
    pub(super) fn of_folder(folder: Folder, name: String) -> Self {
        let component = |role: Role| {
            let own = folder.sub(role.folder());
            let elsewhere = (!own.exists(CONFIG)).then(|| elsewhere(&folder, role)).flatten();
            elsewhere.map_or_else(|| Component::folder(role, own), |error| Component::missing(role, error))
        };
        Self {
            name,
            text_encoder: component(Role::TextEncoder),
            transformer: component(Role::Transformer),
            vae: component(Role::Vae),
            tokenizer: TokenizerFile::Json(folder.sub(TOKENIZER_FOLDER), TOKENIZER.to_string()),
            index: Some(folder),
            variant: None,
            notes: Vec::new(),
            paths: ModelPaths::default(),
        }
    }

    /// The tokenizer beside the components of a model folder, if there is one.
    pub(super) fn tokenizer_in(folder: &Path) -> Option<TokenizerFile> {
        let folder = Folder::Disk(folder.join(TOKENIZER_FOLDER));
        folder.exists(TOKENIZER).then(|| TokenizerFile::Json(folder, TOKENIZER.to_string()))
    }

    /// A short name of the model, for display.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What was named to find it; nothing for the built-in model.
    pub fn paths(&self) -> &ModelPaths {
        &self.paths
    }

    /// The same, said to be named by these paths.
    pub fn named_as(self, paths: ModelPaths) -> Self {
        Self { paths, ..self }
    }

    /// The folder of a model in the diffusers layout, whose transformer is in it.
    pub fn folder(&self) -> Option<&Path> {
        let folder = self.index.as_ref()?.on_disk()?;
        (self.transformer.path() == folder.join(Role::Transformer.folder())).then_some(folder)
    }

    /// A part of it.
    pub fn component(&self, role: Role) -> &Component {
        match role {
            Role::TextEncoder => &self.text_encoder,
            Role::Transformer => &self.transformer,
            Role::Vae => &self.vae,
        }
    }

    /// Where the tokenizer is.
    pub fn tokenizer(&self) -> &TokenizerFile {
        &self.tokenizer
    }

    /// Which of the models of its architecture it is, where `model_index.json` is not to say it.
    pub fn variant(&self) -> Option<Variant> {
        self.variant
    }

    /// What someone should know about the choice of the files, to be shown by [`named`](crate::error::named).
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether somebody named the variant.
    pub fn is_variant_named(&self) -> bool {
        self.paths.variant.is_some()
    }

    /// `model_index.json`, if the model has one.
    ///
    /// Errors when it cannot be read, or is no JSON.
    pub fn index<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        self.index.as_ref().map(|folder| folder.json(index_in(folder))).transpose()
    }

    /// The config of the scheduler, and its place, if the model has one.
    ///
    /// Errors when it cannot be read, or is no JSON.
    pub fn scheduler<T: DeserializeOwned>(&self) -> Result<Option<(T, ConfigPlace)>> {
        let Some(folder) = self.index.as_ref().map(|folder| folder.sub(SCHEDULER_FOLDER)) else { return Ok(None) };
        if !folder.exists(SCHEDULER) {
            return Ok(None);
        }
        Ok(Some((folder.json(SCHEDULER)?, ConfigPlace::config(folder.display(SCHEDULER)))))
    }

    /// Where the sizes of the whole model are told.
    pub fn index_place(&self) -> ConfigPlace {
        match &self.index {
            Some(folder) => ConfigPlace::config(folder.display(index_in(folder))),
            None => self.transformer.place(),
        }
    }
}

/// The name of the index of a folder.
pub(super) fn index_in(folder: &Folder) -> &'static str {
    [INDEX, MODULAR_INDEX].into_iter().find(|name| folder.exists(name)).unwrap_or(INDEX)
}

/// Whether a folder on disk has an index.
pub(super) fn has_index(folder: &Path) -> bool {
    let folder = Folder::Disk(folder.to_path_buf());
    [INDEX, MODULAR_INDEX].into_iter().any(|name| folder.exists(name))
}

/// The error of a part that is not in a folder whose index says that it is in another repository.
fn elsewhere(folder: &Folder, role: Role) -> Option<Error> {
    #[derive(Deserialize)]
    struct Source {
        pretrained_model_name_or_path: Option<String>,
    }
    let index: BTreeMap<String, Value> = folder.json(index_in(folder)).ok()?;
    let source = index.get(role.folder())?.as_array()?.get(2)?;
    let repository = Source::deserialize(source).ok()?.pretrained_model_name_or_path?;
    let (title, repository) = (role.title(), shortened(&repository, 200));
    let what = format!("the {title} is not in the folder: its index says that it is in `{repository}`");
    Some(
        Error::new(what)
            .at(folder.display(index_in(folder)))
            .hint(format!("fetch that repository too, and name its {title} with `{}`", role.field())),
    )
}

impl TokenizerFile {
    /// Its path, for messages.
    pub fn display(&self) -> String {
        match self {
            Self::Json(folder, name) => folder.display(name),
            Self::Gguf(path) => path.display().to_string(),
            Self::Carried => format!("<{}'s tokenizer>", FLUX2_KLEIN.text_encoder),
        }
    }
}
