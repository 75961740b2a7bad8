//! Families of models other than FLUX.2 klein, with their names, so that errors can tell what a file or an adapter is.

use std::fmt;

/// A family of models whose files users may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// AuraFlow.
    AuraFlow,
    /// Chroma.
    Chroma,
    /// CogVideoX and CogView4.
    Cog,
    /// Cosmos.
    Cosmos,
    /// All variants of FLUX.1.
    Flux1,
    /// FLUX.2-dev, with guidance and Mistral as its text encoder.
    Flux2Dev,
    /// FLUX.3.
    Flux3,
    /// HiDream.
    HiDream,
    /// Hunyuan-DiT, HunyuanImage and HunyuanVideo.
    Hunyuan,
    /// LTX-Video.
    Ltx,
    /// Lumina 2.
    Lumina2,
    /// Mochi.
    Mochi,
    /// OmniGen 2.
    OmniGen2,
    /// PixArt.
    PixArt,
    /// Qwen-Image and Qwen-Image-Edit.
    QwenImage,
    /// Sana.
    Sana,
    /// Stable Cascade.
    StableCascade,
    /// Stable Diffusion 1.
    StableDiffusion1,
    /// Stable Diffusion 2.
    StableDiffusion2,
    /// Stable Diffusion 3.
    StableDiffusion3,
    /// Stable Diffusion XL.
    StableDiffusionXl,
    /// Wan.
    Wan,
    /// Z-Image.
    ZImage,
}

impl Family {
    /// Returns the family's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::AuraFlow => "AuraFlow",
            Self::Chroma => "Chroma",
            Self::Cog => "CogVideoX or CogView",
            Self::Cosmos => "Cosmos",
            Self::Flux1 => "FLUX.1",
            Self::Flux2Dev => "FLUX.2-dev",
            Self::Flux3 => "FLUX.3",
            Self::HiDream => "HiDream",
            Self::Hunyuan => "Hunyuan",
            Self::Ltx => "LTX-Video",
            Self::Lumina2 => "Lumina 2",
            Self::Mochi => "Mochi",
            Self::OmniGen2 => "OmniGen 2",
            Self::PixArt => "PixArt",
            Self::QwenImage => "Qwen-Image",
            Self::Sana => "Sana",
            Self::StableCascade => "Stable Cascade",
            Self::StableDiffusion1 => "Stable Diffusion 1",
            Self::StableDiffusion2 => "Stable Diffusion 2",
            Self::StableDiffusion3 => "Stable Diffusion 3",
            Self::StableDiffusionXl => "SDXL",
            Self::Wan => "Wan",
            Self::ZImage => "Z-Image",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
