//! What jobs are drawn with: pictures and adapters, by their hashes, from the store.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use flux::engine::{EmbeddedFiles, Engine};
use flux::files::adapter::{Adapter, AdapterUse};
use flux::{Error, Result};
use tempfile::TempDir;

use super::locked;
use crate::queue::message::{JobMessage, hash_of};
use crate::queue::names;
use crate::queue::store::Store;

/// The longest picture and the longest adapter.
const MOST_PICTURE: u64 = 64 << 20;
const MOST_ADAPTER: u64 = 4 << 30;
/// Adapters that are kept open.
const MOST_ADAPTERS: usize = 8;

/// The inputs of a job.
#[derive(Default)]
pub struct Fetched {
    pub pictures: EmbeddedFiles,
    adapters: Vec<(String, Arc<SpooledFile>, f32)>,
}

/// The file of an adapter, which is there as long as this is.
struct SpooledFile(PathBuf);

impl Drop for SpooledFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// An adapter that is open, and its file.
type Opened = (Arc<Adapter>, Arc<SpooledFile>);

/// A folder for adapters, which are opened by path, and those that are open.
pub struct Spool {
    folder: TempDir,
    files: Mutex<HashMap<String, Weak<SpooledFile>>>,
    open: Mutex<HashMap<String, Opened>>,
}

impl Spool {
    /// Errors when there is no room for temporary files.
    pub fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("flux-worker-").tempdir();
        let folder = folder.map_err(|e| {
            Error::new(format!("cannot make a folder for adapters: {e}")).hint("is TMPDIR a folder with room?")
        })?;
        Ok(Self { folder, files: Mutex::default(), open: Mutex::default() })
    }

    /// Fetches what a job is drawn with.
    ///
    /// Errors as wrong usage when the store has something else, or nothing, by its name.
    pub async fn fetch(&self, job: &JobMessage, store: &Store) -> Result<Fetched> {
        let mut fetched = Fetched::default();
        for hash in job.inputs() {
            let name = names::input(hash);
            let bytes = object(store, hash, MOST_PICTURE).await?;
            fetched.pictures.insert(name.into(), bytes.to_vec());
        }
        for used in &job.recipe.adapters {
            let hash = hash_of(&used.file).ok_or_else(|| Error::usage("an adapter is no input"))?;
            fetched.adapters.push((hash.to_string(), self.file(hash, store).await?, used.strength));
        }
        Ok(fetched)
    }

    /// Opens the adapters of a job for the model.
    ///
    /// Errors when one is none, or is for another model.
    pub fn adapters(&self, engine: &Engine, fetched: &Fetched) -> Result<Vec<AdapterUse>> {
        let open = |(hash, file, strength): &(String, Arc<SpooledFile>, f32)| {
            let known = locked(&self.open).get(hash).map(|(adapter, _)| Arc::clone(adapter));
            let adapter = known.map_or_else(|| self.open(engine, hash, file), Ok)?;
            Ok(AdapterUse { adapter, strength: *strength })
        };
        fetched.adapters.iter().map(open).collect()
    }

    /// The file of an adapter, which is fetched unless it is here.
    async fn file(&self, hash: &str, store: &Store) -> Result<Arc<SpooledFile>> {
        let here = |files: &HashMap<String, Weak<SpooledFile>>| files.get(hash).and_then(Weak::upgrade);
        if let Some(file) = here(&locked(&self.files)) {
            return Ok(file);
        }
        let bytes = object(store, hash, MOST_ADAPTER).await?;
        // No two files have one name: the last user of one may be about to remove it.
        let path = self.folder.path().join(format!("{hash}-{:016x}.safetensors", rand::random::<u64>()));
        let file = Arc::new(SpooledFile(path.clone()));
        let written = tokio::task::spawn_blocking(move || write(&path, &bytes)).await;
        written.map_err(|e| Error::new(e.to_string()))??;
        let mut files = locked(&self.files);
        files.retain(|_, file| file.strong_count() > 0);
        files.insert(hash.to_string(), Arc::downgrade(&file));
        Ok(file)
    }

    fn open(&self, engine: &Engine, hash: &str, file: &Arc<SpooledFile>) -> Result<Arc<Adapter>> {
        let adapter = engine.adapter(&file.0)?;
        let mut open = locked(&self.open);
        if open.len() >= MOST_ADAPTERS
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
        .map_err(|e| Error::new(format!("cannot write the adapter: {e}")).at_path(path).hint("has the disk room?"))
}

/// An input, which is what its name says.
async fn object(store: &Store, hash: &str, most: u64) -> Result<Bytes> {
    let name = names::input(hash);
    let bytes = store.get(&name, most).await?;
    let bytes =
        bytes.ok_or_else(|| Error::usage(format!("the store has no `{name}`")).hint("submit the list again"))?;
    if blake3::hash(&bytes).to_hex().as_str() != hash {
        return Err(
            Error::usage(format!("`{name}` is not what it was named after")).hint("remove it, and submit again")
        );
    }
    Ok(bytes)
}
