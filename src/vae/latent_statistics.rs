//! Latent statistics, which normalize latents to mean 0 and variance 1 for the sampler and the transformer.

use super::VaeConfig;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::nn::Weights;
use crate::tensor::Tensor;

/// Mean and standard deviation of each packed channel.
pub(super) struct LatentStatistics<B: Backend> {
    /// [1, 4 * latent_channels] in float32
    pub mean: Tensor<B>,
    /// [1, 4 * latent_channels] in float32
    pub std: Tensor<B>,
}

impl<B: Backend> LatentStatistics<B> {
    /// Loads `bn` from the weights of the VAE.
    ///
    /// Errors if a tensor is missing or its shape does not fit the config.
    pub fn load(weights: &Weights<'_, B>, config: &VaeConfig) -> Result<Self> {
        let backend = weights.backend();
        let packed = 4 * config.latent_channels;
        let statistics = |name: &str| Ok::<_, Error>(weights.at("bn").view(name, &[packed])?.to_f32());
        let std: Vec<f32> = statistics("running_var")?.iter().map(|var| (var + config.batch_norm_eps).sqrt()).collect();
        Ok(Self {
            mean: backend.upload_f32(&statistics("running_mean")?, 1, packed)?,
            std: backend.upload_f32(&std, 1, packed)?,
        })
    }
}
