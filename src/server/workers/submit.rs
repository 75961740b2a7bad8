//! From a request to messages of the online queue.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flux::engine::Recipe;
use flux::output::ImageFormat;
use futures_util::future::try_join_all;
use tokio::sync::oneshot;

use super::follow::{self, Image};
use super::{STORE_WITHIN, Workers, locked};
use crate::progress::say;
use crate::queue::message::{self, FileFormat, JobMessage, VERSION, check_tensors, unix_time};
use crate::queue::names::{Key, Lane, input};
use crate::queue::online::Refused;
use crate::server::backlog::SOON;
use crate::server::error::{ApiError, Result};
use crate::server::ids::new_id;
use crate::server::record::{JobRecord, NewJob, Owner, Status};
use crate::server::request::{Asked, Encoding, Previews, Priority};
use crate::server::work::{Work, check_pixels};

/// How long the store may take for an image, and for an adapter.
const UPLOAD_WITHIN: Duration = Duration::from_secs(60);
const ADAPTER_WITHIN: Duration = Duration::from_secs(600);
/// How long a job may wait that has no deadline of its own.
const MOST_WAIT: Duration = Duration::from_secs(3600);
/// The longest result.
const MOST_RESULT: u64 = 1 << 30;

/// A request whose images were read.
pub struct Draft {
    work: Work,
    arrived: Instant,
    count: usize,
    encoding: Encoding,
    notes: Vec<String>,
    /// Its images, by the names that the store has for them.
    inputs: BTreeMap<String, Bytes>,
    /// What they are called by its recipe.
    names: BTreeMap<PathBuf, PathBuf>,
}

/// An image that is to be drawn.
struct One {
    image: usize,
    job: String,
    key: Key,
    recipe: Recipe,
}

impl Workers {
    /// Reads the images of a request, which may take a while.
    ///
    /// Errors when it cannot be carried out, as far as that is known without a model.
    pub fn read(&self, mut asked: Asked) -> Result<Draft> {
        let arrived = Instant::now();
        self.check_open()?;
        let (model, note) = self.models.find(asked.model.as_deref())?;
        check_tensors(&asked.recipe).map_err(ApiError::from)?;
        let files = asked.files.clone();
        let work = Work::new(&mut asked, &self.models, model, arrived)?;
        let recipe = work.recipe(0);
        check_pixels(recipe.width.unwrap_or(0), recipe.height.unwrap_or(0), self.limits.max_pixels)?;
        let mut notes = asked.notes;
        notes.extend(note);
        if asked.previews.are_wanted() && asked.previews != Previews::All {
            notes.push("`partial_images` has no effect: workers of a queue send no previews".to_string());
        }
        if asked.priority != Priority::Normal {
            notes.push("`priority` has no effect: a queue is worked off in its order".to_string());
        }
        let (mut inputs, mut names) = (BTreeMap::new(), BTreeMap::new());
        for (name, bytes) in files {
            let object = input(blake3::hash(&bytes).to_hex().as_str());
            names.insert(name, PathBuf::from(&object));
            inputs.insert(object, Bytes::from(bytes));
        }
        Ok(Draft { work, arrived, count: asked.count, encoding: asked.encoding, notes, inputs, names })
    }

    /// Gives the images of a request to workers. Returns once the broker has all of them.
    ///
    /// Errors when there is too much work already, or broker or store are away. A client that is gone by then wants
    /// none of it.
    pub async fn submit(self: &Arc<Self>, draft: Draft, owner: Owner) -> Result<Arc<JobRecord>> {
        let (answer, answered) = oneshot::channel();
        let workers = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(Ok(unwanted)) = answer.send(workers.submit_all(draft, owner).await) {
                unwanted.cancel();
            }
        });
        answered.await.unwrap_or_else(|_| Err(ApiError::internal("giving the job to workers panicked").for_good()))
    }

    async fn submit_all(self: Arc<Self>, draft: Draft, owner: Owner) -> Result<Arc<JobRecord>> {
        let record = self.record(&draft, owner)?;
        match self.send(&draft, &record).await {
            Ok(()) => Ok(record),
            Err(error) => {
                record.fail(error.clone());
                Err(error)
            }
        }
    }

    /// A record of it, where there is room.
    fn record(&self, draft: &Draft, owner: Owner) -> Result<Arc<JobRecord>> {
        let Draft { work, count, encoding, notes, .. } = draft;
        let job = NewJob {
            id: new_id(),
            owner,
            model: self.models.name(work.model).to_string(),
            prompt: work.prompt().to_string(),
            encoding: *encoding,
            count: *count,
            input_bytes: 0,
        };
        let record = JobRecord::new(job, notes.clone());
        let mut open = self.open();
        self.check_open()?;
        let waiting = || open.iter().filter(|job| job.status() == Status::Queued);
        if waiting().count() >= self.limits.queue_max {
            return Err(ApiError::too_many("queue_full", "too many requests of this server wait already", SOON));
        }
        let own: usize = waiting().filter(|job| job.owner.key == record.owner.key).map(|job| job.count).sum();
        if own + count > self.limits.client_images {
            let message = format!("{own} images of this client wait already, and {} may", self.limits.client_images);
            return Err(ApiError::too_many("too_many_waiting", message, SOON));
        }
        self.pixels.take(&record.owner.key, work.pixels() * *count as f64, Instant::now()).map_err(|wait| {
            ApiError::too_many("rate_limited", "the client asked for more pixels a minute than it may", wait)
        })?;
        open.push(Arc::clone(&record));
        Ok(record)
    }

    /// Sends those images that have no result yet, and begins to follow them.
    async fn send(self: &Arc<Self>, draft: &Draft, record: &Arc<JobRecord>) -> Result<()> {
        let model = self.description(&record.model).await?;
        self.upload(&draft.inputs).await?;
        let recipe = self.sent(draft).await?;
        let format = file_format(draft.encoding);
        let mut missing = Vec::new();
        let ones = (0..draft.count).map(|image| {
            let recipe = Recipe { seed: draft.work.recipe(image).seed, ..recipe.clone() };
            Ok(One { image, job: new_id(), key: message::key(&model, &recipe, format)?, recipe })
        });
        let ones = ones.collect::<flux::Result<Vec<_>>>()?;
        let names: Vec<_> = ones.iter().map(|one| one.key.to_string()).collect();
        let looks = names.iter().map(|name| self.of_store(UPLOAD_WITHIN, self.store.get(name, MOST_RESULT)));
        for (one, found) in ones.into_iter().zip(try_join_all(looks).await?) {
            match found {
                Some(file) => {
                    follow::plan_of_file(record, &file);
                    record.made(one.image, follow::made(self, &one.key, file).await?);
                    self.metrics.images.inc();
                }
                None => missing.push(one),
            }
        }
        self.publish(draft, record, missing).await
    }

    async fn publish(self: &Arc<Self>, draft: &Draft, record: &Arc<JobRecord>, missing: Vec<One>) -> Result<()> {
        let deadline = draft.work.deadline.unwrap_or(draft.arrived + MOST_WAIT);
        let messages = missing.iter().map(|one| {
            let bytes = message_of(one, draft, record, deadline).to_bytes();
            bytes.map(|bytes| (&*record.model, bytes)).map_err(|e| ApiError::from(&e).of("prompt"))
        });
        let messages = messages.collect::<Result<Vec<_>>>()?;
        if messages.is_empty() {
            return Ok(());
        }
        // What happens to them is heard from the first moment on.
        let images = missing.iter().map(|One { image, job, key, .. }| {
            let follows = self.hub.follow(job.clone());
            Image { record: Arc::clone(record), image: *image, key: *key, deadline, follows }
        });
        let mut images: Vec<_> = images.collect();
        let sent = self.online.send(messages).await;
        let away = || ApiError::unavailable("broker_away", "the queue of the workers takes nothing now", SOON);
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
            // Those that the broker has all the same are called off by whoever follows them.
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

    /// Gives the store the images that it does not have.
    async fn upload(&self, inputs: &BTreeMap<String, Bytes>) -> Result<()> {
        let uploads = inputs.iter().map(|(name, bytes)| self.put(name, bytes.clone(), UPLOAD_WITHIN));
        try_join_all(uploads).await.map(drop)
    }

    async fn put(&self, name: &str, bytes: Bytes, time: Duration) -> Result<()> {
        if self.of_store(STORE_WITHIN, self.store.has(name)).await? {
            return Ok(());
        }
        self.of_store(time, self.store.put(name, bytes)).await
    }

    /// The recipe, whose files are in the store.
    async fn sent(&self, draft: &Draft) -> Result<Recipe> {
        let mut recipe = draft.work.recipe(0);
        for file in recipe.inputs.iter_mut().chain(&mut recipe.mask) {
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

    /// The object of an adapter of this server, which goes into the store when it is first asked for.
    async fn adapter(&self, file: &Path) -> Result<String> {
        let known = locked(&self.adapters).get(file).cloned();
        if let Some(object) = known
            && self.of_store(STORE_WITHIN, self.store.has(&object)).await?
        {
            return Ok(object);
        }
        let path = file.to_path_buf();
        let read = tokio::task::spawn_blocking(move || std::fs::read(path).map(|bytes| (blake3::hash(&bytes), bytes)));
        let (hash, bytes) = read.await.map_err(std::io::Error::other).and_then(|read| read).map_err(|e| {
            say(&format!("error: cannot read {}: {e}", file.display()));
            ApiError::internal("the LoRA cannot be read").of("loras")
        })?;
        let object = input(hash.to_hex().as_str());
        self.put(&object, bytes.into(), ADAPTER_WITHIN).await?;
        locked(&self.adapters).insert(file.to_path_buf(), object.clone());
        Ok(object)
    }
}

fn file_format(encoding: Encoding) -> FileFormat {
    match encoding.format {
        ImageFormat::Png => FileFormat::Png,
        ImageFormat::Jpeg => FileFormat::Jpeg { quality: encoding.quality },
        ImageFormat::Webp => FileFormat::Webp,
    }
}

fn message_of(one: &One, draft: &Draft, record: &JobRecord, deadline: Instant) -> JobMessage {
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
        format: file_format(draft.encoding),
        client: Some(record.owner.key.clone()),
        priority: Lane::Online,
        deadline: Some(unix_time() + left.as_secs_f64().ceil() as u64),
        submitted: unix_time(),
    }
}
