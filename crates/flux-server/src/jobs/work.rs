//! From a request to the engine's job: its images are read, and it is planned once its model is open.

use std::path::Path;
use std::sync::Arc;

use flux::engine::expand::{Expanded, Expander};
use flux::engine::{AdapterFile, EmbeddedFiles, Engine, InputSource, Inputs, Job, Recipe};
use flux::error::{ErrorKind, Field, Form, KEYS, named};
use flux::files::adapter::AdapterUse;
use flux::input;
use flux::pipeline::{Change, Plan, Request};
use flux::stage::CancelFlag;
use flux::upscaler::UpscalerFile;

use crate::http::error::{ApiError, Result, field_name};
use crate::jobs::models::Models;
use crate::jobs::record::{JobRecord, Planned};
use crate::jobs::request::{Asked, Feedback, Lora};
use crate::upscalers::Upscalers;

/// Expands the prompt of a request, and reads its images.
///
/// Errors if the prompt cannot be expanded, an image cannot be read or does not suit the others, an adapter is unknown,
/// or there are fewer seeds than images.
pub fn read(asked: &mut Asked, record: &JobRecord, models: &Models, cancel: &CancelFlag) -> Result<Job> {
    asked.prepare(cancel)?;
    let mut nothing = std::io::empty();
    let mut source = InputSource::new(&mut nothing);
    source.embedded = std::mem::take(&mut asked.files);
    source.cancel = cancel.clone();
    let mut recipe = std::mem::take(&mut asked.recipe);
    let mut words = Vec::new();
    if let Some(expansion) = asked.expansion.take() {
        let expanded = Expander::new(&expansion).expand(&recipe, record.count);
        Expanded { recipe, words, .. } = expanded.map_err(|e| e.for_field(Field::Prompt))?;
    }
    source.upscaler = upscaler(&mut recipe, models.upscalers())?;
    recipe.check().map_err(ApiError::from)?;
    let edit = asked.edits_whole.then(|| without_edit(recipe.clone(), &source.embedded)).transpose()?;
    let (rest, change) = edit.map_or((None, None), |(rest, change)| (Some(rest), Some(change)));
    let rest = rest.as_ref().unwrap_or(&recipe);
    let inputs = Inputs::read(rest, &mut source).map_err(|e| unreadable(&e.for_field(Field::Inputs)))?;
    let mut request = inputs.apply(rest.request().map_err(|e| e.for_field(Field::Prompt)).map_err(ApiError::from)?);
    request.change = change.or(request.change);
    let adapter = |Lora { name, weight, blocks }: &Lora| {
        let file = models.adapter_name(name)?.into();
        Ok(AdapterFile { file, strength: *weight, blocks: blocks.clone() })
    };
    recipe.adapters = asked.adapters.iter().map(adapter).collect::<Result<_>>()?;
    request.check_count(record.count).map_err(ApiError::from)?;
    asked.notes.extend(inputs.notes().iter().map(|note| named(note, KEYS)));
    Ok(Job {
        inputs: Arc::new(inputs),
        recipe: Some(Arc::new(recipe)),
        words: words.into(),
        no_recipe: record.no_recipe,
        priority: asked.priority,
        deadline: record.deadline,
        latents: asked.feedback.is_some(),
        previews: asked.previews.are_wanted(),
        cancel: record.cancel.clone(),
        ..Job::new(request, record.count)
    })
}

/// Returns a recipe without its image to edit, and the image in its own size.
///
/// Errors if the image cannot be read.
fn without_edit(mut recipe: Recipe, files: &EmbeddedFiles) -> Result<(Recipe, Change)> {
    let file = recipe.inputs.remove(0);
    let image = input::read_bytes(files.get(&file).map_or(&[][..], Vec::as_slice));
    let change = Change {
        image: Arc::new(image.map_err(|e| unreadable(&e))?),
        cells: None,
        strength: recipe.strength.take().unwrap_or(1.0),
        is_reference: !std::mem::take(&mut recipe.no_self_reference),
    };
    Ok((recipe, change))
}

/// Returns the open upscaler of a recipe's second pass, and removes the name of the Lanczos filter from the recipe.
///
/// Errors if the server lacks the upscaler.
fn upscaler(recipe: &mut Recipe, upscalers: &Upscalers) -> Result<Option<Arc<UpscalerFile>>> {
    let Some(hires) = &mut recipe.hires else { return Ok(None) };
    let Some(name) = hires.upscaler.as_ref().map(|name| name.to_string_lossy()) else { return Ok(None) };
    if Upscalers::is_filter(&name) {
        hires.upscaler = None;
        return Ok(None);
    }
    upscalers.open(&name).map(Some).map_err(|error| error.with_param("hires"))
}

/// Plans a job, and records the plan. Waits for the tokenizer.
///
/// Errors if the model does not support the request, or no device has enough memory for it.
pub fn plan(
    job: &mut Job,
    feedback: Option<&Feedback>,
    record: &JobRecord,
    engine: &Engine,
    models: &Models,
    most_pixels: usize,
) -> Result<()> {
    if job.enlarging.is_some() {
        return Ok(());
    }
    let adapter = |used: &AdapterFile| {
        let name = used.file.to_string_lossy();
        let path: &Path = models.adapter(&name)?;
        let adapter = engine.adapter(path).map_err(|e| ApiError::value("loras", format!("{name}: {}", e.what())))?;
        Ok(AdapterUse { adapter, strength: used.strength, blocks: used.blocks.clone() })
    };
    let adapters = job.recipe.iter().flat_map(|recipe| &recipe.adapters).map(adapter).collect::<Result<_>>()?;
    let request = Request { adapters, ..job.request.clone() };
    // Check the requested size first, since an image that is far too large needs no plan.
    check_pixels(request.width.unwrap_or(0), request.height.unwrap_or(0), most_pixels)?;
    if feedback.is_some() && request.hires.is_some() {
        let message = "`hires` cannot be used with `feedback`: the next image begins with latents of the same size";
        return Err(ApiError::value("hires", message));
    }
    if feedback.is_some() {
        // A recipe could not reproduce an image that starts from a previous one.
        job.recipe = None;
    }
    job.request = match feedback {
        Some(Feedback { part, before: Some(before) }) => {
            engine.begin_with(request, before, *part).map_err(|e| ApiError::from(e.for_field(Field::Latents)))?
        }
        _ => request,
    };
    let plan = engine.plan(&job.request).map_err(|e| match e.kind() {
        ErrorKind::Failure => ApiError::bad("never_fits", e.what()).with_param("size"),
        _ => ApiError::from(e),
    })?;
    let [width, height] = plan.output_size();
    check_pixels(width, height, most_pixels)?;
    check_memory(engine, &plan)?;
    record.plan(Planned::new(&plan), &plan.notes);
    Ok(())
}

/// Returns the bytes that a job keeps while it waits: its images, and for each result the texts of its request and of
/// its recipe.
pub fn bytes(job: &Job, edits_whole: bool) -> usize {
    let texts = job.request.prompt.len() + job.request.negative.as_ref().map_or(0, String::len);
    let words: usize = job.words.iter().map(|words| words.prompt.len()).sum();
    let enlarging = job.enlarging.as_ref().map_or(0, |enlarging| enlarging.bytes());
    let whole = job.request.change.as_ref().filter(|_| edits_whole).map_or(0, |change| change.image.bytes.len());
    job.inputs.bytes() + whole + enlarging + 2 * job.count * texts + words
}

/// Returns the pixels of all images of a job, or a guess before planning.
pub fn pixels(job: &Job, record: &JobRecord) -> f64 {
    let Planned { width, height, .. } = record.planned();
    let side = |planned: usize, asked: Option<usize>| if planned > 0 { planned } else { asked.unwrap_or(1024) };
    let size = [side(width, job.request.width), side(height, job.request.height)];
    // A plan has the size of the second pass.
    let hires = job.request.hires.as_ref().filter(|_| width == 0);
    let [width, height] = hires.and_then(|hires| hires.output_size(size).ok()).unwrap_or(size);
    width as f64 * height as f64 * job.count as f64
}

/// Converts an error of reading an image. Images are part of the request, so the error is the client's.
fn unreadable(error: &flux::Error) -> ApiError {
    match error.kind() {
        ErrorKind::Failure => ApiError::image(error, field_name(error.field().unwrap_or(Field::Inputs), Form::Full)),
        _ => ApiError::from(error),
    }
}

/// Errors if an image has too many pixels.
pub fn check_pixels(width: usize, height: usize, most: usize) -> Result<()> {
    if width.saturating_mul(height) <= most {
        return Ok(());
    }
    Err(ApiError::value("size", format!("the image is {width}x{height}, expected at most {most} pixels")))
}

/// Errors if no device has enough memory for an image.
fn check_memory(engine: &Engine, plan: &Plan) -> Result<()> {
    let mut plans = engine.memory_plans(plan, 1).into_iter().map(|(_, plan)| plan);
    let first = plans.next();
    match first {
        Some(Err(error)) if !plans.any(|plan| plan.is_ok()) => {
            Err(ApiError::bad("never_fits", error.what().to_string()).with_param("size"))
        }
        _ => Ok(()),
    }
}
