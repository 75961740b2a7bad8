//! What the commands that make images have in common: a model that stays open from one recipe to the next.

use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use flux::engine::choice::DeviceChoice;
use flux::engine::{Engine, EngineArgs, InputSource, Inputs, OfImages, Recipe};
use flux::files::{ModelFiles, quantised_cache};
use flux::pipeline::Request;
use flux::{Error, Result};

use super::ahead::Ahead;
use super::destination::Destination;
use super::drawing::Drawing;
use super::outputs::{MadeFolders, Named, Outputs};
use super::screen::Screen;
use super::signals::Signals;
use super::source::Source;
use super::tensors::Tensors;
use super::{claims, console, model_at, names, prompt_notes};
use crate::cli::{DrawArgs, ModelChoice, OutputArgs, ShowArgs};
use crate::progress::Console;

/// Images to make of one recipe.
pub struct Wanted {
    pub recipe: Recipe,
    pub model: ModelChoice,
    /// The seed is that of the recipe, and those that follow it.
    pub count: usize,
    /// What the recipe was before flags changed it, where it was not made by flags alone.
    pub source: Option<Source>,
    /// What names the prompt, for messages.
    pub prompt_place: &'static str,
    /// Whether the seed was drawn at random.
    pub seed_is_random: bool,
    /// Whether something is read from standard input.
    pub reads_stdin: bool,
    /// The name of an image where the flags give none.
    pub default_name: String,
}

impl Wanted {
    /// The files that they are written to.
    ///
    /// Errors as [`Outputs::of`].
    pub fn outputs(&self, output: &OutputArgs, args: &DrawArgs) -> Result<Outputs> {
        let files = model_at(&self.model.paths, self.model.place.as_deref());
        self.outputs_of(output, args, files.as_ref().map_or("model", |files| files.name()))
    }

    fn outputs_of(&self, output: &OutputArgs, args: &DrawArgs, model: &str) -> Result<Outputs> {
        let named = Named { seed: self.recipe.seed, count: self.count, prompt: &self.recipe.prompt, model };
        Outputs::of(output, &args.recipe.tensors, &self.default_name, &named)
    }
}

/// Makes images, and keeps the model open.
pub struct Studio<'a> {
    args: &'a DrawArgs,
    signals: &'a Signals,
    console: Console,
    /// When the program started, until the first images are made.
    start: Option<Instant>,
    listens: bool,
    exact: bool,
    show: ShowArgs,
    /// Where pictures are shown; asked for once signals are listened to.
    screen: Option<Screen>,
    /// Where to compute, in place of what the flags say.
    device: Option<DeviceChoice>,
    open: Option<Open>,
    /// The files of the images that were asked for last, as far as they were written.
    written: Vec<PathBuf>,
}

/// A model on devices.
struct Open {
    model: ModelChoice,
    has_text_encoder: bool,
    engine: Arc<Engine>,
}

/// Everything that was checked without a model.
struct Checked {
    request: Request,
    inputs: Arc<Inputs>,
    outputs: Outputs,
    targets: Vec<Destination>,
    tensors: Tensors,
    /// They go again where an error leaves nothing in them.
    folders: MadeFolders,
}

impl<'a> Studio<'a> {
    pub fn new(args: &'a DrawArgs, show: &ShowArgs, signals: &'a Signals, start: Instant) -> Self {
        Self {
            args,
            signals,
            console: console(&args.console),
            start: Some(start),
            listens: false,
            exact: false,
            show: show.clone(),
            screen: None,
            device: None,
            open: None,
            written: Vec::new(),
        }
    }

    /// Fails where what made an image is not what makes it again, instead of telling it.
    pub fn exact(self, exact: bool) -> Self {
        Self { exact, ..self }
    }

    /// Hears no signals: whoever calls does so.
    pub fn without_signals(self) -> Self {
        Self { listens: true, ..self }
    }

    /// Computes elsewhere from now on.
    pub fn use_device(&mut self, device: DeviceChoice) {
        (self.device, self.open) = (Some(device), None);
    }

    /// The files that [`Studio::draw`] wrote the last time, also where it failed.
    pub fn written(&self) -> &[PathBuf] {
        &self.written
    }

    /// Takes what an error or a signal ended off the screen, where the program goes on.
    pub fn break_off(&mut self) {
        self.console.break_off();
    }

    /// Makes the images. Everything that can be checked without opening a model is checked before one is opened. A
    /// signal ends the work as cancelled from then on, and the program at once before.
    ///
    /// Returns the files that were written.
    pub fn draw(&mut self, wanted: Wanted, output: &OutputArgs) -> Result<Vec<PathBuf>> {
        let start = self.start.take().unwrap_or_else(Instant::now);
        self.written.clear();
        let files = model_at(&wanted.model.paths, wanted.model.place.as_deref());
        let name = files.as_ref().map_or("model", |files| files.name()).to_string();
        let mut checked = self.check(&wanted, output, &name)?;
        let files = files?;
        // Names of adapters stay names in what the image says.
        let opened = names::with_adapters(&wanted.recipe)?;
        let paths = files.paths().clone();
        let room = |target: &Destination| target.check_room(&wanted.recipe, &paths, &checked.inputs);
        checked.targets.iter().try_for_each(room)?;
        let cache_folder = self.args.fp8_cache.then(|| cache_folder(&files)).transpose()?;
        let cache = cache_folder.as_ref().map(|folder| folder.join(quantised_cache::FILE));
        let flags = [output.force, wanted.reads_stdin];
        let source = wanted.source.as_ref().map(|source| source.path.as_path());
        claims::of_images((&opened, source), &checked.outputs, &files, cache.as_deref(), flags)?;
        if !mem::replace(&mut self.listens, true) {
            self.signals.listen()?;
        }
        if self.screen.is_none() {
            self.screen = Some(Screen::new(&self.show)?);
        }
        let console = &mut self.console;
        let source = wanted.source.as_ref();
        let notes = source.map_or(&[][..], |source| &source.notes).iter().chain(files.notes());
        notes.chain(self.args.quantize.notes()).for_each(|note| console.note(note));
        let prompt_notes = prompt_notes::of(&wanted.recipe, &checked.request.prompt, &paths);
        prompt_notes.iter().for_each(|note| console.note(note));
        self.open((&wanted, &opened), files, &checked.request, cache_folder)?;
        let Some(Open { engine, .. }) = &self.open else { return Err(Error::new("no model is open")) };
        checked.request.adapters = engine.adapters(&opened)?;
        engine.prefetch(&checked.request, 1)?;
        engine.wait_for_devices()?;
        let Wanted { recipe, count, source, seed_is_random, .. } = wanted;
        let Checked { request, inputs, outputs, targets, tensors, folders } = checked;
        let of = source.as_ref().and_then(Source::of_images).filter(|_| count == 1 && is_of_file(&recipe));
        if let Some(source) = &source {
            let adapters = request.adapters.iter().map(|used| &used.adapter);
            let names = recipe.adapters.iter().map(|used| used.file.to_string_lossy().into_owned());
            let adapters: Vec<_> = names.zip(adapters.map(|adapter| adapter.digest())).collect();
            let adapters = adapters.iter().map(|(name, digest)| (name.as_str(), *digest));
            let mut changes =
                source.changes(inputs.digests().chain(adapters), &engine.model(), &engine.machine(count), self.exact);
            changes.extend(source.lost_batch(&recipe, count));
            if let Some(change) = changes.first().filter(|_| self.exact) {
                return Err(Error::new(change.clone())
                    .at("--exact")
                    .hint("leave out `--exact` to make it all the same"));
            }
            changes.iter().for_each(|change| self.console.note(&format!("{change}: it may not be the same image")));
        }
        // The others of its batch are made with it, and not written.
        let batch = source.as_ref().filter(|_| count == 1).and_then(|source| source.of_batch(&recipe));
        let args = &self.args.console;
        let cancel = self.signals.cancel_flag();
        let drawing = Drawing {
            args,
            print_path: output.print_path,
            provenance: !self.args.no_provenance,
            seed_is_random,
            steps: self.args.recipe.steps,
            recipe,
            of,
            batch,
            inputs,
            targets,
            tensors,
            name,
            request,
            cancel,
            start,
        };
        let mut written = Vec::new();
        let screen = self.screen.get_or_insert_default();
        let drawn = drawing.run(engine, &mut self.console, screen, &mut written);
        self.written = written.into_iter().filter_map(|place| outputs.images.get(place).cloned()).collect();
        drop(folders);
        drawn.map(|()| outputs.images)
    }

    /// What can be checked without a model.
    fn check(&self, wanted: &Wanted, output: &OutputArgs, model: &str) -> Result<Checked> {
        let Wanted { recipe, count, source, .. } = wanted;
        source.as_ref().map_or(Ok(()), |source| source.check_stdin(recipe))?;
        let request = recipe.request().map_err(|e| e.at(wanted.prompt_place))?;
        let mut stdin = io::stdin();
        let mut files = InputSource::new(&mut stdin);
        files.embedded = source.as_ref().map_or_else(Default::default, |source| source.embedded.clone());
        files.keeps = self.args.embed_inputs;
        let inputs = Arc::new(Inputs::read(recipe, &mut files)?);
        let request = inputs.apply(request);
        let of = source.as_ref().and_then(Source::of_images).filter(|_| *count == 1 && is_of_file(recipe));
        let request = match of {
            Some(OfImages { place, count }) => {
                request.check_count(count)?;
                let seed = request.seed;
                Request { seed, ..request.part(place..place + 1) }
            }
            None => request,
        };
        request.check_count(*count)?;
        let outputs = wanted.outputs_of(output, self.args, model)?;
        let folders = outputs.make_folders()?;
        let targets = Destination::all(&outputs)?;
        let tensors = Tensors::new(&outputs)?;
        Ok(Checked { request, inputs, outputs, targets, tensors, folders })
    }

    /// Opens the model that is wanted, unless it is open.
    fn open(
        &mut self,
        (wanted, opened): (&Wanted, &Recipe),
        files: ModelFiles,
        first: &Request,
        fp8_cache: Option<PathBuf>,
    ) -> Result<()> {
        let has_text_encoder = wanted.recipe.embeddings.is_none();
        let suits = |open: &Open| open.model == wanted.model && (open.has_text_encoder || !has_text_encoder);
        if self.open.as_ref().is_some_and(suits) {
            return Ok(());
        }
        self.open = None;
        let args = EngineArgs {
            without_text_encoder: !has_text_encoder,
            adapters: opened.adapters.iter().map(|used| used.file.clone()).collect(),
            fp8_cache,
            preview_decoder: self.show.preview_decoder(),
            images: Some(wanted.count),
            ..self.args.engine(&wanted.model)
        };
        let device = self.device.clone().unwrap_or(args.device.clone());
        let args = EngineArgs { device, ..args };
        let engine = Engine::open(files, &args, Some(first), &mut self.console, &self.signals.cancel_flag())?;
        self.open = Some(Open { model: wanted.model.clone(), has_text_encoder, engine: Arc::new(engine) });
        Ok(())
    }

    /// Encodes prompts of this recipe ahead, with the model that is open, if one is.
    pub fn ahead(&self, recipe: &Recipe) -> Option<Ahead> {
        let engine = Arc::clone(&self.open.as_ref()?.engine);
        let request = recipe.request().ok()?;
        Some(Ahead::new(move |prompt, cancel| {
            // What is wrong with a prompt is told when it is drawn.
            let _ = engine.encode_ahead(&Request { prompt, ..request.clone() }, cancel);
        }))
    }

    /// Ends the program's work with the models: the system takes back all memory at once, faster than it would be
    /// freed.
    pub fn end(self) {
        mem::forget(self.open);
    }
}

/// Whether a recipe begins with images of a file.
fn is_of_file(recipe: &Recipe) -> bool {
    recipe.noise.is_some() || recipe.latents.is_some()
}

/// The folder in which the quantised weights are cached.
fn cache_folder(dir: &ModelFiles) -> Result<PathBuf> {
    let folder = dir.folder().map(Path::to_path_buf);
    folder.ok_or_else(|| {
        Error::usage("the built-in model and single files have no folder in which weights could be cached")
            .at("--fp8-cache")
            .hint("name a model in the diffusers layout with `-d`")
    })
}
