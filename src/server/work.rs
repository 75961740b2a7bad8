//! The work of a request: what the engine is asked for, and how much of it there is.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use flux::engine::{AdapterFile, BatchShape, Engine, InputSource, Inputs, Job, Recipe};
use flux::error::{ErrorKind, Field};
use flux::files::adapter::AdapterUse;
use flux::pipeline::{Plan, Request};

use super::error::{ApiError, Result};
use super::models::Models;
use super::rates::Kind;
use super::record::Planned;
use super::request::{Asked, Feedback, Lora, Previews, Priority};

/// What the images of a request have in common.
pub struct Work {
    /// The place of the model.
    pub model: usize,
    pub previews: Previews,
    pub priority: Priority,
    pub deadline: Option<Instant>,
    recipe: Recipe,
    request: Request,
    inputs: Arc<Inputs>,
    adapters: Vec<Lora>,
    feedback: Option<Feedback>,
    /// What its model makes of it, once that was open.
    ready: OnceLock<Ready>,
}

/// A request that a model can carry out.
pub struct Ready {
    request: Request,
    pub shape: BatchShape,
    pub plan: Planned,
    pub kind: Kind,
    pub notes: Vec<String>,
}

impl Work {
    /// Reads the images of a request.
    ///
    /// Errors when one cannot be read, or does not suit the others, there is no such adapter, or there are fewer seeds
    /// than images.
    pub fn new(asked: &mut Asked, models: &Models, model: usize, arrived: Instant) -> Result<Self> {
        let mut nothing = std::io::empty();
        let mut source = InputSource::new(&mut nothing);
        source.embedded = std::mem::take(&mut asked.files);
        let mut recipe = std::mem::take(&mut asked.recipe);
        recipe.check().map_err(ApiError::from)?;
        let inputs = Inputs::read(&recipe, &mut source).map_err(|e| unreadable(&e.of(Field::Inputs)))?;
        let adapters = std::mem::take(&mut asked.adapters);
        adapters.iter().try_for_each(|lora| models.adapter(&lora.name).map(drop))?;
        recipe.adapters =
            adapters.iter().map(|Lora { name, weight }| AdapterFile { file: name.into(), strength: *weight }).collect();
        let request = inputs.apply(recipe.request().map_err(|e| e.of(Field::Prompt)).map_err(ApiError::from)?);
        request.check_count(asked.count).map_err(ApiError::from)?;
        asked.notes.extend(inputs.notes().iter().cloned());
        Ok(Self {
            model,
            previews: asked.previews,
            priority: asked.priority,
            deadline: asked.deadline.and_then(|time| arrived.checked_add(time)),
            recipe,
            request,
            inputs: Arc::new(inputs),
            adapters,
            feedback: asked.feedback.take(),
            ready: OnceLock::new(),
        })
    }

    /// Bytes that it keeps while it waits.
    pub fn bytes(&self) -> usize {
        self.inputs.bytes()
    }

    pub fn prompt(&self) -> &str {
        &self.recipe.prompt
    }

    /// What the model makes of it, if that was open since.
    pub fn ready(&self) -> Option<&Ready> {
        self.ready.get()
    }

    /// [`Work::ready`], by the engine of its model. Waits for the tokenizer.
    ///
    /// Errors when the model cannot do what is asked for, or there will never be memory for it.
    pub fn prepare(&self, engine: &Engine, models: &Models, most_pixels: usize) -> Result<&Ready> {
        if let Some(ready) = self.ready.get() {
            return Ok(ready);
        }
        let adapter = |lora: &Lora| {
            let path: &Path = models.adapter(&lora.name)?;
            let adapter =
                engine.adapter(path).map_err(|e| ApiError::value("loras", format!("{}: {}", lora.name, e.what())))?;
            Ok(AdapterUse { adapter, strength: lora.weight })
        };
        let adapters = self.adapters.iter().map(adapter).collect::<Result<_>>()?;
        let request = Request { adapters, ..self.request.clone() };
        // A size that is asked for is looked at first: what is far too large needs no plan.
        check_pixels(request.width.unwrap_or(0), request.height.unwrap_or(0), most_pixels)?;
        let request = match &self.feedback {
            Some(Feedback { part, before: Some(before) }) => {
                engine.begin_with(request, before, *part).map_err(|e| ApiError::from(e.of(Field::Latents)))?
            }
            _ => request,
        };
        let plan = engine.plan(&request).map_err(|e| match e.kind() {
            ErrorKind::Failure => ApiError::bad("never_fits", e.what()).of("size"),
            _ => ApiError::from(e),
        })?;
        check_pixels(plan.width, plan.height, most_pixels)?;
        check_memory(engine, &plan)?;
        let shape = engine.batch_shape(&request).map_err(ApiError::from)?;
        let planned = planned(&plan);
        let evaluations = plan.steps_to_run() * if plan.guided() { 2 } else { 1 };
        let tokens = planned.tokens() + planned.text_tokens + planned.image_tokens;
        let kind = Kind { model: self.model, size: [plan.width, plan.height], evaluations, tokens };
        Ok(self.ready.get_or_init(|| Ready { request, shape, plan: planned, kind, notes: plan.notes }))
    }

    /// Pixels of an image; a guess while the model was not open.
    pub fn pixels(&self) -> f64 {
        let asked = || [self.recipe.width, self.recipe.height].map(|side| side.unwrap_or(1024));
        let [width, height] = self.ready().map_or_else(asked, |ready| [ready.plan.width, ready.plan.height]);
        width as f64 * height as f64
    }

    /// What it costs, in tokens; a guess while the model was not open.
    pub fn cost(&self) -> f64 {
        let guess = || {
            let side = |pixels: Option<usize>| pixels.unwrap_or(1024) / 16;
            (side(self.recipe.width) * side(self.recipe.height) * self.recipe.steps.unwrap_or(4)) as f64
        };
        self.ready().map_or_else(guess, |ready| ready.kind.cost())
    }

    /// Whether two images may be made as one batch.
    pub fn suits(&self, other: &Self) -> bool {
        let shapes = self.ready().zip(other.ready());
        self.model == other.model && shapes.is_some_and(|(a, b)| a.shape == b.shape)
    }

    /// The recipe of one of its images.
    pub fn recipe(&self, image: usize) -> Recipe {
        Recipe { seed: self.request.part(image..image + 1).seed, ..self.recipe.clone() }
    }

    /// The job of one of its images.
    pub fn job(&self, ready: &Ready, image: usize) -> Job {
        let request = ready.request.part(image..image + 1);
        Job {
            inputs: Arc::clone(&self.inputs),
            // What an image before gave is in no recipe.
            recipe: self.feedback.is_none().then(|| Arc::new(self.recipe(image))),
            latents: self.feedback.is_some(),
            previews: self.previews.are_wanted(),
            ..Job::new(request, 1)
        }
    }

    /// How long it may wait from now on; none where it may wait for ever.
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }
}

/// Images come with the request, so that what is wrong with one is the client's.
fn unreadable(error: &flux::Error) -> ApiError {
    match error.kind() {
        ErrorKind::Failure => ApiError::bad("invalid_image", error.what()).of("image"),
        _ => ApiError::from(error),
    }
}

fn planned(plan: &Plan) -> Planned {
    let image_tokens = plan.references.iter().map(|[height, width]| height / 16 * (width / 16)).sum();
    Planned { width: plan.width, height: plan.height, steps: plan.steps, text_tokens: plan.text_tokens, image_tokens }
}

/// Errors when an image has too many pixels.
pub fn check_pixels(width: usize, height: usize, most: usize) -> Result<()> {
    if width.saturating_mul(height) <= most {
        return Ok(());
    }
    Err(ApiError::value("size", format!("the image is of {width}x{height}, expected at most {most} pixels")))
}

/// Errors when no device will ever have memory for an image.
fn check_memory(engine: &Engine, plan: &Plan) -> Result<()> {
    let mut plans = engine.memory_plans(plan, 1).into_iter().map(|(_, plan)| plan);
    let first = plans.next();
    match first {
        Some(Err(error)) if !plans.any(|plan| plan.is_ok()) => {
            Err(ApiError::bad("never_fits", error.what().to_string()).of("size"))
        }
        _ => Ok(()),
    }
}
