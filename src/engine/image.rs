//! Images of a job, and their files.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::digests::ModelDigests;
use super::image_recipe::{ImageRecipe, ModelRecipe, OfImages};
use super::job::Job;
use super::transparent;
use crate::alpha::Cutout;
use crate::error::Result;
use crate::metadata::{Metadata, Pixels};
use crate::output::{self, ImageFormat, Sign, Target};
use crate::pipeline::{Embeddings, Latents, Plan, Transparency};
use crate::rgb::{Rgb, RgbImage};
use crate::sampler::{Rng, ScheduleKind};

/// A generated image, and the origin that [`Image::recipe`] describes.
#[derive(Debug, Clone)]
pub struct Image {
    /// Output of the model.
    pub rgb: Rgb,
    /// Size, steps, seed and guidance of the image, and its second pass if there is one.
    pub plan: Plan,
    /// The image on another background, if its own is removed by comparing both.
    other: Option<Rgb>,
    /// Index of the image in the job.
    place: usize,
    /// Index of the image in its batch.
    of_batch: OfImages,
    origin: Arc<Origin>,
}

/// The origin of all images of a job.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) job: Job,
    /// `true` if images in a batch round differently than single images.
    pub(super) rounds_by_batch: bool,
    pub(super) model: Arc<ModelRecipe>,
    pub(super) digests: Arc<ModelDigests>,
    /// Description of the device.
    pub(super) device: String,
    pub(super) signer: Option<Arc<dyn Sign>>,
}

impl Image {
    /// Creates an image; `other` is the same one on another background.
    pub(super) fn new(
        ((rgb, plan), other): ((Rgb, Plan), Option<Rgb>),
        place: usize,
        of_batch: OfImages,
        origin: Arc<Origin>,
    ) -> Self {
        Self { rgb, plan, other, place, of_batch, origin }
    }

    /// Writes the image as a PNG, a JPEG or a WebP, by the extension of the name, with its recipe as metadata. An
    /// edited image is composited over the original, as [`Job::inputs`](super::Job::inputs) specify.
    ///
    /// Errors as [`Target::new`] and [`Target::write`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.write(&Target::new(path.as_ref())?)
    }

    /// Writes the image as [`Image::save`] does, to a target that was already checked.
    ///
    /// Errors as [`Target::write`].
    pub fn write(&self, target: &Target) -> Result<()> {
        let encoded = self.encode_file(target.format(), target.quality()).map_err(|e| e.at_path(target.path()))?;
        target.write_bytes(&encoded)
    }

    /// Returns the bytes of an image file.
    ///
    /// Errors as [`output::encode`].
    pub fn encode(&self, format: ImageFormat) -> Result<Vec<u8>> {
        self.encode_file(format, None)
    }

    /// Returns the bytes of a JPEG with a quality from 1 to 100.
    ///
    /// Errors as [`output::encode_jpeg`].
    pub fn encode_jpeg(&self, quality: u8) -> Result<Vec<u8>> {
        self.encode_file(ImageFormat::Jpeg, Some(quality))
    }

    fn encode_file(&self, format: ImageFormat, quality: Option<u8>) -> Result<Vec<u8>> {
        let pixels = self.pixels()?;
        let file = match self.cutout(&pixels)? {
            Some(Cutout { rgb, alpha }) => {
                output::encode_alpha(&rgb, &alpha, format, &self.metadata(Pixels::Rgba(&rgb, &alpha)))
            }
            None => output::encode_with(pixels.as_ref(), format, quality, |pixels| self.metadata(pixels)),
        }?;
        let Origin { signer, job, .. } = &*self.origin;
        match signer.as_ref().filter(|_| job.provenance) {
            Some(signer) => signer.sign(&file, format, &job.inputs.claim()),
            None => Ok(file),
        }
    }

    /// Returns the image without its background, if the request is for one.
    ///
    /// Errors if the background cannot be removed.
    fn cutout(&self, pixels: &Rgb) -> Result<Option<Cutout>> {
        let Job { request, inputs, .. } = &self.origin.job;
        let first = [self.plan.width, self.plan.height];
        let other = self.other.as_ref().map(|other| inputs.finish(other, first)).transpose()?;
        transparent::cut_out(request.transparent, pixels, other.as_deref())
    }

    /// Returns the pixels for the file: an edited image is composited over the original. The file of a transparent
    /// image has alpha too, and no background.
    ///
    /// Errors if the result does not have the size of the edited image.
    pub fn pixels(&self) -> Result<Cow<'_, Rgb>> {
        self.origin.job.inputs.finish(&self.rgb, [self.plan.width, self.plan.height])
    }

    /// Returns the pixels of [`Image::pixels`] as an image of the crate `image`.
    ///
    /// Errors as [`Image::pixels`].
    pub fn to_rgb_image(&self) -> Result<RgbImage> {
        self.pixels()?.into_owned().try_into()
    }

    /// Returns the metadata of a file with these pixels.
    fn metadata(&self, pixels: Pixels<'_>) -> Metadata {
        let Job { inputs, provenance, no_recipe, .. } = &self.origin.job;
        let source = provenance.then(|| inputs.digital_source());
        if *no_recipe {
            return Metadata { source, ..Metadata::default() };
        }
        let recipe = self.recipe().map(|made| ImageRecipe { pixels: Some(pixels.digest()), ..made });
        Metadata {
            texts: self.facts(),
            recipe: recipe.as_ref().map(ImageRecipe::to_json),
            parameters: recipe.as_ref().map(ImageRecipe::parameters),
            prompt: recipe.map(|made| made.recipe.prompt).filter(|prompt| !prompt.is_empty()),
            source,
        }
    }

    /// Returns the recipe to reproduce the image; `None` if the job has no recipe. [`ImageRecipe::pixels`] depends on
    /// the format of a file, so only files have it.
    pub fn recipe(&self) -> Option<ImageRecipe> {
        let Origin { job, model, digests, device, rounds_by_batch, .. } = &*self.origin;
        let Job { request, recipe, inputs, count, of, key, .. } = job;
        let recipe = &job.image_recipe(recipe.as_ref()?, self.place);
        let mut made = ImageRecipe::for_plan(recipe, &self.plan, model, device).with_inputs(inputs);
        if inputs.place_in([self.plan.width, self.plan.height]).is_some() {
            // The size comes from the input image, and is not a size that the model generates.
            (made.recipe.width, made.recipe.height) = (None, None);
        }
        let is_of_several = *count > 1 && (recipe.noise.is_some() || recipe.latents.is_some());
        made.of = of.or(is_of_several.then_some(OfImages { place: self.place, count: *count }));
        made.batch = Some(self.of_batch).filter(|batch| *rounds_by_batch && batch.count > 1);
        made.key = key.clone();
        made.model.digests = digests.get().clone();
        // Digests of adapters, by the names in the recipe.
        let names = recipe.adapters.iter().map(|used| used.file.to_string_lossy().into_owned());
        made.digests.extend(names.zip(request.adapters.iter().map(|used| used.adapter.digest().to_string())));
        Some(made)
    }

    /// Returns the texts of a PNG: pairs of a keyword and a text.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let Origin { job, model, .. } = &*self.origin;
        let Job { request, inputs, .. } = job;
        let [width, height] = self.plan.output_size();
        let Plan { steps, guidance, seed, variation, variety, rng, schedule, negative, transparent, .. } = &self.plan;
        let path = |path: Option<&Path>| path.map(|path| path.display().to_string());
        let adapters = request.adapters.iter();
        let adapters =
            adapters.map(|used| format!("{}:{}{}", name(used.adapter.path()), used.strength, used.blocks.suffix()));
        let adapters: Vec<_> = adapters.collect();
        let names = |files: &[PathBuf]| files.iter().map(|file| name(file)).collect::<Vec<_>>().join(", ");
        let facts = [
            // The keyword of the PNG standard; ComfyUI reads `prompt` as a graph in JSON.
            ("Description", Some(job.image_prompt(self.place).into_owned())),
            ("transparent", (*transparent != Transparency::No).then(|| transparent.to_string())),
            ("seed", Some(seed.to_string())),
            ("variation", variation.map(|variation| variation.to_string())),
            ("variety", variety.map(|variety| variety.to_string())),
            ("steps", Some(steps.to_string())),
            ("guidance", Some(guidance.to_string())),
            ("size", Some(format!("{width}x{height}"))),
            ("model", Some(model.name.clone())),
            ("Software", Some(concat!("flux ", env!("CARGO_PKG_VERSION")).to_string())),
            ("rng", (*rng != Rng::default()).then(|| rng.to_string())),
            ("negative", negative.clone()),
            ("schedule", (*schedule != ScheduleKind::default()).then(|| schedule.to_string())),
            ("max_sequence_length", request.max_sequence_length.map(|tokens| tokens.to_string())),
            ("noise", path(request.noise.as_ref().and_then(Latents::path))),
            ("latents", path(request.latents.as_ref().and_then(Latents::path))),
            ("embeddings", path(request.embeddings.as_ref().and_then(Embeddings::path))),
            ("inputs", (!inputs.files.is_empty()).then(|| names(&inputs.files))),
            ("mask", inputs.mask.as_deref().map(name)),
            ("strength", inputs.strength.map(|strength| strength.to_string())),
            ("hires", self.plan.hires.as_ref().map(|_| format!("from {}x{}", self.plan.width, self.plan.height))),
            ("quantize", model.quantize.clone()),
            ("lora", (!adapters.is_empty()).then(|| adapters.join(", "))),
        ];
        facts.into_iter().filter_map(|(keyword, text)| Some((keyword, text?))).collect()
    }
}

/// Returns the name of a file without its folder.
fn name(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
