//! The parts of a model.

use serde::Serialize;

use crate::error::Field;

/// A part of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The language model that reads the prompt.
    TextEncoder,
    /// The transformer.
    Transformer,
    /// The VAE.
    Vae,
}

impl Role {
    /// The folder of a model in the diffusers layout that holds it.
    pub fn folder(self) -> &'static str {
        match self {
            Self::TextEncoder => "text_encoder",
            Self::Transformer => "transformer",
            Self::Vae => "vae",
        }
    }

    /// The name of its weights in that folder, without an ending.
    pub fn stem(self) -> &'static str {
        match self {
            Self::TextEncoder => "model",
            Self::Transformer | Self::Vae => "diffusion_pytorch_model",
        }
    }

    /// What it is called in messages.
    pub fn title(self) -> &'static str {
        match self {
            Self::TextEncoder => "text encoder",
            Self::Transformer => "transformer",
            Self::Vae => "VAE",
        }
    }

    /// The field of a request that names it.
    pub fn field(self) -> Field {
        match self {
            Self::TextEncoder => Field::TextEncoder,
            Self::Transformer => Field::Model,
            Self::Vae => Field::Vae,
        }
    }
}
