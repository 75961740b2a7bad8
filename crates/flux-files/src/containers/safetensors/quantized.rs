//! Quantized tensors as written by ComfyUI, Black Forest Labs and diffusers' scripts.
//!
//! The values of a layer X are in `X.weight`. Each layer is examined separately, because most files keep some in bf16.
//!
//! | tensor | meaning |
//! |---|---|
//! | `X.weight_scale`, `X.scale_weight` | one scale, one per row, or one for each block of columns |
//! | `X.weight_scale_inv` | in Qwen and DeepSeek files: one scale, or one for each 128 x 128 tile; not an inverse |
//! | `X.weight_scale_2` | the factor of all block scales |
//! | `X.input_scale`, `X.scale_input` | the scale of activations; not read, because each row gets its own scale |
//! | `X.comfy_quant` | the format, as JSON; without it, the header or the dtype determines the format |

use std::collections::HashMap;
use std::sync::Arc;

use safetensors::Dtype;

use super::declared::Declaration;
use super::foreign::{USE_INSTEAD, unread};
use super::{Entry, Safetensors, float_format};
use crate::catalog::recognise::MAX_WORDS;
use crate::formats::format::Layout;
use crate::{BlockScales, Bytes, FileSlice, Format, Scales, TensorView, TileScales};
use flux_base::error::{Error, Result};

/// Endings of the tensors that belong to a layer.
const COMPANIONS: [&str; 7] = [
    ".weight_scale", ".weight_scale_2", ".weight_scale_inv", ".input_scale", ".comfy_quant", ".scale_weight",
    ".scale_input",
];
/// Endings of tensors with one scale or one per row.
const SCALES: [&str; 3] = ["weight_scale", "scale_weight", "weight_scale_inv"];
/// Rows and columns of a tile.
const TILE: [usize; 2] = [128; 2];
/// The tensor of older files whose dtype is the format of all layers with a scale.
const MARKER: &str = "scaled_fp8";
/// Columns of a group that is multiplied by a Hadamard matrix, if the file does not declare them.
const DEFAULT_GROUP: u64 = 256;
/// The max columns of such a group.
const MAX_GROUP: u64 = 1 << 14;
/// The power of two that is not a number.
const NO_SCALE: u8 = 0xff;
/// Known formats that this program does not read, besides the `tint4_` family.
const UNREAD: [&str; 3] = ["convrot_w4a4", "asym_w4a8_int8", "awq_w4a16"];

/// A tensor with its name and the name of its layer.
struct Named<'a> {
    name: &'a str,
    layer: &'a str,
    entry: &'a Entry,
}

/// Returns the layer that a tensor of this name belongs to, if that layer is quantized.
pub(super) fn layer_of_companion(name: &str) -> Option<&str> {
    COMPANIONS.iter().find_map(|end| name.strip_suffix(end))
}

impl Safetensors {
    /// Returns `true` if a tensor belongs to another one.
    pub(super) fn is_companion(&self, name: &str) -> bool {
        let layer = layer_of_companion(name);
        layer.is_some_and(|layer| self.contains(&format!("{layer}.weight")))
            || name.rsplit('.').next() == Some(MARKER)
            || self.is_of_bitsandbytes(name)
    }

    /// Errors if a tensor of unknown meaning belongs to a quantized layer, because the layer's values may depend on it.
    fn check_companions(&self, layer: &str) -> Result<()> {
        let companions = self.companions.get_or_init(|| {
            let mut of_layers: HashMap<String, Vec<String>> = HashMap::new();
            for (layer, end) in self.entries.keys().filter_map(|name| name.rsplit_once('.')) {
                of_layers.entry(layer.to_string()).or_default().push(end.to_string());
            }
            of_layers
        });
        let is_known =
            |end: &str| ["weight", "bias"].contains(&end) || COMPANIONS.iter().any(|known| &known[1..] == end);
        let mut unknown = companions.get(layer).into_iter().flatten().filter(|end| !is_known(end));
        match (self.foreign_method(layer), unknown.next()) {
            (Some(method), _) => Err(unread(&format!("{layer}.weight"), method)),
            (None, Some(end)) => Err(Error::new(format!(
                "`{layer}.{end}` belongs to tensor `{layer}.weight`, but its meaning is unknown"
            ))
            .hint(USE_INSTEAD)),
            (None, None) => Ok(()),
        }
    }

    /// Returns a tensor in the format that the file declares, or that its dtype determines.
    pub(super) fn declared_tensor(&self, name: &str, entry: &Entry) -> Result<TensorView> {
        let layer = name.strip_suffix(".weight").unwrap_or(name);
        let tensor = Named { name, layer, entry };
        if let Some(declaration) = self.declaration(layer)? {
            return self.declared_view(&tensor, &declaration);
        }
        if let Some(format) = float_format(entry.dtype) {
            return self.view(name, entry, format, &entry.shape, Scales::None);
        }
        self.check_companions(layer)?;
        let bare = |layout: &Layout| layout.is_bare && layout.dtype == entry.dtype;
        if let Some(format) = Format::find_layout(bare) {
            let is_needed = self.entries.keys().any(|name| name.ends_with(".weight_scale_inv"));
            return self.scaled(&tensor, format, is_needed);
        }
        // Zero points are refused above, so integers with a scale are unambiguous.
        if entry.dtype == Dtype::I8 && self.has_scale(layer) {
            return self.scaled(&tensor, Format::Int8, true);
        }
        let of_file = |is_sought: &dyn Fn(&str) -> bool| {
            Format::find_layout(|layout| layout.dtype == entry.dtype && layout.file.is_some_and(is_sought))
        };
        let Some(format) = of_file(&|_| true).filter(|_| self.contains(&format!("{layer}.weight_scale_2"))) else {
            return Err(self.meaningless(name));
        };
        let named = of_file(&|name| self.declarations.whole() == Some(name));
        let unordered = || {
            let what = "but the file does not declare the order of its values";
            Error::new(format!("tensor `{name}` looks like {format}, {what}"))
                .hint("the header's metadata was lost when the file was rewritten: fetch the original file")
        };
        self.in_blocks(&tensor, named.ok_or_else(unordered)?)
    }

    /// Returns the declared format of a layer. The tensor next to the layer takes precedence over the header.
    fn declaration(&self, layer: &str) -> Result<Option<Declaration>> {
        let name = format!("{layer}.comfy_quant");
        let Some(entry) = self.entries.get(&name) else { return Ok(self.declarations.get(layer).cloned()) };
        serde_json::from_slice(self.slice(entry).bytes())
            .map(Some)
            .map_err(|e| Error::new(format!("tensor `{name}` declares no format: {e}")).hint("fetch the file again"))
    }

    fn declared_view(&self, tensor: &Named<'_>, declaration: &Declaration) -> Result<TensorView> {
        let said = declaration.format.as_str();
        let Some(format) = Format::find_layout(|layout| layout.layer == Some(said)) else {
            let is_known = said.starts_with("tint4_") || UNREAD.contains(&said);
            return Err(if is_known {
                unread(tensor.name, said)
            } else {
                Error::new(format!("layer `{}` has the unknown format `{said}`", tensor.layer)).hint(USE_INSTEAD)
            });
        };
        // Rotation is supported for integers only; other formats would be read as if they were not rotated.
        if declaration.is_rotated() && format != Format::Int8 {
            return Err(unread(tensor.name, &format!("{said} with convrot")));
        }
        self.check_companions(tensor.layer)?;
        let layout = format.row().safetensors.expect("the format has a layout");
        if tensor.entry.dtype != layout.dtype {
            let (name, dtype) = (tensor.name, tensor.entry.dtype);
            return Err(Error::new(format!("tensor `{name}` has dtype {dtype:?}, but the file declares `{said}`"))
                .hint("the file is malformed: fetch it again"));
        }
        let view = match format {
            _ if layout.block_scales.is_some() => self.in_blocks(tensor, format),
            Format::Int8 if declaration.is_rotated() => self.scaled(tensor, rotated(tensor.layer, declaration)?, true),
            _ => self.scaled(tensor, format, true),
        }?;
        Ok(if declaration.is_weight_only { view.with_weight_only(true) } else { view })
    }

    /// Returns 8-bit values with one scale or one per row; without a scale only if none `is_needed`.
    fn scaled(&self, tensor: &Named<'_>, format: Format, is_needed: bool) -> Result<TensorView> {
        let Named { name, layer, entry } = tensor;
        let names = SCALES.map(|end| format!("{layer}.{end}"));
        let scales = match names.iter().find(|name| self.contains(name)) {
            Some(found) => self.scales(found, &entry.shape)?,
            None if is_needed => {
                let what =
                    format!("tensor `{name}` has dtype {:?}, but no scale: `{}` is missing", entry.dtype, names[0]);
                return Err(Error::new(what).hint("the file is malformed or incomplete: fetch it again"));
            }
            None => Scales::None,
        };
        let format =
            if matches!(scales, Scales::Tiles(_)) && format == Format::E4m3 { Format::E4m3Tiles } else { format };
        let view = self.view(name, entry, format, &entry.shape, scales)?;
        Ok(view.with_weight_only(self.is_marked_weight_only(layer)))
    }

    /// Returns values in blocks of columns with a one-byte scale each.
    fn in_blocks(&self, tensor: &Named<'_>, format: Format) -> Result<TensorView> {
        let Named { name, layer, entry } = tensor;
        let block = format.block();
        let layout = format.row().safetensors.and_then(|layout| layout.block_scales).expect("a format in blocks");
        let [rows, columns] = matrix(name, entry)?;
        let cols = columns.checked_mul(block.values / block.bytes);
        let cols =
            cols.ok_or_else(|| Error::new(format!("tensor `{name}` has too large a shape: {:?}", entry.shape)))?;
        let factor = if layout.has_factor { self.number(&format!("{layer}.weight_scale_2"))? } else { 1.0 };
        let scales_name = format!("{layer}.weight_scale");
        let of_blocks = self.entries.get(&scales_name).ok_or_else(|| self.missing(&scales_name))?;
        if !layout.dtypes.contains(&of_blocks.dtype) {
            let (dtype, expected) = (of_blocks.dtype, layout.dtypes[0]);
            return Err(Error::new(format!("tensor `{scales_name}` has dtype {dtype:?}, expected {expected:?}")));
        }
        let scales = BlockScales::new(self.slice(of_blocks), layout.order, [rows, cols / block.values], factor)
            .map_err(|why| Error::new(format!("layer `{layer}` {why}")))?;
        if layout.dtypes.contains(&Dtype::F8_E8M0) && scales.bytes().contains(&NO_SCALE) {
            return Err(Error::new(format!("the scales of tensor `{name}` contain NaN"))
                .hint("the file is damaged: fetch it again"));
        }
        self.view(name, entry, format, &[rows, cols], Scales::Blocks(Box::new(scales)))
    }

    /// Returns `true` if the layer's values have a scale.
    pub(super) fn has_scale(&self, layer: &str) -> bool {
        SCALES.iter().any(|end| self.contains(&format!("{layer}.{end}")))
    }

    /// Errors with the name of the first 8-bit weight that has no scale. In files whose config declares quantization,
    /// every such weight must have one.
    pub fn check_scales(&self) -> Result<()> {
        let eight_bits = [Dtype::F8_E4M3, Dtype::F8_E5M2, Dtype::I8];
        let layers = self.entries.iter().filter(|(_, entry)| eight_bits.contains(&entry.dtype));
        let layers = layers.filter_map(|(name, _)| name.strip_suffix(".weight"));
        match layers.filter(|layer| !self.has_scale(layer)).min() {
            Some(layer) => Err(Error::new(format!("tensor `{layer}.weight` has no scale"))
                .at_path(&self.path)
                .hint("the file is malformed or incomplete: fetch it again")),
            None => Ok(()),
        }
    }

    /// Returns the scale of a tensor of this shape, or the scales of its rows or tiles.
    fn scales(&self, name: &str, shape: &[usize]) -> Result<Scales> {
        let view = self.floats(name)?;
        let values = view.to_f32();
        if values.iter().any(|value| !value.is_finite()) {
            return Err(Error::new(format!("tensor `{name}` contains NaN or infinite values"))
                .hint("the file is damaged: fetch it again"));
        }
        let rows = shape.first().copied().unwrap_or(1);
        let tile = tile_of(name, shape, view.shape());
        match (&values[..], tile, <[usize; 2]>::try_from(shape)) {
            ([scale], ..) => Ok(Scales::Tensor(*scale)),
            (_, Some(tile), Ok(shape)) => TileScales::new(f32_slice(&view), tile, shape)
                .map(|scales| Scales::Tiles(Box::new(scales)))
                .map_err(|why| Error::new(format!("tensor `{name}` {why}"))),
            (values, None, _) if values.len() == rows => Ok(Scales::Rows(Box::new(f32_slice(&view)))),
            _ => Err(Error::new(format!("tensor `{name}` has shape {:?}, expected one value or {rows}", view.shape()))),
        }
    }

    /// Returns `true` if the part of the model that contains a layer has the marker of older files with two values,
    /// which means that activations stay unquantized.
    fn is_marked_weight_only(&self, layer: &str) -> bool {
        let fronts = [0].into_iter().chain(layer.match_indices('.').map(|(dot, _)| dot + 1)).take(MAX_WORDS);
        let marker = fronts.filter_map(|end| self.entries.get(&format!("{}{MARKER}", &layer[..end]))).last();
        marker.is_some_and(|marker| marker.shape == [2])
    }

    /// Returns the only value of a tensor, a number that is not negative.
    fn number(&self, name: &str) -> Result<f32> {
        let view = self.floats(name)?;
        match view.to_f32()[..] {
            [value] if value.is_finite() && value >= 0.0 => Ok(value),
            [value] => Err(Error::new(format!("tensor `{name}` is {value}, expected a positive number"))
                .hint("the file is damaged: fetch it again")),
            _ => Err(Error::new(format!("tensor `{name}` has shape {:?}, expected one value", view.shape()))),
        }
    }

    /// Returns a tensor of plain floats.
    pub(super) fn floats(&self, name: &str) -> Result<TensorView> {
        let entry = self.entries.get(name).ok_or_else(|| self.missing(name))?;
        let format = float_format(entry.dtype)
            .ok_or_else(|| Error::new(format!("tensor `{name}` has dtype {:?}, expected F32", entry.dtype)))?;
        self.view(name, entry, format, &entry.shape, Scales::None)
    }
}

/// Returns the tile that scales of this shape are for, in a matrix; `None` if they are for whole rows.
fn tile_of(name: &str, shape: &[usize], scales: &[usize]) -> Option<[usize; 2]> {
    let (&[rows, cols], &[down, across]) = (shape, scales) else { return None };
    if name.ends_with("_inv") || [down, across] == TileScales::count(TILE, [rows, cols]) {
        // One column of scales, one per row, counts as scales of rows.
        return (across > 1 || down != rows).then_some(TILE);
    }
    // Groups of columns.
    (down == rows && across > 1 && cols.is_multiple_of(across)).then(|| [1, cols / across])
}

/// Returns the values of a float tensor in float32: in place, if they are float32 in the file.
pub(super) fn f32_slice(view: &TensorView) -> FileSlice {
    let (file, start) = match view.format() {
        Format::F32 => (Arc::clone(view.file()), view.start()),
        _ => (Arc::new(Bytes::Computed(view.to_f32())), 0),
    };
    FileSlice::new(file, start..start + 4 * view.elements()).expect("a view is inside its file")
}

/// Returns the rows and columns of a tensor's entry.
fn matrix(name: &str, entry: &Entry) -> Result<[usize; 2]> {
    <[usize; 2]>::try_from(&entry.shape[..])
        .map_err(|_| Error::new(format!("tensor `{name}` has shape {:?}, expected a matrix", entry.shape)))
}

/// Returns the format of groups of columns that are multiplied by a Hadamard matrix.
fn rotated(layer: &str, declaration: &Declaration) -> Result<Format> {
    let given = declaration.rotated_columns().unwrap_or(DEFAULT_GROUP);
    let is_power_of_four = given.is_power_of_two() && given.trailing_zeros().is_multiple_of(2);
    let group = u16::try_from(given).ok().filter(|_| is_power_of_four && (4..=MAX_GROUP).contains(&given));
    group.map(|group| Format::Int8Rotated { group }).ok_or_else(|| {
        Error::new(format!(
            "layer `{layer}` has groups of {given} columns (`convrot_groupsize`), \
             expected a power of 4 up to {MAX_GROUP}"
        ))
        .hint("fetch the file again")
    })
}
