//! Weights of bitsandbytes: nf4 and fp4, also with quantized scales, and int8.
//!
//! | tensor of a weight W in a layer X | meaning |
//! |---|---|
//! | `W.quant_state.bitsandbytes__nf4` or `__fp4` | shape and block sizes, as JSON |
//! | `W.quant_map` | the 16 values of the codes |
//! | `W.absmax` | the largest magnitude of each block, in float32 or as codes |
//! | `W.nested_quant_map`, `W.nested_absmax` | the 256 values of these codes, and the scales of their blocks |
//! | `X.SCB` or `W.SCB` | int8: the largest magnitude of each row |

use safetensors::Dtype;
use serde::Deserialize;

use super::quantized::f32_slice;
use super::{Entry, Safetensors};
use crate::{Codebook, Format, Maxima, NestedMaxima, Scales, TensorView};
use flux_base::error::{Error, Result};

/// Endings of the tensors that belong to a weight.
const OF_WEIGHT: [&str; 8] = [
    ".absmax",
    ".quant_map",
    ".nested_absmax",
    ".nested_quant_map",
    ".quant_state.bitsandbytes__nf4",
    ".quant_state.bitsandbytes__fp4",
    ".SCB",
    ".weight_format",
];
/// Endings of the tensors that belong to a layer.
const OF_LAYER: [&str; 2] = [".SCB", ".weight_format"];
const STATES: [&str; 2] = ["nf4", "fp4"];

/// The metadata of a 4-bit weight.
#[derive(Deserialize)]
struct State {
    blocksize: usize,
    shape: Vec<usize>,
    #[serde(default)]
    nested_blocksize: Option<usize>,
    #[serde(default)]
    nested_offset: Option<f32>,
}

impl Safetensors {
    /// Returns `true` if a tensor belongs to a weight of bitsandbytes.
    pub(super) fn is_of_bitsandbytes(&self, name: &str) -> bool {
        let weight = OF_WEIGHT.iter().find_map(|end| name.strip_suffix(end));
        let layer = OF_LAYER.iter().find_map(|end| name.strip_suffix(end));
        weight.is_some_and(|weight| self.contains(weight))
            || layer.is_some_and(|layer| self.contains(&format!("{layer}.weight")))
    }

    /// Returns `true` if a tensor is a weight of bitsandbytes.
    pub(super) fn is_bitsandbytes(&self, name: &str) -> bool {
        self.state_name(name).is_some() || self.maxima_name(name).is_some()
    }

    fn state_name(&self, weight: &str) -> Option<String> {
        let names = STATES.iter().map(|kind| format!("{weight}.quant_state.bitsandbytes__{kind}"));
        names.into_iter().find(|name| self.contains(name))
    }

    fn maxima_name(&self, weight: &str) -> Option<String> {
        let layer = weight.strip_suffix(".weight").unwrap_or(weight);
        [format!("{weight}.SCB"), format!("{layer}.SCB")].into_iter().find(|name| self.contains(name))
    }

    /// Returns a weight in one of these formats.
    pub(super) fn bitsandbytes_tensor(&self, name: &str, entry: &Entry) -> Result<TensorView> {
        match (self.state_name(name), self.maxima_name(name)) {
            (Some(state), _) => self.four_bits(name, entry, &state),
            (None, Some(maxima)) => {
                if entry.dtype != Dtype::I8 {
                    return Err(Error::new(format!("tensor `{name}` has dtype {:?}, expected I8", entry.dtype)));
                }
                let maxima = Scales::RowMaxima(Box::new(f32_slice(&self.floats(&maxima)?)));
                self.view(name, entry, Format::Int8, &entry.shape, maxima)
            }
            (None, None) => Err(self.missing(name)),
        }
    }

    fn four_bits(&self, name: &str, entry: &Entry, state_name: &str) -> Result<TensorView> {
        let wrong = |why: String| Error::new(format!("tensor `{state_name}`: {why}")).hint("fetch the file again");
        let state_entry = self.entries.get(state_name).ok_or_else(|| self.missing(state_name))?;
        let state: State = serde_json::from_slice(self.slice(state_entry).bytes()).map_err(|e| wrong(e.to_string()))?;
        let values = state.shape.iter().try_fold(1usize, |product, axis| product.checked_mul(*axis));
        let values = values.ok_or_else(|| wrong(format!("the shape {:?} is too large", state.shape)))?;
        let table = self.table::<16>(&format!("{name}.quant_map"))?;
        let book = Codebook::new(table, state.blocksize, self.maxima(name, &state)?, values)
            .map_err(|why| Error::new(format!("tensor `{name}` {why}")))?;
        self.view(name, entry, Format::Codebook4, &state.shape, Scales::Codebook(Box::new(book)))
    }

    fn maxima(&self, name: &str, state: &State) -> Result<Maxima> {
        let absmax_name = format!("{name}.absmax");
        let absmax = self.entries.get(&absmax_name).ok_or_else(|| self.missing(&absmax_name))?;
        if absmax.dtype != Dtype::U8 {
            return self.floats(&absmax_name).map(|view| Maxima::F32(f32_slice(&view)));
        }
        Ok(Maxima::Nested(NestedMaxima {
            codes: self.slice(absmax),
            table: self.table::<256>(&format!("{name}.nested_quant_map"))?.into(),
            block: state.nested_blocksize.unwrap_or(256),
            maxima: f32_slice(&self.floats(&format!("{name}.nested_absmax"))?),
            offset: state.nested_offset.unwrap_or(0.0),
        }))
    }

    /// Returns the values of the codes.
    fn table<const N: usize>(&self, name: &str) -> Result<[f32; N]> {
        let view = self.floats(name)?;
        <[f32; N]>::try_from(view.to_f32())
            .map_err(|_| Error::new(format!("tensor `{name}` has shape {:?}, expected {N} values", view.shape())))
    }
}
