//! Idempotency keys: a request that is sent repeatedly with the same key runs once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use lru::LruCache;

use crate::http::error::{ApiError, Result};
use crate::jobs::record::JobRecord;

/// The time for which a key is remembered.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// Max bytes of all keys and the remains of their jobs: about 40,000 with short prompts. The oldest are dropped.
const MAX: usize = 64 << 20;

/// The known keys. See the [module](self).
pub struct Repeats {
    /// Requests by owner and key, newest first.
    named: LruCache<(String, String), Named>,
    bytes: usize,
}

/// The request of a key.
struct Named {
    body: blake3::Hash,
    job: Arc<JobRecord>,
    since: Instant,
    /// The bytes that it takes once its job is no longer retained.
    bytes: usize,
    /// `true` if `job` holds only the remains of the job.
    is_rest: bool,
}

impl Default for Repeats {
    fn default() -> Self {
        Self { named: LruCache::unbounded(), bytes: 0 }
    }
}

impl Repeats {
    /// Returns the job of an earlier request with this key.
    ///
    /// Errors if that request had another body.
    pub fn recall(&self, owner: &str, key: &str, body: blake3::Hash, now: Instant) -> Result<Option<Arc<JobRecord>>> {
        match self.named.peek(&(owner.to_string(), key.to_string())) {
            Some(named) if named.is_old(now) => Ok(None),
            Some(named) if named.body == body => Ok(Some(Arc::clone(&named.job))),
            Some(_) => {
                let message = "the `Idempotency-Key` was already used with another request";
                Err(ApiError::new(StatusCode::CONFLICT, "idempotency_conflict", message).for_good())
            }
            None => Ok(None),
        }
    }

    /// Remembers the request of a key.
    pub fn remember(&mut self, owner: &str, key: &str, body: blake3::Hash, job: &Arc<JobRecord>, now: Instant) {
        let bytes = size_of::<Named>() + owner.len() + key.len() + job.rest_bytes();
        let named = Named { body, job: Arc::clone(job), since: now, bytes, is_rest: false };
        let before = self.named.put((owner.to_string(), key.to_string()), named);
        self.bytes = self.bytes + bytes - before.map_or(0, |before| before.bytes);
        while self.bytes > MAX && self.forget_one(|_| true) {}
    }

    /// Drops keys that are too old, and the images of jobs that are no longer retained.
    pub fn tidy(&mut self, is_kept: impl Fn(&Arc<JobRecord>) -> bool, now: Instant) {
        while self.forget_one(|oldest| oldest.is_old(now)) {}
        for (_, named) in self.named.iter_mut().filter(|(_, named)| !named.is_rest && !is_kept(&named.job)) {
            (named.job, named.is_rest) = (named.job.rest(), true);
        }
    }

    /// Drops the keys of a job.
    pub fn forget(&mut self, job: &Arc<JobRecord>) {
        let keys = self.named.iter().filter(|(_, named)| Arc::ptr_eq(&named.job, job)).map(|(key, _)| key.clone());
        for key in keys.collect::<Vec<_>>() {
            self.bytes -= self.named.pop(&key).map_or(0, |named| named.bytes);
        }
    }

    /// Drops the oldest key if it satisfies `is_one`. Returns `true` if it was dropped.
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
        assert!(repeats.bytes <= MAX && (60..=64).contains(&repeats.named.len()), "{}", repeats.named.len());
        let recalled = |key: &str| repeats.recall(&long, key, body, now).unwrap().is_some();
        assert_eq!([recalled("one"), recalled("0"), recalled("99")], [false, false, true]);
    }
}
