//! Cancelled batches and jobs, as recorded in the store or broadcast to workers.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use flux::Result;
use flux::stage::CancelFlag;
use parking_lot::Mutex;

use crate::message::{JobMessage, unix_time};
use crate::names;
use crate::store::Store;

/// The time for which an answer of the store is cached.
const KNOWN_FOR: Duration = Duration::from_secs(30);
/// The time for which a cancelled batch is cached. It is short, since a batch that is submitted again is no longer
/// cancelled, and dropping its jobs would lose them. `flux submit` waits for longer than this.
const CANCELLED_FOR: Duration = Duration::from_secs(1);
/// The age in seconds from which an online job is looked up in the store. Its cancellation may have been broadcast
/// before this worker started, or may be forgotten by now.
const OLD: u64 = 20;
/// The number of cached names from which expired ones are dropped.
const MAX_KNOWN: usize = 10_000;

/// Known cancellations, and the cancel flags of running jobs.
#[derive(Default)]
pub struct Cancelled {
    known: Mutex<HashMap<String, Known>>,
    flags: Mutex<HashMap<u64, (JobMessage, CancelFlag)>>,
    /// Jobs that the store lists as cancelled, and the time of the listing.
    listed: Mutex<Option<(Instant, HashSet<String>)>>,
}

#[derive(Clone, Copy)]
struct Known {
    since: Instant,
    is_cancelled: bool,
}

impl Cancelled {
    /// Marks a batch or a job as cancelled, and stops its running jobs.
    pub fn cancel(&self, name: &str) {
        self.know(name, true);
        let is_meant = |job: &JobMessage| job.job == name || job.batch.as_deref() == Some(name);
        self.flags.lock().values().filter(|(job, _)| is_meant(job)).for_each(|(_, flag)| flag.cancel());
    }

    fn know(&self, name: &str, is_cancelled: bool) {
        let mut known = self.known.lock();
        if known.len() >= MAX_KNOWN {
            known.retain(|_, known| known.since.elapsed() < KNOWN_FOR);
        }
        known.insert(name.to_string(), Known { since: Instant::now(), is_cancelled });
    }

    /// Returns `true` if a job is cancelled.
    pub async fn has(&self, job: &JobMessage, store: &Store) -> Result<bool> {
        let known = |name: &str| self.known.lock().get(name).filter(|known| known.since.elapsed() < KNOWN_FOR).copied();
        if known(&job.job).is_some_and(|known| known.is_cancelled) {
            return Ok(true);
        }
        let Some(batch) = &job.batch else {
            let is_old = unix_time().saturating_sub(job.submitted) >= OLD;
            return if is_old { store.has(&names::cancelled_job(&job.job)).await } else { Ok(false) };
        };
        let is_fresh = |known: &Known| !known.is_cancelled || known.since.elapsed() < CANCELLED_FOR;
        let is_cancelled = match known(batch).filter(is_fresh) {
            Some(known) => known.is_cancelled,
            None => {
                let is_cancelled = store.has(&names::cancelled(batch)).await?;
                self.know(batch, is_cancelled);
                is_cancelled
            }
        };
        Ok(is_cancelled || self.is_listed(&job.job, store).await?)
    }

    /// Returns `true` if the store lists a job as cancelled. One request lists all jobs.
    async fn is_listed(&self, job: &str, store: &Store) -> Result<bool> {
        if let Some((since, jobs)) = &*self.listed.lock()
            && since.elapsed() < KNOWN_FOR
        {
            return Ok(jobs.contains(job));
        }
        let jobs: HashSet<_> = store.names(names::CANCELLED_JOBS).await?.into_iter().collect();
        let is_cancelled = jobs.contains(job);
        *self.listed.lock() = Some((Instant::now(), jobs));
        Ok(is_cancelled)
    }

    /// Returns `true` if a job itself, not only its batch, is known to be cancelled.
    pub fn is_named(&self, job: &str) -> bool {
        self.known.lock().get(job).is_some_and(|known| known.is_cancelled)
            || self.listed.lock().as_ref().is_some_and(|(_, jobs)| jobs.contains(job))
    }

    /// Returns a flag that is set when the job is cancelled. `delivery` is the number of a
    /// [`super::delivery::Delivered`].
    pub fn flag(&self, delivery: u64, job: &JobMessage) -> CancelFlag {
        let flag = CancelFlag::default();
        self.flags.lock().insert(delivery, (job.clone(), flag.clone()));
        flag
    }

    /// Removes the flag of a delivery that has ended.
    pub fn forget(&self, delivery: u64) {
        self.flags.lock().remove(&delivery);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::tests::sample;

    #[tokio::test]
    async fn jobs_and_batches_are_cancelled_by_the_store_and_by_orders() {
        let (_folder, store) = Store::temporary();
        let batch = sample().batch.unwrap();
        let [one, other] = ["a", "b"].map(|name| JobMessage { job: name.repeat(32), ..sample() });
        assert!(!Cancelled::default().has(&one, &store).await.unwrap());
        store.put(&names::cancelled_job(&one.job), "").await.unwrap();
        let cancelled = Cancelled::default();
        assert!(cancelled.has(&one, &store).await.unwrap() && cancelled.is_named(&one.job));
        assert!(!cancelled.has(&other, &store).await.unwrap() && !cancelled.is_named(&other.job));
        let flag = cancelled.flag(7, &other);
        cancelled.cancel(&other.job);
        assert!(flag.check().is_err() && cancelled.has(&other, &store).await.unwrap());
        store.put(&names::cancelled(&batch), "").await.unwrap();
        assert!(Cancelled::default().has(&other, &store).await.unwrap());
    }
}
