//! Forms of weights that this program does not read, by the names of the tensors that belong to them.

use super::{Safetensors, missing};
use crate::error::Error;

/// What to use instead of a form that is not read.
pub const USE_INSTEAD: &str = "use the model in bf16 or fp8 (safetensors), or as a GGUF file (Q8_0, Q4_K)";

/// How a layer's tensors end, and the method that writes them so.
const SIGNS: [(&str, &str); 10] = [
    (".wscales", "SVDQuant (nunchaku)"),
    (".proj_down", "SVDQuant (nunchaku)"),
    (".svd_up", "SDNQ"),
    (".zero_point", "SDNQ"),
    (".scale", "SDNQ"),
    (".qzeros", "AWQ or GPTQ"),
    (".qweight", "AWQ or GPTQ"),
    (".weight._data", "quanto"),
    ("._weight_qdata", "torchao"),
    (".weight.qdata", "torchao"),
];

impl Safetensors {
    /// The method whose tensors a layer has.
    fn foreign_method(&self, layer: &str) -> Option<&'static str> {
        SIGNS.iter().find(|(end, _)| self.contains(&format!("{layer}{end}"))).map(|(_, method)| *method)
    }

    /// The error of a tensor that is not there.
    pub(super) fn missing(&self, name: &str) -> Error {
        match name.strip_suffix(".weight").and_then(|layer| self.foreign_method(layer)) {
            Some(method) => unread(name, method),
            None => missing(name),
        }
    }

    /// The error of a tensor whose dtype alone says nothing.
    pub(super) fn meaningless(&self, name: &str, layer: &str) -> Error {
        if let Some(method) = self.foreign_method(layer) {
            return unread(name, method);
        }
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
