//! Batches in progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::OfImages;
use super::event::Event;
use super::image::Image;
use super::schedule::{Batch, Scheduler};
use crate::pipeline::{Latents, Plan, Timings};
use crate::rgb::Rgb;
use crate::stage::Progress;

/// A batch in progress on a device; it sends its events to the jobs.
pub(super) struct RunningBatch {
    scheduler: Arc<Scheduler>,
    pub(super) batch: Mutex<Batch>,
    made: AtomicUsize,
}

impl RunningBatch {
    pub(super) fn new(scheduler: Arc<Scheduler>, batch: Batch) -> Self {
        Self { scheduler, batch: Mutex::new(batch), made: AtomicUsize::new(0) }
    }

    /// Returns the number of images that were sent.
    pub(super) fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// Sends that steps begin, with memory for the first `count` images; returns the other images to the scheduler.
    pub(super) fn start(&self, count: usize, remark: Option<&str>) {
        let mut batch = self.batch.lock();
        self.scheduler.keep(&mut batch, count);
        for part in batch.parts.iter().filter(|part| !part.images().is_empty()) {
            part.send(Event::Started { images: part.images(), batch: count, remark: remark.map(str::to_string) });
        }
    }

    /// Returns `true` if a job requests previews.
    pub(super) fn wants_previews(&self) -> bool {
        self.batch.lock().parts.iter().any(|part| part.job().previews)
    }

    /// Sends the preview of each image.
    pub(super) fn previews(&self, mut images: impl Iterator<Item = Option<Rgb>>, steps: [usize; 2]) {
        for part in &self.batch.lock().parts {
            for (place, image) in part.images().zip(&mut images) {
                if let Some(image) = image.filter(|_| part.job().previews) {
                    part.send(Event::Preview { place, steps, image });
                }
            }
        }
    }

    pub(super) fn progress(&self, progress: Progress) {
        let batch = self.batch.lock();
        self.scheduler.progress(&batch, progress);
        batch.parts.iter().for_each(|part| part.send(Event::Progress(progress)));
    }

    /// Sends the next image; `other` is the image on another background.
    pub(super) fn image(&self, image: (Rgb, Plan), latents: Option<Latents>, other: Option<Rgb>) {
        let mut place = self.made.fetch_add(1, Ordering::Relaxed);
        let made = self.batch.lock();
        self.scheduler.made(&made);
        let of_batch = OfImages { place, count: made.requests.len() };
        for part in &made.parts {
            let images = part.images();
            if place < images.len() {
                let place = images.start + place;
                let image = Box::new(Image::new((image, other), place, of_batch, Arc::clone(&part.origin)));
                part.send(Event::Image { place, image, latents });
                return;
            }
            place -= images.len();
        }
    }

    /// Sends the enlarged image of a job.
    pub(super) fn enlarged(&self, image: Rgb) {
        self.made.fetch_add(1, Ordering::Relaxed);
        let batch = self.batch.lock();
        self.scheduler.made(&batch);
        if let Some(part) = batch.parts.first() {
            part.send(Event::Enlarged(Box::new(image)));
        }
    }

    /// Sends that all images are generated.
    pub(super) fn finish(&self, device: &Arc<str>, timings: &Timings) {
        for part in self.batch.lock().parts.iter().filter(|part| !part.images().is_empty()) {
            let (images, device) = (part.images(), Arc::clone(device));
            part.send(Event::Finished { images, device, timings: Box::new(timings.clone()) });
        }
    }
}
