//! The passes of a batch on a device or a group: a session for all images, and for a second pass a session for each
//! enlarged image.

use std::iter;
use std::sync::Arc;

use super::networks::Networks;
use super::running::RunningBatch;
use super::schedule::JobShare;
use super::transparent;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::input;
use crate::pipeline::session::preview::Previews;
use crate::pipeline::session::shared_text::TextSource;
use crate::pipeline::{
    Decoded, Hires, HiresPlan, Latents, Model, Plan, Replica, Request, Session, Timings, Transparency,
};
use crate::rgb::Rgb;
use crate::stage::{CancelFlag, Progress, Stage};
use crate::upscaler::Tiles;

/// The side of the tiles in which upscalers enlarge. A fixed side lets machines with different memory reproduce images.
const TILE: usize = 512;
/// The longer side of the preview of a first pass.
const PREVIEW: usize = 512;

/// A pass, and its place in the progress of its batch.
#[derive(Debug, Clone, Copy)]
struct Pass {
    /// Steps of the first pass, and of the edit of an enlarged image.
    steps: [usize; 2],
    /// Number of images in the batch.
    images: usize,
    /// Index of the edited image; `None` in the first pass.
    edited: Option<usize>,
    /// `true` if results are returned, not sent.
    is_kept: bool,
}

/// The results of a pass.
struct Made {
    /// Images, if they are kept, with their final latents if requested.
    images: Vec<MadeImage>,
    timings: Timings,
}

/// An image with its final latents.
type MadeImage = (Decoded, Option<Latents>);

impl Pass {
    /// Returns the progress of the whole batch.
    fn whole(self, Progress { stage, done, total }: Progress) -> Progress {
        if stage != Stage::Denoise {
            return Progress { stage, done, total };
        }
        let [first, edit] = self.steps;
        let before = self.edited.map_or(0, |image| first + image * edit);
        Progress { stage, done: done + before as u64, total: (first + self.images * edit) as u64 }
    }

    /// Returns the number of finished steps of an image, and of all its steps, after `done` steps of the pass.
    fn image_steps(self, done: usize) -> [usize; 2] {
        let [first, edit] = self.steps;
        [done + if self.edited.is_some() { first } else { 0 }, first + edit]
    }

    /// Returns `true` if the final latents of images are those of this pass.
    fn is_last(self) -> bool {
        self.edited.is_some() || self.steps[1] == 0
    }

    /// Generates the images of a session, and sends them unless they are kept.
    fn compute<B: Backend>(
        mut self,
        mut session: Session<B>,
        making: &RunningBatch,
        model: &Arc<Model<B>>,
    ) -> Result<Made> {
        if self.edited.is_none() {
            self.images = start(&mut session, making)?;
            self.steps[0] = session.plan().steps_to_run();
        }
        let report = &mut |progress| making.progress(self.whole(progress));
        if making.wants_previews() {
            self.show_steps(&mut session, making, model, report)?;
        }
        let wants_latents = self.is_last() && making.batch.lock().parts.iter().any(|part| part.job().latents);
        let mut latents = if wants_latents { session.final_latents(report)? } else { Vec::new() }.into_iter();
        let mut images = Vec::new();
        while let Some(image) = session.decode(report)? {
            match self.is_kept {
                true => images.push((image, latents.next())),
                false => making.image(image.into_parts(), latents.next(), None),
            }
        }
        Ok(Made { images, timings: session.finish()? })
    }

    /// Runs the steps, and sends a preview of each. A VAE without an encoder has no preview map; then there are no
    /// previews, which is not an error.
    fn show_steps<B: Backend>(
        self,
        session: &mut Session<B>,
        making: &RunningBatch,
        model: &Model<B>,
        report: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let previewer = match model.previewer() {
            Ok(previewer) => previewer,
            Err(error) if model.info().preview_decoder.is_some() => return Err(error),
            Err(_) => return Ok(()),
        };
        if !session.watch(report)? {
            return Ok(());
        }
        let total = session.plan().steps_to_run();
        let (backend, (height, width)) = (model.backend(), model.info().latent_size(session.plan()));
        let (size, channels) = ([height, width], model.info().transformer.in_channels);
        let show = |previews: Option<Previews<B>>, done: usize| {
            let Some(previews) = previews else { return Ok(()) };
            let images = previewer.finish(backend, previews, size, channels)?;
            let before = iter::repeat_n(None, self.edited.unwrap_or(0));
            making.previews(before.chain(images), self.image_steps(done));
            Ok::<_, Error>(())
        };
        let mut previews = None;
        for done in 1..total {
            session.step(report)?;
            // The preview of the previous step is finished while the device computes this step.
            show(previews.take(), done - 1)?;
            let begin = |latents| previewer.begin(backend, latents, size);
            previews = session.predict()?.map(begin).transpose()?;
            // A backend that computes while the host enqueues has finished this step already.
            if session.is_idle()? {
                show(previews.take(), done)?;
            }
        }
        if previews.is_some() {
            session.step(report)?;
        }
        show(previews, total - 1)
    }
}

/// A batch on a device or a group, which generates its images pass by pass.
struct Passes<'a, B: Backend> {
    replica: &'a Replica<B>,
    networks: &'a Networks<B>,
    making: &'a Arc<RunningBatch>,
    reader: TextSource,
    cancel: CancelFlag,
}

/// Generates the images of a batch, and sends them. Images that become transparent by an edit follow on another
/// background.
///
/// Errors as sessions do, and if an image cannot be enlarged.
pub(super) fn run<B: Backend>(replica: &Replica<B>, networks: &Networks<B>, making: &Arc<RunningBatch>) -> Result<()> {
    let (requests, reader, cancel) = {
        let batch = making.batch.lock();
        (batch.requests.clone(), batch.reader.clone(), batch.cancel.clone())
    };
    let passes = Passes { replica, networks, making, reader, cancel };
    let mut pass = passes.first_of(&requests)?;
    let first = requests.iter().map(Request::first_pass).collect();
    let Made { images, mut timings } = passes.run(pass, first, &passes.reader)?;
    pass.images = images.len();
    for (index, (made, request)) in images.into_iter().zip(&requests).enumerate() {
        let more = match &request.hires {
            Some(hires) => passes.enlarge_and_edit(pass, index, made, (request, hires))?,
            None => Some(passes.repeat_on_other_background(made, request)?),
        };
        timings = more.into_iter().fold(timings, Timings::followed_by);
    }
    making.finish(&replica.name().into(), &timings);
    Ok(())
}

impl<B: Backend> Passes<'_, B> {
    /// Returns the first pass. All requests of a batch have the same second pass.
    fn first_of(&self, requests: &[Request]) -> Result<Pass> {
        let first = requests.first();
        let plan = |request| Plan::new(request, self.replica.model().info());
        let plan = first.filter(|request| request.hires.is_some()).map(plan).transpose()?;
        let edit_steps = plan.as_ref().and_then(Plan::second_pass).map_or(0, Plan::steps_to_run);
        let is_kept = first.is_some_and(|first| first.hires.is_some() || first.transparent == Transparency::Edit);
        Ok(Pass { steps: [0, edit_steps], images: requests.len(), edited: None, is_kept })
    }

    /// Runs a pass on all devices of the replica.
    fn run(&self, pass: Pass, requests: Vec<Request>, reader: &TextSource) -> Result<Made> {
        let (making, model) = (Arc::clone(self.making), Arc::clone(self.replica.model()));
        let on_rank = move |rank: usize, session: Session<B>, _: &mut dyn FnMut(Progress)| match rank {
            0 => pass.compute(session, &making, &model),
            // Only the first rank sends the images.
            _ => session.run(&mut |_| {}).map(|_| Made { images: Vec::new(), timings: Timings::default() }),
        };
        self.replica.ranks().run_items(requests, reader, &self.cancel, &mut |_| {}, on_rank)
    }

    /// Generates an image again on another background, and sends both. Returns the time that this took.
    fn repeat_on_other_background(&self, (image, latents): MadeImage, request: &Request) -> Result<Timings> {
        let (image, plan) = image.into_parts();
        let (other, own) = (transparent::second_request(request, image.clone()), Arc::clone(self.making));
        let other = transparent::generate(self.replica, other, &self.cancel, move |progress| own.progress(progress))?;
        let Plan { width, height, .. } = other.plan;
        self.making.image((image, plan), latents, Some(Rgb { width, height, bytes: other.rgb }));
        Ok(other.timings)
    }

    /// Enlarges an image of the first pass, edits it if requested, and sends it. Returns the times of the edit.
    fn enlarge_and_edit(
        &self,
        first: Pass,
        index: usize,
        (image, latents): MadeImage,
        (request, hires): (&Request, &Hires),
    ) -> Result<Option<Timings>> {
        let (image, plan) = image.into_parts();
        let pass = Pass { steps: [plan.steps_to_run(), first.steps[1]], edited: Some(index), ..first };
        preview(&image, self.making, pass);
        let image = Arc::new(self.enlarge(index, hires, image)?);
        let [width, height] = [image.width, image.height];
        let Some(edit) = request.second_pass(Arc::clone(&image), self.replica.model().info()) else {
            let plan = Plan { hires: Some(HiresPlan { width, height, edit: None }), ..plan };
            self.making.image((Arc::unwrap_or_clone(image), plan), latents, None);
            return Ok(None);
        };
        // The features of a prompt of its own are not shared.
        let own = TextSource::Own;
        let reader = if hires.prompt.is_some() { &own } else { &self.reader };
        let Made { images, timings } = self.run(pass, vec![edit], reader)?;
        let edited = images.into_iter().next();
        let (edited, latents) = edited.ok_or_else(|| Error::new("the second pass returned no image"))?;
        let (image, edit) = edited.into_parts();
        let plan = Plan { hires: Some(HiresPlan { width, height, edit: Some(Box::new(edit)) }), ..plan };
        self.making.image((image, plan), latents, None);
        Ok(Some(timings))
    }

    /// Enlarges the result of the first pass of an image of the batch.
    fn enlarge(&self, index: usize, hires: &Hires, image: Rgb) -> Result<Rgb> {
        let size = [image.width, image.height];
        let (region, to) = (hires.region(size), hires.output_size(size)?);
        let image = if region.size() == size { image } else { input::cropped(&image, region) };
        let upscaler = self.making.batch.lock().job(index).and_then(|job| job.inputs.upscaler.clone());
        let (backend, report) = (self.replica.model().backend(), &mut |progress| self.making.progress(progress));
        self.networks.enlarge(backend, upscaler.as_ref(), &image, (to, Tiles::UpTo(TILE)), report, &self.cancel)
    }
}

/// Sends the text features if a job requests them, and prepares the first pass. Returns the number of images.
fn start<B: Backend>(session: &mut Session<B>, making: &RunningBatch) -> Result<usize> {
    let report = &mut |progress| making.progress(progress);
    if making.batch.lock().parts.iter().any(JobShare::wants_embeddings) {
        let embeddings = session.embeddings()?;
        let batch = making.batch.lock();
        let parts = batch.parts.iter().filter(|part| part.wants_embeddings());
        parts.for_each(|part| part.send(super::Event::Embeddings(embeddings.clone())));
    }
    let count = session.prepare(report)?;
    making.start(count, session.adapter_remark());
    Ok(count)
}

/// Sends the result of the first pass as a preview.
fn preview(image: &Rgb, making: &RunningBatch, pass: Pass) {
    let longer = image.width.max(image.height);
    if !making.wants_previews() || pass.steps[1] == 0 {
        return;
    }
    let size = [image.width, image.height].map(|side| (side * PREVIEW / longer.max(PREVIEW)).max(1));
    let image = input::resized(image, size);
    let before = iter::repeat_n(None, pass.edited.unwrap_or(0));
    making.previews(before.chain([Some(image)]), pass.image_steps(0));
}
