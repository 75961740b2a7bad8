//! Node classes with an effect.
//!
//! Source: ComfyUI's nodes.py, comfy_extras/nodes_flux.py, nodes_custom_sampler.py, nodes_edit_model.py,
//! nodes_model_advanced.py, nodes_post_processing.py, nodes_mask.py, nodes_images.py and nodes_upscale_model.py;
//! comfyui-tooling-nodes for those of Krita.

use super::classes::{
    CLIP, CONDITIONING, Choice, Class, IMAGE, Input, LATENT, MODEL, Takes, VAE, choice, class, hint, input, link,
    number, optional, output, text, whole, word,
};
use super::flux3_nodes;
use super::kinds::Kind;
use super::passing::PASSING;
use super::regions;
use super::sigmas::MAX_STEPS;

/// The max side of an image.
const MAX_SIDE: u64 = 16384;
/// Max images of a batch.
pub const MAX_IMAGES: u64 = 64;
const SIDE: [u64; 3] = [1024, 16, MAX_SIDE];
const COUNT: [u64; 3] = [1, 1, MAX_IMAGES];
const STEPS: [u64; 3] = [20, 1, MAX_STEPS];
const SCALE: [f64; 3] = [8.0, 0.0, 100.0];
const PART: [f64; 3] = [1.0, 0.0, 1.0];
const STRENGTH: [f64; 3] = [1.0, -100.0, 100.0];
const ALL_SEEDS: [u64; 3] = [0, 0, u64::MAX];
pub const UPSCALE: &[&str] = &["lanczos", "nearest-exact", "bilinear", "area", "bicubic"];
const UPSCALE_LATENT: &[&str] = &["nearest-exact", "bilinear", "area", "bicubic", "bislerp"];
pub const SAMPLERS: &[&str] = &["euler"];
pub const SCHEDULERS: &[&str] = &["simple", "sgm_uniform", "normal"];
const CHANNELS: &[&str] = &["red", "green", "blue"];
const TILE_SIZE: Input = whole("tile_size", [512, 64, 4096]);
const OVERLAP: Input = optional("overlap", Takes::Whole(64, 0, 4096));
const TEMPORAL_SIZE: Input = optional("temporal_size", Takes::Whole(64, 8, 4096));
const TEMPORAL_OVERLAP: Input = optional("temporal_overlap", Takes::Whole(8, 4, 4096));
const FORMAT: Input = optional("format", Takes::Choice(Choice::Hint(&["PNG"])));

pub const MASK: (Kind, &str) = (Kind::Mask, "MASK");
pub const SIGMAS: (Kind, &str) = (Kind::Sigmas, "SIGMAS");
const SAMPLER: (Kind, &str) = (Kind::Sampler, "SAMPLER");
const OTHER_STEPS: &[Input] = &[whole("steps", STEPS)];
const SIZE: &[(Kind, &str)] = &[(Kind::Whole, "width"), (Kind::Whole, "height"), (Kind::Whole, "count")];
const EMPTY: &[Input] = &[whole("width", SIDE), whole("height", SIDE), whole("batch_size", COUNT)];

impl Class {
    pub fn all() -> impl Iterator<Item = &'static Self> {
        CLASSES.iter().chain(PASSING).chain(flux3_nodes::CLASSES).chain(regions::CLASSES)
    }

    pub fn find(name: &str) -> Option<&'static Self> {
        Self::all().find(|class| class.name == name)
    }
}

pub const CLASSES: &[Class] = &[
    class(
        "UNETLoader",
        "advanced/loaders",
        &[
            choice("unet_name", Choice::Models),
            hint("weight_dtype", &["default", "fp8_e4m3fn", "fp8_e4m3fn_fast", "fp8_e5m2"]),
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
            hint("type", &["flux2", "flux3"]),
            optional("device", Takes::Choice(Choice::Hint(&["default", "cpu"]))),
        ],
        &[CLIP],
    ),
    class(
        "CLIPLoaderGGUF",
        "bootleg",
        &[choice("clip_name", Choice::PartsOfModels), hint("type", &["flux2"])],
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
    class(
        "Power Lora Loader (rgthree)",
        "rgthree",
        &[
            link("model", Kind::Model),
            optional("clip", Takes::Link(Kind::Clip)),
            optional("lora_1", Takes::Adapter),
            optional("lora_2", Takes::Adapter),
            optional("lora_3", Takes::Adapter),
            optional("lora_4", Takes::Adapter),
            optional("lora_5", Takes::Adapter),
            optional("lora_6", Takes::Adapter),
            optional("lora_7", Takes::Adapter),
            optional("lora_8", Takes::Adapter),
        ],
        &[MODEL, CLIP],
    ),
    class("CLIPTextEncode", "conditioning", &[text("text", ""), link("clip", Kind::Clip)], &[CONDITIONING]),
    class("ConditioningZeroOut", "advanced/conditioning", &[link("conditioning", Kind::Conditioning)], &[CONDITIONING]),
    class(
        "ReferenceLatent",
        "advanced/conditioning/edit_models",
        &[link("conditioning", Kind::Conditioning), optional("latent", Takes::Link(Kind::Latent))],
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
    class(
        "LatentUpscale",
        "latent",
        &[
            link("samples", Kind::Latent),
            hint("upscale_method", UPSCALE_LATENT),
            whole("width", [512, 0, MAX_SIDE]),
            whole("height", [512, 0, MAX_SIDE]),
            word("crop", &["disabled", "center"]),
        ],
        &[LATENT],
    ),
    class(
        "LatentUpscaleBy",
        "latent",
        &[link("samples", Kind::Latent), hint("upscale_method", UPSCALE_LATENT), number("scale_by", [1.5, 0.01, 8.0])],
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
    class("LoadImage", "image", &[choice("image", Choice::Uploads)], &[IMAGE, MASK]),
    class("LoadImageOutput", "image", &[choice("image", Choice::Uploads)], &[IMAGE, MASK]),
    class(
        "LoadImageMask",
        "mask",
        &[choice("image", Choice::Uploads), word("channel", &["alpha", "red", "green", "blue"])],
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
            hint("upscale_method", UPSCALE),
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
            hint("upscale_method", UPSCALE),
            whole("width", [512, 0, MAX_SIDE]),
            whole("height", [512, 0, MAX_SIDE]),
            word("crop", &["disabled", "center"]),
        ],
        &[IMAGE],
    ),
    class(
        "ImageScaleBy",
        "image/upscaling",
        &[link("image", Kind::Image), hint("upscale_method", UPSCALE), number("scale_by", [1.0, 0.01, 8.0])],
        &[IMAGE],
    ),
    class(
        "ImageScaleToMaxDimension",
        "image/upscaling",
        &[link("image", Kind::Image), hint("upscale_method", UPSCALE), whole("largest_size", [512, 1, MAX_SIDE])],
        &[IMAGE],
    ),
    class(
        "UpscaleModelLoader",
        "loaders",
        &[choice("model_name", Choice::Upscalers)],
        &[(Kind::UpscaleModel, "UPSCALE_MODEL")],
    ),
    class(
        "ImageUpscaleWithModel",
        "image/upscaling",
        &[link("upscale_model", Kind::UpscaleModel), link("image", Kind::Image)],
        &[IMAGE],
    ),
    class(
        "ImageCrop",
        "image/transform",
        &[
            link("image", Kind::Image),
            whole("width", [512, 1, MAX_SIDE]),
            whole("height", [512, 1, MAX_SIDE]),
            whole("x", [0, 0, MAX_SIDE]),
            whole("y", [0, 0, MAX_SIDE]),
        ],
        &[IMAGE],
    ),
    class("FluxKontextImageScale", "advanced/conditioning/flux", &[link("image", Kind::Image)], &[IMAGE]),
    class(
        "GetImageSize",
        "image",
        &[link("image", Kind::Image)],
        &[(Kind::Whole, "width"), (Kind::Whole, "height"), (Kind::Whole, "batch_size")],
    ),
    class("GetImageSize+", "image", &[link("image", Kind::Image)], SIZE),
    class("easy imageSize", "image", &[link("image", Kind::Image)], SIZE),
    class(
        "GetImageSizeAndCount",
        "image",
        &[link("image", Kind::Image)],
        &[(Kind::Image, "image"), (Kind::Whole, "width"), (Kind::Whole, "height"), (Kind::Whole, "count")],
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
    class("SolidMask", "mask", &[number("value", PART), whole("width", SIDE), whole("height", SIDE)], &[MASK]),
    class("ImageToMask", "mask", &[link("image", Kind::Image), word("channel", CHANNELS)], &[MASK]),
    class(
        "RandomNoise",
        "sampling/custom_sampling/noise",
        &[whole("noise_seed", ALL_SEEDS)],
        &[(Kind::Noise, "NOISE")],
    ),
    class("KSamplerSelect", "sampling/custom_sampling/samplers", &[hint("sampler_name", SAMPLERS)], &[SAMPLER]),
    class(
        "Flux2Scheduler",
        "sampling/custom_sampling/schedulers",
        &[whole("steps", STEPS), whole("width", SIDE), whole("height", SIDE)],
        &[SIGMAS],
    ),
    class(
        "BasicScheduler",
        "sampling/custom_sampling/schedulers",
        &[link("model", Kind::Model), hint("scheduler", SCHEDULERS), whole("steps", STEPS), number("denoise", PART)],
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
        "ModelSamplingFlux",
        "advanced/model",
        &[
            link("model", Kind::Model),
            number("max_shift", [1.15, 0.0, 100.0]),
            number("base_shift", [0.5, 0.0, 100.0]),
            whole("width", SIDE),
            whole("height", SIDE),
        ],
        &[MODEL],
    ),
    class(
        "ModelSamplingAuraFlow",
        "advanced/model",
        &[link("model", Kind::Model), number("shift", [1.73, 0.0, 100.0])],
        &[MODEL],
    ),
    class(
        "ModelSamplingSD3",
        "advanced/model",
        &[link("model", Kind::Model), number("shift", [3.0, 0.0, 100.0])],
        &[MODEL],
    ),
    class("BetaSamplingScheduler", "sampling/custom_sampling/schedulers", OTHER_STEPS, &[SIGMAS]),
    class("KarrasScheduler", "sampling/custom_sampling/schedulers", OTHER_STEPS, &[SIGMAS]),
    class("ExponentialScheduler", "sampling/custom_sampling/schedulers", OTHER_STEPS, &[SIGMAS]),
    class("SamplerEulerAncestral", "sampling/custom_sampling/samplers", &[], &[SAMPLER]),
    class("SamplerEulerAncestralCFGPP", "sampling/custom_sampling/samplers", &[], &[SAMPLER]),
    class("SamplerDPMPP_2M_SDE", "sampling/custom_sampling/samplers", &[], &[SAMPLER]),
    class("SamplerDPMPP_3M_SDE", "sampling/custom_sampling/samplers", &[], &[SAMPLER]),
    class("SamplerDPMPP_SDE", "sampling/custom_sampling/samplers", &[], &[SAMPLER]),
    class("SamplerER_SDE", "sampling/custom_sampling/samplers", &[], &[SAMPLER]),
    class("SamplerLMS", "sampling/custom_sampling/samplers", &[], &[SAMPLER]),
    class(
        "SamplerCustom",
        "sampling/custom_sampling",
        &[
            link("model", Kind::Model),
            input("add_noise", Takes::Flag(true)),
            whole("noise_seed", ALL_SEEDS),
            number("cfg", SCALE),
            link("positive", Kind::Conditioning),
            link("negative", Kind::Conditioning),
            link("sampler", Kind::Sampler),
            link("sigmas", Kind::Sigmas),
            link("latent_image", Kind::Latent),
        ],
        &[(Kind::Latent, "output"), (Kind::Latent, "denoised_output")],
    ),
    class(
        "KSamplerAdvanced",
        "sampling",
        &[
            link("model", Kind::Model),
            word("add_noise", &["enable", "disable"]),
            whole("noise_seed", ALL_SEEDS),
            whole("steps", STEPS),
            number("cfg", SCALE),
            hint("sampler_name", SAMPLERS),
            hint("scheduler", SCHEDULERS),
            link("positive", Kind::Conditioning),
            link("negative", Kind::Conditioning),
            link("latent_image", Kind::Latent),
            whole("start_at_step", [0, 0, 10_000]),
            whole("end_at_step", [10_000, 0, 10_000]),
            word("return_with_leftover_noise", &["disable", "enable"]),
        ],
        &[LATENT],
    ),
    class(
        "KSampler",
        "sampling",
        &[
            link("model", Kind::Model),
            whole("seed", ALL_SEEDS),
            whole("steps", STEPS),
            number("cfg", SCALE),
            hint("sampler_name", SAMPLERS),
            hint("scheduler", SCHEDULERS),
            link("positive", Kind::Conditioning),
            link("negative", Kind::Conditioning),
            link("latent_image", Kind::Latent),
            number("denoise", PART),
        ],
        &[LATENT],
    ),
    output("SaveImage", &[link("images", Kind::Image), text("filename_prefix", "ComfyUI")]),
    // From ComfyUI and WAS. Their other inputs are about folders and formats.
    output("SaveImageAdvanced", &[link("images", Kind::Image), optional("filename_prefix", Takes::Text("ComfyUI"))]),
    output("Image Save", &[link("images", Kind::Image), optional("filename_prefix", Takes::Text("ComfyUI"))]),
    output("PreviewImage", &[link("images", Kind::Image)]),
    output("SaveImageWebsocket", &[link("images", Kind::Image)]),
    output("ETN_SendImageWebSocket", &[link("images", Kind::Image), FORMAT]),
    output("ETN_SaveImageCache", &[link("images", Kind::Image), FORMAT]),
];
