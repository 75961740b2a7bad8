//! How many images a key may ask for in a minute, and how many pixels a client: a bucket that fills evenly, and holds a
//! minute's worth.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A limit on images, or pixels; none where nothing is set.
pub struct RateLimit {
    per_minute: Option<f64>,
    bucket: Mutex<Option<Bucket>>,
}

struct Bucket {
    amount: f64,
    since: Instant,
}

impl RateLimit {
    pub fn none() -> Self {
        Self { per_minute: None, bucket: Mutex::default() }
    }

    pub fn per_minute(amount: f64) -> Self {
        Self { per_minute: Some(amount), bucket: Mutex::default() }
    }

    /// Whether a minute's worth is there.
    fn is_full(&self, now: Instant) -> bool {
        let bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(Bucket { amount, since }), Some(per_minute)) = (&*bucket, self.per_minute) else { return true };
        amount + now.saturating_duration_since(*since).as_secs_f64() / 60.0 * per_minute >= per_minute
    }

    /// Takes so much, or tells after which time they may be had.
    pub fn take(&self, wanted: f64, now: Instant) -> Result<(), Duration> {
        let Some(per_minute) = self.per_minute else { return Ok(()) };
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let Bucket { amount: before, since } = bucket.take().unwrap_or(Bucket { amount: per_minute, since: now });
        let filled = now.saturating_duration_since(since).as_secs_f64() / 60.0 * per_minute;
        let there = (before + filled).min(per_minute);
        // More than a minute's worth may be had at once from a bucket that is full.
        let needed = wanted.min(per_minute);
        let enough = there >= needed;
        *bucket = Some(Bucket { amount: if enough { there - wanted } else { there }, since: now });
        if enough { Ok(()) } else { Err(Duration::from_secs_f64((needed - there) / per_minute * 60.0)) }
    }
}

/// The same limit for each of many clients.
pub struct RateLimits {
    per_minute: Option<f64>,
    of_client: Mutex<HashMap<String, RateLimit>>,
}

/// Clients that are remembered; those whose buckets are full need not be.
const MOST_CLIENTS: usize = 4096;

impl RateLimits {
    pub fn new(per_minute: Option<f64>) -> Self {
        Self { per_minute, of_client: Mutex::default() }
    }

    /// Takes so much for a client, or tells after which time it may be had.
    pub fn take(&self, client: &str, wanted: f64, now: Instant) -> Result<(), Duration> {
        let Some(per_minute) = self.per_minute else { return Ok(()) };
        let mut of_client = self.of_client.lock().unwrap_or_else(PoisonError::into_inner);
        if of_client.len() >= MOST_CLIENTS {
            of_client.retain(|_, limit| !limit.is_full(now));
        }
        of_client.entry(client.to_string()).or_insert_with(|| RateLimit::per_minute(per_minute)).take(wanted, now)
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
        assert!(limit.take(1.0, now + Duration::from_secs(601)).is_err(), "what was borrowed is missing later");
        assert_eq!(RateLimit::none().take(1000.0, now), Ok(()));
    }

    #[test]
    fn each_client_has_its_own() {
        let (limits, now) = (RateLimits::new(Some(60.0)), Instant::now());
        limits.take("a", 60.0, now).unwrap();
        assert_eq!(limits.take("a", 1.0, now), Err(Duration::from_secs(1)));
        limits.take("b", 60.0, now).unwrap();
        for client in 0..2 * MOST_CLIENTS {
            limits.take(&client.to_string(), 1.0, now + Duration::from_secs(client as u64)).unwrap();
        }
        assert!(limits.of_client.lock().unwrap().len() <= MOST_CLIENTS, "those that are full are forgotten");
        assert_eq!(RateLimits::new(None).take("a", 1e12, now), Ok(()));
    }
}
