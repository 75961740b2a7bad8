//! Generates the image of a job, on a blocking thread, and encodes it.

use std::path::PathBuf;
use std::sync::Arc;

use flux::engine::{Engine, Event, Image, ImageRecipe, InputSource, Inputs, Job, Priority, Recipe};
use flux::error::{Error, ErrorKind, KEYS, Result, named};
use flux::files::ModelPaths;
use flux::pipeline::Request;
use flux::stage::{CancelFlag, Progress, Stage};
use scopeguard::guard;

use super::inputs::Fetched;
use super::{Spool, Watchdog};
use crate::message::{FileFormat, JobMessage, PlanSaid};
use crate::names::Lane;

/// Options for generating a job.
pub struct How {
    /// Max images in the same batch of the engine.
    pub max_together: usize,
    pub max_pixels: usize,
    pub cancel: CancelFlag,
}

/// The reason why there is no file. Errors convert to [`Undrawn::Wrong`] by default.
pub enum Undrawn {
    /// The request is invalid, for any worker.
    Wrong(Error),
    /// The job was cancelled.
    Cancelled,
    /// This worker has too little memory at the moment, or lost a file.
    Busy(Error),
    /// The engine failed.
    Failed(Error),
}

impl From<Error> for Undrawn {
    fn from(error: Error) -> Self {
        Self::Wrong(error)
    }
}

/// A progress report of the engine.
pub enum JobProgress {
    Started,
    /// The number of completed steps, and of all steps.
    Step([u64; 2]),
}

/// A job that is ready for the engine.
pub struct Prepared {
    job: Job,
    pub plan: PlanSaid,
}

/// Prepares a job for the engine.
///
/// Errors if the model cannot generate it, or not at the moment.
pub fn prepare(
    engine: &Engine,
    spool: &Spool,
    message: &JobMessage,
    fetched: &mut Fetched,
    how: &How,
) -> std::result::Result<Prepared, Undrawn> {
    let recipe = &message.recipe;
    let mut nothing = std::io::empty();
    let mut source = InputSource::new(&mut nothing);
    source.embedded = std::mem::take(&mut fetched.pictures);
    let inputs = Inputs::read(recipe, &mut source)?;
    let request = inputs.apply(recipe.request()?);
    let request = Request { adapters: spool.adapters(engine, fetched)?, ..request };
    request.check_count(1)?;
    check_pixels(recipe.width.unwrap_or(0), recipe.height.unwrap_or(0), how.max_pixels)?;
    let plan = engine.plan(&request)?;
    let [width, height] = plan.output_size();
    check_pixels(width, height, how.max_pixels)?;
    let mut plans = engine.memory_plans(&plan, 1).into_iter().map(|(_, plan)| plan);
    if let Some(Err(error)) = plans.next()
        && !plans.any(|plan| plan.is_ok())
    {
        return Err(if error.kind() == ErrorKind::Usage { Undrawn::Wrong(error) } else { Undrawn::Busy(error) });
    }
    recipe.check_format(message.format.image_format())?;
    ImageRecipe::check_room(recipe, &ModelPaths::default(), &inputs, message.format.image_format())?;
    let said = PlanSaid {
        width,
        height,
        steps: plan.steps,
        text_tokens: plan.text_tokens,
        image_tokens: plan.references.iter().map(|[height, width]| height / 16 * (width / 16)).sum(),
        notes: inputs.notes().iter().chain(&plan.notes).map(|note| named(note, KEYS)).collect(),
    };
    let job = Job {
        inputs: Arc::new(inputs),
        recipe: Some(Arc::new(Recipe { seed: request.seed, ..recipe.clone() })),
        priority: if message.priority == Lane::Online { Priority::High } else { Priority::Normal },
        max_together: how.max_together,
        cancel: how.cancel.clone(),
        ..Job::new(request, 1)
    };
    Ok(Prepared { job, plan: said })
}

fn check_pixels(width: usize, height: usize, most: usize) -> Result<()> {
    if width.saturating_mul(height) <= most {
        return Ok(());
    }
    Err(Error::usage(format!("the image has {width}x{height} pixels, but the maximum of the workers is {most}")))
}

/// Generates a job. Returns the encoded file and the name of the device. `delivery` is the number of the delivery, and
/// `report` is called with progress reports.
pub fn draw(
    engine: &Engine,
    prepared: Prepared,
    message: &JobMessage,
    (delivery, watchdog): (u64, &Watchdog),
    report: &dyn Fn(JobProgress),
) -> std::result::Result<(Vec<u8>, Arc<str>), Undrawn> {
    watchdog.given();
    // Also if the engine fails.
    let given = guard(watchdog, |watchdog| watchdog.over(delivery));
    let ticket = engine.submit(prepared.job).map_err(undrawn)?;
    let (mut made, mut last, mut by) = (None, None, Arc::from(""));
    for event in ticket {
        match event.map_err(undrawn)? {
            Event::Started { .. } => {
                watchdog.begun(delivery, &message.job);
                report(JobProgress::Started);
            }
            Event::Image { image, .. } => made = Some(image),
            Event::Finished { device, .. } => by = device,
            Event::Progress(Progress { stage: Stage::Denoise, done, total }) if last.replace(done) != Some(done) => {
                watchdog.moved();
                report(JobProgress::Step([done, total]));
            }
            _ => watchdog.moved(),
        }
    }
    drop(given);
    let image = made.ok_or_else(|| Undrawn::Failed(Error::new("the engine ended without returning the image")))?;
    let file = encode(&image, message.format).map_err(Undrawn::Wrong)?;
    Ok((file, by))
}

fn undrawn(error: Error) -> Undrawn {
    match error.kind() {
        ErrorKind::Usage => Undrawn::Wrong(error),
        ErrorKind::Cancelled => Undrawn::Cancelled,
        _ => Undrawn::Failed(error),
    }
}

fn encode(image: &Image, format: FileFormat) -> Result<Vec<u8>> {
    match format {
        FileFormat::Jpeg { quality: Some(quality) } => image.encode_jpeg(quality),
        format => image.encode(format.image_format()),
    }
}

/// Returns the text of an error, without the worker's temporary folder, which is private.
pub fn public_text(error: &Error) -> String {
    let text = error.to_string();
    let folder: PathBuf = std::env::temp_dir();
    text.replace(&*folder.to_string_lossy(), "...")
}
