//! Attempts of jobs: how often a job killed a worker while running alone, or failed.
//!
//! Attempts are counted by objects in the store, since a dead worker remembers nothing. A count may be left over from
//! an earlier submission of the job, so it is capped by the number of deliveries.

use std::collections::HashMap;
use std::time::Duration;

use flux::error::{ErrorKind, Result};
use parking_lot::Mutex;

use crate::store::Store;

/// Attempts after which a job is dead-lettered.
pub const MAX_ATTEMPTS: i64 = 5;
/// The max size of an attempt object, in bytes.
const MAX_BYTES: u64 = 8 << 10;
/// The timeout for reverting unfinished attempts in the store.
const TAKE_BACK_WITHIN: Duration = Duration::from_secs(5);

/// Earlier attempts of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tried {
    pub count: i64,
    /// The error of the last attempt. `None` if it killed the worker.
    pub reason: Option<String>,
}

impl Tried {
    /// Reads the attempts of a job that was delivered `before` times.
    pub async fn read(store: &Store, name: &str, before: i64) -> Result<Self> {
        let tried = match store.get(name, MAX_BYTES).await {
            Ok(None) => Self::default(),
            Ok(Some(text)) => Self::parse(&String::from_utf8_lossy(&text)),
            // An object that is too large was not written by a worker.
            Err(error) if error.kind() == ErrorKind::Usage => Self::parse(""),
            Err(error) => return Err(error),
        };
        Ok(Self { count: tried.count.min(before), ..tried })
    }

    fn parse(text: &str) -> Self {
        let (count, reason) = text.split_once('\n').map_or((text, None), |(count, reason)| (count, Some(reason)));
        Self { count: count.parse().unwrap_or(1).clamp(0, MAX_ATTEMPTS), reason: reason.map(str::to_string) }
    }

    fn text(&self) -> String {
        let reason = self.reason.iter().map(|reason| format!("\n{reason}"));
        std::iter::once(self.count.to_string()).chain(reason).collect()
    }

    /// Adds an attempt that failed for `reason`, or may kill the worker.
    pub fn and(&self, reason: Option<String>) -> Self {
        Self { count: self.count + 1, reason }
    }

    /// Returns the reason to dead-letter the job, if it has too many attempts.
    pub fn dead(&self) -> Option<String> {
        (self.count >= MAX_ATTEMPTS).then(|| match &self.reason {
            Some(reason) => reason.clone(),
            None => format!("delivery_limit: {} workers ended while this was their only job", self.count),
        })
    }

    pub async fn write(&self, store: &Store, name: &str) -> Result<()> {
        store.put(name, self.text()).await
    }
}

/// The running attempts of this worker, each with the attempts before it.
#[derive(Default)]
pub struct Trials(Mutex<HashMap<String, Tried>>);

impl Trials {
    pub fn begin(&self, name: String, before: Tried) {
        self.0.lock().insert(name, before);
    }

    pub fn end(&self, name: &str) {
        self.0.lock().remove(name);
    }

    /// Reverts the attempts that a worker abandons at shutdown, since they killed nothing.
    pub async fn take_back(&self, store: &Store) {
        let open = std::mem::take(&mut *self.0.lock());
        for (name, before) in open {
            let told = async {
                match before == Tried::default() {
                    true => store.remove(&name).await,
                    false => before.write(store, &name).await,
                }
            };
            // If the store is unreachable, the job loses an attempt.
            let _ = tokio::time::timeout(TAKE_BACK_WITHIN, told).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tries_are_counted_up_to_a_reason() {
        let (_folder, store) = Store::temporary();
        let read = |before| Tried::read(&store, "trials/a", before);
        assert_eq!(read(9).await.unwrap(), Tried::default());
        let ended = Tried { count: 4, reason: None };
        ended.write(&store, "trials/a").await.unwrap();
        assert_eq!(read(9).await.unwrap(), ended);
        assert_eq!(read(1).await.unwrap().count, 1, "the count is at most the number of deliveries");
        assert_eq!(ended.dead(), None);
        assert!(ended.and(None).dead().unwrap().starts_with("delivery_limit: 5 "));
        let failed = ended.and(Some("no memory\n  hint: more".to_string()));
        failed.write(&store, "trials/a").await.unwrap();
        assert_eq!(read(9).await.unwrap().dead().as_deref(), Some("no memory\n  hint: more"));
        for other in ["", "-1x", "99999999999999999999"] {
            store.put("trials/a", other).await.unwrap();
            assert_eq!(read(9).await.unwrap(), Tried { count: 1, reason: None }, "{other}");
        }
    }

    #[tokio::test]
    async fn what_is_given_up_is_as_it_was() {
        let (_folder, store) = Store::temporary();
        let trials = Trials::default();
        for (name, count) in [("trials/a", 0), ("trials/b", 2), ("trials/c", 0)] {
            let tried = Tried { count, reason: None };
            tried.and(None).write(&store, name).await.unwrap();
            trials.begin(name.to_string(), tried);
        }
        trials.end("trials/c");
        trials.take_back(&store).await;
        assert_eq!(Tried::read(&store, "trials/a", 9).await.unwrap().count, 0);
        assert_eq!(Tried::read(&store, "trials/b", 9).await.unwrap().count, 2);
        assert_eq!(Tried::read(&store, "trials/c", 9).await.unwrap().count, 1, "an ended trial is not taken back");
    }
}
