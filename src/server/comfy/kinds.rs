//! What goes from node to node.

use std::sync::Arc;

use super::images::{MaskPicture, Picture};
use super::sigmas::Sigmas;
use crate::server::request::Lora;

/// The type of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Model,
    Clip,
    Vae,
    Conditioning,
    Latent,
    Image,
    Mask,
    Noise,
    Guider,
    Sampler,
    Sigmas,
    Whole,
    Number,
    Text,
    Flag,
}

impl Kind {
    /// As ComfyUI calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Model => "MODEL",
            Self::Clip => "CLIP",
            Self::Vae => "VAE",
            Self::Conditioning => "CONDITIONING",
            Self::Latent => "LATENT",
            Self::Image => "IMAGE",
            Self::Mask => "MASK",
            Self::Noise => "NOISE",
            Self::Guider => "GUIDER",
            Self::Sampler => "SAMPLER",
            Self::Sigmas => "SIGMAS",
            Self::Whole => "INT",
            Self::Number => "FLOAT",
            Self::Text => "STRING",
            Self::Flag => "BOOLEAN",
        }
    }
}

/// What an output of a node is.
#[derive(Debug, Clone)]
pub enum Worth {
    Model(Model),
    /// Models here have their own text encoder and VAE, and one sampler.
    Clip,
    Vae,
    Sampler,
    Conditioning(Conditioning),
    Latent(Latent),
    Image(Image),
    Mask(Arc<MaskPicture>),
    Noise(u64),
    Guider(Arc<Guider>),
    Sigmas(Arc<Sigmas>),
    /// The first part of levels, behind which noise is left.
    HighSigmas,
    Whole(u64),
    Number(f64),
    Text(Arc<str>),
    Flag(bool),
}

/// A model of the server, and what changes it.
#[derive(Debug, Clone)]
pub struct Model {
    /// As the server calls it.
    pub name: Arc<str>,
    pub is_distilled: bool,
    pub adapters: Arc<[Lora]>,
}

/// A prompt, and the images that the model sees beside it.
#[derive(Debug, Clone)]
pub struct Conditioning {
    /// None where it is nothing but zeros.
    pub text: Option<Arc<str>>,
    pub references: Arc<[Arc<Picture>]>,
}

/// Where sampling begins, or what it made.
#[derive(Debug, Clone)]
pub struct Latent {
    pub content: Content,
    pub mask: Option<Arc<MaskPicture>>,
    pub count: u64,
}

#[derive(Debug, Clone)]
pub enum Content {
    /// Nothing yet, in a size in pixels.
    Empty([u64; 2]),
    Encoded(Arc<Picture>),
    Drawn(Arc<Drawing>),
}

#[derive(Debug, Clone)]
pub enum Image {
    Sent(Arc<Picture>),
    /// Whether it comes back onto the image that was changed.
    Drawn(Arc<Drawing>, bool),
}

/// How a sampler is guided.
#[derive(Debug)]
pub struct Guider {
    /// Its node.
    pub node: usize,
    pub model: Model,
    pub positive: Conditioning,
    pub negative: Option<Conditioning>,
    pub scale: f64,
}

/// What a sampler draws.
#[derive(Debug)]
pub struct Drawing {
    /// The node of the sampler.
    pub node: usize,
    pub guider: Arc<Guider>,
    pub seed: u64,
    pub sigmas: Arc<Sigmas>,
    pub latent: Latent,
}
