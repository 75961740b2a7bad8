//! An image of a job, and the file that it becomes.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::digests::ModelDigests;
use super::image_recipe::{ImageRecipe, ModelRecipe, OfImages};
use super::{Inputs, Recipe};
use crate::error::Result;
use crate::metadata::{DigitalSource, Metadata};
use crate::output::{self, ImageFormat, Target};
use crate::pipeline::{Decoded, Embeddings, Latents, Plan, Request};
use crate::rgb::Rgb;
use crate::sampler::{Rng, ScheduleKind};

/// An image of a job.
#[derive(Debug, Clone)]
pub struct JobImage {
    /// What the model made.
    pub rgb: Rgb,
    /// Size, steps, seed and guidance that were used.
    pub plan: Plan,
    /// Which of the job's images it is.
    place: usize,
    /// Which of the images that were made at once.
    of_batch: OfImages,
    origin: Arc<Origin>,
}

/// What all images of a job are made of.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) request: Request,
    pub(super) inputs: Arc<Inputs>,
    pub(super) recipe: Option<Arc<Recipe>>,
    /// Images of the job.
    pub(super) count: usize,
    pub(super) provenance: bool,
    pub(super) of: Option<OfImages>,
    /// Whether images of a batch round otherwise than alone.
    pub(super) rounds_by_batch: bool,
    pub(super) key: Option<String>,
    pub(super) model: Arc<ModelRecipe>,
    pub(super) digests: Arc<ModelDigests>,
    /// What computes, in words.
    pub(super) device: String,
}

impl JobImage {
    pub(super) fn new(
        Decoded { rgb: bytes, plan }: Decoded,
        place: usize,
        of_batch: OfImages,
        origin: Arc<Origin>,
    ) -> Self {
        Self { rgb: Rgb { width: plan.width, height: plan.height, bytes }, plan, place, of_batch, origin }
    }

    /// Writes it as a PNG, a JPEG or a WebP, as the name ends; the file says how it was made. Where an image was
    /// changed, it lies over that one, as [`Job::inputs`](super::Job::inputs) say.
    ///
    /// Errors as [`Target::new`] and [`Target::write`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.write(&Target::new(path.as_ref())?)
    }

    /// [`JobImage::save`] at a place that was found to be writable.
    ///
    /// Errors as [`Target::write`].
    pub fn write(&self, target: &Target) -> Result<()> {
        target.write(self.pixels()?.as_ref(), &self.metadata())
    }

    /// The bytes of the file.
    ///
    /// Errors as [`output::encode`].
    pub fn encode(&self, format: ImageFormat) -> Result<Vec<u8>> {
        output::encode(self.pixels()?.as_ref(), format, &self.metadata())
    }

    /// The bytes of a JPEG of a quality from 1 to 100.
    ///
    /// Errors as [`output::encode_jpeg`].
    pub fn encode_jpeg(&self, quality: u8) -> Result<Vec<u8>> {
        output::encode_jpeg(self.pixels()?.as_ref(), quality, &self.metadata())
    }

    /// What is written of it: where an image was changed, that one with what is new.
    ///
    /// Errors when the result is not of the size of what was changed.
    pub fn pixels(&self) -> Result<Cow<'_, Rgb>> {
        self.origin.inputs.finish(&self.rgb)
    }

    /// What the file says of itself.
    fn metadata(&self) -> Metadata {
        let recipe = self.recipe();
        Metadata {
            texts: self.facts(),
            recipe: recipe.as_ref().map(ImageRecipe::to_json),
            parameters: recipe.as_ref().map(ImageRecipe::parameters),
            source: self.origin.provenance.then(|| match self.origin.inputs.is_composite() {
                true => DigitalSource::CompositeWithTrainedAlgorithmicMedia,
                false => DigitalSource::TrainedAlgorithmicMedia,
            }),
        }
    }

    /// How it is made again; none where the job has no recipe.
    pub fn recipe(&self) -> Option<ImageRecipe> {
        let Origin { request, recipe, model, digests, device, inputs, count, of, key, rounds_by_batch, .. } =
            &*self.origin;
        let recipe = recipe.as_ref()?;
        let mut made = ImageRecipe::of(recipe, &self.plan, model, device).with_inputs(inputs);
        if inputs.place_in([self.plan.width, self.plan.height]).is_some() {
            // It is the image that says the size, which is not one that the model makes.
            (made.recipe.width, made.recipe.height) = (None, None);
        }
        let is_of_several = *count > 1 && (recipe.noise.is_some() || recipe.latents.is_some());
        made.of = of.or(is_of_several.then_some(OfImages { place: self.place, count: *count }));
        made.batch = Some(self.of_batch).filter(|batch| *rounds_by_batch && batch.count > 1);
        made.key = key.clone();
        made.model.digests = digests.get().clone();
        // By the names that the recipe has for them.
        let names = recipe.adapters.iter().map(|used| used.file.to_string_lossy().into_owned());
        made.digests.extend(names.zip(request.adapters.iter().map(|used| used.adapter.digest().to_string())));
        Some(made)
    }

    /// What the texts of a PNG say: pairs of a keyword and a text.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let Origin { request, inputs, model, .. } = &*self.origin;
        let Plan { width, height, steps, guidance, seed, rng, schedule, negative, .. } = &self.plan;
        let path = |path: Option<&Path>| path.map(|path| path.display().to_string());
        let adapters = request.adapters.iter().map(|used| format!("{}:{}", name(used.adapter.path()), used.strength));
        let adapters: Vec<_> = adapters.collect();
        let names = |files: &[PathBuf]| files.iter().map(|file| name(file)).collect::<Vec<_>>().join(", ");
        let facts = [
            // The keyword of the standard; ComfyUI takes `prompt` for a graph in JSON.
            ("Description", Some(request.prompt.clone())),
            ("seed", Some(seed.to_string())),
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
            ("quantize", model.quantize.clone()),
            ("lora", (!adapters.is_empty()).then(|| adapters.join(", "))),
        ];
        facts.into_iter().filter_map(|(keyword, text)| Some((keyword, text?))).collect()
    }
}

/// The name of a file, without its folder.
fn name(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
