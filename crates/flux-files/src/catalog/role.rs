//! The parts of a model.

use serde::Serialize;

use flux_base::error::Field;

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
    /// All parts.
    pub const ALL: [Self; 3] = [Self::TextEncoder, Self::Transformer, Self::Vae];

    /// Returns the folder of the part in the diffusers layout.
    pub fn folder(self) -> &'static str {
        match self {
            Self::TextEncoder => "text_encoder",
            Self::Transformer => "transformer",
            Self::Vae => "vae",
        }
    }

    /// Returns the name of the part's weights in that folder, without an extension.
    pub fn stem(self) -> &'static str {
        match self {
            Self::TextEncoder => "model",
            Self::Transformer | Self::Vae => "diffusion_pytorch_model",
        }
    }

    /// Returns the title for messages.
    pub fn title(self) -> &'static str {
        match self {
            Self::TextEncoder => "text encoder",
            Self::Transformer => "transformer",
            Self::Vae => "VAE",
        }
    }

    /// Returns the field of a request that names the part.
    pub fn field(self) -> Field {
        match self {
            Self::TextEncoder => Field::TextEncoder,
            Self::Transformer => Field::Model,
            Self::Vae => Field::Vae,
        }
    }
}
