//! Rate limits: the images per minute of a key, and the pixels per minute of a client. A token bucket refills evenly,
//! and holds the amount of one minute.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A limit on images or pixels per minute, or no limit.
pub struct RateLimit {
    per_minute: Option<f64>,
    bucket: Mutex<Option<Bucket>>,
}

#[derive(Clone, Copy)]
struct Bucket {
    amount: f64,
    since: Instant,
}

impl Bucket {
    /// Returns the amount after refilling until now.
    fn filled(&self, per_minute: f64, now: Instant) -> f64 {
        let filled = now.saturating_duration_since(self.since).as_secs_f64() / 60.0 * per_minute;
        (self.amount + filled).min(per_minute)
    }
}

impl RateLimit {
    pub fn none() -> Self {
        Self { per_minute: None, bucket: Mutex::default() }
    }

    pub fn per_minute(amount: f64) -> Self {
        Self { per_minute: Some(amount), bucket: Mutex::default() }
    }

    /// Returns this limit with the amount used that was used of an older limit.
    pub fn after(self, old: &Self, now: Instant) -> Self {
        let bucket = *old.bucket.lock();
        let bucket = bucket.zip(old.per_minute).zip(self.per_minute).map(|((bucket, before), per_minute)| {
            let taken = before - bucket.filled(before, now);
            Bucket { amount: per_minute - taken, since: now }
        });
        Self { bucket: Mutex::new(bucket), ..self }
    }

    /// Returns `true` if the bucket is full.
    fn is_full(&self, now: Instant) -> bool {
        let bucket = self.bucket.lock();
        let (Some(bucket), Some(per_minute)) = (&*bucket, self.per_minute) else { return true };
        bucket.filled(per_minute, now) >= per_minute
    }

    /// Takes an amount, or returns the time until it is available.
    pub fn take(&self, wanted: f64, now: Instant) -> Result<(), Duration> {
        let Some(per_minute) = self.per_minute else { return Ok(()) };
        let mut bucket = self.bucket.lock();
        let there = bucket.map_or(per_minute, |bucket| bucket.filled(per_minute, now));
        // A full bucket allows more than one minute's amount at once.
        let needed = wanted.min(per_minute);
        let enough = there >= needed;
        *bucket = Some(Bucket { amount: if enough { there - wanted } else { there }, since: now });
        if enough { Ok(()) } else { Err(Duration::from_secs_f64((needed - there) / per_minute * 60.0)) }
    }
}

/// A separate but equal limit for each of many clients.
pub struct RateLimits {
    per_minute: Option<f64>,
    clients: Mutex<Clients>,
}

struct Clients {
    limits: HashMap<String, RateLimit>,
    /// The number of clients at which full buckets are dropped, since they behave like new ones.
    prune_at: usize,
}

/// Clients that are tracked without a search for full buckets.
const MIN_CLIENTS: usize = 4096;
/// Clients that are tracked at most, some 40 MB. Further ones wait until buckets are full again.
const MAX_CLIENTS: usize = 1 << 18;

impl RateLimits {
    pub fn new(per_minute: Option<f64>) -> Self {
        Self { per_minute, clients: Mutex::new(Clients { limits: HashMap::new(), prune_at: MIN_CLIENTS }) }
    }

    /// Takes an amount for a client, or returns the time until it is available.
    pub fn take(&self, client: &str, wanted: f64, now: Instant) -> Result<(), Duration> {
        let Some(per_minute) = self.per_minute else { return Ok(()) };
        let clients = &mut *self.clients.lock();
        if let Some(limit) = clients.limits.get(client) {
            return limit.take(wanted, now);
        }
        if clients.limits.len() >= clients.prune_at {
            clients.limits.retain(|_, limit| !limit.is_full(now));
            // The next search comes after as many new clients as this one has looked at.
            clients.prune_at = (2 * clients.limits.len()).clamp(MIN_CLIENTS, MAX_CLIENTS);
            if clients.limits.len() >= MAX_CLIENTS {
                return Err(Duration::from_secs(60));
            }
        }
        let limit = RateLimit::per_minute(per_minute);
        let taken = limit.take(wanted, now);
        clients.limits.insert(client.to_string(), limit);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_s_worth_may_be_had_at_once_and_then_comes_evenly() {
        let limit = RateLimit::per_minute(6.0);
        let now = Instant::now();
        limit.take(6.0, now).unwrap();
        assert_eq!(limit.take(1.0, now), Err(Duration::from_secs(10)));
        assert_eq!(limit.take(1.0, now + Duration::from_secs(11)), Ok(()));
        limit.take(10.0, now + Duration::from_secs(600)).unwrap();
        assert!(limit.take(1.0, now + Duration::from_secs(601)).is_err(), "borrowed images are missing later");
        assert_eq!(RateLimit::none().take(1000.0, now), Ok(()));
    }

    #[test]
    fn a_new_limit_remembers_what_was_taken() {
        let (old, now) = (RateLimit::per_minute(6.0), Instant::now());
        old.take(5.0, now).unwrap();
        let raised = RateLimit::per_minute(8.0).after(&old, now);
        assert!(raised.take(4.0, now).is_err() && raised.take(3.0, now).is_ok());
        assert!(RateLimit::per_minute(6.0).after(&RateLimit::none(), now).take(6.0, now).is_ok());
        assert!(RateLimit::none().after(&old, now).take(100.0, now).is_ok());
    }

    #[test]
    fn each_client_has_its_own() {
        let (limits, now) = (RateLimits::new(Some(60.0)), Instant::now());
        limits.take("a", 60.0, now).unwrap();
        assert_eq!(limits.take("a", 1.0, now), Err(Duration::from_secs(1)));
        limits.take("b", 60.0, now).unwrap();
        for client in 0..2 * MIN_CLIENTS {
            limits.take(&client.to_string(), 1.0, now + Duration::from_secs(client as u64)).unwrap();
        }
        assert!(limits.clients.lock().limits.len() <= MIN_CLIENTS, "full buckets are dropped");
        assert_eq!(RateLimits::new(None).take("a", 1e12, now), Ok(()));
    }

    #[test]
    fn many_clients_are_tracked_without_a_search_for_each_and_without_growing_on() {
        let (limits, now) = (RateLimits::new(Some(2.0)), Instant::now());
        let len = || limits.clients.lock().limits.len();
        for client in 0..MAX_CLIENTS {
            limits.take(&client.to_string(), 1.0, now).unwrap();
        }
        assert_eq!(limits.take("new", 1.0, now), Err(Duration::from_secs(60)));
        assert_eq!(limits.take("7", 1.0, now), Ok(()), "known clients are not affected");
        assert_eq!(len(), MAX_CLIENTS);
        limits.take("new", 1.0, now + Duration::from_secs(120)).unwrap();
        assert_eq!(len(), 1);
    }
}
