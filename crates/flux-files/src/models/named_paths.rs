//! The paths that name a model.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::catalog::variant::Variant;

/// The paths that the user named; parts left out are searched for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelPaths {
    /// The model: a folder, or the file of a transformer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<PathBuf>,
    /// A file, or the folder of a text encoder or of a whole model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_encoder: Option<PathBuf>,
    /// A file, or the folder of a VAE or of a whole model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vae: Option<PathBuf>,
    /// A file, or the folder of a tokenizer or of a whole model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<PathBuf>,
    /// The variant of the model within its architecture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<Variant>,
}
