//! What a model is: its files, formats and sizes, by headers and configs alone.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::backend::Costs;
use crate::error::Result;
use crate::files::{Component, ModelFiles, Role, TensorFiles, Variant};
use crate::model::info::ModelInfo;
use crate::model::quantise::Quantisation;
use crate::text_encoder::TextEncoderConfig;
use crate::transformer::TransformerConfig;
use crate::vae::VaeConfig;

/// What a model is.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Its name.
    pub name: String,
    /// Which kind of models it is of.
    pub kind: &'static str,
    /// How it was trained.
    pub variant: Variant,
    /// Steps where a request names none.
    pub default_steps: usize,
    /// Guidance scale where a request names none.
    pub default_guidance: f32,
    /// [height, width] in pixels where a request names none.
    pub default_image_size: [usize; 2],
    /// Text tokens of a prompt, padding included.
    pub text_tokens: usize,
    /// Where this is there, a prompt has the least multiple of it that it fits in, up to as many tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_token_step: Option<usize>,
    /// The text encoder, the transformer and the VAE.
    pub components: Vec<ComponentSummary>,
    /// What an image of the default size needs of a GPU's memory, from most to least.
    pub memory: Vec<MemoryLevel>,
    /// Where the tokenizer is.
    pub tokenizer: String,
    /// What someone should know about the choice of the files.
    pub notes: Vec<String>,
}

/// How much memory a way to make images needs.
#[derive(Debug, Clone, Serialize)]
pub struct MemoryLevel {
    /// What of the model is in memory.
    pub plan: &'static str,
    /// The least memory, beside that of the driver's context.
    pub bytes: u64,
}

/// What a part of a model is.
#[derive(Debug, Clone, Serialize)]
pub struct ComponentSummary {
    /// Which part it is.
    pub role: Role,
    /// Its files of weights.
    pub files: Vec<String>,
    /// Number of tensors that models ask for by name.
    pub tensors: usize,
    /// Bytes of its files, or of its tensors where the files hold other parts as well.
    pub bytes: u64,
    /// Values of the tensors in each format, by its name.
    pub formats: BTreeMap<String, u64>,
    /// Its sizes.
    pub sizes: Sizes,
    /// Where those of its values are told that no shape tells.
    pub config: String,
}

/// The sizes of a part, named as in its config.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Sizes {
    /// Of a text encoder.
    TextEncoder(TextEncoderConfig),
    /// Of a transformer.
    Transformer(TransformerConfig),
    /// Of a VAE.
    Vae(VaeConfig),
}

impl Summary {
    /// Reads the configs and the headers of all weights. The memory is that of weights that are brought to formats.
    ///
    /// Errors when one of them is missing or wrong, or they do not fit together, or weights would become no smaller.
    pub fn read(dir: &ModelFiles, quantisation: &Quantisation) -> Result<Self> {
        let mut info = ModelInfo::read(dir)?;
        let tensors = |role: Role| dir.component(role).tensors();
        let (text, transformer, vae) = (tensors(Role::TextEncoder)?, tensors(Role::Transformer)?, tensors(Role::Vae)?);
        info.file_sizes = quantisation.sizes(&info, &text, &transformer)?;
        let levels = info.memory_sizes(&Costs::hopper(), None)?.levels();
        let component =
            |role: Role, files: &TensorFiles, sizes: Sizes| ComponentSummary::of(dir.component(role), files, sizes);
        Ok(Self {
            kind: info.kind.files.name,
            variant: info.variant(),
            default_steps: info.default_steps,
            default_guidance: info.default_guidance(),
            default_image_size: info.default_image_size,
            text_tokens: info.max_sequence_length,
            text_token_step: info.kind.window.step,
            components: vec![
                component(Role::TextEncoder, &text, Sizes::TextEncoder(info.text_encoder))?,
                component(Role::Transformer, &transformer, Sizes::Transformer(info.transformer))?,
                component(Role::Vae, &vae, Sizes::Vae(info.vae))?,
            ],
            memory: levels.map(|(plan, bytes)| MemoryLevel { plan, bytes }).into(),
            name: info.name,
            tokenizer: dir.tokenizer().display(),
            notes: dir.notes().to_vec(),
        })
    }
}

impl ComponentSummary {
    fn of(component: &Component, files: &TensorFiles, sizes: Sizes) -> Result<Self> {
        let mut formats = BTreeMap::new();
        for name in files.names() {
            // A counter that no model reads is of no format.
            let Some((format, values)) = files.format(name) else { continue };
            *formats.entry(format).or_default() += values;
        }
        let config = match &sizes {
            Sizes::TextEncoder(_) => TextEncoderConfig::source(component),
            Sizes::Transformer(_) => TransformerConfig::source(component),
            Sizes::Vae(_) => VaeConfig::source(component),
        }?;
        Ok(Self {
            role: component.role(),
            files: files.files().iter().map(|file| file.path().display().to_string()).collect(),
            tensors: files.names().count(),
            bytes: files.bytes(),
            formats,
            sizes,
            config,
        })
    }
}
