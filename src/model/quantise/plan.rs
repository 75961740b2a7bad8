//! Which tensors of a component are in which format when it is in few bits: the same in memory and in files that are
//! written.

use crate::error::{Error, Result};
use crate::files::names::{Fused, FusedPart, fused_transformer};
use crate::files::own_models::VISION;
use crate::files::quantise::{bits_per_value, fitting, quantise};
use crate::files::{Format, Role, Scales, TensorFiles, TensorView};
use crate::nn::WeightPolicy;

/// A tensor as single files have it. Its matrices are fused as there, so that a scale of a whole tensor is the same.
pub struct Planned {
    /// Its name in a single file of a transformer; of a text encoder, the name that models ask for.
    pub name: String,
    /// The tensors that models ask for whose rows it has.
    pub parts: Vec<FusedPart>,
    /// The rows of each part as they lie in files.
    pub views: Vec<Vec<TensorView>>,
    /// The format that it is to be brought to; none where it stays a plain float of 16 or 32 bits.
    pub quantised: Option<Format>,
    /// The file that holds it, for messages.
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

    /// The tensor in a format.
    ///
    /// Errors with its name when it holds values that the format does not, or is lost in it.
    pub fn make(&self, format: Format) -> Result<TensorView> {
        quantise(&self.all_views(), format).map_err(|why| {
            Error::new(format!("tensor `{}` {why}", self.parts[0].name)).at(self.path.as_str()).hint(
                "the file is damaged, or its weights are too large or too small for this format: fetch it again, or choose \
                 another one",
            )
        })
    }
}

/// The tensors of a component whose names `wanted` accepts, in the order of single files; those of layers in `format`
/// where it fits their rows.
///
/// Errors when one is missing or cannot be read.
pub fn plan(files: &TensorFiles, role: Role, format: Format, wanted: impl Fn(&str) -> bool) -> Result<Vec<Planned>> {
    let path = files.files().first().map(|file| file.path().display().to_string()).unwrap_or_default();
    let planned = |Fused { name, parts }: Fused| {
        check_shapes(files, role, &parts).map_err(|e| e.at(path.as_str()))?;
        let views =
            parts.iter().map(|part| files.part_of(&part.name, part.part, part.of)).collect::<Result<Vec<_>>>()?;
        let first = views.iter().flatten().next();
        let is_matrix = first.is_some_and(|view| view.shape().len() == 2);
        let may = is_matrix && WeightPolicy::is_quantised_in_files(&parts[0].name);
        let quantised = fitting(format, first.map_or(0, TensorView::cols)).filter(|_| may);
        Ok(Planned { name, parts, views, quantised, path: path.clone() })
    };
    let wanted = |tensor: &Fused| wanted(&tensor.parts[0].name);
    tensors(files, role)?.into_iter().filter(wanted).map(planned).collect()
}

/// Errors when the parts of a tensor cannot lie one under the other, or one has other axes than a klein model's.
fn check_shapes(files: &TensorFiles, role: Role, parts: &[FusedPart]) -> Result<()> {
    let shapes: Vec<_> = parts.iter().map(|part| (&part.name, files.shape(&part.name).unwrap_or_default())).collect();
    let hint = "the file is damaged or was put together wrongly: fetch it again";
    if let Some((name, shape)) = shapes.iter().find(|(_, shape)| shape.contains(&0)) {
        return Err(Error::new(format!("tensor `{name}` is {shape:?}, which holds no values")).hint(hint));
    }
    // A missing one is an error of its own.
    let axes = |name: &str| if name.contains(".norm_") { 1 } else { 2 };
    let is_wrong = |(name, shape): &&(&String, Vec<usize>)| !shape.is_empty() && shape.len() != axes(name);
    if let Some((name, shape)) = shapes.iter().find(is_wrong).filter(|_| role == Role::Transformer) {
        return Err(Error::new(format!("tensor `{name}` is {shape:?}, expected {} axes", axes(name))).hint(hint));
    }
    let (first, shape) = &shapes[0];
    match shapes.iter().find(|(_, other)| !other.is_empty() && other.get(1) != shape.get(1)) {
        Some((other, _)) => Err(Error::new(format!("tensors `{first}` and `{other}` differ in columns")).hint(hint)),
        None => Ok(()),
    }
}

/// All tensors of a component.
fn tensors(files: &TensorFiles, role: Role) -> Result<Vec<Fused>> {
    if role != Role::Transformer {
        // What sees images is never read.
        let is_read = |name: &&str| !name.split('.').any(|word| word == VISION);
        let mut names: Vec<String> = files.names().filter(is_read).map(String::from).collect();
        names.sort_unstable();
        return Ok(names.into_iter().map(|name| Fused::whole(name.clone(), name)).collect());
    }
    let map = files.layers();
    let blocks: Vec<usize> = map.blocks.iter().map(|(_, own, _)| files.blocks(&format!("{own}."))).collect();
    // The numbers of blocks are in names, where they may be anything.
    let (most, highest) = (files.names().count(), blocks.iter().copied().max().unwrap_or(0));
    if highest > most {
        let what = format!("the blocks of the transformer are numbered up to {highest}, and not all there");
        return Err(Error::new(what).hint("the file is damaged or was put together wrongly: fetch it again"));
    }
    let mut tensors = fused_transformer(map, &blocks);
    let is_there = |tensor: &Fused| files.shape(&tensor.parts[0].name).is_some();
    tensors.retain(|tensor| !map.optional.iter().any(|front| tensor.name.starts_with(front)) || is_there(tensor));
    Ok(tensors)
}

/// Errors when the tensors are no smaller in their new formats.
pub fn check_narrower(planned: &[Planned], role: Role, format: Format) -> Result<()> {
    let (title, name) = (role.title(), format.name().unwrap_or_default());
    let quantised = || planned.iter().filter_map(|tensor| Some((tensor, tensor.quantised?)));
    if quantised().next().is_none() {
        return Err(Error::usage(format!("no matrix of the {title} has rows that are whole blocks of {name}"))
            .hint("choose a format of smaller blocks, such as q8_0, or one without, such as fp8 or int8"));
    }
    let before: f64 = quantised().map(|(tensor, _)| 8.0 * tensor.bytes() as f64).sum();
    let after: f64 = quantised().map(|(tensor, format)| bits_per_value(format) * tensor.elements() as f64).sum();
    if after < before {
        return Ok(());
    }
    let mut formats: Vec<String> = quantised()
        .flat_map(|(tensor, _)| tensor.views.iter().flatten())
        .map(|view| view.format().to_string())
        .collect();
    formats.sort_unstable();
    formats.dedup();
    Err(Error::usage(format!("the {title} is in {} already, and {name} is not narrower", formats.join(", ")))
        .hint("leave it as it is, or choose a format of fewer bits; weights that were rounded once do not come back"))
}

/// Bytes of a tensor, scales included.
pub fn bytes_of(view: &TensorView) -> u64 {
    let scales = match view.scales() {
        Scales::None => 0,
        Scales::Tensor(_) => 4,
        Scales::Rows(_) | Scales::RowMaxima(_) => 4 * view.rows(),
        Scales::Blocks(scales) => view.rows() * scales.blocks() + 4,
        Scales::Codebook(book) => 4 * view.elements().div_ceil(book.block()),
    };
    (view.bytes().len() + scales) as u64
}
