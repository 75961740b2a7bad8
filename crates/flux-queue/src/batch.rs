//! A batch: jobs listed in a manifest in the store. The manifest never changes.

use std::collections::HashSet;

use bytes::Bytes;
use flux::engine::Recipe;
use flux::{Error, Result};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};

use super::message::{FileFormat, JobMessage, MAX_BYTES, VERSION, unix_time};
use super::names::{self, Key, Lane};
use super::store::Store;

/// Max jobs checked one by one. For larger batches, all results of the store are listed.
const MAX_CHECKED: usize = 1000;
/// Upper bound of the bytes that a message has in addition to its manifest line.
const ROOM: usize = 4 << 10;
/// Concurrent existence checks.
const LOOKS_AT_ONCE: usize = 32;

/// The first line of a manifest.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Head {
    v: u32,
    model: String,
    format: FileFormat,
    jobs: usize,
}

/// A job of a batch, as stored in its manifest line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// The line of the prompt file, and the number of the image within this line. Both count from 1.
    pub line: usize,
    pub n: usize,
    pub key: Key,
    pub recipe: Recipe,
}

/// The part of a manifest line that a status needs.
#[derive(Deserialize)]
struct KeyLine {
    key: Key,
}

/// A batch. Its ID is the hash of its manifest.
pub struct Batch {
    pub id: String,
    pub jobs: Vec<Planned>,
    model: String,
    format: FileFormat,
    manifest: Bytes,
}

impl Batch {
    /// Creates a batch from jobs. Duplicate jobs (equal keys) are dropped.
    ///
    /// Errors if a job cannot be serialized or does not fit into a message.
    pub fn new(model: &str, format: FileFormat, mut jobs: Vec<Planned>) -> Result<Self> {
        let mut known = HashSet::with_capacity(jobs.len());
        jobs.retain(|job| known.insert(job.key.hash));
        let mut manifest = Vec::new();
        let mut write = |line: serde_json::Result<Vec<u8>>| -> Result<()> {
            manifest.extend(line.map_err(|e| Error::usage(format!("cannot write the manifest: {e}")))?);
            manifest.push(b'\n');
            Ok(())
        };
        let head = Head { v: VERSION, model: model.to_string(), format, jobs: jobs.len() };
        write(serde_json::to_vec(&head))?;
        let mut longest = 0;
        jobs.iter().try_for_each(|job| {
            let line = serde_json::to_vec(job);
            longest = longest.max(line.as_ref().map_or(0, Vec::len));
            write(line)
        })?;
        let id = format!("b-{}", names::id(&blake3::hash(&manifest)));
        let batch = Self { id, jobs, model: model.to_string(), format, manifest: manifest.into() };
        // An oversized job must fail here, before any job is sent.
        if longest > MAX_BYTES - ROOM {
            batch.jobs.iter().try_for_each(|job| batch.message(job).map(drop))?;
        }
        Ok(batch)
    }

    /// Writes the manifest to the store, unless it exists.
    pub async fn keep(&self, store: &Store) -> Result<()> {
        let name = names::manifest(&self.id);
        if store.has(&name).await? { Ok(()) } else { store.put(&name, self.manifest.clone()).await }
    }

    /// Returns the message for a job.
    ///
    /// Errors as [`JobMessage::to_bytes`].
    pub fn message(&self, job: &Planned) -> Result<Vec<u8>> {
        let place = format!("{} {} {}", self.id, job.line, job.n);
        let message = JobMessage {
            v: VERSION,
            job: names::id(&blake3::hash(place.as_bytes())),
            batch: Some(self.id.clone()),
            line: job.line,
            n: job.n,
            key: job.key,
            model: self.model.clone(),
            recipe: job.recipe.clone(),
            format: self.format,
            client: None,
            priority: Lane::Batch,
            deadline: None,
            submitted: unix_time(),
        };
        message.to_bytes().map_err(|e| e.at(format!("line {}", job.line)))
    }
}

/// The parts of a manifest that a status needs.
pub struct Manifest {
    pub model: String,
    pub keys: Vec<Key>,
}

impl Manifest {
    /// Reads the manifest of a batch.
    ///
    /// Errors if the batch does not exist or its manifest is damaged.
    pub async fn read(store: &Store, batch: &str) -> Result<Self> {
        if !names::is_batch(batch) {
            return Err(no_batch(batch));
        }
        let manifest = store.get(&names::manifest(batch), u64::MAX).await?.ok_or_else(|| no_batch(batch))?;
        Self::parse(&manifest)
            .map_err(|e| Error::new(format!("the manifest of the batch is damaged: {e}")).hint("submit its list again"))
    }

    fn parse(manifest: &[u8]) -> serde_json::Result<Self> {
        let mut lines = manifest.split(|byte| *byte == b'\n');
        let Head { model, .. } = serde_json::from_slice(lines.next().unwrap_or_default())?;
        let keys = lines.filter(|line| !line.is_empty());
        let keys = keys.map(|line| serde_json::from_slice::<KeyLine>(line).map(|line| line.key));
        keys.collect::<serde_json::Result<_>>().map(|keys| Self { model, keys })
    }
}

/// Returns the error for a batch that the store lacks.
pub fn no_batch(batch: &str) -> Error {
    Error::usage(format!("there is no batch `{}` in this store", flux::error::shown(batch)))
        .hint("list the batches with `flux queue status`")
}

/// Returns the number of jobs that were sent to the broker.
pub async fn cursor(store: &Store, batch: &str) -> Result<usize> {
    let text = store.get(&names::cursor(batch), 32).await?;
    Ok(text.and_then(|text| std::str::from_utf8(&text).ok()?.trim().parse().ok()).unwrap_or(0))
}

/// The hashes of jobs with a result, and of jobs with an error instead.
#[derive(Debug, Default)]
pub struct Found {
    pub done: HashSet<blake3::Hash>,
    pub failed: HashSet<blake3::Hash>,
}

impl Found {
    /// Looks up the results of jobs. A job with both a result and an error counts as done.
    pub async fn look_up(store: &Store, keys: &[Key]) -> Result<Self> {
        let mut found = if keys.len() <= MAX_CHECKED {
            Self::by_looking(store, keys).await?
        } else {
            Self::by_listing(store, keys).await?
        };
        found.failed.retain(|hash| !found.done.contains(hash));
        Ok(found)
    }

    async fn by_looking(store: &Store, keys: &[Key]) -> Result<Self> {
        let looks = stream::iter(keys.iter().copied()).map(|key| async move {
            let is_done = store.has(&key.to_string()).await?;
            let is_failed = !is_done && store.has(&key.error()).await?;
            Ok::<_, Error>((key.hash, is_done, is_failed))
        });
        let looks: Vec<_> = looks.buffer_unordered(LOOKS_AT_ONCE).try_collect().await?;
        let of = |which: fn(&(blake3::Hash, bool, bool)) -> bool| {
            looks.iter().filter(|look| which(look)).map(|look| look.0).collect()
        };
        Ok(Self { done: of(|look| look.1), failed: of(|look| look.2) })
    }

    async fn by_listing(store: &Store, keys: &[Key]) -> Result<Self> {
        let wanted: HashSet<_> = keys.iter().map(|key| key.hash).collect();
        let mut found = Self::default();
        let mut visit = |name: &str| match Key::parse_object_name(name) {
            Some((hash, true)) if wanted.contains(&hash) => drop(found.done.insert(hash)),
            Some((hash, false)) if wanted.contains(&hash) => drop(found.failed.insert(hash)),
            _ => {}
        };
        store.results(&mut visit).await?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use flux::engine::ModelRecipe;

    use super::*;
    use crate::message::key;

    fn planned(line: usize, prompt: &str) -> Planned {
        let recipe = Recipe::new(prompt, 1);
        Planned { line, n: 1, key: key(&ModelRecipe::default(), &recipe, FileFormat::Png).unwrap(), recipe }
    }

    fn batch(prompts: &[&str]) -> Batch {
        let jobs = prompts.iter().enumerate().map(|(place, prompt)| planned(place + 1, prompt)).collect();
        Batch::new("tiny", FileFormat::Png, jobs).unwrap()
    }

    #[test]
    fn the_same_list_is_the_same_batch_and_the_same_jobs() {
        let (one, again, other) = (batch(&["a", "b", "a"]), batch(&["a", "b", "a"]), batch(&["a", "c"]));
        assert_eq!((one.id.clone(), one.jobs.len()), (again.id.clone(), 2));
        assert_ne!(one.id, other.id);
        let job = |batch: &Batch, place: usize| JobMessage::read(&batch.message(&batch.jobs[place]).unwrap()).unwrap();
        assert_eq!(job(&one, 1).job, job(&again, 1).job);
        assert_ne!(job(&one, 0).job, job(&one, 1).job);
        assert_eq!((job(&one, 1).line, job(&one, 1).key), (2, one.jobs[1].key));
    }

    #[test]
    fn a_job_that_no_message_holds_is_told_before_any_is_sent() {
        let jobs = |length: usize| vec![planned(1, "a"), planned(7, &"\"".repeat(length))];
        assert!(Batch::new("tiny", FileFormat::Png, jobs(31_000)).is_ok());
        let error = Batch::new("tiny", FileFormat::Png, jobs(33_000)).err().unwrap().to_string();
        assert!(error.contains("line 7") && error.contains("shorten the prompt"), "{error}");
    }

    #[tokio::test]
    async fn results_are_found_by_looking_and_by_listing() {
        let (_folder, store) = Store::temporary();
        let batch = batch(&["done", "failed", "both", "queued"]);
        batch.keep(&store).await.unwrap();
        batch.keep(&store).await.unwrap();
        let Manifest { model, keys } = Manifest::read(&store, &batch.id).await.unwrap();
        assert_eq!(model, "tiny");
        assert_eq!(keys, batch.jobs.iter().map(|job| job.key).collect::<Vec<_>>());
        for name in [keys[0].to_string(), keys[1].error(), keys[2].to_string(), keys[2].error()] {
            store.put(&name, "x").await.unwrap();
        }
        store.put("out/ff/no-hash.png", "x").await.unwrap();
        for found in [Found::look_up(&store, &keys).await.unwrap(), Found::by_listing(&store, &keys).await.unwrap()] {
            assert!(found.done == HashSet::from([keys[0].hash, keys[2].hash]) && found.failed.contains(&keys[1].hash));
            assert!(!found.failed.contains(&keys[3].hash));
        }
        assert!(Manifest::read(&store, "b-../x").await.is_err());
        assert_eq!(cursor(&store, &batch.id).await.unwrap(), 0);
    }
}
