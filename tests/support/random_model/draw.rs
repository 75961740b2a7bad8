//! Weights generated from their names alone: the same numbers on every machine.

use half::{bf16, f16};
use safetensors::tensor::Dtype;

use super::{Float, QK_NORM, TIMESTEP_CHANNELS, TIMESTEP_GAIN};

/// A tensor before its values are generated.
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) values: Values,
}

#[derive(Clone, Copy)]
pub(super) enum Values {
    /// Evenly spread over `middle - reach .. middle + reach`.
    Uniform { middle: f64, reach: f64 },
    /// Rows that read the timestep's sinusoid, with little of its fast half. As in a trained network, rounding a
    /// timestep to bf16 changes little.
    Sinusoid { reach: f64 },
    /// A single i64.
    Count(i64),
}

impl Values {
    /// Returns a uniform distribution with this mean and standard deviation.
    pub(super) fn about(mean: f64, deviation: f64) -> Self {
        Self::Uniform { middle: mean, reach: deviation * 3f64.sqrt() }
    }
}

impl Tensor {
    pub(super) fn draw(&self, dtype: Float, seed: u64) -> (Dtype, Vec<u8>) {
        if let Values::Count(count) = self.values {
            return (Dtype::I64, count.to_le_bytes().to_vec());
        }
        let mut random = SplitMix64(seed);
        let values = (0..self.shape.iter().product()).map(|index: usize| {
            let u = random.symmetric();
            let value = match self.values {
                Values::Uniform { middle, reach } => middle + reach * u,
                Values::Sinusoid { reach } if index % (TIMESTEP_CHANNELS / 2) < TIMESTEP_CHANNELS / 4 => {
                    reach / 32.0 * u
                }
                Values::Sinusoid { reach } => reach * u,
                Values::Count(_) => unreachable!("returned above"),
            };
            value as f32
        });
        match dtype {
            Float::Bf16 => (Dtype::BF16, values.flat_map(|v| bf16::from_f32(v).to_le_bytes()).collect()),
            Float::F16 => (Dtype::F16, values.flat_map(|v| f16::from_f32(v).to_le_bytes()).collect()),
            Float::F32 => (Dtype::F32, values.flat_map(f32::to_le_bytes).collect()),
        }
    }
}

/// The tensors of a component, under their checkpoint names.
#[derive(Default)]
pub(super) struct TensorList(pub(super) Vec<Tensor>);

impl TensorList {
    pub(super) fn add(&mut self, name: &str, shape: &[usize], values: Values) {
        self.0.push(Tensor { name: name.to_string(), shape: shape.to_vec(), values });
    }

    pub(super) fn weight(&mut self, module: &str, shape: &[usize], gain: f64) {
        let fan_in: usize = shape[1..].iter().product();
        self.add(&format!("{module}.weight"), shape, Values::about(0.0, gain / (fan_in as f64).sqrt()));
    }

    pub(super) fn bias(&mut self, module: &str, channels: usize) {
        self.add(&format!("{module}.bias"), &[channels], Values::about(0.0, 0.1));
    }

    pub(super) fn linear(&mut self, module: &str, out: usize, input: usize) {
        self.weight(module, &[out, input], 1.0);
    }

    pub(super) fn sinusoid(&mut self, module: &str, out: usize) {
        // The slow half has nearly all of the variance, so it is half of the fan-in.
        let reach = TIMESTEP_GAIN * (3.0 / (TIMESTEP_CHANNELS / 2) as f64).sqrt();
        self.add(&format!("{module}.weight"), &[out, TIMESTEP_CHANNELS], Values::Sinusoid { reach });
    }

    pub(super) fn norm(&mut self, module: &str, channels: usize) {
        self.add(&format!("{module}.weight"), &[channels], Values::about(1.0, 0.1));
    }

    /// See [`QK_NORM`].
    pub(super) fn qk_norm(&mut self, module: &str, head_dim: usize) {
        self.add(&format!("{module}.weight"), &[head_dim], Values::about(QK_NORM, 0.2));
    }

    pub(super) fn group_norm(&mut self, module: &str, channels: usize) {
        self.norm(module, channels);
        self.bias(module, channels);
    }

    pub(super) fn conv(&mut self, module: &str, out: usize, input: usize, side: usize) {
        self.weight(module, &[out, input, side, side], 1.0);
        self.bias(module, out);
    }

    pub(super) fn resnet(&mut self, module: &str, input: usize, out: usize) {
        self.group_norm(&format!("{module}.norm1"), input);
        self.conv(&format!("{module}.conv1"), out, input, 3);
        self.group_norm(&format!("{module}.norm2"), out);
        self.conv(&format!("{module}.conv2"), out, out, 3);
        if input != out {
            self.conv(&format!("{module}.conv_shortcut"), out, input, 1);
        }
    }

    pub(super) fn mid_block(&mut self, module: &str, channels: usize) {
        self.resnet(&format!("{module}.resnets.0"), channels, channels);
        let attention = format!("{module}.attentions.0");
        self.group_norm(&format!("{attention}.group_norm"), channels);
        for (name, gain) in [("to_q", QK_NORM), ("to_k", QK_NORM), ("to_v", 1.0), ("to_out.0", 1.0)] {
            self.weight(&format!("{attention}.{name}"), &[channels, channels], gain);
            self.bias(&format!("{attention}.{name}"), channels);
        }
        self.resnet(&format!("{module}.resnets.1"), channels, channels);
    }
}

/// Sebastiano Vigna's generator: a counter and a mixer, in integers only.
pub(super) struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns an odd multiple of 2^-24 between -1 and 1: exact, and never 0.
    fn symmetric(&mut self) -> f64 {
        let bits = (self.next() >> 40) as i64;
        (2 * bits + 1 - (1 << 24)) as f64 / f64::from(1 << 24)
    }
}

/// Returns a 64-bit hash of a name.
pub(super) fn fnv1a(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
