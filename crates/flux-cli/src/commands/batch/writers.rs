//! Threads that encode and write images while devices generate the next ones.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::{self, Scope};
use std::time::Instant;

use flux::engine::Image;
use flux::files::digest::sha256;
use flux::output::ImageFormat;
use flux::{Error, Result};
use parking_lot::Mutex;

use super::inputs::{InputFile, Stamps};
use super::items::Item;
use super::manifest::{Entry, Manifest};

/// Maximum number of threads: encoding is much faster than generation.
const MAX_THREADS: usize = 4;
/// Maximum number of images that wait for a thread.
const WAITING: usize = 16;

/// An image to write.
pub struct Work {
    pub item: Item,
    pub image: Box<Image>,
    /// Time from the start of its batch until it was generated.
    pub seconds: f64,
    /// The number of images in its batch.
    pub batch: usize,
    pub device: String,
    /// The input files' stamps, taken before the files were read.
    pub stamps: Stamps,
}

/// The result of writing an image.
pub struct Written {
    pub item: Item,
    pub entry: Result<Entry>,
}

/// The threads that write images.
pub struct Writers {
    work: SyncSender<Work>,
    written: Receiver<Written>,
}

impl Writers {
    /// Starts the threads, which end when the returned value is dropped.
    ///
    /// Errors when the system cannot start a thread.
    pub fn start<'scope, 'env>(
        scope: &'scope Scope<'scope, 'env>,
        folder: &'env Path,
        manifest: &'env Manifest,
    ) -> Result<Self> {
        let (work, waiting) = mpsc::sync_channel(WAITING);
        let (finished, written) = mpsc::channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let threads = thread::available_parallelism().map_or(1, |cores| cores.get().min(MAX_THREADS));
        for _ in 0..threads {
            let (waiting, finished) = (Arc::clone(&waiting), finished.clone());
            let serve = move || serve(&waiting, &finished, folder, manifest);
            thread::Builder::new()
                .name("writer".to_string())
                .spawn_scoped(scope, serve)
                .map_err(|e| Error::no_thread(&e))?;
        }
        Ok(Self { work, written })
    }

    /// Queues an image for writing. Blocks while the queue is full.
    pub fn write(&self, work: Work) -> Result<()> {
        self.work.send(work).map_err(|_| Error::new("the writer threads have ended"))
    }

    /// Returns the images written since the last call, without blocking.
    pub fn written(&self) -> impl Iterator<Item = Written> {
        self.written.try_iter()
    }

    /// Closes the queue and waits for the remaining images.
    pub fn finish(self) -> Vec<Written> {
        drop(self.work);
        self.written.iter().collect()
    }
}

fn serve(waiting: &Mutex<Receiver<Work>>, finished: &Sender<Written>, folder: &Path, manifest: &Manifest) {
    loop {
        let work = waiting.lock().recv();
        let Ok(work) = work else { return };
        let item = work.item.clone();
        let entry = save(work, folder, manifest);
        if finished.send(Written { item, entry }).is_err() {
            return;
        }
    }
}

/// Writes an image and its line of the manifest.
fn save(work: Work, folder: &Path, manifest: &Manifest) -> Result<Entry> {
    let saving = Instant::now();
    let Work { item, image, seconds, batch, device, stamps } = work;
    let path = folder.join(&item.file);
    let bytes = image.encode(ImageFormat::from_path(&path)?).map_err(|e| e.at_path(&path))?;
    let write = || item.target(folder)?.write_bytes(&bytes);
    // A file that is not in the manifest is known by the key in its recipe.
    let has_key = !item.no_recipe;
    if has_key {
        write()?;
    }
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
    if !has_key {
        write()?;
    }
    Ok(entry)
}

/// Returns the input files of an image, with digests and stamps.
fn inputs(image: &Image, stamps: &Stamps) -> BTreeMap<String, InputFile> {
    let digests = image.recipe().map(|made| made.digests).unwrap_or_default();
    let file = |(name, digest): (String, String)| {
        let stamp = *stamps.get(&name)?;
        Some((name, InputFile { digest, stamp }))
    };
    digests.into_iter().filter_map(file).collect()
}
