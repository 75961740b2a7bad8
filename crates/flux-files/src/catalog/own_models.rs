//! The models that this program runs: the one table of their classes, names and signs in files.

use std::path::Path;

pub use crate::catalog::architecture::Architecture;
use crate::catalog::names::{FLUX2_LAYERS, FLUX3_LAYERS, LayerMap, Style};
use crate::catalog::role::Role;
use crate::catalog::variant::Variant;

/// A supported kind of model, as identified by its files.
#[derive(Debug)]
pub struct OwnModel {
    /// The name of the model.
    pub name: &'static str,
    /// A repository of the model on Hugging Face, and its name for `flux download`.
    pub repository: (&'static str, &'static str),
    /// The prefix of its pipeline classes.
    pub class_front: &'static str,
    /// The architecture of its transformer.
    pub architecture: Architecture,
    /// The names of its variants in files.
    pub variants: &'static [VariantNames],
    /// `true` if the weights identify the variant; else names of files and indexes do.
    pub weights_tell_variant: bool,
    /// The parts of the model.
    pub parts: [OwnPart; 3],
    /// The layer names of the transformer.
    pub layers: &'static LayerMap,
    /// The name of the text encoder.
    pub text_encoder: &'static str,
    /// The base of the text encoder's rotary frequencies.
    pub text_encoder_theta: f64,
    /// `true` if the text encoder is the text half of a vision-language encoder, as tensors or the file name show.
    pub text_encoder_sees: bool,
    /// Words in file names of other text encoders with the same name.
    pub other_text_encoders: &'static [&'static str],
    /// Hidden states of the text encoder that the transformer reads, concatenated for each token.
    pub out_layers: &'static [usize],
    /// The published sizes.
    pub sizes: &'static [PublishedSize],
}

/// The names of a variant in files.
#[derive(Debug)]
pub struct VariantNames {
    /// The variant.
    pub variant: Variant,
    /// The class of the pipeline.
    pub class: &'static str,
    /// `true` if it generates in few steps without guidance.
    pub is_distilled: bool,
    /// The word for it in names of files and folders.
    pub word: Option<&'static str>,
}

/// A part of a model, as identified by its files.
#[derive(Debug)]
pub struct OwnPart {
    /// The role of the part.
    pub role: Role,
    /// The classes of the part in configs, or the `model_type` of a text encoder. The first one is written.
    pub classes: &'static [&'static str],
    /// The architectures of the part in GGUF files, in lowercase letters and digits only; a `*` stands for any rest.
    /// The first one is written.
    pub architectures: &'static [&'static str],
    /// Names of tensors that no other part has.
    pub signs: &'static [Sign],
    /// Names that the part must have as well, after its prefix.
    pub needs: &'static [&'static str],
    /// Names that the part must not have after its prefix, because they identify another model.
    pub foreign: &'static [&'static str],
    /// Words that must not be in any name in its file.
    pub foreign_words: &'static [&'static str],
    /// Words that mark its names: at least one must occur in its file, unless the list is empty.
    pub needed_words: &'static [&'static str],
}

/// The style of a part, the prefix that its names lack, and the ending of a name that no other part has.
pub type Sign = (Style, &'static str, &'static str);

/// A published size of a model.
#[derive(Debug)]
pub struct PublishedSize {
    /// The name of the size.
    pub name: &'static str,
    /// Features of a text token.
    pub features: usize,
    /// The text encoder that computes these features, and its published file.
    pub text_encoder: (&'static str, &'static str),
}

const LDM: Style = Style::Ldm { levels: 0 };
/// A word in tensor names of the vision half of an encoder.
pub const VISION: &str = "visual";
const FLUX2_ARCHITECTURES: [&str; 3] = ["flux", "flux2*", "klein*"];

const FLUX3_ARCHITECTURES: [&str; 2] = ["flux3", "flux3*"];
const QWEN3_SIGNS: [Sign; 2] = [
    (Style::Diffusers, "model.", "layers.0.self_attn.q_norm.weight"),
    (Style::LlamaCpp, "", "blk.0.attn_q_norm.weight"),
];
const NOT_QWEN3: [&str; 6] = [
    "layers.0.pre_feedforward_layernorm.weight",
    "layers.0.post_feedforward_layernorm.weight",
    "layers.0.mlp.gate.weight",
    "blk.0.post_attention_norm.weight",
    "blk.0.post_ffw_norm.weight",
    "blk.0.ffn_gate_inp.weight",
];

/// A part without signs, for the fields that a part leaves empty.
const NO_SIGNS: OwnPart = OwnPart {
    role: Role::Vae,
    classes: &[],
    architectures: &[],
    signs: &[],
    needs: &[],
    foreign: &[],
    foreign_words: &[],
    needed_words: &[],
};

/// FLUX.2-klein.
pub static FLUX2_KLEIN: OwnModel = OwnModel {
    name: "FLUX.2-klein",
    repository: ("black-forest-labs/FLUX.2-klein-4B", "4b"),
    class_front: "Flux2Klein",
    architecture: Architecture::Flux2,
    variants: &[
        VariantNames { variant: Variant::Distilled, class: "Flux2KleinPipeline", is_distilled: true, word: None },
        VariantNames { variant: Variant::Base, class: "Flux2KleinPipeline", is_distilled: false, word: Some("base") },
        VariantNames { variant: Variant::Kv, class: "Flux2KleinKVPipeline", is_distilled: true, word: Some("kv") },
    ],
    weights_tell_variant: false,
    parts: [
        OwnPart {
            role: Role::Transformer,
            classes: &["Flux2Transformer2DModel"],
            architectures: &FLUX2_ARCHITECTURES,
            signs: &[
                (Style::Bfl, "", "single_stream_modulation.lin.weight"),
                (Style::Diffusers, "", "single_stream_modulation.linear.weight"),
            ],
            foreign: &["guidance_in.in_layer.weight", "time_guidance_embed.guidance_embedder.linear_1.weight"],
            ..NO_SIGNS
        },
        OwnPart {
            role: Role::TextEncoder,
            // The second is the text half of a vision-language encoder.
            classes: &["qwen3", "qwen3_vl_text"],
            architectures: &["qwen3", "qwen3vl"],
            signs: &QWEN3_SIGNS,
            foreign: &NOT_QWEN3,
            // In names of a vision-language encoder.
            foreign_words: &[VISION],
            ..NO_SIGNS
        },
        OwnPart {
            role: Role::Vae,
            classes: &["AutoencoderKLFlux2"],
            architectures: &FLUX2_ARCHITECTURES,
            signs: &[
                (LDM, "", "decoder.mid.block_1.conv1.weight"),
                (Style::Diffusers, "", "decoder.mid_block.resnets.0.conv1.weight"),
                (LDM, "decoder.", "mid.block_1.conv1.weight"),
                (Style::Diffusers, "decoder.", "mid_block.resnets.0.conv1.weight"),
            ],
            // Statistics of the latents, which every whole VAE of FLUX.2 has.
            needs: &["bn.running_mean"],
            ..NO_SIGNS
        },
    ],
    layers: &FLUX2_LAYERS,
    text_encoder: "Qwen3",
    text_encoder_theta: 1e6,
    text_encoder_sees: false,
    other_text_encoders: &["instruct", "thinking", "2507"],
    out_layers: &[9, 18, 27],
    sizes: &[
        PublishedSize { name: "4B", features: 7680, text_encoder: ("Qwen3-4B", "qwen_3_4b.safetensors") },
        PublishedSize { name: "9B", features: 12288, text_encoder: ("Qwen3-8B", "qwen_3_8b.safetensors") },
    ],
};

/// FLUX.3-klein, published by Black Forest Labs as FLUX 3 Image Klein.
pub static FLUX3_KLEIN: OwnModel = OwnModel {
    name: "FLUX.3-klein",
    repository: ("black-forest-labs/flux-3-image-klein", "flux3"),
    class_front: "Flux3",
    architecture: Architecture::Flux3,
    variants: &[
        VariantNames {
            variant: Variant::Distilled,
            class: "Flux3DistilledModularPipeline",
            is_distilled: true,
            word: None,
        },
        VariantNames { variant: Variant::Base, class: "Flux3ModularPipeline", is_distilled: false, word: Some("base") },
    ],
    weights_tell_variant: true,
    parts: [
        OwnPart {
            role: Role::Transformer,
            classes: &["Flux3Transformer2DModel"],
            architectures: &FLUX3_ARCHITECTURES,
            signs: &[
                (Style::Bfl, "", "early_stream_modulations.image.lin.weight"),
                (Style::Diffusers, "", "early_stream_modulations.image.linear.weight"),
            ],
            // Names of its siblings, which generate videos.
            foreign: &["emb_in.video.weight", "x_embedders.video.weight"],
            ..NO_SIGNS
        },
        OwnPart {
            role: Role::TextEncoder,
            classes: &["qwen3_vl_text", "qwen3_vl"],
            architectures: &["qwen3vl", "qwen3"],
            signs: &QWEN3_SIGNS,
            foreign: &NOT_QWEN3,
            // Without the vision half, an encoder has the names of that of FLUX.2-klein, and counts as such.
            needed_words: &[VISION],
            ..NO_SIGNS
        },
        // The VAE of FLUX.2-klein, recognised by the signs there.
        OwnPart { role: Role::Vae, classes: &["AutoencoderKLFlux2"], architectures: &FLUX3_ARCHITECTURES, ..NO_SIGNS },
    ],
    layers: &FLUX3_LAYERS,
    text_encoder: "Qwen3-VL",
    text_encoder_theta: 5e6,
    text_encoder_sees: true,
    other_text_encoders: &["thinking"],
    out_layers: &[4, 8, 12, 16, 20, 24, 28, 32],
    sizes: &[PublishedSize { name: "5.5B", features: 20480, text_encoder: ("Qwen3-VL-4B", "qwen3vl_4b.safetensors") }],
};

/// All models that this program runs.
pub static OWN_MODELS: [&OwnModel; 2] = [&FLUX2_KLEIN, &FLUX3_KLEIN];

impl Architecture {
    /// Returns the model of this architecture.
    pub fn model(self) -> &'static OwnModel {
        OWN_MODELS.into_iter().find(|model| model.architecture == self).expect("every architecture belongs to a model")
    }

    /// Returns the architecture of the transformer whose config names this class.
    pub fn from_class(class: &str) -> Option<Self> {
        let model = OWN_MODELS.iter().find(|model| model.part(Role::Transformer).classes.contains(&class))?;
        Some(model.architecture)
    }
}

/// Returns `true` if a config of the part `role` may name this class.
pub fn is_class(role: Role, class: &str) -> bool {
    OWN_MODELS.iter().any(|model| model.part(role).classes.contains(&class))
}

impl OwnModel {
    /// Returns a part of the model.
    pub fn part(&self, role: Role) -> &OwnPart {
        self.parts.iter().find(|part| part.role == role).expect("every model has all parts")
    }

    /// Returns the names of a variant; `None` if the model has no such variant.
    pub fn variant(&self, variant: Variant) -> Option<&VariantNames> {
        self.variants.iter().find(|names| names.variant == variant)
    }
}

impl OwnPart {
    /// Returns `true` if GGUF files may use this architecture for the part.
    pub fn is_architecture(&self, name: &str) -> bool {
        let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
        self.architectures.iter().any(|own| match own.strip_suffix('*') {
            Some(front) => plain.starts_with(front),
            None => plain == *own,
        })
    }
}

impl Variant {
    /// Returns the variant by the class of the pipeline and `is_distilled` in the index. A base model may leave out
    /// `is_distilled`; a distilled model has it, unless its class alone tells the variant.
    pub fn from_index(class: Option<&str>, is_distilled: Option<bool>) -> Self {
        let all = OWN_MODELS.iter().flat_map(|model| model.variants);
        let of_class: Vec<&VariantNames> = all.filter(|names| Some(names.class) == class).collect();
        match (&of_class[..], is_distilled) {
            ([only], _) => only.variant,
            (_, Some(true)) => Self::Distilled,
            (_, _) => Self::Base,
        }
    }

    /// Returns the variant that the name of a file or folder contains as a whole word.
    pub fn from_name(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_string_lossy().to_lowercase();
        let has = |word: &str| name.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| part == word);
        let mut all = OWN_MODELS.iter().flat_map(|model| model.variants);
        all.find(|names| names.word.is_some_and(has)).map(|names| names.variant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_the_variant_by_whole_words() {
        for (name, variant) in [
            ("a/flux-2-klein-base-4b-fp8.safetensors", Some(Variant::Base)),
            ("FLUX.2-Klein-9B-KV-Q5_K_M.gguf", Some(Variant::Kv)),
            ("flux-2-klein-4b.safetensors", None),
            ("base/database.safetensors", None),
        ] {
            assert_eq!(Variant::from_name(Path::new(name)), variant, "{name}");
        }
    }
}
