//! Layers in few bits in a safetensors file: as Black Forest Labs publish transformers in fp8 and nvfp4, which the
//! header declares, and as ComfyUI writes all else, with a declaration beside each layer.

use std::collections::BTreeMap;

use serde_json::{Map, json};

use crate::error::{Error, Result};
use crate::files::writer::{self, ElementType, Entry, TensorWriter};
use crate::files::{CONFIG_KEY, Format, Role, ScaleLayout, Scales, TensorView};
use crate::model::convert::{Conversion, shape};
use crate::model::quantise::plan::Planned;

/// The key of the header's metadata that declares layers.
const LAYERS_KEY: &str = "_quantization_metadata";

/// Begins the file.
pub fn begin(conversion: &Conversion, tensors: &[(Planned, Format)]) -> Result<TensorWriter> {
    let (mut entries, mut layers) = (Vec::new(), Map::new());
    for (tensor, format) in tensors {
        entries.extend(entries_of(conversion, tensor, *format)?);
        if let Some(declared) = declared(*format).filter(|_| header_declares(conversion, *format)) {
            layers.insert(layer(tensor).to_string(), json!({ "format": declared }));
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

/// Writes a tensor and what belongs to it.
pub fn put(conversion: &Conversion, writer: &mut TensorWriter, tensor: &Planned, made: &TensorView) -> Result<()> {
    writer.put(&tensor.name, made.bytes())?;
    let of_layer = |end: &str| format!("{}.{end}", layer(tensor));
    match made.scales() {
        Scales::Tensor(scale) => writer.put(&of_layer("weight_scale"), &scale.to_le_bytes())?,
        Scales::Rows(scales) => writer.put(&of_layer("weight_scale"), scales.bytes())?,
        Scales::Blocks(scales) => {
            writer.put(&of_layer("weight_scale"), scales.bytes())?;
            if made.format() == Format::Nvfp4 {
                writer.put(&of_layer("weight_scale_2"), &scales.tensor().to_le_bytes())?;
            }
        }
        Scales::None | Scales::RowMaxima(_) | Scales::Codebook(_) => {}
    }
    match declaration(made.format()).filter(|_| !header_declares(conversion, made.format())) {
        Some(text) => writer.put(&of_layer("comfy_quant"), text.as_bytes()),
        None => Ok(()),
    }
}

/// The name of a tensor's layer.
fn layer(tensor: &Planned) -> &str {
    tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name)
}

/// What a format is called in declarations; none of plain floats.
fn declared(format: Format) -> Option<&'static str> {
    match format {
        Format::E4m3 => Some("float8_e4m3fn"),
        Format::Nvfp4 => Some("nvfp4"),
        Format::Mxfp8 => Some("mxfp8"),
        Format::Int8 => Some("int8_tensorwise"),
        _ => None,
    }
}

/// What lies beside a layer of the format.
fn declaration(format: Format) -> Option<String> {
    declared(format).map(|declared| json!({ "format": declared }).to_string())
}

/// Whether the header declares layers of the format.
fn header_declares(conversion: &Conversion, format: Format) -> bool {
    conversion.component.role() == Role::Transformer && matches!(format, Format::E4m3 | Format::Nvfp4)
}

/// A tensor and what belongs to it.
fn entries_of(conversion: &Conversion, tensor: &Planned, format: Format) -> Result<Vec<Entry>> {
    let shape = shape(tensor);
    let entry = |end: &str, element, shape: &[usize]| Entry {
        name: if end == "weight" { tensor.name.clone() } else { format!("{}.{end}", layer(tensor)) },
        element,
        shape: shape.to_vec(),
    };
    let too_large = || Error::new(format!("tensor `{}` is {shape:?}, which no file holds", tensor.name));
    let blocks = || {
        let (rows, cols) = (shape.first().copied().unwrap_or(1), shape.iter().skip(1).product::<usize>());
        ScaleLayout::Swizzled.padded([rows, cols / format.block().values]).ok_or_else(too_large)
    };
    let mut entries = match format {
        Format::Bf16 => vec![entry("weight", ElementType::Bf16, &shape)],
        Format::F16 => vec![entry("weight", ElementType::F16, &shape)],
        Format::E4m3 => vec![entry("weight", ElementType::E4m3, &shape), entry("weight_scale", ElementType::F32, &[])],
        Format::Int8 => {
            let scales = [shape.first().copied().unwrap_or(1), 1];
            vec![entry("weight", ElementType::I8, &shape), entry("weight_scale", ElementType::F32, &scales)]
        }
        Format::Mxfp8 => {
            vec![entry("weight", ElementType::E4m3, &shape), entry("weight_scale", ElementType::U8, &blocks()?)]
        }
        Format::Nvfp4 => {
            let bytes = [shape.first().copied().unwrap_or(1), shape.iter().skip(1).product::<usize>() / 2];
            vec![
                entry("weight", ElementType::U8, &bytes),
                entry("weight_scale", ElementType::E4m3, &blocks()?),
                entry("weight_scale_2", ElementType::F32, &[]),
            ]
        }
        other => return Err(Error::new(format!("safetensors files have no weights in {other}"))),
    };
    if let Some(text) = declaration(format).filter(|_| !header_declares(conversion, format)) {
        entries.push(entry("comfy_quant", ElementType::U8, &[text.len()]));
    }
    Ok(entries)
}
