//! Generation of a batch's images with one engine.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Instant;

use flux::engine::{Engine, EngineArgs, Event, ImageRecipe, InputSource, Inputs, Job, Recipe, Ticket};
use flux::error::{ErrorKind, Field, Names};
use flux::files::adapter::{Adapter, AdapterUse};
use flux::files::{ModelFiles, ModelPaths};
use flux::model::ModelInfo;
use flux::output::ImageFormat;
use flux::pipeline::Request;
use flux::stage::CancelFlag;
use flux::{Error, Result};
use flux_upsample::{Rewritten, Upsampler};

use super::inputs::{Stamp, Stamps};
use super::items::{Item, Todo};
use super::manifest::Manifest;
use super::place;
use super::report::BatchReport;
use super::writers::{Work, Writers};
use crate::cli::{Batch, ModelChoice};
use crate::commands::names;
use crate::commands::signals::Signals;
use crate::commands::upsample::{loaded, upsampler};
use flux_runtime::progress::Console;

/// The maximum number of jobs queued in the engine, which batches images of the same shape among them.
const WINDOW: usize = 64;
/// The maximum number of prompts that a language model rewrites at once, ahead of the engine.
const AHEAD: usize = 4;

/// A batch to run.
pub struct Run<'a> {
    pub args: &'a Batch,
    pub model: ModelChoice,
    pub signals: &'a Signals,
    pub folder: &'a Path,
    /// The field names to use in messages.
    pub names: Names,
}

/// A job in the engine.
struct Running {
    item: Item,
    ticket: Ticket,
    stamps: Stamps,
}

/// The recipes of the next items, in order. A language model rewrites their prompts on threads.
struct Recipes<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    upsampler: Option<&'scope Upsampler>,
    info: &'scope ModelInfo,
    cancel: CancelFlag,
    items: std::vec::IntoIter<Item>,
    next: VecDeque<(Item, Next<'scope>)>,
}

/// The recipe of an item, or the thread that rewrites its prompt.
enum Next<'scope> {
    Ready(Box<Recipe>),
    Rewriting(ScopedJoinHandle<'scope, Result<Rewritten>>),
}

impl<'scope> Recipes<'scope, '_> {
    /// Starts rewriting the prompts of the next items.
    fn start(&mut self) -> Result<()> {
        while self.next.len() < AHEAD
            && let Some(item) = self.items.next()
        {
            let (recipe, info, cancel) = (item.recipe.clone(), self.info, self.cancel.clone());
            let next = match self.upsampler.filter(|_| item.upsample) {
                None => Next::Ready(Box::new(recipe)),
                Some(upsampler) => {
                    let rewrite = move || upsampler.upsample(&recipe, &loaded(&recipe)?, info, &cancel);
                    let thread = thread::Builder::new().name("upsample".to_string()).spawn_scoped(self.scope, rewrite);
                    Next::Rewriting(thread.map_err(|e| Error::no_thread(&e))?)
                }
            };
            self.next.push_back((item, next));
        }
        Ok(())
    }

    /// Returns `true` if the next recipe is there.
    fn is_ready(&self) -> bool {
        self.next.front().is_none_or(|(_, next)| match next {
            Next::Ready(_) => true,
            Next::Rewriting(thread) => thread.is_finished(),
        })
    }

    /// Returns the next item with its recipe. Waits until its prompt is rewritten.
    fn next(&mut self) -> Result<Option<(Item, Result<Rewritten>)>> {
        self.start()?;
        let Some((item, next)) = self.next.pop_front() else { return Ok(None) };
        let panicked = || Error::new("the thread that rewrites the prompt panicked");
        let recipe = match next {
            Next::Ready(recipe) => Ok(Rewritten { recipe: *recipe, notes: Vec::new() }),
            Next::Rewriting(thread) => thread.join().unwrap_or_else(|_| Err(panicked())),
        };
        self.start()?;
        Ok(Some((item, recipe)))
    }
}

impl Drop for Recipes<'_, '_> {
    fn drop(&mut self) {
        // Nothing waits for the rest of the prompts.
        self.cancel.cancel();
    }
}

/// Opened adapters with their file's stamp before opening, or the error.
type Adapters = HashMap<PathBuf, Result<(Arc<Adapter>, Option<Stamp>)>>;

impl Run<'_> {
    /// Validates every line without loading weights.
    pub fn check(&self, files: ModelFiles, todo: Todo, console: &mut Console) -> Result<()> {
        self.upsampler(&todo.items)?;
        let info = ModelInfo::read(&files)?;
        let mut report = BatchReport::new(&todo, None, console, (self.args.draw.console.json, self.names));
        report.wrong(&todo.wrong)?;
        for item in &todo.items {
            match self.check_item(item, &info, files.paths()) {
                Ok(()) => report.made += 1,
                Err(error) => report.failed(item, &error)?,
            }
        }
        report.counted();
        let (made, existing, failed) = (report.made, report.existing, report.failed);
        report.console.info(&format!("{made} to generate, {existing} already exist, {failed} cannot be generated"));
        report.result("cannot be generated")
    }

    fn check_item(&self, item: &Item, info: &ModelInfo, paths: &ModelPaths) -> Result<()> {
        let (request, inputs) = self.prepare(item, &item.recipe)?;
        check_room(item, &item.recipe, paths, &inputs)?;
        item.recipe.adapters.iter().try_for_each(|used| names::existing_adapter(&used.file).map(drop))?;
        info.check_request(&request)
    }

    /// Generates the images and reports the results.
    pub fn draw(&self, files: ModelFiles, mut todo: Todo, manifest: &Manifest, console: &mut Console) -> Result<()> {
        let began = Instant::now();
        let mut report = BatchReport::new(&todo, Some(manifest), console, (self.args.draw.console.json, self.names));
        report.wrong(&todo.wrong)?;
        let items = mem::take(&mut todo.items);
        let made = if items.is_empty() { Ok(()) } else { self.draw_all(files, items, manifest, &mut report) };
        report.console.end_images();
        report.summary(began.elapsed().as_secs_f64());
        report.hint_to_go_on(&self.args.file);
        made.map_err(|error| report.ended_by(error)).and_then(|()| report.result("failed"))
    }

    fn draw_all(
        &self,
        files: ModelFiles,
        items: Vec<Item>,
        manifest: &Manifest,
        report: &mut BatchReport<'_>,
    ) -> Result<()> {
        let notes = files.notes().iter().chain(self.args.draw.quantize.notes());
        notes.for_each(|note| report.console.note(note));
        let upsampler = self.upsampler(&items)?;
        let has_prompts = items.iter().any(|item| item.recipe.embeddings.is_none());
        let args = EngineArgs {
            without_text_encoder: !has_prompts,
            images: Some(items.len()),
            ..self.args.draw.engine(&self.model)?
        };
        let first = items.first().and_then(|item| self.prepare(item, &item.recipe).ok()).map(|(request, _)| request);
        let engine = Engine::open(files, &args, first.as_ref(), report.console, &self.signals.cancel_flag())?;
        for (name, description) in engine.devices(items.len()) {
            report.console.detail(&format!("device: {name}: {description}"));
        }
        let made = thread::scope(|scope| {
            let writers = Writers::start(scope, self.folder, manifest)?;
            let recipes = Recipes {
                scope,
                upsampler: upsampler.as_ref(),
                info: engine.info(),
                cancel: self.signals.cancel_flag().child(),
                items: items.into_iter(),
                next: VecDeque::new(),
            };
            let drawn = self.feed(&engine, recipes, &writers, report);
            // Finished images are written even if a signal or an error ends the run.
            let rest = writers.finish();
            let written = rest.into_iter().try_for_each(|written| report.written(written));
            drawn.and(written)
        });
        mem::forget(engine);
        made
    }

    /// Passes the items to the engine, and its images to the writers.
    fn feed(
        &self,
        engine: &Engine,
        mut recipes: Recipes<'_, '_>,
        writers: &Writers,
        report: &mut BatchReport<'_>,
    ) -> Result<()> {
        let cancel = self.signals.cancel_flag();
        let mut adapters = Adapters::new();
        let mut running: VecDeque<Running> = VecDeque::new();
        report.console.begin_images(recipes.items.len() as u64);
        loop {
            cancel.check()?;
            // While the language model is slower than the devices, finished images are written.
            while running.len() < WINDOW
                && (running.is_empty() || recipes.is_ready())
                && let Some((item, rewritten)) = recipes.next()?
            {
                cancel.check()?;
                let submitted = rewritten.and_then(|Rewritten { recipe, notes }| {
                    notes.iter().for_each(|note| report.console.note(&format!("{}: {note}", item.file)));
                    self.submit(engine, &item, &recipe, &mut adapters)
                });
                match submitted {
                    Ok((ticket, stamps)) => running.push_back(Running { item, ticket, stamps }),
                    Err(error) => report.failed(&item, &error)?,
                }
            }
            let Some(job) = running.pop_front() else { return Ok(()) };
            self.follow(engine, job, writers, report)?;
            writers.written().try_for_each(|written| report.written(written))?;
            report.progress();
        }
    }

    /// Returns the language model that rewrites prompts, if an item needs it.
    ///
    /// Errors if none is set.
    fn upsampler(&self, items: &[Item]) -> Result<Option<Upsampler>> {
        items.iter().any(|item| item.upsample).then(|| upsampler(&self.args.draw.upsample)).transpose()
    }

    /// Returns the request of an item's recipe, and its input images.
    fn prepare(&self, item: &Item, recipe: &Recipe) -> Result<(Request, Inputs)> {
        if item.no_recipe && self.args.draw.embed_inputs {
            return Err(Error::usage("an image without a recipe cannot store its inputs")
                .for_field(Field::EmbedInputs)
                .hint(format!("leave out `{:#}`, or `recipe` in the line", Field::EmbedInputs)));
        }
        prepare(recipe, self.args.draw.embed_inputs)
    }

    fn submit(
        &self,
        engine: &Engine,
        item: &Item,
        recipe: &Recipe,
        adapters: &mut Adapters,
    ) -> Result<(Ticket, Stamps)> {
        // Taken before the files are read, so that a later change is detected.
        let files = recipe.files().map(|(_, file)| file).chain(recipe.upscaler());
        let named = files.map(|file| file.to_string_lossy().into_owned());
        let mut stamps: Stamps = named.filter_map(|name| Some((name.clone(), Stamp::from_name(&name)?))).collect();
        let (request, inputs) = self.prepare(item, recipe)?;
        check_room(item, recipe, &self.model.paths, &inputs)?;
        place::create_folders(self.folder, &item.file)?;
        item.target(self.folder)?;
        let mut used_adapters = Vec::new();
        for used in &recipe.adapters {
            let name = used.file.to_string_lossy();
            let open = || {
                let file = names::adapter(&used.file)?;
                let stamp = Stamp::from_name(&name);
                Ok((engine.adapter(&file)?, stamp))
            };
            let (adapter, stamp) = adapters.entry(used.file.clone()).or_insert_with(open).clone()?;
            used_adapters.push(AdapterUse { adapter, strength: used.strength, blocks: used.blocks.clone() });
            stamps.extend(stamp.map(|stamp| (name.into_owned(), stamp)));
        }
        let request = Request { adapters: used_adapters, ..request };
        let ticket = engine.submit(Job {
            inputs: Arc::new(inputs),
            recipe: Some(Arc::new(recipe.clone())),
            key: Some(item.key.clone()),
            provenance: !self.args.draw.no_provenance,
            no_recipe: item.no_recipe,
            cancel: self.signals.cancel_flag(),
            ..Job::new(request, 1)
        })?;
        Ok((ticket, stamps))
    }

    /// Handles the events of a job until it ends.
    fn follow(&self, engine: &Engine, job: Running, writers: &Writers, report: &mut BatchReport<'_>) -> Result<()> {
        let Running { item, ticket, stamps } = job;
        let (mut began, mut together) = (Instant::now(), 1);
        for event in ticket {
            match event {
                Ok(Event::Started { batch, .. }) => (began, together) = (Instant::now(), batch),
                Ok(Event::Progress(progress)) => report.stage(progress),
                Ok(Event::Image { image, .. }) => {
                    let seconds = began.elapsed().as_secs_f64();
                    let device = engine.machine(1);
                    let (item, stamps) = (item.clone(), stamps.clone());
                    writers.write(Work { item, image, seconds, batch: together, device, stamps })?;
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
                Err(error) => report.failed(&item, &error)?,
            }
        }
        Ok(())
    }
}

/// Returns the request of a recipe for one image, and its inputs, which keep their files if `keeps`.
///
/// Errors if the recipe is invalid, or an input cannot be read.
pub fn prepare(recipe: &Recipe, keeps: bool) -> Result<(Request, Inputs)> {
    let request = recipe.request()?;
    let mut stdin = io::empty();
    let mut source = InputSource::new(&mut stdin);
    source.keeps = keeps;
    let inputs = Inputs::read(recipe, &mut source)?;
    let request = inputs.apply(request);
    request.check_count(1)?;
    Ok((request, inputs))
}

/// Errors if the file of an image cannot hold the image, or has no room for its recipe.
fn check_room(item: &Item, recipe: &Recipe, paths: &ModelPaths, inputs: &Inputs) -> Result<()> {
    let format = ImageFormat::from_path(Path::new(&item.file))?;
    recipe.check_format(format)?;
    if item.no_recipe { Ok(()) } else { ImageRecipe::check_room(recipe, paths, inputs, format) }
}
