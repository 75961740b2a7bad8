//! The latent statistics: what takes latents to a mean of 0 and a variance of 1, as the sampler and the transformer
//! have them.

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
    /// Loads `bn` of all weights of the VAE.
    ///
    /// Errors when a tensor is missing or has another shape than the config says.
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
