//! The compute type of a GPU: the 16-bit type of activations and weights in its memory. Models don't depend on it.
//!
//! GPUs since Ampere use bf16, which has the range of float32. Tensor cores of compute capability 7.5 support only
//! fp16, whose max is 65504. Residual streams may exceed that, so activations are stored in units of [`F16_UNIT`], and
//! values that still don't fit are clamped and reported, see cuda/common.cuh. Weights are stored without a unit.

use std::ffi::OsStr;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Environment variable that selects the type: `bf16`, or `fp16` also on GPUs with bf16, to test it.
const VARIABLE: &str = "FLUX_COMPUTE";
/// The oldest GPUs with bf16 tensor cores.
const OLDEST_WITH_BF16: (i32, i32) = (8, 0);
/// The value of a stored 1: `UNIT` in cuda/common.cuh. It is a power of two, so scaling doesn't round. The largest
/// activation is 2^21; values below 2^-9 have an absolute error of at most 2^-20.
///
/// In one image of the default model ("a black cat on an orange background", seed 5, the reference in float32) the
/// largest values are 1656 in the text encoder's residual stream, 90515 in the transformer's and 30838 in the decoder.
/// The smallest typical value (rms) is 0.000005, in the output of an MLP of the text encoder, which is added to values
/// as large as those of the residual stream.
const F16_UNIT: f32 = 32.0;

/// A 16-bit floating-point type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Element {
    Bf16,
    F16,
}

impl Element {
    /// Bytes of one value.
    pub const BYTES: usize = 2;

    /// Returns the compute type of a GPU of this capability, or the one that the environment variable selects.
    ///
    /// Errors if the variable names no type, or one that the GPU doesn't support.
    pub fn for_gpu(capability: (i32, i32)) -> Result<Self> {
        Self::choose(capability, std::env::var_os(VARIABLE).as_deref())
    }

    fn choose(capability: (i32, i32), wish: Option<&OsStr>) -> Result<Self> {
        let has_bf16 = capability >= OLDEST_WITH_BF16;
        match wish.map(OsStr::to_string_lossy).as_deref() {
            None | Some("") => Ok(if has_bf16 { Self::Bf16 } else { Self::F16 }),
            Some("fp16") => Ok(Self::F16),
            Some("bf16") if has_bf16 => Ok(Self::Bf16),
            Some("bf16") => Err(Error::usage("`bf16` needs a GPU of compute capability 8.0 or later").at(VARIABLE)),
            Some(other) => Err(Error::usage(format!("`{other}` is neither bf16 nor fp16")).at(VARIABLE)),
        }
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "fp16",
        }
    }

    /// Returns the activation that a stored 1 represents.
    pub fn unit(self) -> f32 {
        match self {
            Self::Bf16 => 1.0,
            Self::F16 => F16_UNIT,
        }
    }

    /// Returns the bits of a weight, rounded to nearest even.
    pub fn weight(self, value: f32) -> u16 {
        match self {
            Self::Bf16 => bf16::from_f32(value).to_bits(),
            Self::F16 => f16::from_f32(value).to_bits(),
        }
    }

    /// Returns the weight stored as `bits`.
    pub fn weight_value(self, bits: u16) -> f32 {
        match self {
            Self::Bf16 => bf16::from_bits(bits).to_f32(),
            Self::F16 => f16::from_bits(bits).to_f32(),
        }
    }

    /// Returns the bits of an activation, rounded to nearest even.
    pub fn activation(self, value: f32) -> u16 {
        self.weight(value / self.unit())
    }

    /// Returns the activation stored as `bits`.
    pub fn activation_value(self, bits: u16) -> f32 {
        self.weight_value(bits) * self.unit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_computes_in_what_it_has() {
        let of = |capability, wish: &str| Element::choose(capability, Some(OsStr::new(wish)));
        assert_eq!(Element::choose((7, 5), None).unwrap(), Element::F16);
        assert_eq!(Element::choose((8, 0), None).unwrap(), Element::Bf16);
        assert_eq!(of((9, 0), "").unwrap(), Element::Bf16);
        assert_eq!([of((9, 0), "fp16").unwrap(), of((12, 0), "bf16").unwrap()], [Element::F16, Element::Bf16]);
        let message = of((7, 5), "bf16").unwrap_err().to_string();
        assert!(message.contains(VARIABLE) && message.contains("8.0"), "{message}");
        assert!(of((9, 0), "f32").unwrap_err().to_string().contains("`f32`"));
    }

    #[test]
    fn activations_of_fp16_reach_further_than_its_values() {
        for value in [0.0, 1.0, -0.25, 70_000.0, 2_000_000.0, 2.0f32.powi(-9)] {
            let there = Element::F16.activation_value(Element::F16.activation(value));
            assert!((there - value).abs() <= value.abs() / 2048.0, "{value}: {there}");
            let there = Element::Bf16.activation_value(Element::Bf16.activation(value));
            assert!((there - value).abs() <= value.abs() / 256.0, "{value}: {there}");
        }
        let small = 1e-5;
        assert!((Element::F16.activation_value(Element::F16.activation(small)) - small).abs() <= 2.0f32.powi(-20));
        assert_eq!(Element::F16.weight_value(Element::F16.weight(0.5)), 0.5);
    }
}
