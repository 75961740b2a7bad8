//! A request from Python, and the job that it becomes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use flux::engine::expand::{Expansion, Words};
use flux::engine::{AdapterFile, Generation, Job, OfImages};
use flux::files::Array;
use flux::sampler::random_seed;
use flux::{CancelFlag, Embeddings, Engine, Error, Field, Image, InputImage, Latents, Recipe, Result, Rgb};
use flux_hub::Wanted;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use serde_json::Value;

use crate::picture::{Files, Picture};

/// An input image as Python passes it.
#[derive(FromPyObject)]
enum Passed<'py> {
    Image(PyRef<'py, Picture>),
    /// Width, height, RGB.
    Pixels(usize, usize, PyBackedBytes),
    /// The bytes of a file.
    Bytes(PyBackedBytes),
    Path(PathBuf),
}

/// An input image without objects of Python, which other threads can encode.
enum Input {
    Image(Arc<Image>),
    Other(InputImage),
    Pixels(Rgb),
}

/// The shape of a tensor, and its values in float32.
type Values = (Vec<usize>, Vec<f32>);

/// The arguments of a request. Python passes every key.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Request {
    /// The recipe in JSON without the files that are passed below. Without a seed, a random seed is chosen.
    recipe: String,
    #[pyo3(from_py_with = inputs)]
    images: Vec<Input>,
    /// At most one image.
    #[pyo3(from_py_with = inputs)]
    mask: Vec<Input>,
    #[pyo3(from_py_with = values)]
    noise: Option<Values>,
    #[pyo3(from_py_with = values)]
    latents: Option<Values>,
    /// Features of the prompt.
    #[pyo3(from_py_with = values)]
    embeddings: Option<Values>,
    /// Features of the negative prompt.
    #[pyo3(from_py_with = values)]
    negative_embeddings: Option<Values>,
    /// Files in memory by their names in the recipe.
    files: BTreeMap<PathBuf, Vec<u8>>,
    /// Prompts of the images, if they have prompts of their own.
    prompts: Vec<String>,
    count: usize,
    /// Index of the image among those of its files of noise or latents, and the number of those.
    of: Option<(usize, usize)>,
    /// The folder of wildcards and the seed of the words, if the prompt is expanded, and `true` for all combinations.
    expand: Option<(Option<PathBuf>, Option<u64>, bool)>,
    embed_inputs: bool,
    previews: bool,
    /// `true` if events have the final latents.
    keep_latents: bool,
    /// `true` if events have the text features.
    keep_embeddings: bool,
    /// `true` if the images share no batch with those of other jobs.
    alone: bool,
}

fn inputs(value: &Bound<'_, PyAny>) -> PyResult<Vec<Input>> {
    let input = |passed: Passed<'_>| match passed {
        Passed::Image(picture) => picture.image().map(|image| Input::Image(Arc::clone(image))),
        Passed::Pixels(width, height, bytes) => Some(Input::Pixels(Rgb { width, height, bytes: bytes.to_vec() })),
        Passed::Bytes(bytes) => Some(Input::Other(InputImage::from_bytes(bytes.to_vec()))),
        Passed::Path(path) => Some(Input::Other(path.into())),
    };
    let inputs = value.extract::<Vec<Passed<'_>>>()?.into_iter().map(input).collect::<Option<_>>();
    inputs.ok_or_else(|| PyTypeError::new_err("a preview is passed as pixels"))
}

fn values(value: &Bound<'_, PyAny>) -> PyResult<Option<Values>> {
    let read = |(shape, bytes): (Vec<usize>, PyBackedBytes)| {
        let values = bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        (shape, values.collect())
    };
    Ok(value.extract::<Option<(Vec<usize>, PyBackedBytes)>>()?.map(read))
}

impl From<Input> for InputImage {
    fn from(input: Input) -> Self {
        match input {
            Input::Image(image) => Self::from(&*image),
            Input::Pixels(rgb) => Self::from(&rgb),
            Input::Other(input) => input,
        }
    }
}

impl Request {
    /// Returns the job of the request, and the files in memory that its recipe names. Reads input files.
    ///
    /// Errors if an option or a file is wrong.
    pub fn job(self, engine: &Engine, cancel: &CancelFlag) -> Result<(Job, Files)> {
        let recipe = read_recipe(&self.recipe)?;
        let mut generation = engine.generate_recipe(recipe.clone()).cancel_flag(cancel).with_files(self.files);
        generation = self.images.into_iter().fold(generation, Generation::reference);
        generation = self.mask.into_iter().fold(generation, Generation::mask);
        if let Some(noise) = self.noise {
            generation = generation.noise(&latents(noise, Field::Noise)?);
        }
        if let Some(given) = self.latents {
            generation = generation.latents(&latents(given, Field::Latents)?);
        }
        if let Some(prompt) = self.embeddings {
            generation = generation.embeddings(&embeddings(prompt, self.negative_embeddings)?);
        }
        if self.embed_inputs {
            generation = generation.embed_inputs();
        }
        if self.previews {
            generation = generation.previews();
        }
        if let Some((wildcards, seed, all)) = self.expand {
            generation = generation.expand(Expansion { wildcards, seed, all });
        }
        let files = Arc::new(generation.files().clone());
        let mut job = generation.into_job(self.count)?;
        if !self.prompts.is_empty() {
            job.words = words(&self.prompts, recipe.seed)?.into();
            job.count = self.prompts.len();
        }
        if let Some((place, count)) = self.of {
            // The recipe has the seed of the image, not of the first of all images.
            let request = job.request.part(place..place.saturating_add(1));
            job.request = flux::pipeline::Request { seed: recipe.seed, ..request };
            job.of = Some(OfImages { place, count });
        }
        job.latents = self.keep_latents;
        job.embeddings = self.keep_embeddings;
        if self.alone {
            job.max_together = 1;
        }
        Ok((job, files))
    }
}

/// Reads a recipe, with the names of adapters resolved.
fn read_recipe(json: &str) -> Result<Recipe> {
    let wrong = |e: serde_json::Error| Error::usage(format!("the recipe cannot be read: {e}"));
    let mut value: Value = serde_json::from_str(json).map_err(wrong)?;
    if let Some(fields) = value.as_object_mut() {
        fields.entry("seed").or_insert_with(|| random_seed().into());
    }
    let recipe: Recipe = serde_json::from_value(value).map_err(wrong)?;
    let found = |adapter: AdapterFile| {
        let file = flux_hub::resolve(&adapter.file, Wanted::Adapter).map_err(|e| e.for_field(Field::Adapters))?;
        Ok(AdapterFile { file, ..adapter })
    };
    let adapters = recipe.adapters.clone().into_iter().map(found).collect::<Result<_>>()?;
    Ok(Recipe { adapters, ..recipe })
}

/// Returns the words of images with prompts of their own and consecutive seeds.
///
/// Errors if a prompt is too long.
fn words(prompts: &[String], seed: u64) -> Result<Vec<Words>> {
    let words = |(place, prompt): (usize, &String)| {
        let seed = seed.saturating_add(place as u64);
        Recipe::new(prompt, seed).request()?;
        Ok(Words { prompt: prompt.clone(), seed })
    };
    prompts.iter().enumerate().map(words).collect()
}

fn latents((shape, values): Values, field: Field) -> Result<Latents> {
    Array::new(shape, values).and_then(Latents::new).map_err(|e| e.for_field(field))
}

fn embeddings((shape, values): Values, negative: Option<Values>) -> Result<Embeddings> {
    let negative = negative.map(|(shape, values)| Array::new(shape, values)).transpose();
    let made = Array::new(shape, values).and_then(|prompt| Embeddings::new(prompt, negative?));
    made.map_err(|e| e.for_field(Field::Embeddings))
}
