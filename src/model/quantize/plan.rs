//! The format of each tensor of a quantized component, both in memory and in written files.

use crate::error::{Error, Result};
use crate::files::names::{Fused, FusedPart, fused_transformer};
use crate::files::own_models::VISION;
use crate::files::quantize::{bits_per_value, fitting, quantize};
use crate::files::{Format, Role, Scales, TensorFiles, TensorView};
use crate::nn::WeightPolicy;

/// A tensor as single files have it. Its matrices are fused as in those files, so scales of whole tensors agree.
pub struct Planned {
    /// The name of the tensor: in a single file for transformers, as models request it for text encoders.
    pub name: String,
    /// The tensors that models request and whose rows this tensor holds.
    pub parts: Vec<FusedPart>,
    /// The rows of each part, as stored in files.
    pub views: Vec<Vec<TensorView>>,
    /// The new format; `None` if the tensor stays a plain float of 16 or 32 bits.
    pub quantized: Option<Format>,
    /// The file that holds the tensor, for messages.
    pub path: String,
}

impl Planned {
    /// All views, from the top.
    pub fn all_views(&self) -> Vec<TensorView> {
        self.views.iter().flatten().cloned().collect()
    }

    /// Number of values.
    pub fn elements(&self) -> u64 {
        self.views.iter().flatten().map(|view| view.elements() as u64).sum()
    }

    /// Bytes in the files, scales included.
    pub fn bytes(&self) -> u64 {
        self.views.iter().flatten().map(bytes_of).sum()
    }

    /// Number of axes.
    pub fn axes(&self) -> usize {
        self.views.iter().flatten().next().map_or(0, |view| view.shape().len())
    }

    /// Converts the tensor to a format.
    ///
    /// Errors with the tensor's name if it has values that the format cannot hold, or that underflow in it.
    pub fn make(&self, format: Format) -> Result<TensorView> {
        quantize(&self.all_views(), format).map_err(|why| {
            Error::new(format!("tensor `{}` {why}", self.parts[0].name)).at(self.path.as_str()).hint(
                "the file is damaged, or its weights are too large or too small for this format: fetch it again, or \
                 choose another format",
            )
        })
    }
}

/// Returns the tensors of a component whose names `wanted` accepts, in the order of single files. Tensors of layers
/// get `format` if it fits their rows.
///
/// Errors if a tensor is missing or cannot be read.
pub fn plan(files: &TensorFiles, role: Role, format: Format, wanted: impl Fn(&str) -> bool) -> Result<Vec<Planned>> {
    let path = files.files().first().map(|file| file.path().display().to_string()).unwrap_or_default();
    let planned = |Fused { name, parts }: Fused| {
        check_shapes(files, role, &parts).map_err(|e| e.at(path.as_str()))?;
        let views =
            parts.iter().map(|part| files.part_of(&part.name, part.part, part.of)).collect::<Result<Vec<_>>>()?;
        let first = views.iter().flatten().next();
        let is_matrix = first.is_some_and(|view| view.shape().len() == 2);
        let may = is_matrix && WeightPolicy::is_quantized_in_files(&parts[0].name);
        let quantized = fitting(format, first.map_or(0, TensorView::cols)).filter(|_| may);
        Ok(Planned { name, parts, views, quantized, path: path.clone() })
    };
    let wanted = |tensor: &Fused| wanted(&tensor.parts[0].name);
    tensors(files, role)?.into_iter().filter(wanted).map(planned).collect()
}

/// Errors if the parts of a tensor cannot be stacked, or a part does not have the axes of a klein model.
fn check_shapes(files: &TensorFiles, role: Role, parts: &[FusedPart]) -> Result<()> {
    // A missing tensor is an error of its own.
    let shapes: Vec<_> = parts.iter().filter_map(|part| Some((&part.name, files.shape(&part.name)?))).collect();
    let hint = "the file is damaged or was merged incorrectly: fetch it again";
    if let Some((name, shape)) = shapes.iter().find(|(_, shape)| shape.contains(&0)) {
        return Err(Error::new(format!("tensor `{name}` has shape {shape:?}, which has no values")).hint(hint));
    }
    let axes = |name: &str| if name.contains(".norm_") { 1 } else { 2 };
    let is_wrong = |(name, shape): &&(&String, Vec<usize>)| shape.len() != axes(name);
    if let Some((name, shape)) = shapes.iter().find(is_wrong).filter(|_| role == Role::Transformer) {
        return Err(Error::new(format!("tensor `{name}` has shape {shape:?}, expected {} axes", axes(name))).hint(hint));
    }
    let Some((first, shape)) = shapes.first() else { return Ok(()) };
    match shapes.iter().find(|(_, other)| other.get(1) != shape.get(1)) {
        Some((other, _)) => Err(Error::new(format!("tensors `{first}` and `{other}` differ in columns")).hint(hint)),
        None => Ok(()),
    }
}

/// All tensors of a component.
fn tensors(files: &TensorFiles, role: Role) -> Result<Vec<Fused>> {
    if role != Role::Transformer {
        // The vision part of a text encoder is never read.
        let is_read = |name: &&str| !name.split('.').any(|word| word == VISION);
        let mut names: Vec<String> = files.names().filter(is_read).map(String::from).collect();
        names.sort_unstable();
        return Ok(names.into_iter().map(|name| Fused::whole(name.clone(), name)).collect());
    }
    let map = files.layers();
    let blocks: Vec<usize> = map.blocks.iter().map(|(_, own, _)| files.blocks(&format!("{own}."))).collect();
    // Block numbers come from names, so they can be arbitrarily large.
    let (most, highest) = (files.names().count(), blocks.iter().copied().max().unwrap_or(0));
    if highest > most {
        let what = format!("the blocks of the transformer are numbered up to {highest}, but some are missing");
        return Err(Error::new(what).hint("the file is damaged or was merged incorrectly: fetch it again"));
    }
    let mut tensors = fused_transformer(map, &blocks);
    let is_there = |tensor: &Fused| files.shape(&tensor.parts[0].name).is_some();
    tensors.retain(|tensor| !map.is_optional(&tensor.name) || is_there(tensor));
    Ok(tensors)
}

/// Errors if the tensors are no smaller in their new formats.
pub fn check_narrower(planned: &[Planned], role: Role, format: Format) -> Result<()> {
    let (title, name) = (role.title(), format.name().unwrap_or_default());
    let quantized = || planned.iter().filter_map(|tensor| Some((tensor, tensor.quantized?)));
    if quantized().next().is_none() {
        return Err(Error::usage(format!("the {title} has no matrix with rows of whole blocks of {name}"))
            .hint("choose a format with smaller blocks, such as q8_0, or without blocks, such as fp8 or int8"));
    }
    let before: f64 = quantized().map(|(tensor, _)| 8.0 * tensor.bytes() as f64).sum();
    let after: f64 = quantized().map(|(tensor, format)| bits_per_value(format) * tensor.elements() as f64).sum();
    if after < before {
        return Ok(());
    }
    let mut formats: Vec<String> = quantized()
        .flat_map(|(tensor, _)| tensor.views.iter().flatten())
        .map(|view| view.format().to_string())
        .collect();
    formats.sort_unstable();
    formats.dedup();
    Err(Error::usage(format!("the {title} is already in {}, and {name} does not have fewer bits", formats.join(", ")))
        .hint("keep it as it is, or choose a format with fewer bits; rounded weights cannot be restored"))
}

/// Bytes of a tensor, scales included.
pub fn bytes_of(view: &TensorView) -> u64 {
    let scales = match view.scales() {
        Scales::None => 0,
        Scales::Tensor(_) => 4,
        Scales::Rows(_) | Scales::RowMaxima(_) => 4 * view.rows(),
        Scales::Blocks(scales) => view.rows() * scales.blocks() + 4,
        Scales::Tiles(scales) => 4 * view.rows() * view.cols().div_ceil(scales.columns()),
        Scales::Codebook(book) => 4 * view.elements().div_ceil(book.block()),
    };
    (view.bytes().len() + scales) as u64
}
