//! What this program runs, as its files show it: the one table of classes, names and signs of own models.

use std::path::Path;

use super::names::{FLUX2_LAYERS, FLUX3_LAYERS, LayerMap, Style};
use super::role::Role;
use super::variant::Variant;

/// A kind of models, as its files show it.
#[derive(Debug)]
pub struct OwnModel {
    /// What it is called.
    pub name: &'static str,
    /// A repository of one on Hugging Face, and what `flux download` calls it.
    pub repository: (&'static str, &'static str),
    /// How classes of its pipelines begin.
    pub class_front: &'static str,
    /// What its transformer computes.
    pub architecture: Architecture,
    /// What files say of the ways in which it was trained.
    pub variants: &'static [VariantNames],
    /// Whether its weights tell which of them it is; else names of files and indexes do.
    pub weights_tell_variant: bool,
    /// Its parts.
    pub parts: [OwnPart; 3],
    /// Names of the transformer's layers.
    pub layers: &'static LayerMap,
    /// What its text encoder is called.
    pub text_encoder: &'static str,
    /// The base of its rotary frequencies.
    pub text_encoder_theta: f64,
    /// Whether it is the text half of an encoder that sees images, as its tensors or the name of its file tell.
    pub text_encoder_sees: bool,
    /// Words in names of other text encoders of that name.
    pub other_text_encoders: &'static [&'static str],
    /// Hidden states of the text encoder that the transformer reads, of each token one behind the other.
    pub out_layers: &'static [usize],
    /// The published sizes.
    pub sizes: &'static [PublishedSize],
}

/// What a transformer computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Double blocks, then single blocks.
    Flux2,
    /// Blocks of text, of references and of the image alone, then blocks of all together.
    Flux3,
}

/// What files say of a way in which a model was trained.
#[derive(Debug)]
pub struct VariantNames {
    /// Which it is.
    pub variant: Variant,
    /// The class of the pipeline.
    pub class: &'static str,
    /// Whether it draws in few steps without guidance.
    pub is_distilled: bool,
    /// The word in names of files and folders.
    pub word: Option<&'static str>,
}

/// A part of a model, as its files show it.
#[derive(Debug)]
pub struct OwnPart {
    /// Which it is.
    pub role: Role,
    /// What configs say that it is: the class, and of a text encoder the `model_type`. The first is written.
    pub classes: &'static [&'static str],
    /// What GGUF files call its architecture, in small letters and digits alone; a `*` stands for any rest. The first
    /// is written.
    pub architectures: &'static [&'static str],
    /// Names of tensors that no other part has.
    pub signs: &'static [Sign],
    /// What it must have as well, behind its prefix.
    pub needs: &'static [&'static str],
    /// What it must not have there, for it would be a part of another model.
    pub foreign: &'static [&'static str],
    /// Words that no name in its file has.
    pub foreign_words: &'static [&'static str],
    /// Words of which some name in its file has one, unless there are none.
    pub needed_words: &'static [&'static str],
}

/// The style of a part, what names in it lack, and how a name ends that no other part has.
pub type Sign = (Style, &'static str, &'static str);

/// A size in which a kind is published.
#[derive(Debug)]
pub struct PublishedSize {
    /// What it is called.
    pub name: &'static str,
    /// Features of a text token.
    pub features: usize,
    /// The text encoder that gives them, and the file that it is published as.
    pub text_encoder: (&'static str, &'static str),
}

const LDM: Style = Style::Ldm { levels: 0 };
/// A word in names of tensors of the half of an encoder that sees images.
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
            needs: &[],
            foreign: &["guidance_in.in_layer.weight", "time_guidance_embed.guidance_embedder.linear_1.weight"],
            foreign_words: &[],
            needed_words: &[],
        },
        OwnPart {
            role: Role::TextEncoder,
            // Also the text half of the one that sees images.
            classes: &["qwen3", "qwen3_vl_text"],
            architectures: &["qwen3", "qwen3vl"],
            signs: &QWEN3_SIGNS,
            needs: &[],
            foreign: &NOT_QWEN3,
            // Of one that sees.
            foreign_words: &[VISION],
            needed_words: &[],
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
            // What a whole VAE of FLUX.2 keeps of its latents.
            needs: &["bn.running_mean"],
            foreign: &[],
            foreign_words: &[],
            needed_words: &[],
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

/// FLUX.3-klein, which Black Forest Labs call FLUX 3 Image Klein.
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
            needs: &[],
            // Of its siblings, which make videos.
            foreign: &["emb_in.video.weight", "x_embedders.video.weight"],
            foreign_words: &[],
            needed_words: &[],
        },
        OwnPart {
            role: Role::TextEncoder,
            classes: &["qwen3_vl_text", "qwen3_vl"],
            architectures: &["qwen3vl", "qwen3"],
            signs: &QWEN3_SIGNS,
            needs: &[],
            foreign: &NOT_QWEN3,
            foreign_words: &[],
            // Without the half that sees, it has the names of the encoder of FLUX.2-klein, and is known as that.
            needed_words: &[VISION],
        },
        // The same as that of FLUX.2-klein, by which it is known.
        OwnPart {
            role: Role::Vae,
            classes: &["AutoencoderKLFlux2"],
            architectures: &FLUX3_ARCHITECTURES,
            signs: &[],
            needs: &[],
            foreign: &[],
            foreign_words: &[],
            needed_words: &[],
        },
    ],
    layers: &FLUX3_LAYERS,
    text_encoder: "Qwen3-VL",
    text_encoder_theta: 5e6,
    text_encoder_sees: true,
    other_text_encoders: &["thinking"],
    out_layers: &[4, 8, 12, 16, 20, 24, 28, 32],
    sizes: &[PublishedSize { name: "5.5B", features: 20480, text_encoder: ("Qwen3-VL-4B", "qwen3vl_4b.safetensors") }],
};

/// All that this program runs.
pub static OWN_MODELS: [&OwnModel; 2] = [&FLUX2_KLEIN, &FLUX3_KLEIN];

impl Architecture {
    /// The kind of models that it is of.
    pub fn model(self) -> &'static OwnModel {
        OWN_MODELS.into_iter().find(|model| model.architecture == self).expect("every architecture is of a model")
    }

    /// That of the transformer whose config names this class.
    pub fn of_class(class: &str) -> Option<Self> {
        let model = OWN_MODELS.iter().find(|model| model.part(Role::Transformer).classes.contains(&class))?;
        Some(model.architecture)
    }

    /// That of the transformer whose layers have these names.
    pub fn of_layers(layers: &LayerMap) -> Self {
        let is = |model: &&&OwnModel| std::ptr::eq(model.layers, layers);
        OWN_MODELS.iter().find(is).map_or(Self::Flux2, |model| model.architecture)
    }
}

/// Whether a config of the part `role` may say that it is of this class.
pub fn is_class(role: Role, class: &str) -> bool {
    OWN_MODELS.iter().any(|model| model.part(role).classes.contains(&class))
}

impl OwnModel {
    /// A part of it.
    pub fn part(&self, role: Role) -> &OwnPart {
        self.parts.iter().find(|part| part.role == role).expect("a model has every part")
    }

    /// What files say of a way in which it was trained; none where no model of the kind was trained so.
    pub fn variant(&self, variant: Variant) -> Option<&VariantNames> {
        self.variants.iter().find(|names| names.variant == variant)
    }
}

impl OwnPart {
    /// Whether a GGUF file may call it so.
    pub fn is_architecture(&self, name: &str) -> bool {
        let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
        self.architectures.iter().any(|own| match own.strip_suffix('*') {
            Some(front) => plain.starts_with(front),
            None => plain == *own,
        })
    }
}

impl Variant {
    /// What the class of the pipeline says, and `is_distilled` beside it. A base model may leave that out; the
    /// distilled models say that they are, but for those whose class says it.
    pub fn of_index(class: Option<&str>, is_distilled: Option<bool>) -> Self {
        let all = OWN_MODELS.iter().flat_map(|model| model.variants);
        let of_class: Vec<&VariantNames> = all.filter(|names| Some(names.class) == class).collect();
        match (&of_class[..], is_distilled) {
            ([only], _) => only.variant,
            (_, Some(true)) => Self::Distilled,
            (_, _) => Self::Base,
        }
    }

    /// What the name of a file or folder says, in words between other characters.
    pub fn of_name(path: &Path) -> Option<Self> {
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
            assert_eq!(Variant::of_name(Path::new(name)), variant, "{name}");
        }
    }
}
