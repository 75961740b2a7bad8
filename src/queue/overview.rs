//! How far all batches of a store are, for whoever looks at them again and again.
//!
//! A result that is there stays there, so that only what was missing is looked for again. What was found holds for a
//! while: the store is asked no more often than it has time to answer.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flux::Result;
use serde::Serialize;
use tokio::sync::Mutex;

use super::batch::{Found, Manifest, cursor};
use super::dead::Dead;
use super::names::{self, Key};
use super::status::batches;
use super::store::Store;
use crate::progress::say;

/// Batches that are told of, the newest first.
pub const MOST_BATCHES: usize = 100;
/// The shortest time for which what was found holds.
const HOLDS: Duration = Duration::from_secs(3);
/// The same, as a multiple of the time that it took to find.
const REST: u32 = 5;
/// The same of a batch that is over.
const OVER_HOLDS: Duration = Duration::from_secs(60);
/// The same of the dead: whoever lists them while they are looked at does not see them.
const DEAD_HOLD: Duration = Duration::from_secs(30);
/// The time over which a rate is taken.
const RATE_OVER: Duration = Duration::from_secs(60);

/// How far a batch is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BatchProgress {
    pub id: String,
    pub model: String,
    /// When it was submitted first, in seconds since 1970.
    pub created: u64,
    pub jobs: usize,
    /// Jobs that the broker was given.
    pub submitted: usize,
    pub done: usize,
    /// Jobs that ask for what cannot be drawn.
    pub failed: usize,
    /// Jobs that workers did not survive, or did not take; none where the broker is away.
    pub dead: Option<usize>,
    pub waiting: usize,
    pub cancelled: bool,
    /// None until it was looked at twice.
    pub images_per_second: Option<f64>,
    pub eta_s: Option<f64>,
}

/// All batches.
#[derive(Debug, Clone, Default)]
pub struct Batches {
    /// The newest first.
    pub shown: Vec<BatchProgress>,
    /// Older ones.
    pub others: usize,
}

/// See the module.
#[derive(Default)]
pub struct Overview {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: HashMap<String, Known>,
    /// The dead, none where the broker was away, and when that was.
    dead: Option<(Instant, Option<Vec<Dead>>)>,
    last: Option<Last>,
}

struct Last {
    since: Instant,
    took: Duration,
    batches: Arc<Batches>,
}

/// What is known of a batch.
struct Known {
    model: String,
    created: u64,
    jobs: usize,
    /// Jobs that have no result.
    missing: Vec<Key>,
    failed: HashSet<blake3::Hash>,
    looked: Option<Instant>,
    submitted: usize,
    is_cancelled: bool,
    /// Results at some times, the oldest first.
    samples: VecDeque<(Instant, usize)>,
}

impl Overview {
    /// How far all batches are. `dead` asks the broker.
    ///
    /// Errors when the store is away.
    pub async fn look(&self, store: &Store, dead: impl Future<Output = Option<Vec<Dead>>>) -> Result<Arc<Batches>> {
        let mut state = self.state.lock().await;
        if let Some(Last { since, took, batches }) = &state.last
            && since.elapsed() < HOLDS.max(*took * REST)
        {
            return Ok(Arc::clone(batches));
        }
        let began = Instant::now();
        let dead = match state.dead.take() {
            Some((since, Some(known))) if since.elapsed() < DEAD_HOLD => (since, Some(known)),
            _ => (began, dead.await),
        };
        let batches = state.look(store, dead.1.as_deref()).await;
        state.dead = Some(dead);
        let batches = Arc::new(batches?);
        let (since, took) = (Instant::now(), began.elapsed());
        state.last = Some(Last { since, took, batches: Arc::clone(&batches) });
        Ok(batches)
    }
}

impl State {
    async fn look(&mut self, store: &Store, dead: Option<&[Dead]>) -> Result<Batches> {
        let names = batches(store).await?;
        self.known.retain(|name, _| names.contains(name));
        for name in &names {
            if !self.known.contains_key(name)
                && let Some(created) = store.written(&names::manifest(name)).await?
            {
                self.known.insert(name.clone(), Known::new(created));
            }
        }
        let mut newest: Vec<_> = names.into_iter().filter(|name| self.known.contains_key(name)).collect();
        newest.sort_by_key(|name| std::cmp::Reverse(self.known[name].created));
        let others = newest.len().saturating_sub(MOST_BATCHES);
        newest.truncate(MOST_BATCHES);
        let mut shown = Vec::with_capacity(newest.len());
        for name in newest {
            let Some(known) = self.known.get_mut(&name) else { continue };
            known.look(store, &name, Instant::now()).await?;
            // One whose manifest is damaged has none.
            if !known.model.is_empty() {
                shown.push(known.progress(name, dead, Instant::now()));
            }
        }
        Ok(Batches { shown, others })
    }
}

impl Known {
    fn new(created: u64) -> Self {
        Self {
            model: String::new(),
            created,
            jobs: 0,
            missing: Vec::new(),
            failed: HashSet::new(),
            looked: None,
            submitted: 0,
            is_cancelled: false,
            samples: VecDeque::new(),
        }
    }

    /// Looks for what was missing.
    async fn look(&mut self, store: &Store, name: &str, now: Instant) -> Result<()> {
        let is_over = self.missing.len() == self.failed.len();
        if self.looked.is_some_and(|looked| is_over && now.duration_since(looked) < OVER_HOLDS) {
            return Ok(());
        }
        if self.model.is_empty() {
            self.looked = Some(now);
            match Manifest::read(store, name).await {
                Ok(Manifest { model, keys }) => (self.model, self.jobs, self.missing) = (model, keys.len(), keys),
                Err(error) => {
                    say(&format!("note: the batch {name} is left out: {error}"));
                    return Ok(());
                }
            }
        }
        let found = Found::of(store, &self.missing).await?;
        self.missing.retain(|key| !found.done.contains(&key.hash));
        self.failed = found.failed;
        self.submitted = cursor(store, name).await?;
        self.is_cancelled = store.has(&names::cancelled(name)).await?;
        self.looked = Some(now);
        self.samples.push_back((now, self.jobs - self.missing.len()));
        while self.samples.len() > 2 && now.duration_since(self.samples[1].0) >= RATE_OVER {
            self.samples.pop_front();
        }
        Ok(())
    }

    fn progress(&self, name: String, dead: Option<&[Dead]>, now: Instant) -> BatchProgress {
        let done = self.jobs - self.missing.len();
        let missing: HashSet<_> = self.missing.iter().map(|key| key.hash).collect();
        let is_own = |dead: &&Dead| dead.batch.as_deref() == Some(&name);
        let hashes = |dead: &[Dead]| -> HashSet<_> {
            let hashes = dead.iter().filter(is_own).filter_map(|dead| dead.hash);
            hashes.filter(|hash| missing.contains(hash) && !self.failed.contains(hash)).collect()
        };
        let dead = dead.map(|dead| hashes(dead).len());
        let waiting = self.missing.len().saturating_sub(self.failed.len() + dead.unwrap_or(0));
        let rate = self.rate(now).filter(|_| waiting > 0 && !self.is_cancelled);
        BatchProgress {
            id: name,
            model: self.model.clone(),
            created: self.created,
            jobs: self.jobs,
            submitted: self.submitted,
            done,
            failed: self.failed.len(),
            dead,
            waiting,
            cancelled: self.is_cancelled,
            images_per_second: rate,
            eta_s: rate.filter(|rate| *rate > 0.0).map(|rate| waiting as f64 / rate),
        }
    }

    /// Images a second, since the oldest sample.
    fn rate(&self, now: Instant) -> Option<f64> {
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        let seconds = now.duration_since(first.0).as_secs_f64();
        (self.samples.len() > 1 && seconds > 0.0).then(|| (last.1 - first.1) as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use flux::engine::{ModelRecipe, Recipe};

    use super::*;
    use crate::queue::batch::{Batch, Planned};
    use crate::queue::message::{FileFormat, key};

    fn dead(batch: &str, hash: blake3::Hash) -> Dead {
        let (job, line, prompt, queue) = (None, None, None, None);
        Dead { job, batch: Some(batch.to_string()), line, prompt, reason: String::new(), queue, hash: Some(hash) }
    }

    #[tokio::test]
    async fn what_is_done_failed_dead_and_waiting_is_told_and_how_fast_it_goes() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("file://{}", folder.path().display())).unwrap();
        let planned = |line: usize| {
            let recipe = Recipe::new("x", line as u64);
            Planned { line, n: 1, key: key(&ModelRecipe::default(), &recipe, FileFormat::Png).unwrap(), recipe }
        };
        let batch = Batch::new("tiny", FileFormat::Png, (1..=5).map(planned).collect()).unwrap();
        batch.keep(&store).await.unwrap();
        let keys: Vec<_> = batch.jobs.iter().map(|job| job.key).collect();
        store.put(&keys[0].to_string(), "x").await.unwrap();
        store.put(&keys[1].error(), "{}").await.unwrap();
        let deaths = [dead(&batch.id, keys[2].hash), dead(&batch.id, keys[0].hash), dead("b-other", keys[3].hash)];
        store.put(&names::manifest(&format!("b-{}", "0".repeat(32))), "damaged").await.unwrap();
        let mut state = State::default();
        let told = state.look(&store, Some(&deaths)).await.unwrap();
        let [first] = &told.shown[..] else { panic!("{told:?}") };
        assert_eq!((&*first.model, first.jobs, first.done, first.failed), ("tiny", 5, 1, 1));
        assert_eq!((first.dead, first.waiting, first.images_per_second), (Some(1), 2, None));
        store.put(&keys[3].to_string(), "x").await.unwrap();
        let known = state.known.get_mut(&batch.id).unwrap();
        let later = known.looked.unwrap() + Duration::from_secs(2);
        known.look(&store, &batch.id, later).await.unwrap();
        let told = known.progress(batch.id.clone(), None, later);
        assert_eq!((told.done, told.dead, told.waiting), (2, None, 2));
        assert_eq!((told.images_per_second, told.eta_s), (Some(0.5), Some(4.0)));
    }
}
