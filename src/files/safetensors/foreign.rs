//! Forms of weights that this program does not read, by the names of the tensors that belong to them.

use super::{Safetensors, float_format, missing};
use crate::error::Error;

/// What to use instead of a form that is not read.
pub const USE_INSTEAD: &str = "use the model in bf16 or fp8 (safetensors), or as a GGUF file (Q8_0, Q4_K)";

/// How a layer's tensors end, and the method that writes them so. What has more of the same comes first.
const SIGNS: &[(&[&str], &str)] = &[
    (&[".wscales"], "SVDQuant (nunchaku)"),
    (&[".wtscale"], "SVDQuant (nunchaku)"),
    (&[".smooth_factor"], "SVDQuant (nunchaku)"),
    (&[".proj_down", ".qweight"], "SVDQuant (nunchaku)"),
    (&[".qweight", ".g_idx"], "GPTQ"),
    (&[".qweight"], "AWQ or GPTQ"),
    (&[".qzeros"], "AWQ or GPTQ"),
    (&[".weight_packed"], "compressed-tensors"),
    (&[".weight._data"], "quanto"),
    (&[".weight._scale"], "quanto"),
    (&["._weight_qdata"], "torchao"),
    (&[".weight.qdata"], "torchao"),
    (&[".weight:qdata"], "torchao"),
    (&[".weight:_data"], "torchao"),
    (&[".W_q"], "HQQ"),
    (&[".q_weight", ".q_scale"], "EXL2"),
];
/// The same, of what lies beside a weight that is no float.
const BESIDE_INTEGERS: &[(&[&str], &str)] = &[
    (&[".weight", ".scales", ".biases"], "MLX"),
    (&[".weight", ".svd_up"], "SDNQ"),
    (&[".weight", ".zero_point"], "SDNQ"),
    (&[".weight", ".scale"], "SDNQ"),
    (&[".weight", ".weight_scale_inv"], "fp8 with scales of blocks of 128 x 128"),
];

impl Safetensors {
    /// The method whose tensors a layer has.
    pub(super) fn foreign_method(&self, layer: &str) -> Option<&'static str> {
        let has = |(ends, _): &&(&[&str], &str)| ends.iter().all(|end| self.contains(&format!("{layer}{end}")));
        let weight = self.entries.get(&format!("{layer}.weight"));
        let is_float = weight.is_some_and(|entry| float_format(entry.dtype).is_some());
        let beside = BESIDE_INTEGERS.iter().filter(|_| !is_float);
        SIGNS.iter().chain(beside).find(has).map(|(_, method)| *method)
    }

    /// A layer that is in a form that this program does not read, and the method that made it.
    pub fn foreign_layer(&self) -> Option<(&str, &'static str)> {
        let ends = SIGNS.iter().chain(BESIDE_INTEGERS).filter_map(|(ends, _)| ends.last());
        let ends: Vec<&str> = ends.copied().collect();
        let layers = self.entries.keys().filter_map(|name| ends.iter().find_map(|end| name.strip_suffix(end)));
        layers.filter_map(|layer| Some((layer, self.foreign_method(layer)?))).min()
    }

    /// The error of a tensor that is not there.
    pub(super) fn missing(&self, name: &str) -> Error {
        match name.strip_suffix(".weight").and_then(|layer| self.foreign_method(layer)) {
            Some(method) => unread(name, method),
            None => missing(name),
        }
    }

    /// The error of a tensor whose dtype alone says nothing.
    pub(super) fn meaningless(&self, name: &str) -> Error {
        let dtype = self.entries.get(name).map(|entry| entry.dtype);
        let dtype = dtype.map_or_else(String::new, |dtype| format!("{dtype:?}"));
        Error::new(format!(
            "tensor `{name}` is of dtype {dtype}, expected BF16, F16 or F32, and the file does not say in which format"
        ))
        .hint(USE_INSTEAD)
    }
}

/// The error of a tensor in a form that is not read.
pub fn unread(name: &str, method: &str) -> Error {
    Error::new(format!("tensor `{name}` is quantised by {method}, which this program does not read")).hint(USE_INSTEAD)
}
