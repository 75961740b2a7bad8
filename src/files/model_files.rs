//! What a user gave as a model: a folder, some files, or the model that the program carries.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use super::component::{Component, ConfigPlace};
use super::folder::{EmbeddedFile, Folder};
use super::named_paths::ModelPaths;
use super::own_models::FLUX2_KLEIN;
use super::role::Role;
use super::variant::Variant;
use crate::error::Result;

pub(super) const INDEX: &str = "model_index.json";
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
        let component = |role: Role| Component::folder(role, folder.sub(role.folder()));
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

    /// `model_index.json`, if the model has one.
    ///
    /// Errors when it cannot be read, or is no JSON.
    pub fn index<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        self.index.as_ref().map(|folder| folder.json(INDEX)).transpose()
    }

    /// Where the sizes of the whole model are told.
    pub fn index_place(&self) -> ConfigPlace {
        match &self.index {
            Some(folder) => ConfigPlace::config(folder.display(INDEX)),
            None => self.transformer.place(),
        }
    }
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
