//! Summary of a model's files, formats and sizes, read from headers and configs alone.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::backend::Costs;
use crate::error::Result;
use crate::files::{Component, ModelFiles, Role, TensorFiles, Variant};
use crate::model::info::ModelInfo;
use crate::model::quantize::Quantization;
use crate::text_encoder::TextEncoderConfig;
use crate::transformer::TransformerConfig;
use crate::vae::VaeConfig;

/// The summary of a model.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Name of the model.
    pub name: String,
    /// Kind of the model.
    pub kind: &'static str,
    /// Training variant, such as distilled.
    pub variant: Variant,
    /// Default number of steps.
    pub default_steps: usize,
    /// Default guidance scale.
    pub default_guidance: f32,
    /// Default image size, [height, width] in pixels.
    pub default_image_size: [usize; 2],
    /// Text tokens of a prompt, including padding.
    pub text_tokens: usize,
    /// If set, a prompt is padded to the next multiple of it, up to `text_tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_token_step: Option<usize>,
    /// The text encoder, the transformer and the VAE.
    pub components: Vec<ComponentSummary>,
    /// GPU memory for an image of the default size, from most to least.
    pub memory: Vec<MemoryLevel>,
    /// Location of the tokenizer.
    pub tokenizer: String,
    /// Notes for the user about the choice of files.
    pub notes: Vec<String>,
}

/// The memory that one way of generating images needs.
#[derive(Debug, Clone, Serialize)]
pub struct MemoryLevel {
    /// The parts of the model that are in memory.
    pub plan: &'static str,
    /// Minimum bytes of memory, without the driver's context.
    pub bytes: u64,
}

/// The summary of a component.
#[derive(Debug, Clone, Serialize)]
pub struct ComponentSummary {
    /// Role of the component.
    pub role: Role,
    /// Weight files.
    pub files: Vec<String>,
    /// Number of named tensors.
    pub tensors: usize,
    /// Bytes of the files, or of the component's tensors if the files hold other components as well.
    pub bytes: u64,
    /// Number of tensor values in each format, by the format's name.
    pub formats: BTreeMap<String, u64>,
    /// Sizes of the component.
    pub sizes: Sizes,
    /// Source of the config values that no tensor shape determines.
    pub config: String,
}

/// The sizes of a component, named as in its config.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Sizes {
    /// Sizes of a text encoder.
    TextEncoder(TextEncoderConfig),
    /// Sizes of a transformer.
    Transformer(TransformerConfig),
    /// Sizes of a VAE.
    Vae(VaeConfig),
}

impl Summary {
    /// Reads the configs and the headers of all weights. The memory is that of the weights after `quantization`.
    ///
    /// Errors if one of them is missing or invalid, if they do not fit together, or if quantization would not make
    /// weights smaller.
    pub fn read(dir: &ModelFiles, quantization: &Quantization) -> Result<Self> {
        let mut info = ModelInfo::read(dir)?;
        let tensors = |role: Role| dir.component(role).tensors();
        let (text, transformer, vae) = (tensors(Role::TextEncoder)?, tensors(Role::Transformer)?, tensors(Role::Vae)?);
        info.file_sizes = quantization.sizes(&info, &text, &transformer)?;
        let levels = info.memory_sizes(&Costs::hopper(), None)?.levels();
        let component =
            |role: Role, files: &TensorFiles, sizes: Sizes| ComponentSummary::new(dir.component(role), files, sizes);
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
    fn new(component: &Component, files: &TensorFiles, sizes: Sizes) -> Result<Self> {
        let mut formats = BTreeMap::new();
        for name in files.names() {
            // A counter that no model reads has no format.
            let Some((format, values)) = files.format(name) else { continue };
            *formats.entry(format).or_default() += values;
        }
        let said = component.single_file().map(|_| match &sizes {
            Sizes::TextEncoder(_) => TextEncoderConfig::from_file(component).map(|(_, said)| said),
            Sizes::Transformer(_) => TransformerConfig::from_file(component).map(|(_, said)| said),
            Sizes::Vae(_) => VaeConfig::from_file(component).map(|(_, said)| said),
        });
        let config = said.transpose()?.map_or_else(|| component.place().path().to_string(), |said| said.source());
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
