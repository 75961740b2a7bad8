//! The images that a recipe names: read, prepared for the model, and the way back onto them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Recipe;
use crate::error::{Error, Field, Result};
use crate::files::digest;
use crate::input::{self, Edit, Mask, Region, is_stdin};
use crate::pipeline::{Change, GivenReference, MAX_REFERENCES, Request};
use crate::rgb::Rgb;

/// The most bytes of files that an image file carries.
const MAX_EMBEDDED: usize = 4 << 20;
/// The strength with which a part of an image is drawn anew, as in the reference.
const MASKED_STRENGTH: f64 = 0.8;

/// Where the files of a recipe come from.
pub struct InputSource<'a> {
    /// What the image `-` is.
    pub stdin: &'a mut dyn Read,
    /// Files that need not be there, by their names in the recipe.
    pub embedded: EmbeddedFiles,
    /// Whether the images' files are kept, so that image files can carry them.
    pub keeps: bool,
}

/// Files of images by the names that a recipe has for them.
pub type EmbeddedFiles = BTreeMap<PathBuf, Vec<u8>>;

impl<'a> InputSource<'a> {
    /// Files on disk, and `stdin`.
    pub fn new(stdin: &'a mut dyn Read) -> Self {
        Self { stdin, embedded: EmbeddedFiles::new(), keeps: false }
    }

    fn read(&mut self, file: &Path) -> Result<Vec<u8>> {
        match self.embedded.get(file) {
            Some(bytes) => Ok(bytes.clone()),
            None if is_stdin(file) => input::read_stream(&mut *self.stdin),
            None => input::read_file(file),
        }
    }
}

/// What the files of images hold. None are there by default.
#[derive(Debug, Default)]
pub struct Inputs {
    /// What the recipe says of them, for the texts of a PNG.
    pub(super) files: Vec<PathBuf>,
    pub(super) mask: Option<PathBuf>,
    pub(super) strength: Option<f64>,
    /// Of each file that was read, tensors too, its name and its digest.
    pub(super) digests: BTreeMap<String, String>,
    /// The files themselves, where they are kept.
    pub(super) kept: EmbeddedFiles,
    references: Vec<Arc<GivenReference>>,
    /// Whether the recipe says the size of results.
    is_sized: bool,
    change: Option<Change>,
    /// The image to change, onto which results come back.
    edit: Option<Edit>,
    feather: usize,
    notes: Vec<String>,
}

impl Inputs {
    /// Reads all files.
    ///
    /// Errors when one cannot be read, or does not suit the others, or when files that are kept are too long.
    pub fn read(recipe: &Recipe, source: &mut InputSource<'_>) -> Result<Self> {
        if recipe.inputs.len() > MAX_REFERENCES {
            let given = recipe.inputs.len();
            return Err(Error::usage(format!("{given} images are given, expected at most {MAX_REFERENCES}"))
                .of(Field::Inputs)
                .hint("leave some out"));
        }
        let mut files = Files { source, digests: BTreeMap::new(), kept: EmbeddedFiles::new() };
        let (first, others) = recipe.inputs.split_at(usize::from(recipe.changes()).min(recipe.inputs.len()));
        let image = first.first().map(|file| files.decode(file, input::read_bytes)).transpose()?;
        let mask = recipe.mask.as_deref().map(|file| files.decode(file, Mask::read_bytes)).transpose()?;
        let notes = mask.iter().flat_map(Mask::notes).cloned().collect();
        let edit =
            image.map(|image| edit(recipe, image, mask.as_ref()).map_err(|e| e.at(place(&first[0])))).transpose()?;
        let given = if recipe.inputs.len() == 1 { GivenReference::alone } else { GivenReference::of_several };
        let mut reference = |file: &PathBuf| Ok(Arc::new(given(files.decode(file, input::read_bytes)?, place(file))));
        let references = others.iter().map(&mut reference).collect::<Result<_>>()?;
        files.digest_tensors(recipe)?;
        let Files { digests, kept, .. } = files;
        Ok(Self { digests, kept, notes, ..Self::of(recipe, edit, references) })
    }

    /// A frame of a video as the first image of a recipe without a mask, and behind it images that were read before.
    ///
    /// Errors when the frame is to be changed, and is too narrow.
    pub fn of_frame(recipe: &Recipe, frame: Rgb, others: &[Arc<GivenReference>]) -> Result<Self> {
        if recipe.changes() {
            return Ok(Self::of(recipe, Some(Edit::whole(frame)?), others.to_vec()));
        }
        let given = if others.is_empty() { GivenReference::alone } else { GivenReference::of_several };
        let first = Arc::new(given(frame, "the frame".to_string()));
        Ok(Self::of(recipe, None, iter::once(first).chain(others.iter().cloned()).collect()))
    }

    /// References alone, which were read before.
    pub fn of_references(recipe: &Recipe, references: &[Arc<GivenReference>]) -> Self {
        Self::of(recipe, None, references.to_vec())
    }

    fn of(recipe: &Recipe, edit: Option<Edit>, references: Vec<Arc<GivenReference>>) -> Self {
        let change = edit.as_ref().map(|edit| Change {
            image: Arc::new(edit.image().clone()),
            cells: edit.cells().map(Arc::from),
            strength: recipe.strength.unwrap_or(if recipe.mask.is_some() { MASKED_STRENGTH } else { 1.0 }),
            is_reference: !recipe.no_self_reference,
        });
        Self {
            files: recipe.inputs.clone(),
            mask: recipe.mask.clone(),
            strength: recipe.strength,
            references,
            is_sized: recipe.width.is_some() || recipe.height.is_some(),
            change,
            edit: edit.filter(|_| !recipe.no_composite),
            feather: recipe.feather,
            ..Self::default()
        }
    }

    /// What someone should know of how they are read.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The request with these images.
    pub fn apply(&self, request: Request) -> Request {
        Request { given_references: self.references.clone(), change: self.change.clone(), ..request }
    }

    /// The files that were read, by their names in the recipe, and their digests.
    pub fn digests(&self) -> impl Iterator<Item = (&str, &str)> {
        self.digests.iter().map(|(name, digest)| (name.as_str(), digest.as_str()))
    }

    /// Bytes of the pixels that are kept.
    pub fn bytes(&self) -> usize {
        let change = self.change.as_ref().map_or(0, |change| change.image.bytes.len());
        let edit = self.edit.as_ref().map_or(0, Edit::bytes);
        self.references.iter().map(|given| given.bytes()).sum::<usize>() + change + edit
    }

    /// The part of a result of this size that is the image that gave it the size, where that is not all of it.
    pub(super) fn place_in(&self, size: [usize; 2]) -> Option<Region> {
        let only = self.references.first().filter(|_| !self.is_sized)?;
        only.place_in(size).filter(|place| place.size() != size)
    }

    /// Whether results come back onto the image that was changed.
    pub(super) fn is_composite(&self) -> bool {
        self.edit.is_some()
    }

    /// The size of what is written of a result of this size, once a plan says that there will be one.
    pub fn finished_size(&self, size: [usize; 2]) -> [usize; 2] {
        match &self.edit {
            Some(edit) => edit.composite_size(),
            None => self.place_in(size).map_or(size, |place| place.size()),
        }
    }

    /// What is written of a result of the model.
    ///
    /// Errors when the result is not of the size of what was changed.
    pub fn finish<'a>(&self, result: &'a Rgb) -> Result<Cow<'a, Rgb>> {
        match &self.edit {
            Some(edit) => edit.composite(result, self.feather).map(Cow::Owned),
            None => Ok(match self.place_in([result.width, result.height]) {
                Some(place) => Cow::Owned(input::cropped(result, place)),
                None => Cow::Borrowed(result),
            }),
        }
    }
}

/// Where an image comes from, for messages.
fn place(file: &Path) -> String {
    if is_stdin(file) { "standard input".to_string() } else { file.display().to_string() }
}

/// Reads files, and remembers their digests.
struct Files<'a, 'b> {
    source: &'a mut InputSource<'b>,
    digests: BTreeMap<String, String>,
    kept: EmbeddedFiles,
}

impl Files<'_, '_> {
    /// What `decode` makes of a file.
    fn decode<T>(&mut self, file: &Path, decode: impl Fn(&[u8]) -> Result<T>) -> Result<T> {
        let name = place(file);
        let bytes = self.source.read(file).map_err(|e| e.at(name.clone()))?;
        let decoded = decode(&bytes).map_err(|e| e.at(name))?;
        self.digests.insert(file.to_string_lossy().into_owned(), digest::of_bytes(&bytes));
        if self.source.keeps {
            self.kept.insert(file.to_path_buf(), bytes);
            check_kept(&self.kept)?;
        }
        Ok(decoded)
    }

    fn digest_tensors(&mut self, recipe: &Recipe) -> Result<()> {
        for file in [&recipe.noise, &recipe.latents, &recipe.embeddings].into_iter().flatten() {
            self.digests.insert(file.to_string_lossy().into_owned(), digest::of_file(file)?);
        }
        Ok(())
    }
}

/// Errors when files are too long to be carried in an image file.
fn check_kept(kept: &EmbeddedFiles) -> Result<()> {
    let bytes: usize = kept.values().map(Vec::len).sum();
    if bytes <= MAX_EMBEDDED {
        return Ok(());
    }
    let files = if kept.len() == 1 { "the file has" } else { "the files together have" };
    Err(Error::usage(format!("{files} {bytes} bytes, and an image carries at most {MAX_EMBEDDED}"))
        .of(Field::EmbedInputs)
        .hint("scale them down, or leave the flag out: the image names its inputs in any case"))
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
