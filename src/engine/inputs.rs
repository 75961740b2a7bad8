//! Input images of a recipe: reading, preparing them for the model, and compositing results over them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Recipe, controls};
use crate::error::{Error, Field, Result};
use crate::files::digest;
use crate::input::{self, Edit, Mask, Region, in_cells, is_stdin};
use crate::metadata::{DigitalSource, said_by};
use crate::output::Claim;
use crate::pipeline::{Area, Change, GivenReference, Hires, MAX_REFERENCES, RegionPrompt, Request};
use crate::rgb::Rgb;
use crate::stage::CancelFlag;
use crate::upscaler::UpscalerFile;

/// Maximum bytes of files embedded in an image file.
const MAX_EMBEDDED: usize = 4 << 20;
/// Default strength with a mask, as in the reference.
const MASKED_STRENGTH: f64 = 0.8;

/// The source of a recipe's files.
pub struct InputSource<'a> {
    /// Content of the image `-`.
    pub stdin: &'a mut dyn Read,
    /// Embedded files by their names in the recipe; they need not exist on disk.
    pub embedded: EmbeddedFiles,
    /// `true` if files of images are kept, to embed them in image files.
    pub keeps: bool,
    /// Upscaler of the second pass, if the recipe has only a name of it.
    pub upscaler: Option<Arc<UpscalerFile>>,
    /// Stops reading between two files.
    pub cancel: CancelFlag,
}

/// Files of images and tensors by their names in a recipe.
pub type EmbeddedFiles = BTreeMap<PathBuf, Vec<u8>>;

impl<'a> InputSource<'a> {
    /// Creates a source of files on disk and `stdin`.
    pub fn new(stdin: &'a mut dyn Read) -> Self {
        Self { stdin, embedded: EmbeddedFiles::new(), keeps: false, upscaler: None, cancel: CancelFlag::default() }
    }

    /// Reads the input images of a recipe into memory, so that they can be read again.
    ///
    /// Errors if one of them cannot be read.
    pub fn load(&mut self, recipe: &Recipe) -> Result<()> {
        for file in &recipe.inputs {
            let bytes = self.read(file).map_err(|e| e.at(place(file)))?;
            self.embedded.insert(file.clone(), bytes);
        }
        Ok(())
    }

    fn read(&mut self, file: &Path) -> Result<Vec<u8>> {
        match self.embedded.get(file) {
            Some(bytes) => Ok(bytes.clone()),
            None if is_stdin(file) => input::read_stream(&mut *self.stdin),
            None => input::read_file(file),
        }
    }
}

/// The contents of the input images; empty by default.
#[derive(Debug, Default)]
pub struct Inputs {
    /// Fields of the recipe, for the texts of a PNG.
    pub(super) files: Vec<PathBuf>,
    pub(super) mask: Option<PathBuf>,
    pub(super) strength: Option<f64>,
    /// Name and digest of each file that was read, including tensors.
    pub(super) digests: BTreeMap<String, String>,
    /// Bytes of the files, if they are kept.
    pub(super) kept: EmbeddedFiles,
    references: Vec<Arc<GivenReference>>,
    /// Weights of the references, see [`Request::reference_weights`].
    weights: Vec<f32>,
    /// `true` if the recipe determines the size of results.
    is_sized: bool,
    /// Size of results with the proportions of the first reference.
    size: Option<[usize; 2]>,
    change: Option<Change>,
    regions: Vec<RegionPrompt>,
    /// Image to edit, over which results are composited.
    edit: Option<Edit>,
    /// Source of the pixels of the image to edit, as its metadata states it.
    source: Option<DigitalSource>,
    feather: usize,
    hires: Option<Hires>,
    /// Upscaler of the second pass.
    pub(super) upscaler: Option<Arc<UpscalerFile>>,
    notes: Vec<String>,
}

impl Inputs {
    /// Reads all files.
    ///
    /// Errors if a file cannot be read, if files do not fit together, or if files to embed are too large.
    pub fn read(recipe: &Recipe, source: &mut InputSource<'_>) -> Result<Self> {
        if recipe.inputs.len() > MAX_REFERENCES {
            let given = recipe.inputs.len();
            return Err(Error::usage(format!("{given} input images were passed, expected at most {MAX_REFERENCES}"))
                .for_field(Field::Inputs)
                .hint("leave some out"));
        }
        let mut files = Files { source, digests: BTreeMap::new(), kept: EmbeddedFiles::new() };
        let (first, others) = recipe.inputs.split_at(usize::from(recipe.changes()).min(recipe.inputs.len()));
        let image = |bytes: &[u8]| {
            let image = input::read_bytes(bytes)?;
            Ok((image, said_by(bytes).ok().and_then(|said| DigitalSource::read(&said))))
        };
        let image = first.first().map(|file| files.decode(file, image)).transpose()?;
        let (image, source) = image.map_or((None, None), |(image, source)| (Some(image), source));
        let mask = recipe.mask.as_deref().map(|file| files.decode(file, Mask::read_bytes)).transpose()?;
        let mut notes: Vec<String> = mask.iter().flat_map(Mask::notes).cloned().collect();
        let at = |e: Error| e.at(place(&first[0]));
        let edit = image.map(|image| edit(recipe, image, mask).map_err(at)).transpose()?;
        notes.extend(edit.as_ref().and_then(|edit| reduction(recipe, edit, &first[0])));
        // An input of weight 0 is left out.
        let seen = (0..recipe.inputs.len()).filter(|input| recipe.input_weight(*input) != 0.0).count();
        let given = if seen == 1 { GivenReference::alone } else { GivenReference::among_several };
        let mut reference = |(index, file): (usize, &PathBuf)| {
            let image = controls::seen(&recipe.controls, index, files.decode(file, input::read_bytes)?);
            Ok(Arc::new(given(image, place(file))))
        };
        let references = (first.len()..).zip(others).map(&mut reference).collect::<Result<Vec<_>>>()?;
        let size = recipe.resize.filter(|_| !recipe.changes()).zip(references.first());
        let size = size.map(|(resize, first)| resize.output_size(first.size())).transpose()?;
        let regions = recipe.regions.iter().map(|region| region.read(|file| files.decode(file, Mask::read_bytes)));
        let regions = regions.collect::<Result<_>>()?;
        files.digest_tensors(recipe)?;
        let upscaler = recipe.upscaler().map(|name| files.open_upscaler(name)).transpose()?;
        let Files { digests, kept, .. } = files;
        let is_sized = size.is_some() || recipe.width.is_some() || recipe.height.is_some();
        let new = Self::new(recipe, edit, references);
        Ok(Self { digests, kept, notes, size, is_sized, source, upscaler, regions, ..new })
    }

    /// Creates inputs from a video frame, as the first image of a recipe without a mask, followed by images that were
    /// read before.
    ///
    /// Errors if the frame is edited and too narrow, or a region has a mask.
    pub fn from_frame(recipe: &Recipe, frame: Rgb, others: &[Arc<GivenReference>]) -> Result<Self> {
        let regions = regions_without_files(recipe)?;
        if recipe.changes() {
            return Ok(Self { regions, ..Self::new(recipe, Some(edit(recipe, frame, None)?), others.to_vec()) });
        }
        let given = if others.is_empty() { GivenReference::alone } else { GivenReference::among_several };
        let frame = controls::seen(&recipe.controls, 0, frame);
        let first = Arc::new(given(frame, "the frame".to_string()));
        let references = iter::once(first).chain(others.iter().cloned()).collect();
        Ok(Self { regions, ..Self::new(recipe, None, references) })
    }

    /// Creates inputs from references that were read before.
    ///
    /// Errors if a region has a mask.
    pub fn from_references(recipe: &Recipe, references: &[Arc<GivenReference>]) -> Result<Self> {
        let regions = regions_without_files(recipe)?;
        Ok(Self { regions, ..Self::new(recipe, None, references.to_vec()) })
    }

    fn new(recipe: &Recipe, edit: Option<Edit>, references: Vec<Arc<GivenReference>>) -> Self {
        let change = edit.as_ref().map(|edit| Change {
            image: Arc::new(edit.image().clone()),
            cells: edit.cells().map(Arc::from),
            strength: recipe.strength.unwrap_or(if recipe.mask.is_some() { MASKED_STRENGTH } else { 1.0 }),
            is_reference: !recipe.no_self_reference && recipe.input_weight(0) != 0.0,
        });
        let offset = usize::from(edit.is_some());
        let weight = |index: usize| recipe.input_weight(offset + index);
        let is_seen = change.as_ref().is_some_and(|change| change.is_reference);
        let own = is_seen.then(|| recipe.input_weight(0));
        let (weights, references): (Vec<_>, Vec<_>) = references
            .into_iter()
            .enumerate()
            .filter(|(index, _)| weight(*index) != 0.0)
            .map(|(index, reference)| (weight(index), reference))
            .unzip();
        let weights: Vec<f32> = own.into_iter().chain(weights).collect();
        Self {
            files: recipe.inputs.clone(),
            mask: recipe.mask.clone(),
            strength: recipe.strength,
            references,
            weights: if weights.iter().all(|weight| *weight == 1.0) { Vec::new() } else { weights },
            is_sized: recipe.width.is_some() || recipe.height.is_some(),
            change,
            // A second pass regenerates all of the result.
            edit: edit.filter(|_| !recipe.no_composite && recipe.hires.is_none()),
            feather: recipe.feather,
            hires: recipe.hires.clone(),
            ..Self::default()
        }
    }

    /// Returns notes for the user about reading the images.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the request with these images.
    pub fn apply(&self, request: Request) -> Request {
        let [width, height] = match self.size {
            Some(size) => size.map(|side| Some(in_cells(side))),
            None => [request.width, request.height],
        };
        let (given_references, reference_weights) = (self.references.clone(), self.weights.clone());
        let (change, regions) = (self.change.clone(), self.regions.clone());
        Request { width, height, given_references, reference_weights, change, regions, ..request }
    }

    /// Returns the names in the recipe and the digests of the files that were read.
    pub fn digests(&self) -> impl Iterator<Item = (&str, &str)> {
        self.digests.iter().map(|(name, digest)| (name.as_str(), digest.as_str()))
    }

    /// Returns the bytes of the cached pixels.
    pub fn bytes(&self) -> usize {
        let change = self.change.as_ref().map_or(0, |change| change.image.bytes.len());
        let edit = self.edit.as_ref().map_or(0, Edit::bytes);
        let masks = self.regions.iter().map(|region| match &region.area {
            Area::Mask(mask) => mask.size().iter().product(),
            Area::Box(_) => 0,
        });
        self.references.iter().map(|given| given.bytes()).chain(masks).sum::<usize>() + change + edit
    }

    /// Returns the region of a result of this size that shows the image that determined the size, if it is not all of
    /// the result.
    pub(super) fn place_in(&self, size: [usize; 2]) -> Option<Region> {
        let only = self.references.first().filter(|_| !self.is_sized)?;
        only.place_in(size).filter(|place| place.size() != size)
    }

    /// Returns the source of the pixels of results. A result that is composited over an image of a model has pixels of
    /// models only.
    pub(super) fn digital_source(&self) -> DigitalSource {
        match (&self.edit, self.source) {
            (None, _) | (Some(_), Some(DigitalSource::TrainedAlgorithmicMedia)) => {
                DigitalSource::TrainedAlgorithmicMedia
            }
            (Some(_), _) => DigitalSource::CompositeWithTrainedAlgorithmicMedia,
        }
    }

    /// Returns the statement about results in a signed manifest.
    pub(super) fn claim(&self) -> Claim {
        let digest = |file: &PathBuf| self.digests.get(&*file.to_string_lossy()).cloned();
        Claim {
            source: self.digital_source(),
            inputs: self.files.iter().filter_map(digest).collect(),
            is_edit: self.edit.is_some(),
        }
    }

    /// Returns the size of the written image for a result of this size, for results that a plan has confirmed.
    pub fn finished_size(&self, size: [usize; 2]) -> [usize; 2] {
        let enlarged = || self.hires.as_ref().and_then(|hires| hires.output_size(size).ok()).unwrap_or(size);
        match &self.edit {
            Some(edit) => edit.composite_size(),
            None => self.place_in_result(size, enlarged()).map_or_else(enlarged, |place| place.size()),
        }
    }

    /// Returns the image to write for a result of the model. `first` is the size of the first pass.
    ///
    /// Errors if the result does not have the size of the edited image.
    pub fn finish<'a>(&self, result: &'a Rgb, first: [usize; 2]) -> Result<Cow<'a, Rgb>> {
        match &self.edit {
            Some(edit) => edit.composite(result, self.feather).map(Cow::Owned),
            None => Ok(match self.place_in_result(first, [result.width, result.height]) {
                Some(place) => Cow::Owned(input::cropped(result, place)),
                None => Cow::Borrowed(result),
            }),
        }
    }

    /// Returns [`Inputs::place_in`] in a result of this size, for a first pass of size `first`.
    fn place_in_result(&self, first: [usize; 2], result: [usize; 2]) -> Option<Region> {
        let place = self.place_in(first)?;
        Some(self.hires.as_ref().map_or(place, |hires| hires.place_in_result(place, first, result)))
    }

    /// Errors unless the upscaler of a request is open.
    pub(super) fn check_upscaler(&self, request: &Request) -> Result<()> {
        let named = request.hires.as_ref().and_then(|hires| hires.upscaler.as_ref());
        if named.is_some() == self.upscaler.is_some() {
            return Ok(());
        }
        Err(Error::usage("the upscaler of the second pass is not open").for_field(Field::Hires))
    }
}

/// Returns the regions of a recipe whose files are not read again.
///
/// Errors if one has a mask.
fn regions_without_files(recipe: &Recipe) -> Result<Vec<RegionPrompt>> {
    let unread = |file: &Path| {
        Err(Error::usage(format!("the mask `{}` cannot be read for each frame", file.display()))
            .hint("use a box for the region"))
    };
    recipe.regions.iter().map(|region| region.read(unread)).collect()
}

/// Returns the origin of an image, for messages.
fn place(file: &Path) -> String {
    if is_stdin(file) { "standard input".to_string() } else { file.display().to_string() }
}

/// Reads files, and records their digests.
struct Files<'a, 'b> {
    source: &'a mut InputSource<'b>,
    digests: BTreeMap<String, String>,
    kept: EmbeddedFiles,
}

impl Files<'_, '_> {
    /// Decodes a file with `decode`.
    fn decode<T>(&mut self, file: &Path, decode: impl Fn(&[u8]) -> Result<T>) -> Result<T> {
        self.source.cancel.check()?;
        let name = place(file);
        let bytes = self.source.read(file).map_err(|e| e.at(name.clone()))?;
        let decoded = decode(&bytes).map_err(|e| e.at(name))?;
        let digest = digest::hash_bytes(&bytes);
        if self.source.keeps && !self.is_kept(&digest) {
            self.kept.insert(file.to_path_buf(), bytes);
            check_kept(&self.kept)?;
        }
        self.digests.insert(file.to_string_lossy().into_owned(), digest);
        Ok(decoded)
    }

    /// Returns `true` if a file with the same bytes is kept, under any name.
    fn is_kept(&self, digest: &str) -> bool {
        let digest_of = |file: &PathBuf| self.digests.get(&*file.to_string_lossy());
        self.kept.keys().any(|file| digest_of(file).is_some_and(|known| known == digest))
    }

    /// Opens the upscaler that the recipe calls `name`.
    fn open_upscaler(&mut self, name: &Path) -> Result<Arc<UpscalerFile>> {
        self.source.cancel.check()?;
        let upscaler = match &self.source.upscaler {
            Some(upscaler) => Arc::clone(upscaler),
            None => Arc::new(UpscalerFile::open(name).map_err(|e| e.for_field(Field::Hires))?),
        };
        self.digests.insert(name.to_string_lossy().into_owned(), digest::hash_file(upscaler.path())?);
        Ok(upscaler)
    }

    fn digest_tensors(&mut self, recipe: &Recipe) -> Result<()> {
        for file in [&recipe.noise, &recipe.latents, &recipe.embeddings].into_iter().flatten() {
            let hash = match self.source.embedded.get(file) {
                Some(bytes) => digest::hash_bytes(bytes),
                None => digest::hash_file(file)?,
            };
            self.digests.insert(file.to_string_lossy().into_owned(), hash);
        }
        Ok(())
    }
}

/// Errors if files are too large to be embedded in an image file.
fn check_kept(kept: &EmbeddedFiles) -> Result<()> {
    let bytes: usize = kept.values().map(Vec::len).sum();
    if bytes <= MAX_EMBEDDED {
        return Ok(());
    }
    let files = if kept.len() == 1 { "the file has" } else { "the files together have" };
    Err(Error::usage(format!("{files} {bytes} bytes, but an image can embed at most {MAX_EMBEDDED}"))
        .for_field(Field::EmbedInputs)
        .hint("scale them down, or leave the flag out: the image always records the names of its inputs"))
}

/// Returns a note if the model sees an image to edit with fewer pixels than it has.
fn reduction(recipe: &Recipe, edit: &Edit, file: &Path) -> Option<String> {
    let [[width, height], [to_width, to_height]] = edit.reduced()?;
    let then = match (recipe.no_composite, edit.cells().is_some(), recipe.full_size) {
        (false, true, _) if recipe.mask_padding.is_none() && recipe.extend.is_none() => format!(
            "the generated area is scaled back; use `{:#}` to generate only the surroundings of the mask, larger",
            Field::MaskPadding
        ),
        (false, true, _) | (_, _, true) => "the generated area is scaled back".to_string(),
        _ => format!("the result is also reduced; use `{:#}` to scale it back", Field::FullSize),
    };
    let file = place(file);
    Some(format!("`{file}`, {width}x{height}, is reduced to {to_width}x{to_height} for the model: {then}"))
}

/// Returns the image to edit, in the size that the recipe specifies.
fn edit(recipe: &Recipe, image: Rgb, mask: Option<Mask>) -> Result<Edit> {
    let (image, mask) = match recipe.resize {
        Some(resize) => {
            let (size, region) = ([image.width, image.height], resize.region([image.width, image.height]));
            let comes_back = mask.is_some() || recipe.extend.is_some() || recipe.full_size;
            // A result in the model's size gets the nearest size that the model supports.
            let new = if comes_back { resize.output_size(size)? } else { resize.output_size(size)?.map(in_cells) };
            let image = input::resized(&input::cropped(&image, region), new);
            (image, mask.map(|mask| mask.cut(size, region)))
        }
        None => (image, mask),
    };
    edit_in_size(recipe, image, mask.as_ref()).map(|edit| edit.with_full_size(recipe.full_size))
}

fn edit_in_size(recipe: &Recipe, image: Rgb, mask: Option<&Mask>) -> Result<Edit> {
    match (mask, recipe.extend, recipe.mask_padding) {
        (mask, Some(sides), _) => Edit::extended(&image, sides, mask),
        (Some(mask), None, Some(padding)) => {
            let is_black = || mask.grey(mask.size()).bytes.iter().all(|value| *value == 0);
            Edit::cropped(image, mask, padding).map_err(|e| match &recipe.mask {
                Some(file) if is_black() => e.at(place(file)).for_field(Field::Mask),
                _ => e,
            })
        }
        (Some(mask), None, None) => Edit::masked(image, mask),
        (None, None, _) => Edit::whole(image),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Metadata;
    use crate::model::registry::ReferenceSizes;
    use crate::output::{ImageFormat, encode};

    fn inputs(recipe: Recipe, [width, height]: [usize; 2]) -> Result<Inputs> {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, [width, height]: [usize; 2], level: u8| {
            let image = Rgb { width, height, bytes: vec![level; 3 * width * height] };
            let path = folder.path().join(name);
            std::fs::write(&path, encode(&image, ImageFormat::Png, &Metadata::default()).unwrap()).unwrap();
            path
        };
        let inputs = vec![write("in.png", [width, height], 90)];
        let mask = recipe.mask.as_ref().map(|_| write("mask.png", [64, 64], 255));
        Inputs::read(&Recipe { inputs, mask, ..recipe }, &mut InputSource::new(&mut std::io::empty()))
    }

    fn changed(strength: f64) -> Recipe {
        Recipe { strength: Some(strength), ..Recipe::new("x", 1) }
    }

    #[test]
    fn an_image_that_is_reduced_for_the_model_is_noted() {
        let masked = Recipe { mask: Some("m".into()), ..Recipe::new("x", 1) };
        let note = |recipe: &Recipe, size| {
            let notes = inputs(recipe.clone(), size).unwrap().notes;
            notes.into_iter().find(|note| note.contains("reduced"))
        };
        let large = [1400, 1100];
        let said = note(&changed(0.5), large).unwrap();
        assert!(said.contains("1400x1100, ") && said.contains("1152x896") && said.contains("full_size"), "{said}");
        let full = Recipe { full_size: true, ..changed(0.5) };
        assert!(note(&full, large).unwrap().contains("scaled back"));
        assert!(note(&masked, large).unwrap().contains("mask_padding"));
        let resized = Recipe { resize: "512".parse().ok(), ..masked.clone() };
        for (recipe, size) in [(&masked, [1024, 1024]), (&masked, [1000, 700]), (&resized, large)] {
            assert_eq!(note(recipe, size), None, "{size:?}");
        }
        let reference = inputs(Recipe::new("x", 1), large).unwrap().references[0].note(ReferenceSizes::Cropped);
        assert!(reference.is_some_and(|note| note.contains("1400x1100, ") && note.contains("1152x896")));
        let reference = inputs(Recipe::new("x", 1), [1000, 700]).unwrap().references[0].note(ReferenceSizes::Cropped);
        assert_eq!(reference, None);
    }

    #[test]
    fn a_size_keeps_the_proportions_of_the_first_input() {
        let size = |recipe: Recipe, resize: &str| {
            let inputs = inputs(Recipe { resize: resize.parse().ok(), ..recipe }, [400, 300]).unwrap();
            let Request { width, height, change, .. } = inputs.apply(Request::new("x", 1));
            let own = || [width, height].map(Option::unwrap);
            let model = change.map_or_else(own, |it| [it.image.width, it.image.height]);
            (model, inputs.finished_size(model))
        };
        let masked = Recipe { mask: Some("m".into()), ..Recipe::new("x", 1) };
        let full = Recipe { full_size: true, ..changed(0.5) };
        assert_eq!(size(Recipe::new("x", 1), "128"), ([128, 96], [128, 96]));
        assert_eq!(size(Recipe::new("x", 1), "1000"), ([1008, 752], [1008, 752]), "also larger");
        assert_eq!(size(changed(0.5), "128"), ([128, 96], [128, 96]));
        assert_eq!(size(changed(0.5), "100x100"), ([96, 96], [96, 96]));
        assert_eq!(size(full, "100x90"), ([96, 80], [100, 90]));
        assert_eq!(size(masked.clone(), "100x"), ([96, 64], [100, 75]));
        assert_eq!(size(masked, "100x100"), ([96, 96], [100, 100]));
        assert!(inputs(Recipe { resize: "20000".parse().ok(), ..changed(0.5) }, [400, 300]).is_err());
    }

    #[test]
    fn full_size_is_of_a_change_alone() {
        let full = |recipe: Recipe| Recipe { full_size: true, inputs: vec!["a".into()], ..recipe }.check();
        assert!(full(Recipe::new("x", 1)).is_err());
        assert!(full(Recipe { no_composite: true, mask: Some("m".into()), ..Recipe::new("x", 1) }).is_err());
        assert!(full(changed(0.5)).is_ok());
    }
}
