//! A model folder, opened and checked, before any device is needed.

use std::sync::Arc;
use std::thread::{ScopedJoinHandle, scope};

use super::ModelInfo;
use crate::backend::cpu::{Cpu, Precision};
use crate::error::{Error, Result};
use crate::model_dir::ModelDir;
use crate::text_encoder::{self, TextEncoder, Tokenizer};
use crate::transformer::{self, Transformer};
use crate::vae::{self, Decoder};
use crate::weights::{WeightFiles, Weights};

/// Configs, tokenizer and mapped weights of a model, all of them checked; what a [`Pipeline`](super::Pipeline) is made of.
pub struct OpenModel {
    pub(super) info: ModelInfo,
    pub(super) tokenizer: Tokenizer,
    pub(super) files: Arc<Files>,
}

pub(super) struct Files {
    pub(super) text_encoder: WeightFiles,
    pub(super) transformer: WeightFiles,
    pub(super) vae: WeightFiles,
}

impl OpenModel {
    /// Opens a model folder and checks all of it: configs, tokenizer, and the name, shape and dtype of every tensor.
    ///
    /// Errors say which file and tensor is wrong.
    pub fn open(dir: &ModelDir) -> Result<Self> {
        let info = &ModelInfo::read(dir)?;
        // On the CPU weights stay in the mapped files, so loading there checks every tensor and costs nothing.
        let host = &Cpu::new(Precision::F32);
        // The tokenizer takes longest by far; what is joined first tells its error first.
        let (tokenizer, text_encoder, transformer, vae) = scope(|scope| {
            let tokenizer = scope.spawn(|| Tokenizer::load(dir, info.max_sequence_length));
            let text_encoder = scope.spawn(|| {
                let files = text_encoder::open(dir)?;
                TextEncoder::load(&Weights::new(host, &files), info.text_encoder, &info.out_layers).map_err(|e| info.explain(e))?;
                Ok(files)
            });
            let transformer = scope.spawn(|| {
                let files = transformer::open(dir)?;
                Transformer::load(&Weights::new(host, &files), &info.transformer).map_err(|e| info.explain(e))?;
                Ok(files)
            });
            let vae = scope.spawn(|| {
                let files = vae::open(dir)?;
                Decoder::load(&Weights::new(host, &files), &info.vae)?;
                Ok(files)
            });
            (join(tokenizer), join(text_encoder), join(transformer), join(vae))
        });
        let (tokenizer, text_encoder, transformer, vae) = (tokenizer?, text_encoder?, transformer?, vae?);
        Ok(Self { info: info.clone(), tokenizer, files: Arc::new(Files { text_encoder, transformer, vae }) })
    }
}

fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| Err(Error::new("a thread that reads the model panicked")))
}
