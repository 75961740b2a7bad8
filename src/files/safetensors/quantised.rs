//! Tensors in formats of fewer bits, as ComfyUI, Black Forest Labs and diffusers' scripts write them.
//!
//! A layer X has its values in `X.weight`. Each layer is looked at by itself, because most files keep some in bf16.
//!
//! | beside it | what it is |
//! |---|---|
//! | `X.weight_scale`, `X.scale_weight` | a scale, one a row, or one for each block of columns |
//! | `X.weight_scale_2` | what the scales of blocks are multiplied by |
//! | `X.input_scale`, `X.scale_input` | what activations are divided by; not read, for each row of them gets a scale of its own |
//! | `X.comfy_quant` | the format, as JSON; else the header says it, or the dtype alone |

use std::collections::HashMap;
use std::sync::Arc;

use safetensors::Dtype;

use super::declared::Declaration;
use super::foreign::{USE_INSTEAD, unread};
use super::{Entry, Safetensors, float_format};
use crate::error::{Error, Result};
use crate::files::format::Layout;
use crate::files::recognise::MOST_WORDS;
use crate::files::{BlockScales, Bytes, FileSlice, Format, Scales, TensorView};

/// What belongs to a layer, by the end of its name.
const COMPANIONS: [&str; 6] =
    [".weight_scale", ".weight_scale_2", ".input_scale", ".comfy_quant", ".scale_weight", ".scale_input"];
/// The tensor of older files whose dtype is the format of all layers with a scale.
const MARKER: &str = "scaled_fp8";
/// Columns of a group that was multiplied by a Hadamard matrix, where the file does not say it.
const DEFAULT_GROUP: u64 = 256;
/// The largest such group.
const MOST_GROUP: u64 = 1 << 14;
/// The power of two that is not a number.
const NO_SCALE: u8 = 0xff;
/// Formats that are known and not read, besides those of a family.
const UNREAD: [&str; 3] = ["convrot_w4a4", "asym_w4a8_int8", "awq_w4a16"];

/// A tensor by its name and that of its layer.
struct Named<'a> {
    name: &'a str,
    layer: &'a str,
    entry: &'a Entry,
}

impl Safetensors {
    /// Whether a tensor is a part of another one.
    pub(super) fn is_companion(&self, name: &str) -> bool {
        let layer = COMPANIONS.iter().find_map(|end| name.strip_suffix(end));
        layer.is_some_and(|layer| self.contains(&format!("{layer}.weight")))
            || name.rsplit('.').next() == Some(MARKER)
            || self.is_of_bitsandbytes(name)
    }

    /// Errors when something belongs to a layer in few bits that is not understood: its values would be others.
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
                "`{layer}.{end}` belongs to tensor `{layer}.weight`, and this program does not know what it means"
            ))
            .hint(USE_INSTEAD)),
            (None, None) => Ok(()),
        }
    }

    /// A tensor in the format that the file says, or that its dtype is.
    pub(super) fn declared_tensor(&self, name: &str, entry: &Entry) -> Result<TensorView> {
        let layer = name.strip_suffix(".weight").unwrap_or(name);
        let tensor = Named { name, layer, entry };
        if let Some(declaration) = self.declaration(layer)? {
            return self.of_declaration(&tensor, &declaration);
        }
        if let Some(format) = float_format(entry.dtype) {
            return self.view(name, entry, format, &entry.shape, Scales::None);
        }
        self.check_companions(layer)?;
        let bare = |layout: &Layout| layout.is_bare && layout.dtype == entry.dtype;
        if let Some(format) = Format::find_layout(bare) {
            return self.scaled(&tensor, format, false);
        }
        let of_file = |is_sought: &dyn Fn(&str) -> bool| {
            Format::find_layout(|layout| layout.dtype == entry.dtype && layout.file.is_some_and(is_sought))
        };
        let Some(format) = of_file(&|_| true).filter(|_| self.contains(&format!("{layer}.weight_scale_2"))) else {
            return Err(self.meaningless(name));
        };
        let named = of_file(&|name| self.declarations.whole() == Some(name));
        let unordered = || {
            let what = "but the file does not say in which order its values lie";
            Error::new(format!("tensor `{name}` looks like {format}, {what}"))
                .hint("the header's metadata was lost when the file was rewritten: fetch the original file")
        };
        self.in_blocks(&tensor, named.ok_or_else(unordered)?)
    }

    /// What the file says of a layer: the tensor beside it before the header.
    fn declaration(&self, layer: &str) -> Result<Option<Declaration>> {
        let name = format!("{layer}.comfy_quant");
        let Some(entry) = self.entries.get(&name) else { return Ok(self.declarations.of_layer(layer).cloned()) };
        serde_json::from_slice(self.slice(entry).bytes())
            .map(Some)
            .map_err(|e| Error::new(format!("tensor `{name}` does not say a format: {e}")).hint("fetch the file again"))
    }

    fn of_declaration(&self, tensor: &Named<'_>, declaration: &Declaration) -> Result<TensorView> {
        let said = declaration.format.as_str();
        let Some(format) = Format::find_layout(|layout| layout.layer == Some(said)) else {
            let is_known = said.starts_with("tint4_") || UNREAD.contains(&said);
            return Err(if is_known {
                unread(tensor.name, said)
            } else {
                Error::new(format!("layer `{}` is in the unknown format `{said}`", tensor.layer)).hint(USE_INSTEAD)
            });
        };
        // Only rows of integers are known to be rotated; anything else would be read as if it were not.
        if declaration.is_rotated() && format != Format::Int8 {
            return Err(unread(tensor.name, &format!("{said} with convrot")));
        }
        self.check_companions(tensor.layer)?;
        let layout = format.row().safetensors.expect("it was found by its layout");
        if tensor.entry.dtype != layout.dtype {
            let (name, dtype) = (tensor.name, tensor.entry.dtype);
            return Err(Error::new(format!("tensor `{name}` is of dtype {dtype:?}, but the file says `{said}`"))
                .hint("the file was put together wrongly: fetch it again"));
        }
        let view = match format {
            _ if layout.block_scales.is_some() => self.in_blocks(tensor, format),
            Format::Int8 if declaration.is_rotated() => self.scaled(tensor, rotated(tensor.layer, declaration)?, true),
            _ => self.scaled(tensor, format, true),
        }?;
        Ok(if declaration.is_weight_only { view.with_weight_only(true) } else { view })
    }

    /// Values of 8 bits with a scale, or one a row; or without, where none `is_needed`.
    fn scaled(&self, tensor: &Named<'_>, format: Format, is_needed: bool) -> Result<TensorView> {
        let Named { name, layer, entry } = tensor;
        let names = ["weight_scale", "scale_weight"].map(|end| format!("{layer}.{end}"));
        let scales = match names.iter().find(|name| self.contains(name)) {
            Some(found) => self.scales(found, entry.shape.first().copied().unwrap_or(1))?,
            None if is_needed => return Err(self.missing(&names[0])),
            None => Scales::None,
        };
        let view = self.view(name, entry, format, &entry.shape, scales)?;
        Ok(view.with_weight_only(self.is_marked_weight_only(layer)))
    }

    /// Values in blocks of columns with a scale of one byte each.
    fn in_blocks(&self, tensor: &Named<'_>, format: Format) -> Result<TensorView> {
        let Named { name, layer, entry } = tensor;
        let block = format.block();
        let layout = format.row().safetensors.and_then(|layout| layout.block_scales).expect("a format in blocks");
        let [rows, columns] = matrix(name, entry)?;
        let cols = columns.checked_mul(block.values / block.bytes);
        let cols = cols.ok_or_else(|| Error::new(format!("tensor `{name}` is {:?}", entry.shape)))?;
        let factor = if layout.has_factor { self.number(&format!("{layer}.weight_scale_2"))? } else { 1.0 };
        let scales_name = format!("{layer}.weight_scale");
        let of_blocks = self.entries.get(&scales_name).ok_or_else(|| self.missing(&scales_name))?;
        if !layout.dtypes.contains(&of_blocks.dtype) {
            let (dtype, expected) = (of_blocks.dtype, layout.dtypes[0]);
            return Err(Error::new(format!("tensor `{scales_name}` is of dtype {dtype:?}, expected {expected:?}")));
        }
        let scales = BlockScales::new(self.slice(of_blocks), layout.order, [rows, cols / block.values], factor)
            .map_err(|why| Error::new(format!("layer `{layer}` {why}")))?;
        if layout.dtypes.contains(&Dtype::F8_E8M0) && scales.bytes().contains(&NO_SCALE) {
            return Err(Error::new(format!("the scales of tensor `{name}` hold values that are not numbers"))
                .hint("the file is damaged: fetch it again"));
        }
        self.view(name, entry, format, &[rows, cols], Scales::Blocks(Box::new(scales)))
    }

    /// The scale of a tensor, or those of its rows.
    fn scales(&self, name: &str, rows: usize) -> Result<Scales> {
        let view = self.floats(name)?;
        let values = view.to_f32();
        if values.iter().any(|value| !value.is_finite()) {
            return Err(Error::new(format!("tensor `{name}` holds values that are not numbers, or infinite"))
                .hint("the file is damaged: fetch it again"));
        }
        match values[..] {
            [scale] => Ok(Scales::Tensor(scale)),
            _ if values.len() == rows => Ok(Scales::Rows(Box::new(f32_slice(&view)))),
            _ => Err(Error::new(format!("tensor `{name}` is {:?}, expected one value or {rows}", view.shape()))),
        }
    }

    /// Whether the part of the model that a layer is of has the marker of older files in two values, which says that
    /// activations are to stay as they are.
    fn is_marked_weight_only(&self, layer: &str) -> bool {
        let fronts = [0].into_iter().chain(layer.match_indices('.').map(|(dot, _)| dot + 1)).take(MOST_WORDS);
        let marker = fronts.filter_map(|end| self.entries.get(&format!("{}{MARKER}", &layer[..end]))).last();
        marker.is_some_and(|marker| marker.shape == [2])
    }

    /// The only value of a tensor, a positive number.
    fn number(&self, name: &str) -> Result<f32> {
        let view = self.floats(name)?;
        match view.to_f32()[..] {
            [value] if value.is_finite() && value >= 0.0 => Ok(value),
            [value] => Err(Error::new(format!("tensor `{name}` is {value}, expected a positive number"))
                .hint("the file is damaged: fetch it again")),
            _ => Err(Error::new(format!("tensor `{name}` is {:?}, expected one value", view.shape()))),
        }
    }

    /// A tensor of plain floats.
    pub(super) fn floats(&self, name: &str) -> Result<TensorView> {
        let entry = self.entries.get(name).ok_or_else(|| self.missing(name))?;
        let format = float_format(entry.dtype)
            .ok_or_else(|| Error::new(format!("tensor `{name}` is of dtype {:?}, expected F32", entry.dtype)))?;
        self.view(name, entry, format, &entry.shape, Scales::None)
    }
}

/// The values of a tensor of floats in float32: where they lie, if they are float32 there.
pub(super) fn f32_slice(view: &TensorView) -> FileSlice {
    let (file, start) = match view.format() {
        Format::F32 => (Arc::clone(view.file()), view.start()),
        _ => (Arc::new(Bytes::Computed(view.to_f32())), 0),
    };
    FileSlice::new(file, start..start + 4 * view.elements()).expect("a view lies in its file")
}

/// Rows and columns of a tensor's entry.
fn matrix(name: &str, entry: &Entry) -> Result<[usize; 2]> {
    <[usize; 2]>::try_from(&entry.shape[..])
        .map_err(|_| Error::new(format!("tensor `{name}` is {:?}, expected a matrix", entry.shape)))
}

/// The format of groups of columns that were multiplied by a Hadamard matrix.
fn rotated(layer: &str, declaration: &Declaration) -> Result<Format> {
    let given = declaration.rotated_columns().unwrap_or(DEFAULT_GROUP);
    let is_power_of_four = given.is_power_of_two() && given.trailing_zeros().is_multiple_of(2);
    let group = u16::try_from(given).ok().filter(|_| is_power_of_four && (4..=MOST_GROUP).contains(&given));
    group.map(|group| Format::Int8Rotated { group }).ok_or_else(|| {
        Error::new(format!(
            "layer `{layer}` says groups of {given} columns (`convrot_groupsize`), expected a power of 4 up to {MOST_GROUP}"
        ))
        .hint("fetch the file again")
    })
}
