//! A job of a client: what it asks for, how far it is, and what came of it.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use flux::pipeline::Latents;
use flux::stage::CancelFlag;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::error::{ApiError, cancelled};
use super::request::Encoding;

/// What a job takes beside its files and its prompt, about.
const RECORD_BYTES: usize = 2048;
/// What is left of a job takes beside its texts, about, and what an image of it takes.
const REST_BYTES: usize = 1024;
const REST_IMAGE_BYTES: usize = size_of::<Option<Made>>();

/// How far a job is.
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

/// What happens to a job. Images are counted from 0.
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

/// An image that was made.
#[derive(Debug, Clone)]
pub struct Made {
    pub file: Bytes,
    pub seed: u64,
    pub width: usize,
    pub height: usize,
    /// How it is made again.
    pub recipe: Value,
    /// How it was made, in the words of A1111.
    pub parameters: String,
    /// Where the store of workers has it for a while, where clients are sent there.
    pub url: Option<String>,
}

/// Whose a job is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The name of a key, or an address where there are none.
    pub key: String,
    /// Whom the client asked for.
    pub user: String,
}

/// What is known of a job when it arrives.
#[derive(Debug, Clone)]
pub struct NewJob {
    pub id: String,
    pub owner: Owner,
    pub model: String,
    pub prompt: String,
    pub encoding: Encoding,
    pub count: usize,
    /// Bytes that it keeps while it waits.
    pub input_bytes: usize,
}

/// A job, and what becomes of it.
#[derive(Debug)]
pub struct JobRecord {
    job: NewJob,
    pub created: SystemTime,
    pub arrived: Instant,
    pub cancel: CancelFlag,
    state: Mutex<State>,
    /// Counts the changes.
    version: watch::Sender<u64>,
}

/// What changes of a job.
#[derive(Debug)]
struct State {
    status: Status,
    events: Vec<JobEvent>,
    images: Vec<Option<Made>>,
    plan: Planned,
    notes: Vec<String>,
    error: Option<ApiError>,
    started: Option<Instant>,
    ended: Option<Instant>,
    /// The final latents of its image, for one behind it.
    latents: Option<Latents>,
}

/// What the model makes of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Planned {
    pub width: usize,
    pub height: usize,
    pub steps: usize,
    pub text_tokens: usize,
    /// Of references.
    pub image_tokens: usize,
}

impl Planned {
    /// Tokens of an image.
    pub fn tokens(&self) -> usize {
        (self.width / 16) * (self.height / 16)
    }
}

/// A job as it is at one time.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub status: Status,
    pub images: Vec<Option<Made>>,
    pub plan: Planned,
    pub notes: Vec<String>,
    pub error: Option<ApiError>,
    /// From its arrival until it was begun, and from there until its end.
    pub queued_for: Duration,
    pub ran_for: Option<Duration>,
}

impl Deref for JobRecord {
    type Target = NewJob;

    fn deref(&self) -> &NewJob {
        &self.job
    }
}

impl JobRecord {
    pub fn new(job: NewJob, notes: Vec<String>) -> Arc<Self> {
        let state = State {
            status: Status::Queued,
            events: vec![JobEvent::Queued],
            images: vec![None; job.count],
            plan: Planned::default(),
            notes,
            error: None,
            started: None,
            ended: None,
            latents: None,
        };
        Arc::new(Self {
            job,
            created: SystemTime::now(),
            arrived: Instant::now(),
            cancel: CancelFlag::default(),
            state: Mutex::new(state),
            version: watch::Sender::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes it unless it is over, and tells those who watch. Returns whether it did.
    fn change(&self, change: impl FnOnce(&mut State)) -> bool {
        let mut state = self.state();
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

    /// What the model makes of it is known.
    pub fn plan(&self, plan: Planned, notes: &[String]) {
        self.change(|state| {
            state.plan = plan;
            state.notes.extend(notes.iter().cloned());
        });
    }

    /// Something happens to one of its images.
    pub fn tell(&self, event: JobEvent) {
        self.change(|state| {
            if let JobEvent::Started { .. } = event {
                state.status = Status::Running;
                state.started.get_or_insert_with(Instant::now);
            }
            state.events.push(event);
        });
    }

    /// One of its images is made. Returns whether it was the last one.
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

    /// Ends it with an error. What is left of it is not made. Returns whether it was not over.
    pub fn fail(&self, error: ApiError) -> bool {
        let changed = self.change(|state| {
            state.status = Status::Failed;
            state.error = Some(error.clone());
            state.events.push(JobEvent::Failed(error));
        });
        self.cancel.cancel();
        changed
    }

    /// Ends it because somebody asked for that. Returns whether it was not over.
    pub fn cancel(&self) -> bool {
        let changed = self.change(|state| {
            state.status = Status::Cancelled;
            state.error = Some(cancelled());
            state.events.push(JobEvent::Cancelled);
        });
        self.cancel.cancel();
        changed
    }

    /// What an image behind its own may begin with.
    pub fn keep_latents(&self, latents: Option<Latents>) {
        self.state().latents = latents;
    }

    /// [`JobRecord::keep_latents`], which it gives away.
    pub fn take_latents(&self) -> Option<Latents> {
        self.state().latents.take()
    }

    pub fn status(&self) -> Status {
        self.state().status
    }

    /// Hears of changes.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Waits until it is over.
    pub async fn end(&self) {
        let mut changes = self.watch();
        while !self.status().is_over() {
            // The sender lives as long as the record.
            let _ = changes.changed().await;
        }
    }

    /// The events from one on.
    pub fn events_from(&self, first: usize) -> Vec<JobEvent> {
        self.state().events.get(first..).unwrap_or_default().to_vec()
    }

    pub fn snapshot(&self) -> Snapshot {
        let state = self.state();
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

    /// When it was over.
    pub fn ended(&self) -> Option<Instant> {
        self.state().ended
    }

    /// Bytes that it takes while it is kept.
    pub fn result_bytes(&self) -> usize {
        let state = self.state();
        let previews = state.events.iter().map(|event| match event {
            JobEvent::Preview { file, .. } => file.len(),
            _ => 0,
        });
        let files = state.images.iter().flatten().map(|made| made.file.len()).sum::<usize>() + previews.sum::<usize>();
        let events = state.events.len() * size_of::<JobEvent>();
        // Each image has its recipe, which holds the prompt, too.
        files + events + (1 + 2 * self.count) * (self.prompt.len() + RECORD_BYTES)
    }

    /// What is left of a job that is over when its images are not kept any more.
    pub fn rest(&self) -> Arc<Self> {
        let state = self.state();
        let note = (state.status == Status::Done).then(|| "its images are not kept any more".to_string());
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
            job: self.job.clone(),
            created: self.created,
            arrived: self.arrived,
            cancel: CancelFlag::default(),
            state: Mutex::new(rest),
            version: watch::Sender::new(0),
        })
    }

    /// Bytes that [`JobRecord::rest`] takes, about.
    pub fn rest_bytes(&self) -> usize {
        let notes = self.state().notes.iter().map(String::len).sum::<usize>();
        REST_BYTES + self.prompt.len() + notes + self.count * REST_IMAGE_BYTES
    }
}

impl Snapshot {
    /// What OpenAI's clients count.
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

    pub fn size(&self) -> String {
        format!("{}x{}", self.plan.width, self.plan.height)
    }

    /// Seconds.
    pub fn timings(&self) -> Value {
        json!({"queued_s": self.queued_for.as_secs_f64(), "ran_s": self.ran_for.map(|time| time.as_secs_f64())})
    }
}

#[cfg(test)]
impl JobRecord {
    /// One for tests.
    pub fn sample(count: usize) -> Arc<Self> {
        let job = NewJob {
            id: "id".to_string(),
            owner: Owner { key: "k".to_string(), user: String::new() },
            model: "tiny".to_string(),
            prompt: "x".to_string(),
            encoding: Encoding { format: flux::output::ImageFormat::Png, quality: None },
            count,
            input_bytes: 0,
        };
        Self::new(job, Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> Made {
        Made {
            file: Bytes::from_static(b"png"),
            seed: 1,
            width: 64,
            height: 64,
            recipe: Value::Null,
            parameters: String::new(),
            url: None,
        }
    }

    #[test]
    fn it_is_done_with_its_last_image() {
        let record = JobRecord::sample(2);
        let waiting = record.result_bytes();
        record.tell(JobEvent::Started { image: 0 });
        assert_eq!(record.status(), Status::Running);
        assert!(!record.made(1, made()));
        assert!(record.made(0, made()));
        assert_eq!(record.status(), Status::Done);
        assert_eq!(record.result_bytes() - waiting, 6 + 4 * size_of::<JobEvent>(), "two files, and what was told");
        assert!(!record.cancel() && !record.fail(ApiError::internal("x")), "it is over");
        assert_eq!(record.status(), Status::Done);
    }

    #[test]
    fn what_is_left_of_it_has_no_images() {
        let record = JobRecord::sample(1);
        record.made(0, made());
        let rest = record.rest();
        let Snapshot { status, images, notes, .. } = rest.snapshot();
        assert_eq!((status, notes.len(), &rest.id, rest.created), (Status::Done, 1, &record.id, record.created));
        assert!(images[0].as_ref().is_some_and(|made| made.file.is_empty() && made.seed == 1));
        assert!(rest.events_from(0).is_empty());
    }

    #[test]
    fn an_error_ends_it_once() {
        let record = JobRecord::sample(1);
        assert!(record.fail(ApiError::internal("broken")));
        assert!(record.cancel.check().is_err(), "nothing more of it is made");
        record.made(0, made());
        let Snapshot { status, error, images, .. } = record.snapshot();
        assert_eq!((status, error.unwrap().message.as_str(), images[0].is_none()), (Status::Failed, "broken", true));
        assert!(matches!(record.events_from(0)[..], [JobEvent::Queued, JobEvent::Failed(_)]));
    }
}
