//! The record of a job: its request, its progress and its results.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use flux::error::shortened;
use flux::pipeline::{Latents, Plan, Transparency};
use flux::stage::CancelFlag;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::http::error::{ApiError, cancelled};
use crate::http::ids::new_id;
use crate::jobs::request::{Asked, Encoding, Previews};

/// The approximate bytes of a job, in addition to its files and its prompt.
const RECORD_BYTES: usize = 2048;
/// The approximate bytes of a job's remains, in addition to its texts, and the bytes of each image.
const REST_BYTES: usize = 1024;
const REST_IMAGE_BYTES: usize = size_of::<Option<Made>>();
/// Max notes of a job, and max characters of a note, since notes may quote the request.
const MAX_NOTES: usize = 32;
const MAX_NOTE: usize = 2000;

/// The status of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Queued,
    Running,
    Done,
    Failed,
    Cancelled,
}

impl Status {
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }
}

/// An event of a job. Images are numbered from 0.
#[derive(Debug, Clone)]
pub enum JobEvent {
    Queued,
    Started { image: usize },
    Step { image: usize, step: u64, steps: u64 },
    Preview { image: usize, index: usize, step: usize, steps: usize, file: Bytes },
    Image { image: usize },
    Done,
    Failed(ApiError),
    Cancelled,
}

/// A finished image.
#[derive(Debug, Clone)]
pub struct Made {
    pub file: Bytes,
    pub seed: u64,
    pub width: usize,
    pub height: usize,
    /// The recipe that reproduces it.
    pub recipe: Value,
    /// The generation parameters in A1111's format.
    pub parameters: String,
    /// A temporary URL in the store of remote workers, if clients are sent there.
    pub url: Option<String>,
}

impl Made {
    /// Returns the prompt that the image was generated from, if it was expanded, if a language model wrote it, if it
    /// has lines of controls, or if it asks for a plain background.
    pub fn revised_prompt(&self) -> Option<&str> {
        let recipe = &self.recipe["recipe"];
        let is_revised =
            ["template", "upsampled", "controls", "transparent"].iter().any(|field| !recipe[*field].is_null());
        recipe["prompt"].as_str().filter(|_| is_revised)
    }

    /// Returns the request from which a language model wrote the prompt.
    pub fn upsampled_from(&self) -> Option<&str> {
        self.recipe["recipe"]["upsampled"]["request"].as_str()
    }

    /// Adds the revised prompt to a response, under the name of OpenAI.
    pub fn add_revised_prompt(&self, mut response: Value) -> Value {
        if let Some(prompt) = self.revised_prompt() {
            response["revised_prompt"] = prompt.into();
        }
        response
    }
}

/// The owner of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The name of a key, or the client's address without keys.
    pub key: String,
    /// The name under which work is counted, see [`Client::share`](crate::http::client::Client::share).
    pub share: String,
    /// The user that the client named.
    pub user: String,
}

/// A job with its state.
#[derive(Debug)]
pub struct JobRecord {
    pub id: String,
    pub owner: Owner,
    pub model: String,
    pub prompt: String,
    pub encoding: Encoding,
    /// `true` if its images have no background.
    pub is_transparent: bool,
    /// `true` if its files contain no recipe.
    pub no_recipe: bool,
    /// `true` if it enlarges an image, with the upscaler as its model.
    pub is_enlarging: bool,
    pub previews: Previews,
    pub count: usize,
    pub created: SystemTime,
    pub arrived: Instant,
    pub deadline: Option<Instant>,
    pub cancel: CancelFlag,
    state: Mutex<State>,
    /// Incremented by each change.
    version: watch::Sender<u64>,
}

/// The part of a job that changes.
#[derive(Debug)]
struct State {
    status: Status,
    /// `true` once its inputs were read and it is queued.
    is_taken: bool,
    events: Vec<JobEvent>,
    images: Vec<Option<Made>>,
    plan: Planned,
    notes: Vec<String>,
    error: Option<ApiError>,
    started: Option<Instant>,
    ended: Option<Instant>,
    /// The final latents of its image, kept for the next image in the chain.
    latents: Option<Latents>,
}

/// The plan that the model made for it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Planned {
    pub width: usize,
    pub height: usize,
    pub steps: usize,
    pub text_tokens: usize,
    /// Tokens of reference images.
    pub image_tokens: usize,
}

impl Planned {
    pub fn new(plan: &Plan) -> Self {
        let image_tokens = plan.references.iter().map(|[height, width]| height / 16 * (width / 16)).sum();
        let ([width, height], &Plan { steps, text_tokens, .. }) = (plan.output_size(), plan);
        Self { width, height, steps, text_tokens, image_tokens }
    }

    /// Returns the tokens of an image. An enlarged image, which has no steps, has none.
    pub fn tokens(&self) -> usize {
        if self.steps == 0 { 0 } else { (self.width / 16) * (self.height / 16) }
    }
}

/// A copy of a job's state.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub status: Status,
    pub images: Vec<Option<Made>>,
    pub plan: Planned,
    pub notes: Vec<String>,
    pub error: Option<ApiError>,
    /// The times from arrival to start, and from start to end.
    pub queued_for: Duration,
    pub ran_for: Option<Duration>,
}

impl JobRecord {
    pub fn new(owner: Owner, model: &str, asked: &Asked, notes: Vec<String>) -> Arc<Self> {
        let arrived = Instant::now();
        let state = State {
            status: Status::Queued,
            is_taken: false,
            events: vec![JobEvent::Queued],
            images: vec![None; asked.count],
            plan: Planned::default(),
            notes: bounded(notes),
            error: None,
            started: None,
            ended: None,
            latents: None,
        };
        Arc::new(Self {
            id: new_id(),
            owner,
            model: model.to_string(),
            prompt: asked.recipe.prompt.clone(),
            encoding: asked.encoding,
            is_transparent: asked.recipe.transparent != Transparency::No,
            no_recipe: asked.no_recipe,
            is_enlarging: asked.enlarging.is_some(),
            previews: asked.previews,
            count: asked.count,
            created: SystemTime::now(),
            arrived,
            deadline: asked.deadline.and_then(|time| arrived.checked_add(time)),
            cancel: CancelFlag::default(),
            state: Mutex::new(state),
            version: watch::Sender::new(0),
        })
    }

    /// Changes the state and notifies watchers, unless the job has ended. Returns `true` if it changed.
    fn change(&self, change: impl FnOnce(&mut State)) -> bool {
        let mut state = self.state.lock();
        if state.status.is_over() {
            return false;
        }
        change(&mut state);
        if state.status.is_over() {
            state.ended = Some(Instant::now());
        }
        drop(state);
        self.version.send_modify(|version| *version += 1);
        true
    }

    /// Sets the plan of the model.
    pub fn plan(&self, plan: Planned, notes: &[String]) {
        self.change(|state| {
            state.plan = plan;
            state.notes.extend(bounded(notes.to_vec()));
        });
    }

    /// Returns the plan of the model. Its size is 0 before planning.
    pub fn planned(&self) -> Planned {
        self.state.lock().plan
    }

    /// Returns the time left until the deadline, or `None` without a deadline.
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Adds notes from reading its inputs.
    pub fn note(&self, notes: Vec<String>) {
        if !notes.is_empty() {
            self.change(|state| state.notes.extend(notes));
        }
    }

    /// Marks it as queued, after its inputs were read. It may have ended already.
    pub fn take(&self) {
        self.state.lock().is_taken = true;
        self.version.send_modify(|version| *version += 1);
    }

    /// Returns `true` if it is queued, or was.
    pub fn is_taken(&self) -> bool {
        self.state.lock().is_taken
    }

    /// Returns `true` while its inputs are being read.
    pub fn is_reading(&self) -> bool {
        let state = self.state.lock();
        !state.is_taken && !state.status.is_over()
    }

    /// Waits until its inputs are read, or it has ended.
    ///
    /// Errors if it is refused.
    pub async fn taken(&self) -> Result<(), ApiError> {
        let mut changes = self.watch();
        while self.is_reading() {
            // Cannot fail, since the sender lives as long as the record.
            let _ = changes.changed().await;
        }
        let is_taken = self.state.lock().is_taken;
        self.failure().filter(|_| !is_taken).map_or(Ok(()), Err)
    }

    /// Returns the error of a job that failed; a cancelled job did not.
    pub fn failure(&self) -> Option<ApiError> {
        let state = self.state.lock();
        state.error.clone().filter(|_| state.status == Status::Failed)
    }

    /// Records an event of one of its images.
    pub fn push_event(&self, event: JobEvent) {
        self.change(|state| {
            if let JobEvent::Started { .. } = event {
                state.status = Status::Running;
                state.started.get_or_insert_with(Instant::now);
            }
            state.events.push(event);
        });
    }

    /// Stores a finished image. Returns `true` if it was the last one.
    pub fn made(&self, image: usize, made: Made) -> bool {
        let mut is_last = false;
        self.change(|state| {
            state.images[image] = Some(made);
            state.events.push(JobEvent::Image { image });
            if state.images.iter().all(Option::is_some) {
                is_last = true;
                state.status = Status::Done;
                state.events.push(JobEvent::Done);
            }
        });
        is_last
    }

    /// Fails the job and cancels its remaining images. Returns `true` if it had not ended.
    pub fn fail(&self, error: ApiError) -> bool {
        self.stop(Status::Failed, error.clone(), JobEvent::Failed(error))
    }

    /// Cancels the job. Returns `true` if it had not ended.
    pub fn cancel(&self) -> bool {
        self.stop(Status::Cancelled, cancelled(), JobEvent::Cancelled)
    }

    fn stop(&self, status: Status, error: ApiError, event: JobEvent) -> bool {
        let changed = self.change(|state| {
            state.status = status;
            state.error = Some(error);
            state.events.push(event);
        });
        self.cancel.cancel();
        changed
    }

    /// Stores the final latents for the next image in the chain.
    pub fn keep_latents(&self, latents: Option<Latents>) {
        self.state.lock().latents = latents;
    }

    /// Takes the latents of [`JobRecord::keep_latents`].
    pub fn take_latents(&self) -> Option<Latents> {
        self.state.lock().latents.take()
    }

    pub fn status(&self) -> Status {
        self.state.lock().status
    }

    /// Subscribes to changes.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Waits until the job has ended.
    pub async fn end(&self) {
        let mut changes = self.watch();
        while !self.status().is_over() {
            // Cannot fail, since the sender lives as long as the record.
            let _ = changes.changed().await;
        }
    }

    /// Returns the events from index `first` on.
    pub fn events_from(&self, first: usize) -> Vec<JobEvent> {
        self.state.lock().events.get(first..).unwrap_or_default().to_vec()
    }

    pub fn snapshot(&self) -> Snapshot {
        let state = self.state.lock();
        let now = Instant::now();
        let started = state.started.or(state.ended).unwrap_or(now);
        Snapshot {
            status: state.status,
            images: state.images.clone(),
            plan: state.plan,
            notes: state.notes.clone(),
            error: state.error.clone(),
            queued_for: started.duration_since(self.arrived),
            ran_for: state.started.map(|started| state.ended.unwrap_or(now).duration_since(started)),
        }
    }

    /// Returns the time at which the job ended.
    pub fn ended(&self) -> Option<Instant> {
        self.state.lock().ended
    }

    /// Returns the bytes that the record keeps.
    pub fn result_bytes(&self) -> usize {
        let state = self.state.lock();
        let previews = state.events.iter().map(|event| match event {
            JobEvent::Preview { file, .. } => file.len(),
            _ => 0,
        });
        let files = state.images.iter().flatten().map(|made| made.file.len()).sum::<usize>() + previews.sum::<usize>();
        let events = state.events.len() * size_of::<JobEvent>();
        // Each image has a recipe, which contains the prompt, too.
        files + events + (1 + 2 * self.count) * (self.prompt.len() + RECORD_BYTES)
    }

    /// Returns a copy without images and events, for an ended job that is no longer retained.
    pub fn rest(&self) -> Arc<Self> {
        let state = self.state.lock();
        let note = (state.status == Status::Done).then(|| "its images are no longer kept".to_string());
        let image = |made: &Made| Made {
            file: Bytes::new(),
            recipe: Value::Null,
            parameters: String::new(),
            url: None,
            ..*made
        };
        let rest = State {
            events: Vec::new(),
            images: state.images.iter().map(|made| made.as_ref().map(image)).collect(),
            notes: state.notes.iter().cloned().chain(note).collect(),
            error: state.error.clone(),
            latents: None,
            ..*state
        };
        Arc::new(Self {
            id: self.id.clone(),
            owner: self.owner.clone(),
            model: self.model.clone(),
            prompt: self.prompt.clone(),
            encoding: self.encoding,
            is_transparent: self.is_transparent,
            no_recipe: self.no_recipe,
            is_enlarging: self.is_enlarging,
            previews: self.previews,
            count: self.count,
            created: self.created,
            arrived: self.arrived,
            deadline: self.deadline,
            cancel: CancelFlag::default(),
            state: Mutex::new(rest),
            version: watch::Sender::new(0),
        })
    }

    /// Returns the approximate bytes of [`JobRecord::rest`].
    pub fn rest_bytes(&self) -> usize {
        let notes = self.state.lock().notes.iter().map(String::len).sum::<usize>();
        REST_BYTES + self.prompt.len() + notes + self.count * REST_IMAGE_BYTES
    }
}

/// Limits notes in number and length. The last note counts the ones left out.
fn bounded(mut notes: Vec<String>) -> Vec<String> {
    let left_out = notes.len().saturating_sub(MAX_NOTES);
    notes.truncate(MAX_NOTES);
    for note in notes.iter_mut().filter(|note| note.len() > MAX_NOTE) {
        *note = shortened(note, MAX_NOTE).into_owned();
    }
    notes.extend((left_out > 0).then(|| format!("{left_out} more notes")));
    notes
}

impl Snapshot {
    /// Returns the token counts in OpenAI's format.
    pub fn usage(&self) -> Value {
        let Planned { text_tokens, image_tokens, .. } = self.plan;
        let output = self.plan.tokens() * self.images.len();
        json!({
            "input_tokens": text_tokens + image_tokens,
            "input_tokens_details": {"text_tokens": text_tokens, "image_tokens": image_tokens},
            "output_tokens": output,
            "total_tokens": text_tokens + image_tokens + output,
        })
    }

    /// Returns the size of its images, or of its plan while none is finished.
    pub fn size(&self) -> String {
        let made = self.images.iter().flatten().next();
        made.map_or_else(|| self.planned_size(), |made| format!("{}x{}", made.width, made.height))
    }

    /// Returns the size of its previews, which a masked image may exceed.
    pub fn planned_size(&self) -> String {
        format!("{}x{}", self.plan.width, self.plan.height)
    }

    /// Returns the timings in seconds.
    pub fn timings(&self) -> Value {
        json!({"queued_s": self.queued_for.as_secs_f64(), "ran_s": self.ran_for.map(|time| time.as_secs_f64())})
    }
}

#[cfg(test)]
impl JobRecord {
    /// Returns a record for tests.
    pub fn sample(count: usize) -> Arc<Self> {
        let owner = Owner { key: "k".to_string(), share: "k".to_string(), user: String::new() };
        Self::new(owner, "tiny", &Asked::sample(count), Vec::new())
    }
}
