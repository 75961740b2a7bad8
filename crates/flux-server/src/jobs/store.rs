//! Jobs and files that are retained in memory for a while.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::http::error::{ApiError, Result};
use crate::jobs::record::JobRecord;
use crate::jobs::repeats::Repeats;
use crate::jobs::uploads::{Folder, Place, Uploads};

/// The divisor of the memory for results that gives the memory for uploads.
const UPLOADS: usize = 2;

/// The store. See the [module](self).
#[derive(Default)]
pub struct Store {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Oldest first.
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
    /// Stores the job that `begin` returns. It is retained for `kept` after its end, or less if memory runs out. If an
    /// earlier request had the same key, its job is returned instead.
    ///
    /// Errors if the earlier request had another body, or `begin` errors.
    pub fn begin_once(
        &self,
        owner: &str,
        key: Option<(&str, blake3::Hash)>,
        begin: impl FnOnce() -> Result<Arc<JobRecord>>,
    ) -> Result<Arc<JobRecord>> {
        let mut state = self.state.lock();
        if let Some((key, body)) = key
            && let Some(job) = state.repeats.recall(owner, key, body, Instant::now())?
        {
            return Ok(job);
        }
        let job = begin()?;
        if let Some((key, body)) = key {
            state.repeats.remember(owner, key, body, &job, Instant::now());
        }
        state.jobs.push_back(Arc::clone(&job));
        Ok(job)
    }

    /// Removes a refused job and its idempotency key.
    pub fn forget(&self, job: &Arc<JobRecord>) {
        let mut state = self.state.lock();
        state.jobs.retain(|known| !Arc::ptr_eq(known, job));
        state.repeats.forget(job);
    }

    /// Returns a job of an owner.
    pub fn job(&self, id: &str, key: &str) -> Option<Arc<JobRecord>> {
        self.state.lock().jobs.iter().find(|job| job.id == id && job.owner.key == key).cloned()
    }

    /// Returns the jobs of an owner, newest first.
    pub fn jobs(&self, key: &str) -> Vec<Arc<JobRecord>> {
        self.state.lock().jobs.iter().rev().filter(|job| job.owner.key == key).cloned().collect()
    }

    /// Stores a file. Returns its name.
    pub fn add_file(&self, bytes: Bytes, extension: &str, media_type: &'static str) -> String {
        let name = format!("{}.{extension}", crate::http::ids::new_id());
        self.state.lock().files.push_back(File { name: name.clone(), bytes, media_type, since: Instant::now() });
        name
    }

    pub fn file(&self, name: &str) -> Option<(Bytes, &'static str)> {
        let state = self.state.lock();
        let file = state.files.iter().find(|file| file.name == name)?;
        Some((file.bytes.clone(), file.media_type))
    }

    /// Returns an image that an owner uploaded.
    pub fn upload(&self, owner: &str, place: &Place) -> Option<Bytes> {
        self.state.lock().uploads.get(owner, place)
    }

    /// Stores an uploaded image. The oldest images of the owner with the most bytes make room. `most` is that of
    /// [`Store::tidy`].
    ///
    /// Errors if there is no room.
    pub fn add_upload(&self, owner: &str, place: Place, bytes: Bytes, most: usize) -> Result<()> {
        if self.state.lock().uploads.add(owner, place, bytes, most / UPLOADS) {
            return Ok(());
        }
        Err(ApiError::too_many("uploads_full", "there is no room for more images", Duration::from_secs(60)))
    }

    /// As [`Uploads::unused`].
    pub fn unused_place(&self, owner: &str, place: Place, bytes: &Bytes) -> Place {
        self.state.lock().uploads.unused(owner, place, bytes)
    }

    /// Returns the names of the images that an owner uploaded to a folder.
    pub fn uploads(&self, owner: &str, folder: Folder) -> Vec<String> {
        self.state.lock().uploads.names(owner, folder)
    }

    /// Returns the bytes of response files, of job results, and of uploads.
    pub fn bytes(&self) -> [(&'static str, usize); 3] {
        let state = self.state.lock();
        let files = state.files.iter().map(|file| file.bytes.len()).sum();
        let jobs = state.jobs.iter().map(|job| job.result_bytes()).sum();
        [("files", files), ("jobs", jobs), ("uploads", state.uploads.bytes())]
    }

    /// Drops everything too old, and the oldest entries beyond the memory limit.
    pub fn tidy(&self, kept: Duration, most: usize) {
        let mut state = self.state.lock();
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
    use crate::jobs::record::Status;

    #[test]
    fn a_key_names_its_job_when_the_images_are_gone() {
        let store = Store::default();
        let (done, waiting) = (JobRecord::sample(1), JobRecord::sample(1));
        let body = blake3::hash(b"x");
        for (key, job) in [("done", &done), ("waiting", &waiting)] {
            store.begin_once("k", Some((key, body)), || Ok(Arc::clone(job))).unwrap();
        }
        done.cancel();
        store.tidy(Duration::ZERO, 0);
        assert_eq!(store.jobs("k").len(), 1);
        let again = |key: &str| store.begin_once("k", Some((key, body)), || panic!("the job exists already")).unwrap();
        let recalled = again("done");
        assert_eq!((&recalled.id, recalled.status()), (&done.id, Status::Cancelled));
        assert!(!Arc::ptr_eq(&recalled, &done), "only a summary of the job is left");
        assert!(Arc::ptr_eq(&again("waiting"), &waiting));
        let other = store.begin_once("k", Some(("waiting", blake3::hash(b"y"))), || panic!("the key is taken"));
        assert_eq!(other.unwrap_err().code, "idempotency_conflict");
        store.forget(&waiting);
        assert!(store.jobs("k").is_empty());
        let new = store.begin_once("k", Some(("waiting", body)), || Ok(JobRecord::sample(1))).unwrap();
        assert!(!Arc::ptr_eq(&new, &waiting), "the key of a forgotten job is free");
    }
}
