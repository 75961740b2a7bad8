//! Options for opening an engine, and the observer of opening.

use std::path::PathBuf;
use std::sync::Arc;

use super::choice::{AttentionChoice, Device, ParallelChoice, PrecisionChoice};
use crate::model::Quantization;
use crate::output::Sign;

/// Options for opening a model in an engine.
#[derive(Debug, Clone, Default)]
pub struct EngineArgs {
    /// `true` if all jobs bring text features, so that no text encoder is opened.
    pub without_text_encoder: bool,
    /// `true` if keys and values of references are computed once for all steps, even if the model's folder does not
    /// request it.
    pub caches_references: bool,
    /// Adapters to open with the model, so that errors in them are reported before any work.
    pub adapters: Vec<PathBuf>,
    /// Tiny decoder for previews, in place of a linear map. Memory plans include it.
    pub preview_decoder: Option<PreviewDecoder>,
    /// Formats for quantizing weights.
    pub quantize: Option<Quantization>,
    /// Folder that caches the weights for fp8.
    pub fp8_cache: Option<PathBuf>,
    /// Devices to open.
    pub device: Device,
    /// Type of the arithmetic.
    pub precision: PrecisionChoice,
    /// Type of attention.
    pub attention: AttentionChoice,
    /// Maximum bytes to use on each GPU.
    pub gpu_memory: Option<u64>,
    /// Number of GPUs that generate each image together.
    pub parallel: ParallelChoice,
    /// Number of images to generate, if known: groups of devices beyond this number are not opened.
    pub images: Option<usize>,
    /// Adds signed manifests to image files.
    pub signer: Option<Arc<dyn Sign>>,
}

/// The file of a tiny decoder, TAEF2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewDecoder {
    /// Path of the file.
    pub file: PathBuf,
    /// Use of the decoder.
    pub decodes: Decodes,
}

/// The use of a tiny decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decodes {
    /// Previews of steps. If the decoder is for another model, a linear map is used, with a note.
    StepsIfItFits,
    /// Previews of steps. A decoder for another model is an error.
    Steps,
    /// Previews of steps, and final images in place of the VAE's decoder. A decoder for another model is an error.
    Images,
}
