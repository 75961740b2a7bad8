//! Recipes: how to generate an image, as data.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::boxes::{self, LayoutBox};
use super::controls::{self, Control};
use super::regions::{self, TextRegion};
use crate::error::{Error, Field, Result};
use crate::files::ArrayFile;
use crate::files::adapter::BlockStrengths;
use crate::input::{Resize, Sides};
use crate::output::ImageFormat;
use crate::pipeline::{Embeddings, Hires, Latents, MAX_PROMPT_BYTES, Request, Transparency, check_tiles};
use crate::sampler::{Rng, ScheduleKind, Variation, Variety};

/// Maximum number of inputs, of adapters, of boxes, and of regions, in a recipe as JSON. Models accept fewer; the bound
/// avoids reading a long list.
const MAX_FILES: usize = 256;
/// Maximum strength of an input as a reference.
const MAX_INPUT_WEIGHT: f32 = 2.0;

/// Everything that reproduces an image with one model: prompt, options and files. The model chooses omitted fields.
/// In JSON, an unknown field is an error.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an object with the fields of a recipe")]
pub struct Recipe {
    /// Prompt; see [`Request::prompt`].
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prompt: String,
    /// Template that the prompt was expanded from; see [`expand`](super::expand).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Places of objects, which [`Recipe::full_prompt`] adds to the prompt; the recipe of an image has none.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded")]
    pub boxes: Vec<LayoutBox>,
    /// Texts for parts of the image; the whole image sees the prompt.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded")]
    pub regions: Vec<TextRegion>,
    /// Inputs that show a property of the result. [`Recipe::full_prompt`] begins with their lines.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded")]
    pub controls: Vec<Control>,
    /// The request from which a language model wrote the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upsampled: Option<Upsampled>,
    /// Negative prompt.
    #[serde(skip_serializing_if = "Option::is_none", alias = "negative_prompt")]
    pub negative: Option<String>,
    /// Width in pixels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<usize>,
    /// Height in pixels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub height: Option<usize>,
    /// Denoising steps.
    #[serde(skip_serializing_if = "Option::is_none", alias = "num_inference_steps")]
    pub steps: Option<usize>,
    /// Seed of the noise.
    pub seed: u64,
    /// Image of another seed that is varied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variation: Option<Variation>,
    /// Noise on the text features of the first steps, so that images of one prompt differ more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variety: Option<Variety>,
    /// Guidance scale, the strength of the prompt.
    #[serde(skip_serializing_if = "Option::is_none", alias = "guidance_scale")]
    pub guidance: Option<f32>,
    /// Schedule of the noise levels.
    #[serde(skip_serializing_if = "is_default")]
    pub schedule: ScheduleKind,
    /// Random number generator of the noise.
    #[serde(skip_serializing_if = "is_default")]
    pub rng: Rng,
    /// Number of tokens that prompts are truncated or padded to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_sequence_length: Option<usize>,
    /// Reference images. With `mask`, `strength` or `extend`, the first one is the image to edit.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded")]
    pub inputs: Vec<PathBuf>,
    /// Strength of each input as a reference, from 0 to 2; missing ones are 1, and 0 leaves the reference out.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded")]
    pub input_weights: Vec<f32>,
    /// Size to which the first input is resized before it is edited; without an edit, the size of the result with the
    /// proportions of the first input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resize: Option<Resize>,
    /// Mask image, white in the area of the first input to regenerate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask: Option<PathBuf>,
    /// Strength of the change to the first input, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strength: Option<f64>,
    /// Growth of the first input on each side, in pixels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extend: Option<Sides>,
    /// Number of pixels around the masked area that the model sees; the whole image if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_padding: Option<usize>,
    /// Width in pixels of the transition between the generated area and the image around it.
    #[serde(skip_serializing_if = "is_default")]
    pub feather: usize,
    /// `true` if the result is the output of the model, without compositing it over the first input.
    #[serde(skip_serializing_if = "is_default")]
    pub no_composite: bool,
    /// `true` if a result without a mask is scaled to the size of the first input, as a result with a mask always is.
    #[serde(skip_serializing_if = "is_default")]
    pub full_size: bool,
    /// `true` if the image to edit is not one of the references.
    #[serde(skip_serializing_if = "is_default")]
    pub no_self_reference: bool,
    /// `true` if steps after the first compute only the masked area and the tokens next to it.
    #[serde(skip_serializing_if = "is_default")]
    pub sparse: bool,
    /// The way to remove the background of the result.
    #[serde(skip_serializing_if = "is_default")]
    pub transparent: Transparency,
    /// File of noise in place of the seed's noise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise: Option<PathBuf>,
    /// File of latents to begin with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latents: Option<PathBuf>,
    /// File of text features in place of a prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embeddings: Option<PathBuf>,
    /// Adapter files, each with its strength.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded")]
    pub adapters: Vec<AdapterFile>,
    /// Side in pixels of the tiles of a large image, which each step computes one after the other; 0 is without tiles.
    /// With a second pass, its image has the tiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tile: Option<usize>,
    /// Least pixels that two neighbouring tiles share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tile_overlap: Option<usize>,
    /// Second pass at a larger size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hires: Option<Hires>,
}

/// The request from which a language model wrote a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with request, model and system")]
pub struct Upsampled {
    /// Prompt of the request.
    pub request: String,
    /// Boxes of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded")]
    pub boxes: Vec<LayoutBox>,
    /// Name of the language model.
    pub model: String,
    /// SHA-256 of its system prompt.
    pub system: String,
}

/// An adapter of a [`Recipe`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with file and strength")]
pub struct AdapterFile {
    /// A file, or a PEFT folder.
    pub file: PathBuf,
    /// Strength of the adapter; 1 is the strength of its training.
    pub strength: f32,
    /// Factors of the strength by blocks of the transformer.
    #[serde(default, skip_serializing_if = "BlockStrengths::is_empty")]
    pub blocks: BlockStrengths,
}

impl AdapterFile {
    /// Creates an adapter with one strength for all blocks.
    pub fn new(file: impl Into<PathBuf>, strength: f32) -> Self {
        Self { file: file.into(), strength, blocks: BlockStrengths::default() }
    }

    /// Reads `FILE`, `FILE:STRENGTH` or `FILE:STRENGTH:BLOCKS`.
    ///
    /// Errors if the blocks are not understood.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let split = text.rsplit_once(':').filter(|(_, blocks)| blocks.contains('=') && !blocks.contains(['/', '\\']));
        let (text, blocks) = match split {
            Some((text, blocks)) => (text, blocks.parse()?),
            None => (text, BlockStrengths::default()),
        };
        let split = text.rsplit_once(':').and_then(|(file, strength)| Some((file, strength.trim().parse().ok()?)));
        let (file, strength) = split.unwrap_or((text, 1.0));
        Ok(Self { file: file.trim().into(), strength, blocks })
    }
}

/// Reads a list, and stops at the first entry beyond [`MAX_FILES`].
fn bounded<'de, D: Deserializer<'de>, T: Deserialize<'de>>(list: D) -> std::result::Result<Vec<T>, D::Error> {
    struct Bounded<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Bounded<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MAX_FILES} entries")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> std::result::Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(entry) = entries.next_element()? {
                if list.len() == MAX_FILES {
                    return Err(A::Error::invalid_length(MAX_FILES + 1, &self));
                }
                list.push(entry);
            }
            Ok(list)
        }
    }

    list.deserialize_seq(Bounded(PhantomData))
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Recipe {
    /// Creates a recipe from a prompt and a seed; the model chooses everything else.
    pub fn new(prompt: impl Into<String>, seed: u64) -> Self {
        Self { prompt: prompt.into(), seed, ..Self::default() }
    }

    /// Returns the recipe with another prompt, which replaces text features, the template and the request of a
    /// language model.
    #[must_use]
    pub fn with_prompt(self, prompt: String) -> Self {
        Self { prompt, template: None, upsampled: None, embeddings: None, ..self }
    }

    /// Returns the recipe as it was before a language model wrote its prompt. Boxes of the recipe replace those of the
    /// request.
    #[must_use]
    pub fn before_upsampling(self) -> Self {
        match self.upsampled {
            Some(Upsampled { request, boxes, .. }) => {
                let boxes = if self.boxes.is_empty() { boxes } else { self.boxes };
                Self { prompt: request, boxes, upsampled: None, ..self }
            }
            None => self,
        }
    }

    /// Returns `true` if the first input is an image to edit.
    pub fn changes(&self) -> bool {
        self.mask.is_some() || self.strength.is_some() || self.extend.is_some()
    }

    /// Returns the upscaler of the second pass.
    pub fn upscaler(&self) -> Option<&Path> {
        self.hires.as_ref()?.upscaler.as_deref()
    }

    /// Returns the files of images and tensors, which are read completely before any work; adapters and upscalers are
    /// not among them.
    pub fn files(&self) -> impl Iterator<Item = (Field, &Path)> {
        let inputs = self.inputs.iter().map(|file| (Field::Inputs, file));
        let others = [
            (Field::Mask, &self.mask),
            (Field::Noise, &self.noise),
            (Field::Latents, &self.latents),
            (Field::Embeddings, &self.embeddings),
        ];
        let others = others.into_iter().filter_map(|(field, file)| Some((field, file.as_ref()?)));
        let regions = self.regions.iter().filter_map(|region| Some((Field::Regions, region.mask.as_ref()?)));
        inputs.chain(others).chain(regions).map(|(field, file)| (field, file.as_path()))
    }

    /// Returns the names of the image files, to change them.
    pub fn images_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let regions = self.regions.iter_mut().filter_map(|region| region.mask.as_mut());
        self.inputs.iter_mut().chain(&mut self.mask).chain(regions)
    }

    /// Returns the prompt with the lines of [`Recipe::controls`] and the table of [`Recipe::boxes`]; that of a
    /// transparent image asks for a plain background.
    pub fn full_prompt(&self) -> Cow<'_, str> {
        let prompt = match self.embeddings {
            Some(_) => Cow::Borrowed(self.prompt.as_str()),
            None => match self.transparent.prompt(&self.prompt) {
                Cow::Borrowed(prompt) => controls::with_lines(prompt, &self.controls),
                Cow::Owned(prompt) => Cow::Owned(controls::with_lines(&prompt, &self.controls).into_owned()),
            },
        };
        match self.boxes.is_empty() {
            true => prompt,
            false => Cow::Owned(boxes::with_boxes(&prompt, &self.boxes, !self.inputs.is_empty())),
        }
    }

    /// Errors if a file of this format cannot hold the image.
    pub fn check_format(&self, format: ImageFormat) -> Result<()> {
        if self.transparent == Transparency::No || format != ImageFormat::Jpeg {
            return Ok(());
        }
        Err(Error::usage("a JPEG has no transparency")
            .for_field(Field::Transparent)
            .hint("write a PNG or a WebP, whose names end with .png or .webp"))
    }

    /// Errors if a field requires another field that is missing, or excludes one that is present.
    pub fn check(&self) -> Result<()> {
        boxes::check(&self.boxes, self.inputs.len())?;
        regions::check(&self.regions)?;
        controls::check(&self.controls, self.inputs.len(), self.changes())?;
        self.template.as_ref().map_or(Ok(()), |template| Request::new(template, 0).check_prompt())?;
        if let Some(bytes) = self.upsampled.as_ref().map(|before| before.request.len())
            && bytes > MAX_PROMPT_BYTES
        {
            let what = format!("the request is {bytes} bytes long, expected at most {MAX_PROMPT_BYTES}");
            return Err(Error::usage(what).for_field(Field::Upsample));
        }
        self.check_needs().and_then(|()| self.check_conflicts())?;
        self.check_hires()?;
        check_tiles(self.tile, self.tile_overlap)?;
        let (weights, inputs) = (self.input_weights.len(), self.inputs.len());
        if weights > inputs {
            let what = format!("{weights} weights of inputs were passed, but there are {inputs} inputs");
            return Err(Error::usage(what)
                .for_field(Field::InputWeights)
                .hint("pass one for each input, in their order"));
        }
        match self.input_weights.iter().find(|weight| !(0.0..=MAX_INPUT_WEIGHT).contains(*weight)) {
            Some(weight) => Err(Error::usage(format!("the weight of an input is {weight}, expected 0 to 2"))
                .for_field(Field::InputWeights)
                .hint("try 0.7 to 1.3: models tolerate little more")),
            None => Ok(()),
        }
    }

    /// Returns the strength of an input as a reference.
    pub fn input_weight(&self, input: usize) -> f32 {
        self.input_weights.get(input).copied().unwrap_or(1.0)
    }

    fn check_needs(&self) -> Result<()> {
        let input = (!self.inputs.is_empty(), &[Field::Inputs][..]);
        let of_an_input = |others| if self.inputs.is_empty() { input } else { others };
        let mask = of_an_input((self.mask.is_some(), &[Field::Mask][..]));
        let part = of_an_input((self.mask.is_some() || self.extend.is_some(), &[Field::Mask, Field::Extend]));
        let change = of_an_input((self.changes(), &[Field::Strength, Field::Mask]));
        let needs = [
            (self.mask.is_some(), Field::Mask, input),
            (self.strength.is_some(), Field::Strength, input),
            (self.extend.is_some(), Field::Extend, input),
            (self.mask_padding.is_some(), Field::MaskPadding, mask),
            (self.feather > 0, Field::Feather, part),
            (self.no_composite, Field::NoComposite, part),
            (self.no_self_reference, Field::NoSelfReference, change),
            (self.full_size, Field::FullSize, change),
            (self.resize.is_some(), Field::Size, input),
            (self.sparse, Field::Sparse, part),
            (!self.input_weights.is_empty(), Field::InputWeights, input),
        ];
        let Some((_, field, (_, others))) = needs.iter().find(|(given, _, (met, _))| *given && !met) else {
            return Ok(());
        };
        let others: Vec<_> = others.iter().map(|other| format!("`{other:#}`")).collect();
        let others = others.join(" or ");
        Err(Error::usage(format!("`{field:#}` requires {others}"))
            .for_field(*field)
            .hint(format!("pass {others} too, or leave out `{field:#}`")))
    }

    fn check_conflicts(&self) -> Result<()> {
        let (has_features, has_regions) = (self.embeddings.is_some(), !self.regions.is_empty());
        let is_edited = self.transparent == Transparency::Edit;
        let has_variety = self.variety.is_some_and(|variety| variety.has_effect());
        let conflicts = [
            (has_regions && self.sparse, Field::Regions, Field::Sparse),
            (has_regions && self.mask_padding.is_some(), Field::Regions, Field::MaskPadding),
            (has_regions && has_features, Field::Regions, Field::Embeddings),
            (self.mask_padding.is_some() && self.extend.is_some(), Field::MaskPadding, Field::Extend),
            (self.feather > 0 && self.no_composite, Field::Feather, Field::NoComposite),
            (self.full_size && self.no_composite, Field::FullSize, Field::NoComposite),
            (self.sparse && self.no_self_reference, Field::Sparse, Field::NoSelfReference),
            (self.input_weight(0) != 1.0 && self.no_self_reference, Field::InputWeights, Field::NoSelfReference),
            (self.input_weights.iter().any(|weight| *weight != 1.0) && self.sparse, Field::InputWeights, Field::Sparse),
            (is_edited && self.mask.is_some(), Field::Transparent, Field::Mask),
            (is_edited && self.strength.is_some(), Field::Transparent, Field::Strength),
            (is_edited && self.extend.is_some(), Field::Transparent, Field::Extend),
            (is_edited && self.hires.is_some(), Field::Transparent, Field::Hires),
            (has_variety && has_regions, Field::Variety, Field::Regions),
            (self.noise.is_some() && self.latents.is_some(), Field::Noise, Field::Latents),
            (self.variation.is_some() && self.noise.is_some(), Field::Variation, Field::Noise),
            (self.variation.is_some() && self.latents.is_some(), Field::Variation, Field::Latents),
            (has_variety && self.sparse, Field::Variety, Field::Sparse),
            (has_variety && has_features, Field::Variety, Field::Embeddings),
            (has_features && !self.prompt.is_empty(), Field::Embeddings, Field::Prompt),
            (has_features && self.template.is_some(), Field::Embeddings, Field::Prompt),
            (has_features && !self.boxes.is_empty(), Field::Embeddings, Field::Boxes),
            (has_features && self.negative.is_some(), Field::Embeddings, Field::NegativePrompt),
            (has_features && self.max_sequence_length.is_some(), Field::Embeddings, Field::MaxSequenceLength),
        ];
        match conflicts.iter().find(|(both, ..)| *both) {
            Some((_, field, other)) => Err(Error::usage(format!("`{field:#}` cannot be used with `{other:#}`"))
                .for_field(*field)
                .hint(if *field == Field::Transparent { Transparency::KEY_HINT } else { "leave one of them out" })),
            None => Ok(()),
        }
    }

    fn check_hires(&self) -> Result<()> {
        let Some(hires) = &self.hires else { return Ok(()) };
        let others = [
            (self.mask.is_some(), Field::Mask),
            (self.extend.is_some(), Field::Extend),
            (self.full_size, Field::FullSize),
        ];
        if let Some((_, other)) = others.iter().find(|(given, _)| *given) {
            let what = format!("`{:#}` cannot be used with `{other:#}`", Field::Hires);
            return Err(Error::usage(what).for_field(Field::Hires).hint(format!(
                "edit the image first; then enlarge it with `flux upscale`, and edit the larger one with `{:#}`",
                Field::Strength
            )));
        }
        hires.check()?;
        let prompt = hires.prompt.as_ref().map_or(Ok(()), |prompt| Request::new(prompt, 0).check_prompt());
        prompt.map_err(|e| e.for_field(Field::Hires).prefixed("second pass"))
    }

    /// Creates a request, as far as this needs neither a model nor the image files. Reads tensor files; with text
    /// features, the prompt is the one in their file.
    ///
    /// Errors as [`Recipe::check`] and [`Request::check_prompt`], and if a file cannot be read, or holds something
    /// else.
    pub fn request(&self) -> Result<Request> {
        self.request_with(&BTreeMap::new())
    }

    /// As [`Recipe::request`], with files in memory by their names in the recipe.
    ///
    /// Errors as [`Recipe::request`].
    pub(super) fn request_with(&self, files: &BTreeMap<PathBuf, Vec<u8>>) -> Result<Request> {
        self.check()?;
        let file = |path: &PathBuf| match files.get(path) {
            Some(bytes) => ArrayFile::from_bytes(path, bytes.clone()),
            None => ArrayFile::read(path),
        };
        let latents = |path: &Option<PathBuf>, field: Field| {
            let read = |path| file(path).and_then(|file| Latents::from_file(&file)).map_err(|e| e.for_field(field));
            path.as_ref().map(read).transpose()
        };
        let mut request = Request {
            has_boxes: !self.boxes.is_empty(),
            width: self.width,
            height: self.height,
            steps: self.steps,
            guidance: self.guidance,
            variation: self.variation,
            variety: self.variety,
            rng: self.rng,
            schedule: self.schedule.clone(),
            negative: self.negative.clone(),
            max_sequence_length: self.max_sequence_length,
            noise: latents(&self.noise, Field::Noise)?,
            latents: latents(&self.latents, Field::Latents)?,
            sparse: self.sparse,
            tile: self.tile,
            tile_overlap: self.tile_overlap,
            hires: self.hires.clone(),
            transparent: self.transparent,
            ..Request::new(self.full_prompt(), self.seed)
        };
        if let Some(path) = &self.embeddings {
            let read = file(path).and_then(|file| Embeddings::from_file(&file));
            let (embeddings, prompt) = read.map_err(|e| e.for_field(Field::Embeddings))?;
            (request.embeddings, request.prompt) = (Some(embeddings), prompt.unwrap_or_default());
        }
        request.check_prompt()?;
        Ok(request)
    }
}
