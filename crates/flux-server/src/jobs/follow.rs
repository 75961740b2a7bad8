//! Follows an image from the engine to its file. Each image is a task, and files are encoded on threads for blocking
//! work while the next images are generated.

use std::sync::Arc;
use std::thread;

use flux::engine::{Enlarging, Event, Message};
use flux::error::ErrorKind;
use flux::input;
use flux::metadata::Metadata;
use flux::output::{self, ImageFormat};
use flux::rgb::Rgb;
use flux::stage::{Progress, Stage};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::spawn_blocking;

use crate::http::error::{ApiError, too_late};
use crate::jobs::enlarging;
use crate::jobs::metrics::Metrics;
use crate::jobs::record::{JobEvent, JobRecord, Made, Planned};
use crate::jobs::request::{Encoding, Previews};

/// Max parts of an enlarged image in progress reports.
const MAX_PARTS: u64 = 20;

/// The queue that an image is from, which counts unfinished images.
pub trait ImageQueue: Send + Sync {
    /// Counts an image as started.
    fn started(&self, record: &JobRecord);
    /// Counts an image as ended.
    fn ended(&self, record: &JobRecord, model: usize, was_started: bool);
    fn metrics(&self) -> &Metrics;
}

/// An image of a job that was submitted to an engine. When it is dropped, the queue counts it as ended.
pub struct Image {
    queue: Arc<dyn ImageQueue>,
    record: Arc<JobRecord>,
    model: usize,
    place: usize,
    is_started: bool,
    /// The image that the job enlarges, instead of generating one.
    enlarging: Option<Arc<Enlarging>>,
}

impl Drop for Image {
    fn drop(&mut self) {
        if thread::panicking() {
            self.record.fail(ApiError::internal("the thread of the job panicked"));
        }
        self.queue.ended(&self.record, self.model, self.is_started);
    }
}

impl Image {
    pub fn new(queue: Arc<dyn ImageQueue>, record: Arc<JobRecord>, model: usize, place: usize) -> Self {
        Self { queue, record, model, place, is_started: false, enlarging: None }
    }

    pub fn with_enlarging(mut self, enlarging: Option<Arc<Enlarging>>) -> Self {
        self.enlarging = enlarging;
        self
    }

    /// Forwards the engine's messages to the job.
    pub async fn follow(mut self, mut messages: UnboundedReceiver<Message>) {
        let (mut made, mut enlarged, mut last) = (None, None, None);
        while let Some(message) = messages.recv().await {
            match message {
                Message::Event { event: Event::Image { image, latents, .. }, .. } => {
                    self.record.keep_latents(latents);
                    made = Some(image);
                }
                Message::Event { event: Event::Enlarged(image), .. } => enlarged = Some(image),
                Message::Event { event, .. } => self.forward(event, &mut last).await,
                Message::End(end) => {
                    if let Err(error) = end {
                        self.fail(&error);
                    }
                    break;
                }
            }
        }
        let encoding = self.record.encoding;
        let encoded = match (made, self.enlarging.take().zip(enlarged)) {
            (Some(image), _) => spawn_blocking(move || encode(&image, encoding)).await,
            (None, Some((enlarging, image))) => {
                spawn_blocking(move || enlarging::encode(&enlarging, &image, encoding)).await
            }
            // Has no effect if the job already ended with an error.
            (None, None) => Ok(Err(flux::Error::new("the engine ended without the image"))),
        };
        let (queue, record, place) = (Arc::clone(&self.queue), Arc::clone(&self.record), self.place);
        // A client that has its image must not find it counted as running.
        drop(self);
        match encoded {
            Ok(Ok(made)) => {
                queue.metrics().images.inc();
                record.made(place, made);
            }
            Ok(Err(error)) => {
                record.fail(ApiError::from(&error));
            }
            Err(_) => {
                record.fail(ApiError::internal("encoding the image panicked"));
            }
        }
    }

    async fn forward(&mut self, event: Event, last: &mut Option<u64>) {
        let place = self.place;
        match event {
            Event::Started { batch, .. } => {
                if !self.is_started {
                    self.is_started = true;
                    self.queue.started(&self.record);
                }
                self.record.push_event(JobEvent::Started { image: place });
                self.queue.metrics().batch_sizes.observe(batch as f64);
            }
            Event::Progress(progress)
                if progress.stage == Stage::Denoise && last.replace(progress.done) != Some(progress.done) =>
            {
                self.record.push_event(JobEvent::Step { image: place, step: progress.done, steps: progress.total });
            }
            Event::Progress(Progress { stage: Stage::Upscale, done, total }) => {
                // An image in many tiles has thousands of parts.
                let steps = total.min(MAX_PARTS);
                let step = done * steps / total.max(1);
                if last.replace(step) != Some(step) {
                    self.record.push_event(JobEvent::Step { image: place, step, steps });
                }
            }
            Event::Preview { steps, image, .. } => {
                let JobRecord { previews, encoding, .. } = *self.record;
                let Some(index) = previews.index(steps) else { return };
                // Previews requested by number have the size of the image.
                let Planned { width, height, .. } = self.record.planned();
                let size = matches!(previews, Previews::AtMost(_)).then_some([width, height]);
                let file = spawn_blocking(move || encode_preview(&image, encoding, size)).await;
                if let Ok(Ok(file)) = file {
                    let ([step, steps], file) = (steps, file.into());
                    self.record.push_event(JobEvent::Preview { image: place, index, step, steps, file });
                }
            }
            _ => {}
        }
    }

    /// Ends the job with an error of the engine.
    fn fail(&self, error: &flux::Error) {
        let record = &self.record;
        if error.kind() == ErrorKind::Cancelled {
            record.cancel();
        } else if !self.is_started && record.time_left().is_some_and(|left| left.is_zero()) {
            record.fail(too_late());
        } else {
            flux_runtime::progress::say(&format!("job {}: {error}", record.id));
            record.fail(ApiError::from(error));
        }
    }
}

/// Encodes an image.
fn encode(image: &flux::engine::Image, encoding: Encoding) -> flux::Result<Made> {
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

/// Encodes a preview in the format of the image, scaled to `size` if given.
fn encode_preview(image: &Rgb, encoding: Encoding, size: Option<[usize; 2]>) -> flux::Result<Vec<u8>> {
    let scaled = size.filter(|size| *size != [image.width, image.height]).map(|size| input::resized(image, size));
    let image = scaled.as_ref().unwrap_or(image);
    match encoding.format {
        ImageFormat::Jpeg => output::encode_jpeg(image, encoding.quality.unwrap_or(85), &Metadata::default()),
        format => output::encode(image, format, &Metadata::default()),
    }
}
