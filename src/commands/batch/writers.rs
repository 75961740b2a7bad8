//! Threads that encode and write images while devices make the next ones.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Scope};
use std::time::Instant;

use flux::engine::JobImage;
use flux::files::digest::sha256;
use flux::output::ImageFormat;
use flux::{Error, Result};

use super::items::Item;
use super::manifest::{Entry, InputFile, Manifest, Stamps};

/// Most threads: encoding is much quicker than a model.
const MOST_THREADS: usize = 4;
/// Images that wait for a thread, at most.
const WAITING: usize = 16;

/// An image to write.
pub struct Work {
    pub item: Item,
    pub image: Box<JobImage>,
    /// From the beginning of its batch until it was made.
    pub seconds: f64,
    /// Images that were made at once.
    pub batch: usize,
    pub device: String,
    /// The files that it was made from, as they were before they were read.
    pub stamps: Stamps,
}

/// What became of it.
pub struct Written {
    pub item: Item,
    pub entry: Result<Entry>,
}

/// Threads that write.
pub struct Writers {
    work: SyncSender<Work>,
    written: Receiver<Written>,
}

impl Writers {
    /// Starts the threads, which end when this is dropped.
    ///
    /// Errors when the system starts no thread.
    pub fn start<'scope, 'env>(
        scope: &'scope Scope<'scope, 'env>,
        folder: &'env Path,
        manifest: &'env Manifest,
    ) -> Result<Self> {
        let (work, waiting) = mpsc::sync_channel(WAITING);
        let (told, written) = mpsc::channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let threads = thread::available_parallelism().map_or(1, |cores| cores.get().min(MOST_THREADS));
        for _ in 0..threads {
            let (waiting, told) = (Arc::clone(&waiting), told.clone());
            let serve = move || serve(&waiting, &told, folder, manifest);
            thread::Builder::new()
                .name("writer".to_string())
                .spawn_scoped(scope, serve)
                .map_err(|e| Error::no_thread(&e))?;
        }
        Ok(Self { work, written })
    }

    /// Has an image written; waits while many are.
    pub fn write(&self, work: Work) -> Result<()> {
        self.work.send(work).map_err(|_| Error::new("the threads that write have ended"))
    }

    /// What was written until now.
    pub fn written(&self) -> impl Iterator<Item = Written> {
        self.written.try_iter()
    }

    /// Takes no more, and waits for what is left.
    pub fn finish(self) -> Vec<Written> {
        drop(self.work);
        self.written.iter().collect()
    }
}

fn serve(waiting: &Mutex<Receiver<Work>>, told: &Sender<Written>, folder: &Path, manifest: &Manifest) {
    loop {
        let work = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(work) = work else { return };
        let item = work.item.clone();
        let entry = save(work, folder, manifest);
        if told.send(Written { item, entry }).is_err() {
            return;
        }
    }
}

/// Writes an image, and then a line of the manifest.
fn save(work: Work, folder: &Path, manifest: &Manifest) -> Result<Entry> {
    let saving = Instant::now();
    let Work { item, image, seconds, batch, device, stamps } = work;
    let path = folder.join(&item.file);
    let bytes = image.encode(ImageFormat::of(&path)?).map_err(|e| e.at_path(&path))?;
    item.target(folder)?.write_bytes(&bytes)?;
    let entry = Entry {
        seed: Some(image.plan.seed),
        sha256: Some(sha256(&bytes)),
        bytes: Some(bytes.len() as u64),
        seconds: Some(seconds),
        save_seconds: Some(saving.elapsed().as_secs_f64()),
        batch: Some(batch),
        device: Some(device),
        inputs: inputs(&image, &stamps),
        ..item.entry()
    };
    manifest.append(&entry)?;
    Ok(entry)
}

/// The files that an image was made from.
fn inputs(image: &JobImage, stamps: &Stamps) -> BTreeMap<String, InputFile> {
    let digests = image.recipe().map(|made| made.digests).unwrap_or_default();
    let file = |(name, digest): (String, String)| {
        let stamp = *stamps.get(&name)?;
        Some((name, InputFile { digest, stamp }))
    };
    digests.into_iter().filter_map(file).collect()
}
