//! Draws a job, on a thread of its own, and makes the file.

use std::path::PathBuf;
use std::sync::Arc;

use flux::engine::{Engine, Event, ImageRecipe, InputSource, Inputs, Job, JobImage, Recipe};
use flux::error::{Error, ErrorKind, Result};
use flux::files::ModelPaths;
use flux::pipeline::Request;
use flux::stage::{CancelFlag, Progress, Stage};

use super::inputs::Fetched;
use super::{Spool, Watchdog};
use crate::queue::message::{FileFormat, JobMessage, PlanSaid};
use crate::queue::names::Lane;

/// How a job is drawn.
pub struct How {
    /// Images that may be made at once with it.
    pub most_together: usize,
    pub max_pixels: usize,
    pub cancel: CancelFlag,
}

/// Why there is no file. What a job asks for is wrong in itself unless something else is said.
pub enum Undrawn {
    /// The job asks for what cannot be drawn, by any worker.
    Wrong(Error),
    /// It was cancelled.
    Cancelled,
    /// This worker has no memory for it now, or lost a file.
    Busy(Error),
    /// The engine failed.
    Failed(Error),
}

impl From<Error> for Undrawn {
    fn from(error: Error) -> Self {
        Self::Wrong(error)
    }
}

/// What the engine says of a job.
pub enum Heard {
    Started,
    /// A step is done, of so many.
    Step([u64; 2]),
}

/// A job that a model can draw.
pub struct Prepared {
    job: Job,
    pub plan: PlanSaid,
}

/// What a model can draw of a job.
///
/// Errors when it can not, or cannot now.
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
    check_pixels(plan.width, plan.height, how.max_pixels)?;
    let mut plans = engine.memory_plans(&plan, 1).into_iter().map(|(_, plan)| plan);
    if let Some(Err(error)) = plans.next()
        && !plans.any(|plan| plan.is_ok())
    {
        return Err(if error.kind() == ErrorKind::Usage { Undrawn::Wrong(error) } else { Undrawn::Busy(error) });
    }
    ImageRecipe::check_room(recipe, &ModelPaths::default(), &inputs, message.format.ending().format())?;
    let said = PlanSaid {
        width: plan.width,
        height: plan.height,
        steps: plan.steps,
        text_tokens: plan.text_tokens,
        image_tokens: plan.references.iter().map(|[height, width]| height / 16 * (width / 16)).sum(),
        notes: inputs.notes().iter().chain(&plan.notes).cloned().collect(),
    };
    let job = Job {
        inputs: Arc::new(inputs),
        recipe: Some(Arc::new(Recipe { seed: request.seed, ..recipe.clone() })),
        priority: i32::from(message.priority == Lane::Online),
        most_together: how.most_together,
        cancel: how.cancel.clone(),
        ..Job::new(request, 1)
    };
    Ok(Prepared { job, plan: said })
}

fn check_pixels(width: usize, height: usize, most: usize) -> Result<()> {
    if width.saturating_mul(height) <= most {
        return Ok(());
    }
    Err(Error::usage(format!("the image is of {width}x{height}, and workers draw at most {most} pixels")))
}

/// Draws a job, and returns its file, and what drew it. `delivery` is the one of this worker that it is of; `hear`
/// hears how far it is.
pub fn draw(
    engine: &Engine,
    prepared: Prepared,
    message: &JobMessage,
    (delivery, watchdog): (u64, &Watchdog),
    hear: &dyn Fn(Heard),
) -> std::result::Result<(Vec<u8>, Arc<str>), Undrawn> {
    /// The engine is done with the job, however that came.
    struct Given<'a>(&'a Watchdog, u64);
    impl Drop for Given<'_> {
        fn drop(&mut self) {
            self.0.over(self.1);
        }
    }
    watchdog.given();
    let given = Given(watchdog, delivery);
    let ticket = engine.submit(prepared.job).map_err(undrawn)?;
    let (mut made, mut last, mut by) = (None, None, Arc::from(""));
    for event in ticket {
        match event.map_err(undrawn)? {
            Event::Started { .. } => {
                watchdog.begun(delivery, &message.job);
                hear(Heard::Started);
            }
            Event::Image { image, .. } => made = Some(image),
            Event::Finished { device, .. } => by = device,
            Event::Progress(Progress { stage: Stage::Denoise, done, total }) if last.replace(done) != Some(done) => {
                watchdog.moved();
                hear(Heard::Step([done, total]));
            }
            _ => watchdog.moved(),
        }
    }
    drop(given);
    let image = made.ok_or_else(|| Undrawn::Failed(Error::new("the engine ended without the image")))?;
    let file = encode(&image, message.format).map_err(Undrawn::Wrong)?;
    Ok((file, by))
}

fn undrawn(error: Error) -> Undrawn {
    match error.kind() {
        ErrorKind::Usage => Undrawn::Wrong(error),
        ErrorKind::Cancelled => Undrawn::Cancelled,
        ErrorKind::Failure => Undrawn::Failed(error),
    }
}

fn encode(image: &JobImage, format: FileFormat) -> Result<Vec<u8>> {
    match format {
        FileFormat::Jpeg { quality: Some(quality) } => image.encode_jpeg(quality),
        format => image.encode(format.ending().format()),
    }
}

/// The places that an error may name are of the worker, which is nobody's business.
pub fn told(error: &Error) -> String {
    let text = error.to_string();
    let folder: PathBuf = std::env::temp_dir();
    text.replace(&*folder.to_string_lossy(), "...")
}
