//! The images that a recipe names: read, prepared for the model, and the way back onto them.

use std::borrow::Cow;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Recipe;
use crate::error::{Error, Field, Result};
use crate::input::{self, Edit, Mask, is_stdin};
use crate::pipeline::{Change, MAX_REFERENCES, Request};
use crate::rgb::Rgb;

/// The strength with which a part of an image is drawn anew, as in the reference.
const MASKED_STRENGTH: f64 = 0.8;

/// What the files of images hold. None are there by default.
#[derive(Debug, Default)]
pub struct Inputs {
    /// What the recipe says of them, for the texts of a PNG.
    pub(super) files: Vec<PathBuf>,
    pub(super) mask: Option<PathBuf>,
    pub(super) strength: Option<f64>,
    references: Vec<Arc<Rgb>>,
    change: Option<Change>,
    /// The image to change, onto which results come back.
    edit: Option<Edit>,
    feather: usize,
    notes: Vec<String>,
}

impl Inputs {
    /// Reads all files; `-` is `stdin`.
    ///
    /// Errors when one cannot be read, or does not suit the others.
    pub fn read(recipe: &Recipe, stdin: &mut dyn Read) -> Result<Self> {
        if recipe.inputs.len() > MAX_REFERENCES {
            let given = recipe.inputs.len();
            return Err(Error::usage(format!("{given} images are given, expected at most {MAX_REFERENCES}"))
                .of(Field::Inputs)
                .hint("leave some out"));
        }
        let (first, others) = recipe.inputs.split_at(usize::from(recipe.changes()).min(recipe.inputs.len()));
        let image = first.first().map(|file| read(file, stdin)).transpose()?;
        let mask = recipe.mask.as_deref().map(|file| mask(file, stdin)).transpose()?;
        let notes = mask.iter().flat_map(Mask::notes).cloned().collect();
        let edit =
            image.map(|image| edit(recipe, image, mask.as_ref()).map_err(|e| e.at(place(&first[0])))).transpose()?;
        let references = others.iter().map(|file| reference(file, stdin)).collect::<Result<_>>()?;
        let change = edit.as_ref().map(|edit| Change {
            image: Arc::new(edit.image().clone()),
            cells: edit.cells().map(Arc::from),
            strength: recipe.strength.unwrap_or(if recipe.mask.is_some() { MASKED_STRENGTH } else { 1.0 }),
            is_reference: !recipe.no_self_reference,
        });
        let edit = edit.filter(|_| !recipe.no_composite);
        let (files, mask, strength) = (recipe.inputs.clone(), recipe.mask.clone(), recipe.strength);
        Ok(Self { files, mask, strength, references, change, edit, feather: recipe.feather, notes })
    }

    /// What someone should know of how they are read.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The request with these images.
    pub fn apply(&self, request: Request) -> Request {
        Request { references: self.references.clone(), change: self.change.clone(), ..request }
    }

    /// Whether results come back onto the image that was changed.
    pub(super) fn is_composite(&self) -> bool {
        self.edit.is_some()
    }

    /// What is written of a result of the model.
    ///
    /// Errors when the result is not of the size of what was changed.
    pub fn finish<'a>(&self, result: &'a Rgb) -> Result<Cow<'a, Rgb>> {
        match &self.edit {
            Some(edit) => edit.composite(result, self.feather).map(Cow::Owned),
            None => Ok(Cow::Borrowed(result)),
        }
    }
}

/// Where an image comes from, for messages.
fn place(file: &Path) -> String {
    if is_stdin(file) { "standard input".to_string() } else { file.display().to_string() }
}

fn read(file: &Path, stdin: &mut dyn Read) -> Result<Rgb> {
    if is_stdin(file) { input::read_from(stdin).map_err(|e| e.at(place(file))) } else { input::read(file) }
}

fn reference(file: &Path, stdin: &mut dyn Read) -> Result<Arc<Rgb>> {
    let image = read(file, stdin)?;
    input::reference(&image).map(Arc::new).map_err(|e| e.at(place(file)))
}

fn mask(file: &Path, stdin: &mut dyn Read) -> Result<Mask> {
    if is_stdin(file) { Mask::read_from(stdin).map_err(|e| e.at(place(file))) } else { Mask::read(file) }
}

/// The image to change.
fn edit(recipe: &Recipe, image: Rgb, mask: Option<&Mask>) -> Result<Edit> {
    match (mask, recipe.extend, recipe.mask_padding) {
        (mask, Some(sides), _) => Edit::extended(&image, sides, mask),
        (Some(mask), None, Some(padding)) => {
            let is_black = || mask.grey(mask.size()).bytes.iter().all(|value| *value == 0);
            Edit::cropped(image, mask, padding).map_err(|e| match &recipe.mask {
                Some(file) if is_black() => e.at(place(file)),
                _ => e,
            })
        }
        (Some(mask), None, None) => Edit::masked(image, mask),
        (None, None, _) => Edit::whole(image),
    }
}
