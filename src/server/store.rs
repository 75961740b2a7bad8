//! Jobs and files that are kept for a while, in memory.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::error::{ApiError, Result};
use super::record::JobRecord;
use super::uploads::{Folder, Place, Uploads};

/// How long a key of a client names the same request.
const IDEMPOTENT: Duration = Duration::from_secs(24 * 3600);
/// Keys of clients that are remembered.
const MOST_KEYS: usize = 100_000;
/// The part of the memory for results that images which clients send may take.
const UPLOADS: usize = 2;

/// See the module.
#[derive(Default)]
pub struct Store {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The oldest first.
    jobs: VecDeque<Arc<JobRecord>>,
    files: VecDeque<File>,
    uploads: Uploads,
    keys: HashMap<(String, String), Remembered>,
}

struct File {
    name: String,
    bytes: Bytes,
    media_type: &'static str,
    since: Instant,
}

/// What a key of a client was sent with.
struct Remembered {
    body: blake3::Hash,
    job: Arc<JobRecord>,
    since: Instant,
}

impl Store {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a job; it can be asked for until it was over for `kept`, and longer where there is room.
    pub fn add(&self, job: Arc<JobRecord>) {
        self.state().jobs.push_back(job);
    }

    /// A job of an owner.
    pub fn job(&self, id: &str, key: &str) -> Option<Arc<JobRecord>> {
        self.state().jobs.iter().find(|job| job.id == id && job.owner.key == key).cloned()
    }

    /// The jobs of an owner, the newest first.
    pub fn jobs(&self, key: &str) -> Vec<Arc<JobRecord>> {
        self.state().jobs.iter().rev().filter(|job| job.owner.key == key).cloned().collect()
    }

    /// Keeps a file, and returns its name.
    pub fn add_file(&self, bytes: Bytes, extension: &str, media_type: &'static str) -> String {
        let name = format!("{}.{extension}", super::ids::new_id());
        self.state().files.push_back(File { name: name.clone(), bytes, media_type, since: Instant::now() });
        name
    }

    pub fn file(&self, name: &str) -> Option<(Bytes, &'static str)> {
        let state = self.state();
        let file = state.files.iter().find(|file| file.name == name)?;
        Some((file.bytes.clone(), file.media_type))
    }

    /// An image that an owner sent.
    pub fn upload(&self, owner: &str, place: &Place) -> Option<Bytes> {
        self.state().uploads.get(owner, place)
    }

    /// Keeps an image that an owner sent; the first ones of whoever has most make room. `most` is that of
    /// [`Store::tidy`].
    ///
    /// Errors when there is no room for it.
    pub fn add_upload(&self, owner: &str, place: Place, bytes: Bytes, most: usize) -> Result<()> {
        if self.state().uploads.add(owner, place, bytes, most / UPLOADS) {
            return Ok(());
        }
        Err(ApiError::too_many("uploads_full", "there is no room for more images", Duration::from_secs(60)))
    }

    /// The names of the images that an owner sent to a folder.
    pub fn uploads(&self, owner: &str, folder: Folder) -> Vec<String> {
        self.state().uploads.names(owner, folder)
    }

    /// The job that the key of a client was sent with before.
    ///
    /// Errors when the request was another one.
    pub fn recall(&self, owner: &str, key: &str, body: blake3::Hash) -> Result<Option<Arc<JobRecord>>> {
        match self.state().keys.get(&(owner.to_string(), key.to_string())) {
            Some(known) if known.since.elapsed() > IDEMPOTENT => Ok(None),
            Some(known) if known.body == body => Ok(Some(Arc::clone(&known.job))),
            Some(_) => {
                let message = "the `Idempotency-Key` was sent with another request";
                let status = axum::http::StatusCode::CONFLICT;
                Err(ApiError::new(status, "idempotency_conflict", message).for_good())
            }
            None => Ok(None),
        }
    }

    /// Remembers what the key of a client was sent with.
    pub fn remember(&self, owner: &str, key: &str, body: blake3::Hash, job: &Arc<JobRecord>) {
        let mut state = self.state();
        if state.keys.len() >= MOST_KEYS {
            state.keys.retain(|_, known| known.since.elapsed() <= IDEMPOTENT);
            if state.keys.len() >= MOST_KEYS {
                return;
            }
        }
        let remembered = Remembered { body, job: Arc::clone(job), since: Instant::now() };
        state.keys.insert((owner.to_string(), key.to_string()), remembered);
    }

    /// Forgets what is too old, and the oldest of what is too much.
    pub fn tidy(&self, kept: Duration, most: usize) {
        let mut state = self.state();
        state.files.retain(|file| file.since.elapsed() <= kept);
        state.jobs.retain(|job| job.ended().is_none_or(|ended| ended.elapsed() <= kept));
        let mut bytes: usize = state.files.iter().map(|file| file.bytes.len()).sum();
        while bytes > most
            && let Some(file) = state.files.pop_front()
        {
            bytes -= file.bytes.len();
        }
        state.uploads.tidy(kept, (most / UPLOADS).min(most.saturating_sub(bytes)));
        let mut room = most.saturating_sub(bytes + state.uploads.bytes());
        let mut keep: Vec<bool> = state
            .jobs
            .iter()
            .rev()
            .map(|job| {
                let bytes = job.result_bytes();
                let fits = job.ended().is_none() || bytes <= room;
                room = room.saturating_sub(bytes);
                fits
            })
            .collect();
        state.jobs.retain(|_| keep.pop().unwrap_or(true));
        state.keys.retain(|_, known| known.since.elapsed() <= IDEMPOTENT);
        let State { jobs, keys, .. } = &mut *state;
        let kept: HashSet<*const JobRecord> = jobs.iter().map(Arc::as_ptr).collect();
        keys.retain(|_, known| kept.contains(&Arc::as_ptr(&known.job)));
    }
}
