//! Keys of clients that name a request, so that it is carried out once, however often it is sent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use lru::LruCache;
use tokio::sync::OwnedMutexGuard;

use super::error::{ApiError, Result};
use super::record::JobRecord;

/// How long a key names its request.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// The memory of all keys, with what is left of their jobs: some 40,000 with short prompts. The oldest make room.
const MOST: usize = 64 << 20;

/// See the module.
pub struct Repeats {
    /// By owner and key, the oldest last.
    named: LruCache<(String, String), Named>,
    bytes: usize,
}

/// What a key was sent with.
struct Named {
    body: blake3::Hash,
    job: Arc<JobRecord>,
    since: Instant,
    /// What it takes once its job is not kept any more.
    bytes: usize,
    /// Whether the job is what was left of it.
    is_rest: bool,
}

/// Those who come with one key of a client take turns.
#[derive(Default)]
pub struct Turns {
    /// By owner and key, as long as somebody holds or waits for one.
    taken: Mutex<HashMap<(String, String), Turn>>,
}

type Turn = Arc<tokio::sync::Mutex<()>>;

impl Turns {
    /// The turn of whoever waits for it, until it is dropped.
    pub async fn take(&self, owner: &str, key: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
            taken.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(taken.entry((owner.to_string(), key.to_string())).or_default())
        };
        turn.lock_owned().await
    }
}

impl Default for Repeats {
    fn default() -> Self {
        Self { named: LruCache::unbounded(), bytes: 0 }
    }
}

impl Repeats {
    /// The job that a key was sent with before.
    ///
    /// Errors when the request was another one.
    pub fn recall(&self, owner: &str, key: &str, body: blake3::Hash, now: Instant) -> Result<Option<Arc<JobRecord>>> {
        match self.named.peek(&(owner.to_string(), key.to_string())) {
            Some(named) if named.is_old(now) => Ok(None),
            Some(named) if named.body == body => Ok(Some(Arc::clone(&named.job))),
            Some(_) => {
                let message = "the `Idempotency-Key` was sent with another request";
                Err(ApiError::new(StatusCode::CONFLICT, "idempotency_conflict", message).for_good())
            }
            None => Ok(None),
        }
    }

    /// Remembers what a key was sent with.
    pub fn remember(&mut self, owner: &str, key: &str, body: blake3::Hash, job: &Arc<JobRecord>, now: Instant) {
        let bytes = size_of::<Named>() + owner.len() + key.len() + job.rest_bytes();
        let named = Named { body, job: Arc::clone(job), since: now, bytes, is_rest: false };
        let before = self.named.put((owner.to_string(), key.to_string()), named);
        self.bytes = self.bytes + bytes - before.map_or(0, |before| before.bytes);
        while self.bytes > MOST && self.forget_one(|_| true) {}
    }

    /// Forgets what is too old, and keeps no images of jobs that are not kept.
    pub fn tidy(&mut self, is_kept: impl Fn(&Arc<JobRecord>) -> bool, now: Instant) {
        while self.forget_one(|oldest| oldest.is_old(now)) {}
        for (_, named) in self.named.iter_mut().filter(|(_, named)| !named.is_rest && !is_kept(&named.job)) {
            (named.job, named.is_rest) = (named.job.rest(), true);
        }
    }

    /// Forgets the oldest one where it is such a one. Returns whether it did.
    fn forget_one(&mut self, is_one: impl Fn(&Named) -> bool) -> bool {
        let is_there = self.named.peek_lru().is_some_and(|(_, oldest)| is_one(oldest));
        let forgotten = if is_there { self.named.pop_lru() } else { None };
        self.bytes -= forgotten.as_ref().map_or(0, |(_, named)| named.bytes);
        forgotten.is_some()
    }
}

impl Named {
    fn is_old(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) > KEPT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_are_taken_of_one_key_alone() {
        let turns = Turns::default();
        let first = turns.take("k", "a").await;
        let _other = turns.take("k", "b").await;
        let second = tokio::time::timeout(Duration::from_millis(20), turns.take("k", "a"));
        assert!(second.await.is_err(), "it waits for the first");
        drop(first);
        drop(turns.take("k", "a").await);
        let _last = turns.take("k", "c").await;
        assert_eq!(turns.taken.lock().unwrap().len(), 2, "those that nobody holds are forgotten");
    }

    #[test]
    fn a_key_names_its_request_for_a_day() {
        let (mut repeats, job, start) = (Repeats::default(), JobRecord::sample(1), Instant::now());
        let [body, other] = [b"x", b"y"].map(|text| blake3::hash(text));
        repeats.remember("k", "a", body, &job, start);
        let recalled = |repeats: &Repeats, key: &str, body, seconds| {
            let recalled = repeats.recall("k", key, body, start + Duration::from_secs(seconds));
            recalled.map(|job| job.is_some()).map_err(|error| error.code)
        };
        assert_eq!(recalled(&repeats, "a", body, 86_400), Ok(true));
        assert_eq!(recalled(&repeats, "a", other, 86_400), Err("idempotency_conflict"));
        assert_eq!(recalled(&repeats, "b", body, 0), Ok(false));
        assert_eq!(recalled(&repeats, "a", other, 86_401), Ok(false));
        repeats.tidy(|_| true, start + Duration::from_secs(86_400));
        assert_eq!(repeats.named.len(), 1);
        repeats.tidy(|_| true, start + Duration::from_secs(86_401));
        assert_eq!((repeats.named.len(), repeats.bytes), (0, 0));
    }

    #[test]
    fn the_oldest_keys_make_room() {
        let (mut repeats, job, now) = (Repeats::default(), JobRecord::sample(1), Instant::now());
        let (body, long) = (blake3::hash(b"x"), "k".repeat(1 << 20));
        for _ in 0..100 {
            repeats.remember(&long, "one", body, &job, now);
        }
        assert_eq!(repeats.named.len(), 1, "it is counted once");
        for key in 0..100 {
            repeats.remember(&long, &key.to_string(), body, &job, now);
        }
        assert!(repeats.bytes <= MOST && (60..=64).contains(&repeats.named.len()), "{}", repeats.named.len());
        let recalled = |key: &str| repeats.recall(&long, key, body, now).unwrap().is_some();
        assert_eq!([recalled("one"), recalled("0"), recalled("99")], [false, false, true]);
    }
}
