//! The classes of nodes that graphs may have: what each takes and gives. One table, by which graphs are checked and of
//! which `/object_info` tells.
//!
//! Source: ComfyUI's nodes.py, comfy_extras/nodes_flux.py, nodes_custom_sampler.py, nodes_edit_model.py,
//! nodes_post_processing.py, nodes_mask.py and nodes_images.py; comfyui-tooling-nodes for those of Krita.

use super::kinds::Kind;
use super::sigmas::MOST_STEPS;

/// A class of nodes.
pub struct Class {
    pub name: &'static str,
    pub category: &'static str,
    pub inputs: &'static [Input],
    pub outputs: &'static [(Kind, &'static str)],
    /// Whether graphs are drawn for its sake.
    pub is_output: bool,
}

/// What a node takes.
pub struct Input {
    pub name: &'static str,
    pub takes: Takes,
    pub is_needed: bool,
}

/// What an input is.
#[derive(Debug, Clone, Copy)]
pub enum Takes {
    /// What another node gives.
    Link(Kind),
    /// A whole number: the default, the least and the most.
    Whole(u64, u64, u64),
    /// A number: the default, the least and the most.
    Number(f64, f64, f64),
    Flag(bool),
    Text(&'static str),
    Choice(Choice),
    /// What older clients send, and what changes nothing.
    Nothing,
}

/// One of several texts.
#[derive(Debug, Clone, Copy)]
pub enum Choice {
    Words(&'static [&'static str]),
    /// Files of models; the server has names for them.
    Models,
    /// Files of text encoders and VAEs, which models here have of their own.
    PartsOfModels,
    Adapters,
    /// Images that the client sent.
    Uploads,
}

impl Class {
    pub fn find(name: &str) -> Option<&'static Self> {
        CLASSES.iter().find(|class| class.name == name)
    }

    pub fn input(&self, name: &str) -> Option<&'static Input> {
        self.inputs.iter().find(|input| input.name == name)
    }
}

const fn input(name: &'static str, takes: Takes) -> Input {
    Input { name, takes, is_needed: true }
}

const fn optional(name: &'static str, takes: Takes) -> Input {
    Input { name, takes, is_needed: false }
}

const fn link(name: &'static str, kind: Kind) -> Input {
    input(name, Takes::Link(kind))
}

const fn whole(name: &'static str, [default, least, most]: [u64; 3]) -> Input {
    input(name, Takes::Whole(default, least, most))
}

const fn number(name: &'static str, [default, least, most]: [f64; 3]) -> Input {
    input(name, Takes::Number(default, least, most))
}

const fn text(name: &'static str, default: &'static str) -> Input {
    input(name, Takes::Text(default))
}

const fn word(name: &'static str, words: &'static [&'static str]) -> Input {
    input(name, Takes::Choice(Choice::Words(words)))
}

const fn choice(name: &'static str, of: Choice) -> Input {
    input(name, Takes::Choice(of))
}

const fn class(
    name: &'static str,
    category: &'static str,
    inputs: &'static [Input],
    outputs: &'static [(Kind, &'static str)],
) -> Class {
    Class { name, category, inputs, outputs, is_output: false }
}

const fn output(name: &'static str, inputs: &'static [Input]) -> Class {
    Class { name, category: "image", inputs, outputs: &[], is_output: true }
}

/// The longest side of an image.
const MOST_SIDE: u64 = 16384;
/// The most images of a batch.
pub const MOST_IMAGES: u64 = 64;
const SIDE: [u64; 3] = [1024, 16, MOST_SIDE];
const COUNT: [u64; 3] = [1, 1, MOST_IMAGES];
const STEPS: [u64; 3] = [20, 1, MOST_STEPS];
const SCALE: [f64; 3] = [8.0, 0.0, 100.0];
const PART: [f64; 3] = [1.0, 0.0, 1.0];
const STRENGTH: [f64; 3] = [1.0, -100.0, 100.0];
const ALL_SEEDS: [u64; 3] = [0, 0, u64::MAX];
pub const UPSCALE: &[&str] = &["nearest-exact", "bilinear", "area", "bicubic", "lanczos"];
pub const SAMPLERS: &[&str] = &["euler"];
pub const SCHEDULERS: &[&str] = &["simple", "sgm_uniform", "normal"];
const CHANNELS: &[&str] = &["red", "green", "blue"];
const TILE_SIZE: Input = whole("tile_size", [512, 64, 4096]);
const OVERLAP: Input = optional("overlap", Takes::Whole(64, 0, 4096));
const TEMPORAL_SIZE: Input = optional("temporal_size", Takes::Whole(64, 8, 4096));
const TEMPORAL_OVERLAP: Input = optional("temporal_overlap", Takes::Whole(8, 4, 4096));
const FORMAT: Input = optional("format", Takes::Choice(Choice::Words(&["PNG"])));

const MODEL: (Kind, &str) = (Kind::Model, "MODEL");
const CLIP: (Kind, &str) = (Kind::Clip, "CLIP");
const VAE: (Kind, &str) = (Kind::Vae, "VAE");
const CONDITIONING: (Kind, &str) = (Kind::Conditioning, "CONDITIONING");
const LATENT: (Kind, &str) = (Kind::Latent, "LATENT");
const IMAGE: (Kind, &str) = (Kind::Image, "IMAGE");
const MASK: (Kind, &str) = (Kind::Mask, "MASK");
const SIGMAS: (Kind, &str) = (Kind::Sigmas, "SIGMAS");
const EMPTY: &[Input] = &[whole("width", SIDE), whole("height", SIDE), whole("batch_size", COUNT)];

pub const CLASSES: &[Class] = &[
    class(
        "UNETLoader",
        "advanced/loaders",
        &[
            choice("unet_name", Choice::Models),
            word("weight_dtype", &["default", "fp8_e4m3fn", "fp8_e4m3fn_fast", "fp8_e5m2"]),
        ],
        &[MODEL],
    ),
    class("UnetLoaderGGUF", "bootleg", &[choice("unet_name", Choice::Models)], &[MODEL]),
    class("CheckpointLoaderSimple", "loaders", &[choice("ckpt_name", Choice::Models)], &[MODEL, CLIP, VAE]),
    class(
        "CLIPLoader",
        "advanced/loaders",
        &[
            choice("clip_name", Choice::PartsOfModels),
            word("type", &["flux2"]),
            optional("device", Takes::Choice(Choice::Words(&["default", "cpu"]))),
        ],
        &[CLIP],
    ),
    class(
        "CLIPLoaderGGUF",
        "bootleg",
        &[choice("clip_name", Choice::PartsOfModels), word("type", &["flux2"])],
        &[CLIP],
    ),
    class("VAELoader", "loaders", &[choice("vae_name", Choice::PartsOfModels)], &[VAE]),
    class(
        "LoraLoader",
        "loaders",
        &[
            link("model", Kind::Model),
            link("clip", Kind::Clip),
            choice("lora_name", Choice::Adapters),
            number("strength_model", STRENGTH),
            number("strength_clip", STRENGTH),
        ],
        &[MODEL, CLIP],
    ),
    class(
        "LoraLoaderModelOnly",
        "loaders",
        &[link("model", Kind::Model), choice("lora_name", Choice::Adapters), number("strength_model", STRENGTH)],
        &[MODEL],
    ),
    class("FluxKVCache", "model_patches", &[link("model", Kind::Model)], &[MODEL]),
    class("CLIPTextEncode", "conditioning", &[text("text", ""), link("clip", Kind::Clip)], &[CONDITIONING]),
    class(
        "FluxGuidance",
        "advanced/conditioning/flux",
        &[link("conditioning", Kind::Conditioning), number("guidance", [3.5, 0.0, 100.0])],
        &[CONDITIONING],
    ),
    class("ConditioningZeroOut", "advanced/conditioning", &[link("conditioning", Kind::Conditioning)], &[CONDITIONING]),
    class(
        "ReferenceLatent",
        "advanced/conditioning/edit_models",
        &[link("conditioning", Kind::Conditioning), optional("latent", Takes::Link(Kind::Latent))],
        &[CONDITIONING],
    ),
    class(
        "FluxKontextMultiReferenceLatentMethod",
        "advanced/conditioning/flux",
        &[link("conditioning", Kind::Conditioning), word("reference_latents_method", &["index"])],
        &[CONDITIONING],
    ),
    class("EmptyFlux2LatentImage", "latent", EMPTY, &[LATENT]),
    class("EmptySD3LatentImage", "latent/sd3", EMPTY, &[LATENT]),
    class("EmptyLatentImage", "latent", EMPTY, &[LATENT]),
    class("VAEEncode", "latent", &[link("pixels", Kind::Image), link("vae", Kind::Vae)], &[LATENT]),
    class(
        "VAEEncodeTiled",
        "_for_testing",
        &[link("pixels", Kind::Image), link("vae", Kind::Vae), TILE_SIZE, OVERLAP, TEMPORAL_SIZE, TEMPORAL_OVERLAP],
        &[LATENT],
    ),
    class(
        "VAEEncodeForInpaint",
        "latent/inpaint",
        &[
            link("pixels", Kind::Image),
            link("vae", Kind::Vae),
            link("mask", Kind::Mask),
            whole("grow_mask_by", [6, 0, 64]),
        ],
        &[LATENT],
    ),
    class(
        "InpaintModelConditioning",
        "conditioning/inpaint",
        &[
            link("positive", Kind::Conditioning),
            link("negative", Kind::Conditioning),
            link("vae", Kind::Vae),
            link("pixels", Kind::Image),
            link("mask", Kind::Mask),
            optional("noise_mask", Takes::Flag(true)),
        ],
        &[(Kind::Conditioning, "positive"), (Kind::Conditioning, "negative"), (Kind::Latent, "latent")],
    ),
    class(
        "SetLatentNoiseMask",
        "latent/inpaint",
        &[link("samples", Kind::Latent), link("mask", Kind::Mask)],
        &[LATENT],
    ),
    class("RepeatLatentBatch", "latent/batch", &[link("samples", Kind::Latent), whole("amount", COUNT)], &[LATENT]),
    class("VAEDecode", "latent", &[link("samples", Kind::Latent), link("vae", Kind::Vae)], &[IMAGE]),
    class(
        "VAEDecodeTiled",
        "_for_testing",
        &[link("samples", Kind::Latent), link("vae", Kind::Vae), TILE_SIZE, OVERLAP, TEMPORAL_SIZE, TEMPORAL_OVERLAP],
        &[IMAGE],
    ),
    class(
        "LoadImage",
        "image",
        &[choice("image", Choice::Uploads), optional("upload", Takes::Nothing)],
        &[IMAGE, MASK],
    ),
    class(
        "LoadImageMask",
        "mask",
        &[
            choice("image", Choice::Uploads),
            word("channel", &["alpha", "red", "green", "blue"]),
            optional("upload", Takes::Nothing),
        ],
        &[MASK],
    ),
    class("ETN_LoadImageBase64", "external_tooling", &[text("image", "")], &[IMAGE, MASK]),
    class("ETN_LoadMaskBase64", "external_tooling", &[text("mask", "")], &[MASK]),
    class("ETN_LoadImageCache", "external_tooling", &[text("id", "")], &[IMAGE]),
    class(
        "ImageScaleToTotalPixels",
        "image/upscaling",
        &[
            link("image", Kind::Image),
            word("upscale_method", UPSCALE),
            number("megapixels", [1.0, 0.01, 16.0]),
            optional("resolution_steps", Takes::Whole(1, 1, 256)),
        ],
        &[IMAGE],
    ),
    class(
        "ImageScale",
        "image/upscaling",
        &[
            link("image", Kind::Image),
            word("upscale_method", UPSCALE),
            whole("width", [512, 0, MOST_SIDE]),
            whole("height", [512, 0, MOST_SIDE]),
            word("crop", &["disabled", "center"]),
        ],
        &[IMAGE],
    ),
    class(
        "ImageScaleBy",
        "image/upscaling",
        &[link("image", Kind::Image), word("upscale_method", UPSCALE), number("scale_by", [1.0, 0.01, 8.0])],
        &[IMAGE],
    ),
    class("FluxKontextImageScale", "advanced/conditioning/flux", &[link("image", Kind::Image)], &[IMAGE]),
    class(
        "GetImageSize",
        "image",
        &[link("image", Kind::Image)],
        &[(Kind::Whole, "width"), (Kind::Whole, "height"), (Kind::Whole, "batch_size")],
    ),
    class(
        "ImageCompositeMasked",
        "image",
        &[
            link("destination", Kind::Image),
            link("source", Kind::Image),
            whole("x", [0, 0, 0]),
            whole("y", [0, 0, 0]),
            input("resize_source", Takes::Flag(false)),
            optional("mask", Takes::Link(Kind::Mask)),
        ],
        &[IMAGE],
    ),
    class("InvertMask", "mask", &[link("mask", Kind::Mask)], &[MASK]),
    class(
        "GrowMask",
        "mask",
        &[link("mask", Kind::Mask), whole("expand", [0, 0, 256]), input("tapered_corners", Takes::Flag(true))],
        &[MASK],
    ),
    class("ImageToMask", "mask", &[link("image", Kind::Image), word("channel", CHANNELS)], &[MASK]),
    class(
        "RandomNoise",
        "sampling/custom_sampling/noise",
        &[whole("noise_seed", ALL_SEEDS)],
        &[(Kind::Noise, "NOISE")],
    ),
    class(
        "KSamplerSelect",
        "sampling/custom_sampling/samplers",
        &[word("sampler_name", SAMPLERS)],
        &[(Kind::Sampler, "SAMPLER")],
    ),
    class(
        "Flux2Scheduler",
        "sampling/custom_sampling/schedulers",
        &[whole("steps", STEPS), whole("width", SIDE), whole("height", SIDE)],
        &[SIGMAS],
    ),
    class(
        "BasicScheduler",
        "sampling/custom_sampling/schedulers",
        &[link("model", Kind::Model), word("scheduler", SCHEDULERS), whole("steps", STEPS), number("denoise", PART)],
        &[SIGMAS],
    ),
    class(
        "SplitSigmas",
        "sampling/custom_sampling/sigmas",
        &[link("sigmas", Kind::Sigmas), whole("step", [0, 0, 10_000])],
        &[(Kind::Sigmas, "high_sigmas"), (Kind::Sigmas, "low_sigmas")],
    ),
    class(
        "SplitSigmasDenoise",
        "sampling/custom_sampling/sigmas",
        &[link("sigmas", Kind::Sigmas), number("denoise", PART)],
        &[(Kind::Sigmas, "high_sigmas"), (Kind::Sigmas, "low_sigmas")],
    ),
    class(
        "CFGGuider",
        "sampling/custom_sampling/guiders",
        &[
            link("model", Kind::Model),
            link("positive", Kind::Conditioning),
            link("negative", Kind::Conditioning),
            number("cfg", SCALE),
        ],
        &[(Kind::Guider, "GUIDER")],
    ),
    class(
        "BasicGuider",
        "sampling/custom_sampling/guiders",
        &[link("model", Kind::Model), link("conditioning", Kind::Conditioning)],
        &[(Kind::Guider, "GUIDER")],
    ),
    class(
        "SamplerCustomAdvanced",
        "sampling/custom_sampling",
        &[
            link("noise", Kind::Noise),
            link("guider", Kind::Guider),
            link("sampler", Kind::Sampler),
            link("sigmas", Kind::Sigmas),
            link("latent_image", Kind::Latent),
        ],
        &[(Kind::Latent, "output"), (Kind::Latent, "denoised_output")],
    ),
    class(
        "KSampler",
        "sampling",
        &[
            link("model", Kind::Model),
            whole("seed", ALL_SEEDS),
            whole("steps", STEPS),
            number("cfg", SCALE),
            word("sampler_name", SAMPLERS),
            word("scheduler", SCHEDULERS),
            link("positive", Kind::Conditioning),
            link("negative", Kind::Conditioning),
            link("latent_image", Kind::Latent),
            number("denoise", PART),
        ],
        &[LATENT],
    ),
    class("PrimitiveInt", "utils/primitive", &[whole("value", [0, 0, u64::MAX])], &[(Kind::Whole, "INT")]),
    class("PrimitiveFloat", "utils/primitive", &[number("value", [0.0, -1e15, 1e15])], &[(Kind::Number, "FLOAT")]),
    class("PrimitiveString", "utils/primitive", &[text("value", "")], &[(Kind::Text, "STRING")]),
    class("PrimitiveStringMultiline", "utils/primitive", &[text("value", "")], &[(Kind::Text, "STRING")]),
    class("PrimitiveBoolean", "utils/primitive", &[input("value", Takes::Flag(false))], &[(Kind::Flag, "BOOLEAN")]),
    output("SaveImage", &[link("images", Kind::Image), text("filename_prefix", "ComfyUI")]),
    output("PreviewImage", &[link("images", Kind::Image)]),
    output("SaveImageWebsocket", &[link("images", Kind::Image)]),
    output("ETN_SendImageWebSocket", &[link("images", Kind::Image), FORMAT]),
    output("ETN_SaveImageCache", &[link("images", Kind::Image), FORMAT]),
];
