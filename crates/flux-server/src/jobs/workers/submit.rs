//! From a request to messages in the online queue.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use bytes::Bytes;
use flux::engine::{Job, Priority, Recipe};
use flux::stage::CancelFlag;
use futures_util::future::try_join_all;
use tokio::sync::oneshot;

use super::follow::{self, Image};
use super::{STORE_WITHIN, Workers};
use crate::http::error::{ApiError, Result, SOON, cancelled};
use crate::http::ids::new_id;
use crate::jobs::record::{JobRecord, Status};
use crate::jobs::request::{Asked, Previews};
use crate::jobs::work::{self, check_pixels};
use flux_queue::message::{self, FileFormat, JobMessage, VERSION, check_tensors, unix_time};
use flux_queue::names::{Key, Lane, input};
use flux_queue::online::Refused;
use flux_runtime::progress::say;

/// The timeouts for uploading an image and an adapter.
const UPLOAD_WITHIN: Duration = Duration::from_secs(60);
const ADAPTER_WITHIN: Duration = Duration::from_secs(600);
/// The max wait of a job without a deadline.
const MAX_WAIT: Duration = Duration::from_secs(3600);
/// Max bytes of a result.
const MAX_RESULT: u64 = 1 << 30;

/// A request whose images were read.
pub struct Draft {
    job: Job,
    /// Its images by object name.
    inputs: BTreeMap<String, Bytes>,
    /// Object names by the file names in the recipe.
    names: BTreeMap<PathBuf, PathBuf>,
}

/// An image to generate.
struct One {
    image: usize,
    job: String,
    key: Key,
    recipe: Recipe,
}

impl Workers {
    /// Reads the images of a request, which may take a while.
    ///
    /// Errors if the request is invalid, as far as known without a model.
    pub fn read(&self, record: &JobRecord, mut asked: Asked, cancel: &CancelFlag) -> Result<Draft> {
        check_tensors(&asked.recipe).map_err(ApiError::from)?;
        if asked.edits_whole {
            let message = "the edit of a generated image above a megapixel requires a server with a model, but this \
                           server has a queue";
            return Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_with_a_queue", message).for_good());
        }
        asked.prepare(cancel)?;
        let files = asked.files.clone();
        let job = work::read(&mut asked, record, &self.models, cancel)?;
        let [width, height] = [job.request.width, job.request.height].map(|side| side.unwrap_or(0));
        check_pixels(width, height, self.limits.max_pixels)?;
        let mut notes = asked.notes;
        if asked.previews.are_wanted() && asked.previews != Previews::All {
            notes.push("`partial_images` has no effect: workers of a queue send no previews".to_string());
        }
        if asked.priority != Priority::Normal {
            notes.push("`priority` has no effect: a queue is processed in order".to_string());
        }
        let (mut inputs, mut names) = (BTreeMap::new(), BTreeMap::new());
        for (name, bytes) in files {
            let object = input(blake3::hash(&bytes).to_hex().as_str());
            names.insert(name, PathBuf::from(&object));
            inputs.insert(object, Bytes::from(bytes));
        }
        record.note(notes);
        Ok(Draft { job, inputs, names })
    }

    /// Sends the images of a request to the workers. Returns once the broker has accepted all of them.
    ///
    /// Errors if there is too much work already, or the broker or the store is unreachable.
    pub async fn submit(self: &Arc<Self>, draft: Draft, record: Arc<JobRecord>) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        let workers = Arc::clone(self);
        // Runs to completion even if the client disconnects, since messages that no task follows could not be
        // cancelled.
        tokio::spawn(async move {
            let sent = match workers.open_job(&draft, &record) {
                Ok(()) => workers.send(&draft, &record).await,
                Err(error) => Err(error),
            };
            // If the job was cancelled meanwhile, the tasks that follow its images cancel them.
            let _ = answer.send(sent);
        });
        answered.await.unwrap_or_else(|_| Err(ApiError::internal("submitting the job to workers panicked").for_good()))
    }

    /// Counts a job as unfinished, within the limits.
    fn open_job(&self, draft: &Draft, record: &Arc<JobRecord>) -> Result<()> {
        let count = record.count;
        let mut open = self.open();
        self.check_open()?;
        if record.status().is_over() {
            return Err(cancelled());
        }
        let waiting = || open.iter().filter(|job| job.status() == Status::Queued);
        if waiting().count() >= self.limits.queue_max {
            return Err(ApiError::too_many("queue_full", "too many requests of this server are already waiting", SOON));
        }
        let own: usize = waiting().filter(|job| job.owner.share == record.owner.share).map(|job| job.count).sum();
        if own + count > self.limits.client_images {
            let message =
                format!("{own} images of this client are waiting, the maximum is {}", self.limits.client_images);
            return Err(ApiError::too_many("too_many_waiting", message, SOON));
        }
        self.pixels.take(&record.owner.share, work::pixels(&draft.job, record), Instant::now()).map_err(|wait| {
            ApiError::too_many("rate_limited", "the client has reached its limit of pixels per minute", wait)
        })?;
        open.push(Arc::clone(record));
        Ok(())
    }

    /// Sends the images that have no result yet, and starts to follow them.
    async fn send(self: &Arc<Self>, draft: &Draft, record: &Arc<JobRecord>) -> Result<()> {
        let model = self.description(&record.model).await?;
        self.upload(&draft.inputs).await?;
        let recipe = self.sent(draft).await?;
        let format = FileFormat::new(record.encoding.format, record.encoding.quality);
        let mut missing = Vec::new();
        let ones = (0..record.count).map(|image| {
            let recipe = draft.job.image_recipe(&recipe, image);
            Ok(One { image, job: new_id(), key: message::key(&model, &recipe, format)?, recipe })
        });
        let ones = ones.collect::<flux::Result<Vec<_>>>()?;
        let names: Vec<_> = ones.iter().map(|one| one.key.to_string()).collect();
        let looks = names.iter().map(|name| self.await_store(UPLOAD_WITHIN, self.store.get(name, MAX_RESULT)));
        for (one, found) in ones.into_iter().zip(try_join_all(looks).await?) {
            match found {
                Some(file) => {
                    follow::plan_of_file(record, &file);
                    record.made(one.image, follow::made(self, record, &one.key, file).await?);
                    self.metrics.images.inc();
                }
                None => missing.push(one),
            }
        }
        self.publish(record, missing).await
    }

    async fn publish(self: &Arc<Self>, record: &Arc<JobRecord>, missing: Vec<One>) -> Result<()> {
        let deadline = record.deadline.unwrap_or(record.arrived + MAX_WAIT);
        let messages = missing.iter().map(|one| {
            let bytes = message_of(one, record, deadline).to_bytes();
            bytes.map(|bytes| (&*record.model, bytes)).map_err(|e| ApiError::from(&e).with_param("prompt"))
        });
        let messages = messages.collect::<Result<Vec<_>>>()?;
        if messages.is_empty() {
            return Ok(());
        }
        // Subscribe before sending, so that no event is missed.
        let images = missing.iter().map(|One { image, job, key, .. }| {
            let follows = self.hub.follow(job.clone());
            Image { record: Arc::clone(record), image: *image, key: *key, deadline, follows }
        });
        let mut images: Vec<_> = images.collect();
        let sent = self.online.send(messages).await;
        let away = || ApiError::unavailable("broker_away", "the queue of the workers does not accept jobs now", SOON);
        let error = match sent {
            Ok(()) => None,
            Err(Refused::Full(refused)) => {
                refused.into_iter().rev().for_each(|place| drop(images.remove(place)));
                Some(ApiError::unavailable("queue_full", "the queue of the workers is full", SOON))
            }
            Err(Refused::Away) => {
                images.clear();
                Some(away())
            }
            Err(Refused::Unsure(error)) => {
                say(&format!("note: {error}"));
                Some(away())
            }
        };
        if let Some(error) = &error {
            // If the broker accepted some messages anyway, the tasks that follow them cancel them.
            record.fail(error.clone());
        }
        images.into_iter().for_each(|image| self.follow(image));
        error.map_or(Ok(()), Err)
    }

    fn follow(self: &Arc<Self>, image: Image) {
        self.followed.fetch_add(1, Ordering::Relaxed);
        let workers = Arc::clone(self);
        tokio::spawn(async move {
            image.follow(&workers).await;
            workers.followed.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Uploads the images that the store lacks.
    async fn upload(&self, inputs: &BTreeMap<String, Bytes>) -> Result<()> {
        let uploads = inputs.iter().map(|(name, bytes)| self.put(name, bytes.clone(), UPLOAD_WITHIN));
        try_join_all(uploads).await.map(drop)
    }

    async fn put(&self, name: &str, bytes: Bytes, time: Duration) -> Result<()> {
        if self.await_store(STORE_WITHIN, self.store.has(name)).await? {
            return Ok(());
        }
        self.await_store(time, self.store.put(name, bytes)).await
    }

    /// Returns the recipe with object names as files.
    async fn sent(&self, draft: &Draft) -> Result<Recipe> {
        let mut recipe = draft.job.recipe.as_deref().cloned().unwrap_or_default();
        for file in recipe.images_mut() {
            if let Some(object) = draft.names.get(file) {
                object.clone_into(file);
            }
        }
        for used in &mut recipe.adapters {
            let file = self.models.adapter(&used.file.to_string_lossy())?;
            used.file = self.adapter(file).await?.into();
        }
        Ok(recipe)
    }

    /// Returns the object name of an adapter, uploading it on first use.
    async fn adapter(&self, file: &Path) -> Result<String> {
        let known = self.adapters.lock().get(file).cloned();
        if let Some(object) = known
            && self.await_store(STORE_WITHIN, self.store.has(&object)).await?
        {
            return Ok(object);
        }
        let path = file.to_path_buf();
        let read = tokio::task::spawn_blocking(move || std::fs::read(path).map(|bytes| (blake3::hash(&bytes), bytes)));
        let (hash, bytes) = read.await.map_err(std::io::Error::other).and_then(|read| read).map_err(|e| {
            say(&format!("error: cannot read {}: {e}", file.display()));
            ApiError::internal("the LoRA cannot be read").with_param("loras")
        })?;
        let object = input(hash.to_hex().as_str());
        self.put(&object, bytes.into(), ADAPTER_WITHIN).await?;
        self.adapters.lock().insert(file.to_path_buf(), object.clone());
        Ok(object)
    }
}

fn message_of(one: &One, record: &JobRecord, deadline: Instant) -> JobMessage {
    let left = deadline.saturating_duration_since(Instant::now());
    JobMessage {
        v: VERSION,
        job: one.job.clone(),
        batch: None,
        line: 0,
        n: one.image + 1,
        key: one.key,
        model: record.model.clone(),
        recipe: one.recipe.clone(),
        format: FileFormat::new(record.encoding.format, record.encoding.quality),
        client: Some(record.owner.key.clone()),
        priority: Lane::Online,
        deadline: Some(unix_time() + left.as_secs_f64().ceil() as u64),
        submitted: unix_time(),
    }
}
