//! What an engine is told when it opens, and who hears of it.

use std::path::PathBuf;

use super::choice::{AttentionChoice, DeviceChoice, ParallelChoice, PrecisionChoice};
use crate::model::Quantisation;
use crate::stage::Progress;

/// How an engine opens a model.
#[derive(Debug, Clone, Default)]
pub struct EngineArgs {
    /// Whether all jobs bring text features, so that no text encoder is opened.
    pub without_text_encoder: bool,
    /// Whether keys and values of references are made once for all steps, whatever the model's folder says.
    pub caches_references: bool,
    /// Adapters that are opened with the model, so that what is wrong with one is known before any work.
    pub adapters: Vec<PathBuf>,
    /// What shows steps in place of a linear map. Its memory is planned for.
    pub preview_decoder: Option<PreviewDecoder>,
    /// The formats that weights are brought to.
    pub quantise: Option<Quantisation>,
    /// A folder in which the weights that fp8 needs are cached.
    pub fp8_cache: Option<PathBuf>,
    /// Which devices.
    pub device: DeviceChoice,
    /// In which type they compute.
    pub precision: PrecisionChoice,
    /// In which type they compute attention.
    pub attention: AttentionChoice,
    /// Bytes of each GPU that are used at most.
    pub gpu_memory: Option<u64>,
    /// How many GPUs make each image together.
    pub parallel: ParallelChoice,
    /// Images that are made, where that is known: no more groups of devices are opened.
    pub images: Option<usize>,
}

/// The file of a tiny decoder, TAEF2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewDecoder {
    /// Where it is.
    pub file: PathBuf,
    /// What it is for.
    pub decodes: Decodes,
}

/// What a tiny decoder decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decodes {
    /// What steps lead to. Where it is one of another model, a linear map does, and a note says so.
    StepsIfItFits,
    /// What steps lead to. One of another model is an error.
    Steps,
    /// The same, and images, in place of the VAE's decoder.
    Images,
}

/// Hears what opening a model has to say.
pub trait Observer {
    /// Something that everybody should know.
    fn note(&mut self, text: &str);
    /// Something for the curious.
    fn detail(&mut self, text: &str);
    /// How far a stage is.
    fn progress(&mut self, progress: Progress);
    /// The stage that was told last is over.
    fn finish(&mut self);
}

/// Nobody hears anything.
pub struct Unobserved;

impl Observer for Unobserved {
    fn note(&mut self, _text: &str) {}
    fn detail(&mut self, _text: &str) {}
    fn progress(&mut self, _progress: Progress) {}
    fn finish(&mut self) {}
}
