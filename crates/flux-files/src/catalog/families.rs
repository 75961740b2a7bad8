//! Names of model families other than FLUX.2 klein, so that errors can tell what a file or an adapter is.

/// The name of a family of models whose files users may have.
pub type Family = &'static str;

pub const AURAFLOW: Family = "AuraFlow";
pub const CHROMA: Family = "Chroma";
pub const COG: Family = "CogVideoX or CogView";
pub const COSMOS: Family = "Cosmos";
/// All variants of FLUX.1.
pub const FLUX1: Family = "FLUX.1";
/// FLUX.2-dev, with guidance and Mistral as its text encoder.
pub const FLUX2_DEV: Family = "FLUX.2-dev";
pub const FLUX3: Family = "FLUX.3";
pub const HIDREAM: Family = "HiDream";
/// Hunyuan-DiT, HunyuanImage and HunyuanVideo.
pub const HUNYUAN: Family = "Hunyuan";
pub const LTX: Family = "LTX-Video";
pub const LUMINA2: Family = "Lumina 2";
pub const MOCHI: Family = "Mochi";
pub const OMNIGEN2: Family = "OmniGen 2";
pub const PIXART: Family = "PixArt";
/// Qwen-Image and Qwen-Image-Edit.
pub const QWEN_IMAGE: Family = "Qwen-Image";
pub const SANA: Family = "Sana";
pub const STABLE_CASCADE: Family = "Stable Cascade";
pub const STABLE_DIFFUSION1: Family = "Stable Diffusion 1";
pub const STABLE_DIFFUSION2: Family = "Stable Diffusion 2";
pub const STABLE_DIFFUSION3: Family = "Stable Diffusion 3";
pub const STABLE_DIFFUSION_XL: Family = "SDXL";
pub const WAN: Family = "Wan";
pub const Z_IMAGE: Family = "Z-Image";
