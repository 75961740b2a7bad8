//! Inputs of jobs: images and adapters, fetched from the store by their hashes.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use flux::engine::{AdapterFile, EmbeddedFiles, Engine};
use flux::files::adapter::{Adapter, AdapterUse};
use flux::{Error, Result};
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::message::{JobMessage, hash_of};
use crate::names;
use crate::store::Store;

/// The max size of an image and of an adapter, in bytes.
const MAX_IMAGE: u64 = 64 << 20;
const MAX_ADAPTER: u64 = 4 << 30;
/// The max total size of a job's images and of its adapters, in bytes.
const TOTALS: Totals = Totals { images: 256 << 20, adapters: 8 << 30 };
/// Max adapters kept open.
const MAX_ADAPTERS: usize = 8;

/// Bytes that a job may still fetch.
#[derive(Clone, Copy)]
struct Totals {
    images: u64,
    adapters: u64,
}

/// Subtracts the bytes of a file from the remaining budget.
///
/// Errors as wrong usage if the budget is too small.
fn take(left: &mut u64, bytes: u64, what: &str) -> Result<()> {
    *left = left.checked_sub(bytes).ok_or_else(|| {
        Error::usage(format!("the {what} of the job are too large in total")).hint("make them smaller, or use fewer")
    })?;
    Ok(())
}

/// The fetched inputs of a job.
#[derive(Default)]
pub struct Fetched {
    pub pictures: EmbeddedFiles,
    adapters: Vec<(String, Arc<SpooledFile>, AdapterFile)>,
}

/// The file of an adapter, removed on drop.
struct SpooledFile(PathBuf);

impl Drop for SpooledFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// An open adapter, and its file.
type Opened = (Arc<Adapter>, Arc<SpooledFile>);

/// A temporary folder for adapter files, and a cache of open adapters.
pub struct Spool {
    folder: TempDir,
    files: Mutex<HashMap<String, Weak<SpooledFile>>>,
    open: Mutex<HashMap<String, Opened>>,
}

impl Spool {
    /// Creates the temporary folder.
    ///
    /// Errors if the folder cannot be created.
    pub fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("flux-worker-").tempdir();
        let folder = folder.map_err(|e| {
            Error::new(format!("cannot create an adapter folder: {e}")).hint("set TMPDIR to a writable folder")
        })?;
        Ok(Self { folder, files: Mutex::default(), open: Mutex::default() })
    }

    /// Fetches the input images and the adapters of a job.
    ///
    /// Errors as wrong usage if the store lacks an input, its contents do not match its hash, or the inputs exceed the
    /// max total size.
    pub async fn fetch(&self, job: &JobMessage, store: &Store) -> Result<Fetched> {
        self.fetch_within(job, store, TOTALS).await
    }

    async fn fetch_within(&self, job: &JobMessage, store: &Store, mut left: Totals) -> Result<Fetched> {
        let mut fetched = Fetched::default();
        for hash in job.inputs() {
            let name = PathBuf::from(names::input(hash));
            if fetched.pictures.contains_key(&name) {
                continue;
            }
            let bytes = object(store, hash, MAX_IMAGE).await?;
            take(&mut left.images, bytes.len() as u64, "images")?;
            fetched.pictures.insert(name, bytes.to_vec());
        }
        for used in &job.recipe.adapters {
            let hash = hash_of(&used.file).ok_or_else(|| Error::usage("an adapter is not an input"))?;
            let file = self.file(hash, store).await?;
            take(&mut left.adapters, file.0.metadata().map_or(0, |found| found.len()), "adapters")?;
            fetched.adapters.push((hash.to_string(), file, used.clone()));
        }
        Ok(fetched)
    }

    /// Opens the adapters of a job for the model.
    ///
    /// Errors if a file is not an adapter, or is for another model.
    pub fn adapters(&self, engine: &Engine, fetched: &Fetched) -> Result<Vec<AdapterUse>> {
        let open = |(hash, file, used): &(String, Arc<SpooledFile>, AdapterFile)| {
            let known = self.open.lock().get(hash).map(|(adapter, _)| Arc::clone(adapter));
            let adapter = known.map_or_else(|| self.open(engine, hash, file), Ok)?;
            Ok(AdapterUse { adapter, strength: used.strength, blocks: used.blocks.clone() })
        };
        fetched.adapters.iter().map(open).collect()
    }

    /// Returns the file of an adapter, fetching it if needed.
    async fn file(&self, hash: &str, store: &Store) -> Result<Arc<SpooledFile>> {
        let here = |files: &HashMap<String, Weak<SpooledFile>>| files.get(hash).and_then(Weak::upgrade);
        if let Some(file) = here(&self.files.lock()) {
            return Ok(file);
        }
        let bytes = object(store, hash, MAX_ADAPTER).await?;
        // A unique name, since the last user of an older file may be about to remove that file.
        let path = self.folder.path().join(format!("{hash}-{:016x}.safetensors", rand::random::<u64>()));
        let file = Arc::new(SpooledFile(path.clone()));
        let written = tokio::task::spawn_blocking(move || write(&path, &bytes)).await;
        written.map_err(|e| Error::new(e.to_string()))??;
        let mut files = self.files.lock();
        files.retain(|_, file| file.strong_count() > 0);
        files.insert(hash.to_string(), Arc::downgrade(&file));
        Ok(file)
    }

    fn open(&self, engine: &Engine, hash: &str, file: &Arc<SpooledFile>) -> Result<Arc<Adapter>> {
        let adapter = engine.adapter(&file.0)?;
        let mut open = self.open.lock();
        if open.len() >= MAX_ADAPTERS
            && let Some(other) = open.keys().next().cloned()
        {
            open.remove(&other);
        }
        open.insert(hash.to_string(), (Arc::clone(&adapter), Arc::clone(file)));
        Ok(adapter)
    }
}

fn write(path: &std::path::Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes)
        .map_err(|e| Error::new(format!("cannot write the adapter: {e}")).at_path(path).hint("free some space"))
}

/// Fetches an input, and checks it against its hash.
async fn object(store: &Store, hash: &str, most: u64) -> Result<Bytes> {
    let name = names::input(hash);
    let bytes = store.get(&name, most).await?;
    let bytes =
        bytes.ok_or_else(|| Error::usage(format!("the store has no `{name}`")).hint("submit the list again"))?;
    if blake3::hash(&bytes).to_hex().as_str() != hash {
        return Err(Error::usage(format!("the content of `{name}` does not match its hash"))
            .hint("remove it, and submit again"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use flux::engine::Recipe;

    use super::*;
    use crate::message::tests::sample;

    #[tokio::test]
    async fn the_files_of_a_job_are_bounded_together() {
        let (_folder, store) = Store::temporary();
        let mut recipe = Recipe::new("x", 1);
        for byte in [1, 2, 3] {
            let bytes = vec![byte; 100];
            let name = names::input(blake3::hash(&bytes).to_hex().as_str());
            store.put(&name, bytes).await.unwrap();
            recipe.inputs.push(name.clone().into());
            recipe.adapters.push(AdapterFile::new(name, 1.0));
        }
        // An input that is used twice is fetched once.
        recipe.inputs.push(recipe.inputs[0].clone());
        let job = JobMessage { recipe, ..sample() };
        let spool = Spool::new().unwrap();
        for (images, adapters, fits) in [(300, 300, true), (299, 300, false), (300, 299, false)] {
            let fetched = spool.fetch_within(&job, &store, Totals { images, adapters }).await;
            assert_eq!(fetched.map(|fetched| fetched.pictures.len()).ok(), fits.then_some(3), "{images} {adapters}");
        }
    }
}
