//! Follows an image from the engine to its file, on a thread of its own: the file is made beside the next images.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use flux::engine::{Engine, Event, Job, JobImage, Ticket};
use flux::error::ErrorKind;
use flux::metadata::Metadata;
use flux::output::{self, ImageFormat};
use flux::pipeline::Request;
use flux::rgb::Rgb;
use flux::stage::{CancelFlag, Progress, Stage};

use super::error::{ApiError, Result};
use super::metrics::Metrics;
use super::rates::Kind;
use super::record::{JobEvent, JobRecord, Made};
use super::request::Encoding;
use super::running::Move;
use super::work::Work;

/// An image of a job.
pub struct Item {
    pub record: Arc<JobRecord>,
    pub work: Arc<Work>,
    pub image: usize,
}

/// An image that an engine is given.
pub struct Image<G> {
    pub item: Item,
    /// Dropped when the engine has done with it.
    pub group: G,
    /// Hears of the seconds that it took.
    pub learn: Box<dyn FnOnce(Kind, f64) + Send>,
    /// The most images that the engine makes at once, of this group and others that it has.
    pub most_together: usize,
    /// Hears of whatever happens to it.
    pub moves: Box<dyn Fn(Move) + Send>,
    pub metrics: Arc<Metrics>,
}

/// Ends a job whose thread ended without doing so.
struct EndsIt(Item);

impl Drop for EndsIt {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.record.fail(ApiError::internal("the thread of the job panicked"));
        }
    }
}

impl<G: Send + 'static> Image<G> {
    /// Gives it to the engine.
    ///
    /// Errors when that refuses it, or the system starts no thread.
    pub fn follow(self, engine: &Engine) -> Result<()> {
        let Some(ready) = self.item.work.ready() else { return Err(ApiError::internal("the job was not planned")) };
        let job = Job {
            cancel: self.item.record.cancel.clone(),
            most_together: self.most_together,
            ..self.item.work.job(ready, self.item.image)
        };
        let ticket = engine.submit(job).map_err(ApiError::from)?;
        let started = thread::Builder::new().name("image".to_string()).spawn(move || self.hear(ticket));
        started.map(drop).map_err(|e| ApiError::from(flux::Error::no_thread(&e)))
    }

    /// Tells the job what the engine says.
    fn hear(self, ticket: Ticket) {
        let Self { item, group, learn, moves, metrics, .. } = self;
        let item = EndsIt(item);
        let Item { record, work, image: place } = &item.0;
        let place = *place;
        let (mut made, mut start, mut batch, mut last) = (None, Instant::now(), 1, None);
        for event in ticket {
            moves(move_of(&event));
            match event {
                Ok(Event::Started { batch: images, .. }) => {
                    (start, batch) = (Instant::now(), images);
                    record.tell(JobEvent::Started { image: place });
                    metrics.batch_sizes.observe(images as f64);
                }
                Ok(Event::Progress(progress))
                    if progress.stage == Stage::Denoise && last.replace(progress.done) != Some(progress.done) =>
                {
                    record.tell(JobEvent::Step { image: place, step: progress.done, steps: progress.total });
                }
                Ok(Event::Preview { steps, image, .. }) => {
                    let index = work.previews.index(steps);
                    let file = index.and_then(|_| encode_preview(&image, record.encoding).ok());
                    if let Some((index, file)) = index.zip(file) {
                        let [step, steps] = steps;
                        record.tell(JobEvent::Preview { image: place, index, step, steps, file: file.into() });
                    }
                }
                Ok(Event::Image { image, latents, .. }) => {
                    record.keep_latents(latents);
                    made = Some(image);
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Cancelled => {
                    record.cancel();
                }
                Err(error) => {
                    crate::progress::say(&format!("job {}: {error}", record.id));
                    record.fail(ApiError::from(&error));
                }
            }
        }
        if let (Some(ready), true) = (work.ready(), made.is_some()) {
            learn(ready.kind, start.elapsed().as_secs_f64() / batch as f64);
        }
        // The engine has done with it.
        drop(group);
        match made.map(|image| encode(&image, record.encoding)) {
            Some(Ok(made)) => {
                record.made(place, made);
                metrics.images.inc();
            }
            Some(Err(error)) => {
                record.fail(ApiError::from(&error));
            }
            // Where it ended with an error, it is over already.
            None => {
                record.fail(ApiError::internal("the engine ended without the image"));
            }
        }
    }
}

/// What an event means for the group.
fn move_of(event: &flux::Result<Event>) -> Move {
    match event {
        Ok(Event::Started { .. }) => Move::Started,
        Ok(Event::Progress(Progress { stage: Stage::Denoise, done, total })) => Move::Step([*done, *total]),
        _ => Move::Other,
    }
}

/// The file of an image.
fn encode(image: &JobImage, encoding: Encoding) -> flux::Result<Made> {
    let file = match encoding.quality {
        Some(quality) => image.encode_jpeg(quality)?,
        None => image.encode(encoding.format)?,
    };
    let pixels = image.pixels()?;
    let made = image.recipe();
    let recipe = made.as_ref().and_then(|recipe| serde_json::from_str(&recipe.to_json()).ok());
    Ok(Made {
        file: file.into(),
        seed: image.plan.seed,
        width: pixels.width,
        height: pixels.height,
        recipe: recipe.unwrap_or_default(),
        parameters: made.map(|made| made.parameters()).unwrap_or_default(),
        url: None,
    })
}

/// What a step leads to, as a file of the format of the image.
fn encode_preview(image: &Rgb, encoding: Encoding) -> flux::Result<Vec<u8>> {
    match encoding.format {
        ImageFormat::Jpeg => output::encode_jpeg(image, encoding.quality.unwrap_or(85), &Metadata::default()),
        format => output::encode(image, format, &Metadata::default()),
    }
}

/// Makes a small image that nobody sees, so that the first client does not wait for weights.
///
/// Errors when it cannot be made.
pub fn warm_up(engine: &Engine, cancel: &CancelFlag) -> flux::Result<()> {
    engine.prepare_previews();
    let request = Request { width: Some(64), height: Some(64), steps: Some(1), ..Request::new("", 0) };
    engine.generate(&request, 1, cancel, &mut |_| {}).map(drop)
}
