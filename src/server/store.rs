//! Jobs and files that are kept for a while, in memory.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::error::{ApiError, Result};
use super::record::JobRecord;
use super::repeats::Repeats;
use super::uploads::{Folder, Place, Uploads};

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
    repeats: Repeats,
}

struct File {
    name: String,
    bytes: Bytes,
    media_type: &'static str,
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
        self.state().repeats.recall(owner, key, body, Instant::now())
    }

    /// Remembers what the key of a client was sent with.
    pub fn remember(&self, owner: &str, key: &str, body: blake3::Hash, job: &Arc<JobRecord>) {
        self.state().repeats.remember(owner, key, body, job, Instant::now());
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
        let State { jobs, repeats, .. } = &mut *state;
        let kept: HashSet<*const JobRecord> = jobs.iter().map(Arc::as_ptr).collect();
        repeats.tidy(|job| kept.contains(&Arc::as_ptr(job)), Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::record::Status;

    #[test]
    fn a_key_names_its_job_when_the_images_are_gone() {
        let store = Store::default();
        let (done, waiting) = (JobRecord::sample(1), JobRecord::sample(1));
        let body = blake3::hash(b"x");
        for (key, job) in [("done", &done), ("waiting", &waiting)] {
            store.add(Arc::clone(job));
            store.remember("k", key, body, job);
        }
        done.cancel();
        store.tidy(Duration::ZERO, 0);
        assert_eq!(store.jobs("k").len(), 1);
        let recalled = store.recall("k", "done", body).unwrap().unwrap();
        assert_eq!((&recalled.id, recalled.status()), (&done.id, Status::Cancelled));
        assert!(!Arc::ptr_eq(&recalled, &done), "what is left of it");
        assert!(Arc::ptr_eq(&store.recall("k", "waiting", body).unwrap().unwrap(), &waiting));
    }
}
