//! The files of a model that the user named: a folder, some files, or the built-in model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::catalog::own_models::FLUX2_KLEIN;
use crate::catalog::role::Role;
use crate::catalog::variant::Variant;
use crate::models::component::{CONFIG, Component, ConfigPlace};
use crate::models::folder::{EmbeddedFile, Folder};
use crate::models::named_paths::ModelPaths;
use flux_base::error::{Error, Result, shortened};

pub(crate) const INDEX: &str = "model_index.json";
/// The index of a folder whose parts may be in other repositories; takes the place of [`INDEX`].
const MODULAR_INDEX: &str = "modular_model_index.json";
const SCHEDULER_FOLDER: &str = "scheduler";
const SCHEDULER: &str = "scheduler_config.json";
const TOKENIZER_FOLDER: &str = "tokenizer";
pub(crate) const TOKENIZER: &str = "tokenizer.json";

/// The location of the tokenizer.
#[derive(Debug, Clone)]
pub enum TokenizerFile {
    /// A file of this name in a folder, in the format of `tokenizer.json`.
    Json(Folder, String),
    /// The GGUF file of a text encoder that contains the tokenizer.
    Gguf(PathBuf),
    /// The built-in tokenizer.
    Carried,
}

/// The files of a model, located but not yet opened.
#[derive(Debug, Clone)]
pub struct ModelFiles {
    pub(crate) name: String,
    /// The folder of `model_index.json`.
    pub(crate) index: Option<Folder>,
    pub(crate) text_encoder: Component,
    pub(crate) transformer: Component,
    pub(crate) vae: Component,
    pub(crate) tokenizer: TokenizerFile,
    pub(crate) variant: Option<Variant>,
    pub(crate) notes: Vec<String>,
    /// The paths that the user named.
    pub(crate) paths: ModelPaths,
}

impl ModelFiles {
    /// Creates the built-in model from its embedded files.
    pub fn embedded(files: &'static [EmbeddedFile]) -> Self {
        Self::from_folder(Folder::Embedded(files, String::new()), "tiny".to_string())
    }

    /// Creates a model from a folder in the diffusers layout.
    pub(crate) fn from_folder(folder: Folder, name: String) -> Self {
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

    /// Returns the tokenizer in a model folder, if there is one.
    pub(crate) fn tokenizer_in(folder: &Path) -> Option<TokenizerFile> {
        let folder = Folder::Disk(folder.join(TOKENIZER_FOLDER));
        folder.exists(TOKENIZER).then(|| TokenizerFile::Json(folder, TOKENIZER.to_string()))
    }

    /// Returns a short name of the model, for display.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the paths that the user named; empty for the built-in model.
    pub fn paths(&self) -> &ModelPaths {
        &self.paths
    }

    /// Replaces the named paths.
    pub fn named_as(self, paths: ModelPaths) -> Self {
        Self { paths, ..self }
    }

    /// Returns the model's folder in the diffusers layout if the transformer is in it.
    pub fn folder(&self) -> Option<&Path> {
        let folder = self.index.as_ref()?.on_disk()?;
        (self.transformer.path() == folder.join(Role::Transformer.folder())).then_some(folder)
    }

    /// Returns a part of the model.
    pub fn component(&self, role: Role) -> &Component {
        match role {
            Role::TextEncoder => &self.text_encoder,
            Role::Transformer => &self.transformer,
            Role::Vae => &self.vae,
        }
    }

    /// Returns the location of the tokenizer.
    pub fn tokenizer(&self) -> &TokenizerFile {
        &self.tokenizer
    }

    /// Returns the model's variant within its architecture if `model_index.json` does not decide it.
    pub fn variant(&self) -> Option<Variant> {
        self.variant
    }

    /// Returns notes for the user about the choice of files, to be shown by [`named`](flux_base::error::named).
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns `true` if the user named the variant.
    pub fn is_variant_named(&self) -> bool {
        self.paths.variant.is_some()
    }

    /// Reads `model_index.json`, if the model has one.
    ///
    /// Errors if it cannot be read or is not valid JSON.
    pub fn index<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        self.index.as_ref().map(|folder| folder.json(index_in(folder))).transpose()
    }

    /// Reads the scheduler's config, if the model has one, and returns it with its place.
    ///
    /// Errors if it cannot be read or is not valid JSON.
    pub fn scheduler<T: DeserializeOwned>(&self) -> Result<Option<(T, ConfigPlace)>> {
        let Some(folder) = self.index.as_ref().map(|folder| folder.sub(SCHEDULER_FOLDER)) else { return Ok(None) };
        if !folder.exists(SCHEDULER) {
            return Ok(None);
        }
        Ok(Some((folder.json(SCHEDULER)?, ConfigPlace::config(folder.display(SCHEDULER)))))
    }

    /// Returns the place of the config with the sizes of the whole model.
    pub fn index_place(&self) -> ConfigPlace {
        match &self.index {
            Some(folder) => ConfigPlace::config(folder.display(index_in(folder))),
            None => self.transformer.place(),
        }
    }
}

/// Returns the file name of a folder's index.
pub(crate) fn index_in(folder: &Folder) -> &'static str {
    [INDEX, MODULAR_INDEX].into_iter().find(|name| folder.exists(name)).unwrap_or(INDEX)
}

/// Returns `true` if a folder on disk has an index.
pub(crate) fn has_index(folder: &Path) -> bool {
    let folder = Folder::Disk(folder.to_path_buf());
    [INDEX, MODULAR_INDEX].into_iter().any(|name| folder.exists(name))
}

/// Returns an error if a part is not in the folder because its index places the part in another repository.
fn elsewhere(folder: &Folder, role: Role) -> Option<Error> {
    #[derive(Deserialize)]
    struct Source {
        pretrained_model_name_or_path: Option<String>,
    }
    let index: BTreeMap<String, Value> = folder.json(index_in(folder)).ok()?;
    let source = index.get(role.folder())?.as_array()?.get(2)?;
    let repository = Source::deserialize(source).ok()?.pretrained_model_name_or_path?;
    let (title, repository) = (role.title(), shortened(&repository, 200));
    let what = format!("the {title} is not in the folder: the index places it in `{repository}`");
    Some(
        Error::new(what)
            .at(folder.display(index_in(folder)))
            .hint(format!("fetch that repository too, and pass its {title} with `{}`", role.field())),
    )
}

impl TokenizerFile {
    /// Returns the path of the tokenizer, for messages.
    pub fn display(&self) -> String {
        match self {
            Self::Json(folder, name) => folder.display(name),
            Self::Gguf(path) => path.display().to_string(),
            Self::Carried => format!("<{}'s tokenizer>", FLUX2_KLEIN.text_encoder),
        }
    }
}
