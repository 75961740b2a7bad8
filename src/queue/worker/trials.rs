//! Tries of jobs: how often one ended a worker that drew nothing else, or could not be drawn.
//!
//! Objects of the store count them, since workers that end remember nothing. A count that is left of an earlier life of
//! a job means less than its deliveries say.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use flux::error::{ErrorKind, Result};

use super::locked;
use crate::queue::store::Store;

/// Workers that a job may end all by itself, and tries that may fail, before it is dead.
pub const MOST_TRIES: i64 = 5;
/// The longest object.
const MOST_BYTES: u64 = 8 << 10;
/// How long the store may take to hear of tries that did not end.
const TAKE_BACK_WITHIN: Duration = Duration::from_secs(5);

/// What is known of earlier tries of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tried {
    pub count: i64,
    /// Why the last one failed; none where the worker ended.
    pub reason: Option<String>,
}

impl Tried {
    /// What an object says, of a job that was delivered so often before.
    pub async fn read(store: &Store, name: &str, before: i64) -> Result<Self> {
        let tried = match store.get(name, MOST_BYTES).await {
            Ok(None) => Self::default(),
            Ok(Some(text)) => Self::of(&String::from_utf8_lossy(&text)),
            // It is of nobody who counts here.
            Err(error) if error.kind() == ErrorKind::Usage => Self::of(""),
            Err(error) => return Err(error),
        };
        Ok(Self { count: tried.count.min(before), ..tried })
    }

    fn of(text: &str) -> Self {
        let (count, reason) = text.split_once('\n').map_or((text, None), |(count, reason)| (count, Some(reason)));
        Self { count: count.parse().unwrap_or(1).clamp(0, MOST_TRIES), reason: reason.map(str::to_string) }
    }

    fn text(&self) -> String {
        let reason = self.reason.iter().map(|reason| format!("\n{reason}"));
        std::iter::once(self.count.to_string()).chain(reason).collect()
    }

    /// One more, which failed for `reason`, or may end the worker.
    pub fn and(&self, reason: Option<String>) -> Self {
        Self { count: self.count + 1, reason }
    }

    /// Why the job is dead, if it is.
    pub fn dead(&self) -> Option<String> {
        (self.count >= MOST_TRIES).then(|| match &self.reason {
            Some(reason) => reason.clone(),
            None => format!("delivery_limit: it ended {} workers, each of which drew nothing else", self.count),
        })
    }

    pub async fn write(&self, store: &Store, name: &str) -> Result<()> {
        store.put(name, self.text()).await
    }
}

/// What this worker tries now, with what was known before.
#[derive(Default)]
pub struct Trials(Mutex<HashMap<String, Tried>>);

impl Trials {
    pub fn begin(&self, name: String, before: Tried) {
        locked(&self.0).insert(name, before);
    }

    pub fn end(&self, name: &str) {
        locked(&self.0).remove(name);
    }

    /// Takes tries back that a worker gives up which is told to end: nothing ended it.
    pub async fn take_back(&self, store: &Store) {
        let open = std::mem::take(&mut *locked(&self.0));
        for (name, before) in open {
            let told = async {
                match before == Tried::default() {
                    true => store.remove(&name).await,
                    false => before.write(store, &name).await,
                }
            };
            // Where the store is away, the job has one try less.
            let _ = tokio::time::timeout(TAKE_BACK_WITHIN, told).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tries_are_counted_up_to_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("file://{}", folder.path().display())).unwrap();
        let read = |before| Tried::read(&store, "trials/a", before);
        assert_eq!(read(9).await.unwrap(), Tried::default());
        let ended = Tried { count: 4, reason: None };
        ended.write(&store, "trials/a").await.unwrap();
        assert_eq!(read(9).await.unwrap(), ended);
        assert_eq!(read(1).await.unwrap().count, 1, "what is left of an earlier life");
        assert_eq!(ended.dead(), None);
        assert!(ended.and(None).dead().unwrap().starts_with("delivery_limit: it ended 5 workers"));
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
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("file://{}", folder.path().display())).unwrap();
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
        assert_eq!(Tried::read(&store, "trials/c", 9).await.unwrap().count, 1, "it ended, and its worker with it");
    }
}
