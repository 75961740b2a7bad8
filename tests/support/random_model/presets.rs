//! Models that differ in every size, and in their storage.

use super::{Float, Kind, RandomModel, Storage, TextEncoder, Transformer, Vae};

impl RandomModel {
    /// Returns one of [`ALL_PRESETS`](super::ALL_PRESETS).
    pub fn preset(name: &str) -> Option<Self> {
        match name {
            "tiny" => Some(Self::tiny()),
            "sharded" => Some(Self::sharded()),
            "base" => Some(Self::base()),
            "uneven" => Some(Self::uneven()),
            "kv" => Some(Self::kv()),
            _ => None,
        }
    }

    /// The plain case: distilled, bf16, every component in one file, small heads, MLP ratio 3 and 32 latent channels
    /// as in the real model.
    pub fn tiny() -> Self {
        let storage = Storage { dtype: Float::Bf16, shards: 1 };
        Self {
            transformer: Transformer {
                double_blocks: 2,
                single_blocks: 4,
                heads: 4,
                head_dim: 32,
                axes_dims_rope: [8; 4],
                rope_theta: 2000,
                mlp_ratio: 3.0,
                storage,
            },
            text_encoder: TextEncoder {
                layers: 5,
                hidden: 64,
                mlp: 160,
                heads: 4,
                kv_heads: 2,
                head_dim: 16,
                vocab: 512,
                rope_theta: 1e6,
                rope_parameters: true,
                tied: true,
                storage,
            },
            vae: Vae {
                latent_channels: 32,
                block_out_channels: [16, 32, 32, 32],
                decoder_block_out_channels: None,
                layers_per_block: 1,
                norm_num_groups: 8,
                sample_size: 64,
                storage,
            },
            kind: Kind::Distilled,
            max_sequence_length: Some(64),
            text_encoder_out_layers: None,
            default_image_size: None,
            seed: 1,
        }
    }

    /// Weights in f32 and in several files with an index; an odd head count, an untied head, and a decoder with sizes
    /// of its own.
    pub fn sharded() -> Self {
        let storage = Storage { dtype: Float::F32, shards: 3 };
        Self {
            transformer: Transformer {
                double_blocks: 1,
                single_blocks: 2,
                heads: 3,
                head_dim: 64,
                axes_dims_rope: [16; 4],
                rope_theta: 2000,
                mlp_ratio: 1.5,
                storage,
            },
            text_encoder: TextEncoder {
                layers: 8,
                hidden: 48,
                mlp: 96,
                heads: 4,
                kv_heads: 4,
                head_dim: 16,
                vocab: 300,
                rope_theta: 1e6,
                rope_parameters: false,
                tied: false,
                storage,
            },
            vae: Vae {
                latent_channels: 32,
                block_out_channels: [8, 16, 16, 24],
                decoder_block_out_channels: Some([12, 16, 16, 20]),
                layers_per_block: 1,
                norm_num_groups: 4,
                sample_size: 64,
                storage: Storage { shards: 1, ..storage },
            },
            kind: Kind::Distilled,
            max_sequence_length: Some(64),
            text_encoder_out_layers: None,
            default_image_size: None,
            seed: 2,
        }
    }

    /// An undistilled model in f16 with the real head size of 128, one key and value head, and every optional key of
    /// model_index.json.
    pub fn base() -> Self {
        let storage = Storage { dtype: Float::F16, shards: 1 };
        Self {
            transformer: Transformer {
                double_blocks: 1,
                single_blocks: 1,
                heads: 2,
                head_dim: 128,
                axes_dims_rope: [32; 4],
                rope_theta: 2000,
                mlp_ratio: 2.0,
                storage,
            },
            text_encoder: TextEncoder {
                layers: 6,
                hidden: 40,
                mlp: 72,
                heads: 3,
                kv_heads: 1,
                head_dim: 24,
                vocab: 283,
                rope_theta: 50_000.0,
                rope_parameters: false,
                tied: true,
                storage,
            },
            vae: Vae {
                latent_channels: 32,
                block_out_channels: [8, 16, 16, 16],
                decoder_block_out_channels: None,
                layers_per_block: 2,
                norm_num_groups: 8,
                sample_size: 64,
                storage,
            },
            kind: Kind::Base,
            max_sequence_length: Some(96),
            text_encoder_out_layers: Some([1, 3, 5]),
            default_image_size: Some([96, 64]),
            seed: 3,
        }
    }

    /// Uneven rope axes, 8 latent channels, and a dtype for each component.
    pub fn uneven() -> Self {
        let storage = Storage { dtype: Float::Bf16, shards: 1 };
        Self {
            transformer: Transformer {
                double_blocks: 1,
                single_blocks: 3,
                heads: 5,
                head_dim: 32,
                axes_dims_rope: [4, 12, 12, 4],
                rope_theta: 1000,
                mlp_ratio: 2.5,
                storage,
            },
            text_encoder: TextEncoder {
                layers: 9,
                hidden: 32,
                mlp: 80,
                heads: 6,
                kv_heads: 2,
                head_dim: 16,
                vocab: 320,
                rope_theta: 10_000.0,
                rope_parameters: true,
                tied: false,
                storage: Storage { dtype: Float::F16, shards: 2 },
            },
            vae: Vae {
                latent_channels: 8,
                block_out_channels: [16, 24, 32, 32],
                decoder_block_out_channels: None,
                layers_per_block: 1,
                norm_num_groups: 8,
                sample_size: 64,
                storage: Storage { dtype: Float::F32, shards: 1 },
            },
            kind: Kind::Distilled,
            max_sequence_length: Some(64),
            text_encoder_out_layers: None,
            default_image_size: None,
            seed: 4,
        }
    }

    /// Trained for cached references, in f32; two double and two single blocks, so that a cache of a block depends on
    /// the blocks before it.
    pub fn kv() -> Self {
        let storage = Storage { dtype: Float::F32, shards: 1 };
        let sharded = Self::sharded();
        Self {
            transformer: Transformer { double_blocks: 2, single_blocks: 2, storage, ..sharded.transformer },
            text_encoder: TextEncoder { storage, ..sharded.text_encoder },
            vae: Vae { decoder_block_out_channels: None, ..sharded.vae },
            kind: Kind::Kv,
            seed: 5,
            ..sharded
        }
    }
}
