//! An image of a job, and the file that it becomes.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    pub(super) model: ModelRecipe,
    /// What computes, in words.
    pub(super) device: String,
}

impl JobImage {
    pub(super) fn new(Decoded { rgb: bytes, plan }: Decoded, place: usize, origin: Arc<Origin>) -> Self {
        Self { rgb: Rgb { width: plan.width, height: plan.height, bytes }, plan, place, origin }
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
        target.write(self.finished()?.as_ref(), &self.metadata())
    }

    /// The bytes of the file.
    ///
    /// Errors as [`output::encode`].
    pub fn encode(&self, format: ImageFormat) -> Result<Vec<u8>> {
        output::encode(self.finished()?.as_ref(), format, &self.metadata())
    }

    /// What is written of it.
    fn finished(&self) -> Result<Cow<'_, Rgb>> {
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
        let Origin { recipe, model, device, count, .. } = &*self.origin;
        let of = OfImages { place: self.place, count: *count };
        recipe.as_ref().map(|recipe| ImageRecipe::of(recipe, &self.plan, model, device, of))
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
            ("prompt", Some(request.prompt.clone())),
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
