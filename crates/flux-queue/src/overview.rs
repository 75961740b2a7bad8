//! Progress of all batches of a store, for clients that poll.
//!
//! Results never disappear, so only missing results are looked up again. Answers are cached for a multiple of the time
//! that the store took to produce them.

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
use flux_runtime::progress::say;

/// Max batches reported, newest first.
pub const MAX_BATCHES: usize = 100;
/// The min time for which an answer is cached.
const HOLDS: Duration = Duration::from_secs(3);
/// The time for which an answer is cached, as a multiple of the time that it took.
const REST: u32 = 5;
/// The time for which the state of a finished batch is cached.
const OVER_HOLDS: Duration = Duration::from_secs(60);
/// The time for which dead letters are cached. Reading them hides them from other readers for a moment.
const DEAD_HOLD: Duration = Duration::from_secs(30);
/// The time window of the rate.
const RATE_OVER: Duration = Duration::from_secs(60);

/// The progress of a batch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BatchProgress {
    pub id: String,
    pub model: String,
    /// The time of the first submission, in Unix seconds.
    pub created: u64,
    pub jobs: usize,
    /// Jobs that were sent to the broker.
    pub submitted: usize,
    pub done: usize,
    /// Jobs whose request is invalid.
    pub failed: usize,
    /// Jobs that were dead-lettered. `None` if the broker is unreachable.
    pub dead: Option<usize>,
    pub waiting: usize,
    pub cancelled: bool,
    /// `None` until the batch was looked up twice.
    pub images_per_second: Option<f64>,
    pub eta_s: Option<f64>,
}

/// The progress of all batches.
#[derive(Debug, Clone, Default)]
pub struct Batches {
    /// The newest batches, newest first.
    pub shown: Vec<BatchProgress>,
    /// The number of older batches.
    pub others: usize,
}

/// A cache of the progress of all batches. See the [module](self).
#[derive(Default)]
pub struct Overview {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: HashMap<String, Known>,
    /// Dead letters and the time at which they were read. `None` if the broker was unreachable.
    dead: Option<(Instant, Option<Vec<Dead>>)>,
    last: Option<Last>,
}

struct Last {
    since: Instant,
    took: Duration,
    batches: Arc<Batches>,
}

/// The cached state of a batch.
struct Known {
    model: String,
    created: u64,
    jobs: usize,
    /// Jobs without a result, including failed ones.
    missing: Vec<Key>,
    failed: HashSet<blake3::Hash>,
    looked: Option<Instant>,
    submitted: usize,
    is_cancelled: bool,
    /// Numbers of results over time, oldest first.
    samples: VecDeque<(Instant, usize)>,
}

impl Overview {
    /// Returns the progress of all batches. `dead` reads the dead letters from the broker.
    ///
    /// Errors if the store is unreachable.
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
        let others = newest.len().saturating_sub(MAX_BATCHES);
        newest.truncate(MAX_BATCHES);
        let mut shown = Vec::with_capacity(newest.len());
        for name in newest {
            let Some(known) = self.known.get_mut(&name) else { continue };
            known.look(store, &name, Instant::now()).await?;
            // The model is empty if the manifest is damaged.
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

    /// Looks up the missing results.
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
                    say(&format!("note: skipping the batch {name}: {error}"));
                    return Ok(());
                }
            }
        }
        let found = Found::look_up(store, &self.missing).await?;
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

    /// Returns the images per second since the oldest sample.
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
    use crate::batch::{Batch, Planned};
    use crate::message::{FileFormat, key};

    fn dead(batch: &str, hash: blake3::Hash) -> Dead {
        let (job, line, prompt, queue) = (None, None, None, None);
        Dead { job, batch: Some(batch.to_string()), line, prompt, reason: String::new(), queue, hash: Some(hash) }
    }

    #[tokio::test]
    async fn what_is_done_failed_dead_and_waiting_is_told_and_how_fast_it_goes() {
        let (_folder, store) = Store::temporary();
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
