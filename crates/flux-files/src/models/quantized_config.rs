//! The part of a config that describes how weights are quantized.
//!
//! The dtype of each tensor and the scales next to it determine how the tensor is decoded. The config reveals anything
//! beyond that: blocks of another size, zero points, weights that are rotated or pruned.

use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use flux_base::error::{Error, Result};

/// A quantization method that this program reads.
struct Method {
    name: &'static str,
    /// Keys that are read, or that do not concern weights.
    keys: &'static [&'static str],
    /// `true` if each 8-bit weight has a scale.
    has_scales: bool,
    /// Errors with the setting that is not read.
    check: fn(&Map<String, Value>) -> std::result::Result<(), String>,
}

const METHODS: &[Method] = &[
    Method { name: "bitsandbytes", keys: &[], has_scales: false, check: |_| Ok(()) },
    Method {
        name: "fp8",
        keys: &[
            "quant_method", "weight_block_size", "fmt", "activation_scheme", "modules_to_not_convert",
            "ignored_layers", "dequantize",
        ],
        has_scales: true,
        check: check_fp8,
    },
    Method {
        name: "compressed-tensors",
        keys: &[
            "quant_method",
            "config_groups",
            "format",
            "ignore",
            "kv_cache_scheme",
            "global_compression_ratio",
            "quantization_status",
            "sparsity_config",
            "transform_config",
            "version",
        ],
        has_scales: true,
        check: check_compressed_tensors,
    },
];

/// The formats of compressed-tensors that this program reads.
const FORMATS: [&str; 4] = ["float-quantized", "naive-quantized", "int-quantized", "dense"];

/// A config, as far as it concerns quantized weights.
#[derive(Deserialize)]
pub struct QuantizedConfig {
    quantization_config: Option<Map<String, Value>>,
    /// The key that MLX writes.
    quantization: Option<IgnoredAny>,
}

impl QuantizedConfig {
    fn method(&self) -> Option<(&Map<String, Value>, &'static Method)> {
        let config = self.quantization_config.as_ref()?;
        let name = config.get("quant_method")?.as_str()?;
        Some((config, METHODS.iter().find(|method| method.name == name)?))
    }

    /// Errors with the method's name, or with the setting that is not read.
    pub fn check(&self) -> Result<()> {
        let name = match (&self.quantization_config, &self.quantization) {
            (None, None) => return Ok(()),
            (Some(config), _) => config.get("quant_method").and_then(Value::as_str).unwrap_or("an unnamed method"),
            (None, Some(_)) => "MLX",
        };
        const HINT: &str = "use the same model as one GGUF or fp8 file, quantized with bitsandbytes, or in bf16";
        match self.method() {
            Some((config, method)) => (method.check)(config)
                .map_err(|what| Error::new(format!("the weights are quantized with `{name}`: {what}")).hint(HINT)),
            None => Err(Error::new(format!("weights quantized with `{name}` are not supported")).hint(HINT)),
        }
    }

    /// Returns `true` if each 8-bit weight has a scale.
    pub fn has_scales(&self) -> bool {
        self.method().is_some_and(|(_, method)| method.has_scales)
    }

    /// Returns a note that names the keys that are not read, if there are any.
    pub fn note(&self, path: &Path) -> Option<String> {
        let (config, method) = self.method().filter(|(_, method)| !method.keys.is_empty())?;
        let unknown: Vec<_> = config.keys().filter(|key| !method.keys.contains(&key.as_str())).cloned().collect();
        let list = unknown.join("`, `");
        (!unknown.is_empty())
            .then(|| format!("`{}` has keys for quantized weights that are ignored: `{list}`", path.display()))
    }
}

/// Errors with the value of `key` if there is one and `is_read` refuses it.
fn expect(config: &Map<String, Value>, key: &str, is_read: impl Fn(&Value) -> bool) -> std::result::Result<(), String> {
    match config.get(key).filter(|value| !value.is_null() && !is_read(value)) {
        Some(value) => Err(format!("`{key}` is {value}, which is not supported")),
        None => Ok(()),
    }
}

fn is_tile(value: &Value) -> bool {
    *value == serde_json::json!([128, 128])
}

fn check_fp8(config: &Map<String, Value>) -> std::result::Result<(), String> {
    expect(config, "weight_block_size", is_tile)?;
    expect(config, "fmt", |fmt| fmt == "e4m3")
}

fn check_compressed_tensors(config: &Map<String, Value>) -> std::result::Result<(), String> {
    let is_format = |format: &Value| format.as_str().is_some_and(|format| FORMATS.contains(&format));
    let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
    expect(config, "format", is_format)?;
    expect(config, "sparsity_config", |value| is_empty(value) || value.get("format").is_some_and(|it| it == "dense"))?;
    expect(config, "transform_config", |value| is_empty(value) || value.get("config_groups").is_some_and(is_empty))?;
    let groups = config.get("config_groups").and_then(Value::as_object).into_iter().flatten();
    for (name, group) in groups {
        let in_group = |what: String| format!("`config_groups.{name}`: {what}");
        let Some(group) = group.as_object() else { continue };
        expect(group, "format", is_format).map_err(in_group)?;
        let Some(weights) = group.get("weights").and_then(Value::as_object) else { continue };
        let is_float = weights.get("type").is_none_or(|kind| kind == "float");
        expect(weights, "num_bits", |bits| *bits == 8).map_err(in_group)?;
        expect(weights, "type", |kind| kind == "float" || kind == "int").map_err(in_group)?;
        expect(weights, "symmetric", |is_symmetric| *is_symmetric == true).map_err(in_group)?;
        expect(weights, "strategy", |strategy| match strategy.as_str() {
            Some("tensor" | "channel") => true,
            Some("block" | "group") => is_float,
            _ => false,
        })
        .map_err(in_group)?;
        expect(weights, "block_structure", |tile| is_tile(tile) || tile == "128x128").map_err(in_group)?;
    }
    Ok(())
}
