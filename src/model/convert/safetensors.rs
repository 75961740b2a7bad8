//! Quantized layers in a safetensors file. Some formats of transformers follow the layout of Black Forest Labs, which
//! declares layers in the header; all others follow ComfyUI's, with a declaration tensor for each layer.

use std::collections::BTreeMap;

use safetensors::Dtype;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::files::writer::{self, Entry, TensorWriter};
use crate::files::{CONFIG_KEY, Encode, Format, Role, Scales, TensorView};
use crate::model::convert::{Conversion, shape};
use crate::model::quantize::plan::Planned;

/// The metadata key that declares layers.
const LAYERS_KEY: &str = "_quantization_metadata";

/// Begins the file.
pub fn begin(conversion: &Conversion, tensors: &[(Planned, Format)]) -> Result<TensorWriter> {
    let (mut entries, mut layers) = (Vec::new(), Map::new());
    for (tensor, format) in tensors {
        entries.extend(entries_of(conversion, tensor, *format)?);
        if let Some(declaration) = declaration(conversion, *format, true) {
            layers.insert(layer(tensor).to_string(), declaration);
        }
    }
    let mut metadata = if layers.is_empty() {
        BTreeMap::from([("format".to_string(), "pt".to_string())])
    } else {
        let text = json!({ "format_version": "1.0", "layers": layers }).to_string();
        BTreeMap::from([(LAYERS_KEY.to_string(), text)])
    };
    metadata.insert(CONFIG_KEY.to_string(), conversion.config()?);
    writer::safetensors(&conversion.target, &metadata, &entries)
}

/// Writes a tensor with its scales and declaration.
pub fn put(conversion: &Conversion, writer: &mut TensorWriter, tensor: &Planned, made: &TensorView) -> Result<()> {
    let layout = made.format().row().safetensors;
    writer.put(&tensor.name, made.bytes())?;
    let of_layer = |end: &str| format!("{}.{end}", layer(tensor));
    match made.scales() {
        Scales::Tensor(scale) => writer.put(&of_layer("weight_scale"), &scale.to_le_bytes())?,
        Scales::Rows(scales) => writer.put(&of_layer("weight_scale"), scales.bytes())?,
        Scales::Blocks(scales) => {
            writer.put(&of_layer("weight_scale"), scales.bytes())?;
            if layout.and_then(|layout| layout.block_scales).is_some_and(|scales| scales.has_factor) {
                writer.put(&of_layer("weight_scale_2"), &scales.tensor().to_le_bytes())?;
            }
        }
        Scales::None | Scales::RowMaxima(_) | Scales::Tiles(_) | Scales::Codebook(_) => {}
    }
    match declaration(conversion, made.format(), false) {
        Some(declaration) => writer.put(&of_layer("comfy_quant"), declaration.to_string().as_bytes()),
        None => Ok(()),
    }
}

/// The name of a tensor's layer.
fn layer(tensor: &Planned) -> &str {
    tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name)
}

/// Returns the declaration of a layer in this format, for the header or for a tensor. `None` if the declaration goes
/// to the other place, or the format is a plain float.
fn declaration(conversion: &Conversion, format: Format, in_header: bool) -> Option<Value> {
    let layout = format.row().safetensors?;
    let name = layout.layer?;
    let is_in_header = layout.in_header && conversion.component.role() == Role::Transformer;
    (is_in_header == in_header).then(|| json!({ "format": name }))
}

/// Returns the entries of a tensor, its scales and its declaration.
fn entries_of(conversion: &Conversion, tensor: &Planned, format: Format) -> Result<Vec<Entry>> {
    let shape = shape(tensor);
    let entry = |end: &str, dtype, shape: &[usize]| Entry {
        name: if end == "weight" { tensor.name.clone() } else { format!("{}.{end}", layer(tensor)) },
        dtype,
        shape: shape.to_vec(),
    };
    let (rows, cols) = (shape.first().copied().unwrap_or(1), shape.iter().skip(1).product::<usize>());
    let (row, block) = (format.row(), format.block());
    let layout = row.safetensors.ok_or_else(|| Error::new(format!("safetensors files cannot store {format}")))?;
    let is_packed = block.bytes < block.values;
    let values = if is_packed { vec![rows, cols * block.bytes / block.values] } else { shape.clone() };
    let mut entries = vec![entry("weight", layout.dtype, &values)];
    match row.encode {
        Some(Encode::Tensor(..)) => entries.push(entry("weight_scale", Dtype::F32, &[])),
        Some(Encode::Rows(_)) => entries.push(entry("weight_scale", Dtype::F32, &[rows, 1])),
        Some(Encode::Blocks(_) | Encode::BlockScales(..)) | None => {}
    }
    if let Some(scales) = layout.block_scales {
        let padded = scales
            .order
            .padded([rows, cols / block.values])
            .ok_or_else(|| Error::new(format!("tensor `{}` with shape {shape:?} is too large", tensor.name)))?;
        entries.push(entry("weight_scale", scales.dtypes[0], &padded));
        if scales.has_factor {
            entries.push(entry("weight_scale_2", Dtype::F32, &[]));
        }
    }
    if let Some(declaration) = declaration(conversion, format, false) {
        entries.push(entry("comfy_quant", Dtype::U8, &[declaration.to_string().len()]));
    }
    Ok(entries)
}
