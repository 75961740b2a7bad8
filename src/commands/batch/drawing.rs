//! Makes the images of a list with one engine.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use flux::engine::{Engine, EngineArgs, Event, ImageRecipe, InputSource, Inputs, Job, Ticket};
use flux::error::{ErrorKind, Names};
use flux::files::adapter::{Adapter, AdapterUse};
use flux::files::{ModelFiles, ModelPaths};
use flux::model::ModelInfo;
use flux::output::ImageFormat;
use flux::pipeline::Request;
use flux::stage::Stage;
use flux::{Error, Result};

use super::items::{Item, Todo};
use super::manifest::{Manifest, Stamp, Stamps};
use super::told::Told;
use super::writers::{Work, Writers};
use crate::cli::{Batch, ModelChoice};
use crate::commands::names;
use crate::commands::signals::Signals;
use crate::progress::Console;

/// Jobs that the engine has at once: images of one shape among them are made together.
const WINDOW: usize = 64;

/// A list to make.
pub struct Run<'a> {
    pub args: &'a Batch,
    pub model: ModelChoice,
    pub signals: &'a Signals,
    pub folder: &'a Path,
    /// How the lines name fields.
    pub names: Names,
}

/// A job that the engine has.
struct Running {
    item: Item,
    ticket: Ticket,
    stamps: Stamps,
}

/// Adapters that were opened, each with what its file was before, or why they cannot be.
type Adapters = HashMap<PathBuf, Result<(Arc<Adapter>, Option<Stamp>)>>;

impl Run<'_> {
    /// Checks every line without loading weights.
    pub fn check(&self, files: ModelFiles, todo: Todo, console: &mut Console) -> Result<()> {
        let info = ModelInfo::read(&files)?;
        let mut told = Told::new(&todo, None, console, (self.args.draw.console.json, self.names));
        todo.wrong.iter().try_for_each(|wrong| told.wrong(wrong))?;
        for item in &todo.items {
            match self.check_item(item, &info, files.paths()) {
                Ok(()) => told.made += 1,
                Err(error) => told.failed(item, &error)?,
            }
        }
        let (made, existing, failed) = (told.made, told.existing, told.failed);
        told.console.info(&format!("{made} to make, {existing} there already, {failed} cannot be made"));
        told.result("cannot be made")
    }

    fn check_item(&self, item: &Item, info: &ModelInfo, paths: &ModelPaths) -> Result<()> {
        let (request, inputs) = self.prepare(item)?;
        ImageRecipe::check_room(&item.recipe, paths, &inputs, ImageFormat::of(Path::new(&item.file))?)?;
        for used in &item.recipe.adapters {
            let file = names::adapter(&used.file)?;
            if !file.exists() {
                return Err(Error::new("there is no such adapter").at_path(&used.file));
            }
        }
        info.check_request(&request)
    }

    /// Makes what is to be made.
    pub fn draw(&self, files: ModelFiles, mut todo: Todo, manifest: &Manifest, console: &mut Console) -> Result<()> {
        let began = Instant::now();
        let mut told = Told::new(&todo, Some(manifest), console, (self.args.draw.console.json, self.names));
        todo.wrong.iter().try_for_each(|wrong| told.wrong(wrong))?;
        let items = mem::take(&mut todo.items);
        let made = if items.is_empty() { Ok(()) } else { self.draw_all(files, items, manifest, &mut told) };
        told.console.end_images();
        told.summary(began.elapsed().as_secs_f64());
        made.and_then(|()| told.result("failed"))
    }

    fn draw_all(&self, files: ModelFiles, items: Vec<Item>, manifest: &Manifest, told: &mut Told<'_>) -> Result<()> {
        let notes = files.notes().iter().chain(self.args.draw.quantize.notes());
        notes.for_each(|note| told.console.note(note));
        let has_prompts = items.iter().any(|item| item.recipe.embeddings.is_none());
        let args = EngineArgs {
            without_text_encoder: !has_prompts,
            images: Some(items.len()),
            ..self.args.draw.engine(&self.model)
        };
        let first = items.first().and_then(|item| self.prepare(item).ok()).map(|(request, _)| request);
        let engine = Engine::open(files, &args, first.as_ref(), told.console, &self.signals.cancel_flag())?;
        for (name, description) in engine.devices(items.len()) {
            told.console.detail(&format!("device: {name}: {description}"));
        }
        let made = thread::scope(|scope| {
            let writers = Writers::start(scope, self.folder, manifest)?;
            let drawn = self.feed(&engine, items, &writers, told);
            // What is made is written, also where a signal or an error ends the run.
            let rest = writers.finish();
            let written = rest.into_iter().try_for_each(|written| told.written(written));
            drawn.and(written)
        });
        mem::forget(engine);
        made
    }

    /// Hands the items to the engine, and what it makes to the writers.
    fn feed(&self, engine: &Engine, items: Vec<Item>, writers: &Writers, told: &mut Told<'_>) -> Result<()> {
        let cancel = self.signals.cancel_flag();
        let (mut items, mut adapters) = (items.into_iter(), Adapters::new());
        let mut running: VecDeque<Running> = VecDeque::new();
        loop {
            cancel.check()?;
            while running.len() < WINDOW
                && let Some(item) = items.next()
            {
                match self.submit(engine, &item, &mut adapters) {
                    Ok((ticket, stamps)) => running.push_back(Running { item, ticket, stamps }),
                    Err(error) => told.failed(&item, &error)?,
                }
            }
            let Some(job) = running.pop_front() else { return Ok(()) };
            self.follow(engine, job, writers, told)?;
            writers.written().try_for_each(|written| told.written(written))?;
            told.progress();
        }
    }

    /// The request of an item, and its images.
    fn prepare(&self, item: &Item) -> Result<(Request, Inputs)> {
        let request = item.recipe.request()?;
        let mut stdin = io::empty();
        let mut source = InputSource::new(&mut stdin);
        source.keeps = self.args.draw.embed_inputs;
        let inputs = Inputs::read(&item.recipe, &mut source)?;
        let request = inputs.apply(request);
        request.check_count(1)?;
        Ok((request, inputs))
    }

    fn submit(&self, engine: &Engine, item: &Item, adapters: &mut Adapters) -> Result<(Ticket, Stamps)> {
        let path = self.folder.join(&item.file);
        // As they are before they are read: what changes later is another file.
        let named = item.recipe.files().map(|(_, file)| file.to_string_lossy().into_owned());
        let mut stamps: Stamps = named.filter_map(|name| Some((name.clone(), Stamp::of_named(&name)?))).collect();
        let (request, inputs) = self.prepare(item)?;
        ImageRecipe::check_room(&item.recipe, &self.model.paths, &inputs, ImageFormat::of(&path)?)?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)
                .map_err(|e| Error::new(format!("cannot make the folder: {e}")).at_path(folder))?;
        }
        item.target(self.folder)?;
        let mut used_adapters = Vec::new();
        for used in &item.recipe.adapters {
            let name = used.file.to_string_lossy();
            let open = || {
                let file = names::adapter(&used.file)?;
                let stamp = Stamp::of_named(&name);
                Ok((engine.adapter(&file)?, stamp))
            };
            let (adapter, stamp) = adapters.entry(used.file.clone()).or_insert_with(open).clone()?;
            used_adapters.push(AdapterUse { adapter, strength: used.strength });
            stamps.extend(stamp.map(|stamp| (name.into_owned(), stamp)));
        }
        let request = Request { adapters: used_adapters, ..request };
        let ticket = engine.submit(Job {
            inputs: Arc::new(inputs),
            recipe: Some(Arc::new(item.recipe.clone())),
            key: Some(item.key.clone()),
            provenance: !self.args.draw.no_provenance,
            cancel: self.signals.cancel_flag(),
            ..Job::new(request, 1)
        })?;
        Ok((ticket, stamps))
    }

    /// Follows a job until it is over.
    fn follow(&self, engine: &Engine, job: Running, writers: &Writers, told: &mut Told<'_>) -> Result<()> {
        let Running { item, ticket, stamps } = job;
        let (mut began, mut together) = (Instant::now(), 1);
        for event in ticket {
            match event {
                Ok(Event::Started { batch, .. }) => (began, together) = (Instant::now(), batch),
                Ok(Event::Progress(progress)) if progress.stage == Stage::Load && told.made == 0 => {
                    told.console.progress(progress);
                }
                Ok(Event::Image { image, .. }) => {
                    let seconds = began.elapsed().as_secs_f64();
                    let device = engine.machine(1);
                    let (item, stamps) = (item.clone(), stamps.clone());
                    writers.write(Work { item, image, seconds, batch: together, device, stamps })?;
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
                Err(error) => told.failed(&item, &error)?,
            }
        }
        Ok(())
    }
}
