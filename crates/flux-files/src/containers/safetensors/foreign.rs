//! Quantization methods that this program does not read, recognised by the names of their tensors.

use super::{Safetensors, float_format, missing};
use flux_base::error::Error;

/// The hint for a method that is not read.
pub const USE_INSTEAD: &str = "use the model in bf16 or fp8 (safetensors), or as a GGUF file (Q8_0, Q4_K)";

/// Endings of a layer's tensors, and the method that writes them. Methods with more of the same endings come first.
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
/// As [`SIGNS`], for tensors next to a weight that is not a float.
const BESIDE_INTEGERS: &[(&[&str], &str)] = &[
    (&[".weight", ".scales", ".biases"], "MLX"),
    (&[".weight", ".svd_up"], "SDNQ"),
    (&[".weight", ".zero_point"], "SDNQ"),
    (&[".weight", ".scale"], "SDNQ"),
];

impl Safetensors {
    /// Returns the method whose tensors a layer has.
    pub(super) fn foreign_method(&self, layer: &str) -> Option<&'static str> {
        let has = |(ends, _): &&(&[&str], &str)| ends.iter().all(|end| self.contains(&format!("{layer}{end}")));
        let weight = self.entries.get(&format!("{layer}.weight"));
        let is_float = weight.is_some_and(|entry| float_format(entry.dtype).is_some());
        let beside = BESIDE_INTEGERS.iter().filter(|_| !is_float);
        SIGNS.iter().chain(beside).find(has).map(|(_, method)| *method)
    }

    /// Returns a layer quantized by a method that this program does not read, and the method.
    pub fn foreign_layer(&self) -> Option<(&str, &'static str)> {
        let ends = SIGNS.iter().chain(BESIDE_INTEGERS).filter_map(|(ends, _)| ends.last());
        let ends: Vec<&str> = ends.copied().collect();
        let layers = self.entries.keys().filter_map(|name| ends.iter().find_map(|end| name.strip_suffix(end)));
        layers.filter_map(|layer| Some((layer, self.foreign_method(layer)?))).min()
    }

    /// Returns the error for a missing tensor.
    pub(super) fn missing(&self, name: &str) -> Error {
        match name.strip_suffix(".weight").and_then(|layer| self.foreign_method(layer)) {
            Some(method) => unread(name, method),
            None => missing(name),
        }
    }

    /// Returns the error for a tensor whose dtype alone does not determine its format.
    pub(super) fn meaningless(&self, name: &str) -> Error {
        let dtype = self.entries.get(name).map(|entry| entry.dtype);
        let dtype = dtype.map_or_else(String::new, |dtype| format!("{dtype:?}"));
        Error::new(format!(
            "tensor `{name}` has dtype {dtype}, expected BF16, F16 or F32, and the file does not declare its format"
        ))
        .hint(USE_INSTEAD)
    }
}

/// Returns the error for a tensor quantized by a method that this program does not read.
pub fn unread(name: &str, method: &str) -> Error {
    Error::new(format!("tensor `{name}` is quantized with {method}, which is not supported")).hint(USE_INSTEAD)
}
