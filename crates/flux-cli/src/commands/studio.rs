//! The common part of commands that generate images: a model that stays open between recipes.

use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use flux::engine::choice::Device;
use flux::engine::expand::Words;
use flux::engine::{EmbeddedFiles, Engine, EngineArgs, InputSource, Inputs, OfImages, Recipe};
use flux::files::{ModelFiles, quantized_cache};
use flux::model::ModelInfo;
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
use super::upsample::{LazyUpsampler, rewrite};
use super::{claims, console, model_at, names, prompt_notes};
use crate::cli::{DrawArgs, ModelChoice, OutputArgs, ShowArgs};
use flux_runtime::progress::Console;

/// The images to generate from one recipe.
pub struct Wanted {
    pub recipe: Recipe,
    pub model: ModelChoice,
    /// The number of images. Their seeds start at the recipe's and count up.
    pub count: usize,
    /// The words of each image, if images have prompts of their own.
    pub words: Vec<Words>,
    /// The source of the recipe before flags changed it, if it does not come from flags alone.
    pub source: Option<Source>,
    /// The flag or file that the prompt comes from, for error messages.
    pub prompt_place: &'static str,
    /// True if the seed was chosen at random.
    pub seed_is_random: bool,
    /// True if an input is read from standard input.
    pub reads_stdin: bool,
    /// The output name if the flags give none.
    pub default_name: String,
}

impl Wanted {
    /// Returns the files that the images are written to.
    ///
    /// Errors as [`Outputs::new`].
    pub fn outputs(&self, output: &OutputArgs, args: &DrawArgs) -> Result<Outputs> {
        let files = model_at(&self.model.paths, self.model.place.as_deref());
        self.outputs_of(output, args, files.as_ref().map_or("model", |files| files.name()))
    }

    /// Prepares the prompt for the language model, which writes one for all images.
    ///
    /// Errors if images have prompts of their own.
    fn prepare_upsampling(&mut self) -> Result<()> {
        if !Words::are_plain(&self.words, &self.recipe) {
            let what = "`--expand` gives these images different words, but `--upsample` writes one prompt for all";
            return Err(Error::usage(what).at("--upsample").hint(
                "generate one image at a time, choose the same words with `--expand-seed`, or use `flux batch`",
            ));
        }
        self.words.clear();
        self.recipe = mem::take(&mut self.recipe).before_upsampling();
        Ok(())
    }

    fn outputs_of(&self, output: &OutputArgs, args: &DrawArgs, model: &str) -> Result<Outputs> {
        let Self { recipe: Recipe { seed, prompt, .. }, count, words, .. } = self;
        let named = Named { seed: *seed, count: *count, prompt, words, model };
        Outputs::new(output, &args.recipe.tensors, &self.default_name, &named)
    }
}

/// Generates images and keeps the model open.
pub struct Studio<'a> {
    args: &'a DrawArgs,
    signals: &'a Signals,
    upsampler: LazyUpsampler<'a>,
    console: Console,
    /// When the program started. `None` once the first images were generated.
    start: Option<Instant>,
    listens: bool,
    exact: bool,
    show: ShowArgs,
    /// The terminal for previews. Queried only after signal handlers are installed.
    screen: Option<Screen>,
    /// The device that overrides the flags.
    device: Option<Device>,
    open: Option<Open>,
    /// The files written by the last call of [`Studio::draw`].
    written: Vec<PathBuf>,
}

/// A model that is open on its devices.
struct Open {
    model: ModelChoice,
    has_text_encoder: bool,
    engine: Arc<Engine>,
}

/// Everything that was validated without a model.
struct Checked {
    request: Request,
    /// The input images that a language model sees.
    pictures: EmbeddedFiles,
    inputs: Arc<Inputs>,
    outputs: Outputs,
    targets: Vec<Destination>,
    tensors: Tensors,
    /// Removed again if an error leaves them empty.
    folders: MadeFolders,
}

impl<'a> Studio<'a> {
    pub fn new(args: &'a DrawArgs, show: &ShowArgs, signals: &'a Signals, start: Instant) -> Self {
        Self {
            args,
            signals,
            upsampler: LazyUpsampler::new(&args.upsample),
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

    /// With `exact`, turns differences from the original image's settings into errors instead of notes.
    pub fn exact(self, exact: bool) -> Self {
        Self { exact, ..self }
    }

    /// Installs no signal handlers: the caller has done so.
    pub fn without_signals(self) -> Self {
        Self { listens: true, ..self }
    }

    /// Lets a language model rewrite prompts from now on, or not.
    ///
    /// Errors when no language model is set.
    pub fn upsample(&mut self, is_on: bool) -> Result<()> {
        if is_on {
            self.upsampler.get()?;
        }
        self.upsampler.is_on = is_on;
        Ok(())
    }

    /// Uses another device from now on.
    pub fn use_device(&mut self, device: Device) {
        (self.device, self.open) = (Some(device), None);
    }

    /// Returns the files that the last call of [`Studio::draw`] wrote, even if it failed.
    pub fn written(&self) -> &[PathBuf] {
        &self.written
    }

    /// Clears the progress display after an error or a signal, if the program goes on.
    pub fn break_off(&mut self) {
        self.console.break_off();
    }

    /// Generates the images. Everything that needs no open model is validated first. During validation a signal ends
    /// the program; afterwards it cancels the work.
    ///
    /// Returns the files that were written.
    pub fn draw(&mut self, mut wanted: Wanted, output: &OutputArgs) -> Result<Vec<PathBuf>> {
        let start = self.start.take().unwrap_or_else(Instant::now);
        self.written.clear();
        if self.upsampler.is_on {
            wanted.prepare_upsampling()?;
            self.upsampler.get()?;
        }
        let files = model_at(&wanted.model.paths, wanted.model.place.as_deref());
        let name = files.as_ref().map_or("model", |files| files.name()).to_string();
        let mut checked = self.check(&wanted, output, &name)?;
        let files = files?;
        if self.upsampler.is_on {
            wanted.recipe = self.rewrite(&wanted.recipe, &mut checked, &files)?;
        }
        // The recipe in the image keeps the short names of adapters.
        let opened = names::with_adapters(&wanted.recipe)?;
        let paths = files.paths().clone();
        checked.targets.iter().try_for_each(|target| target.check_format(&wanted.recipe))?;
        let room = |target: &Destination| target.check_room(&wanted.recipe, &paths, &checked.inputs);
        checked.targets.iter().filter(|_| !self.args.no_recipe).try_for_each(room)?;
        let cache_folder = self.args.fp8_cache.then(|| cache_folder(&files)).transpose()?;
        let cache = cache_folder.as_ref().map(|folder| folder.join(quantized_cache::FILE));
        let flags = [output.force, wanted.reads_stdin];
        let source = wanted.source.as_ref().map(|source| source.path.as_path());
        claims::check_images((&opened, source), &checked.outputs, &files, cache.as_deref(), flags)?;
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
        let prompt_notes = prompt_notes::notes(&wanted.recipe, &checked.request.prompt, &paths);
        prompt_notes.iter().for_each(|note| console.note(note));
        self.open((&wanted, &opened), files, &checked.request, cache_folder)?;
        let Some(Open { engine, .. }) = &self.open else { return Err(Error::new("no model is open")) };
        checked.request.adapters = engine.adapters(&opened)?;
        engine.prefetch(&checked.request, 1)?;
        engine.wait_for_devices()?;
        let Wanted { recipe, count, words, source, seed_is_random, .. } = wanted;
        let Checked { request, inputs, outputs, targets, tensors, folders, .. } = checked;
        let of = source.as_ref().and_then(Source::position).filter(|_| count == 1 && is_of_file(&recipe));
        if let Some(source) = &source {
            let adapters = request.adapters.iter().map(|used| &used.adapter);
            let names = recipe.adapters.iter().map(|used| used.file.to_string_lossy().into_owned());
            let adapters: Vec<_> = names.zip(adapters.map(|adapter| adapter.digest())).collect();
            let adapters = adapters.iter().map(|(name, digest)| (name.as_str(), *digest));
            let mut changes =
                source.changes(inputs.digests().chain(adapters), &engine.model(), &engine.machine(count), self.exact);
            changes.extend(source.lost_batch(&recipe, count));
            if let Some(change) = changes.first().filter(|_| self.exact) {
                return Err(Error::new(change.clone()).at("--exact").hint("leave out `--exact` to generate it anyway"));
            }
            changes.iter().for_each(|change| self.console.note(&format!("{change}: the image may differ")));
        }
        // The rest of the batch is generated too, but not written.
        let batch = source.as_ref().filter(|_| count == 1).and_then(|source| source.original_batch(&recipe));
        let args = &self.args.console;
        let cancel = self.signals.cancel_flag();
        let drawing = Drawing {
            args,
            print_path: output.print_path,
            provenance: !self.args.no_provenance,
            no_recipe: self.args.no_recipe,
            seed_is_random,
            steps: self.args.recipe.steps,
            recipe,
            words: words.into(),
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

    /// Returns the recipe with the prompt that a language model writes, and changes the request accordingly.
    fn rewrite(&mut self, recipe: &Recipe, checked: &mut Checked, files: &ModelFiles) -> Result<Recipe> {
        let info = ModelInfo::read(files)?;
        info.check_request(&checked.request)?;
        let pictures = mem::take(&mut checked.pictures);
        let outside = (&self.console, &self.signals.cancel_flag());
        let recipe = rewrite(self.upsampler.get()?, recipe, &pictures, &info, outside)?;
        checked.request.prompt = recipe.full_prompt().into_owned();
        checked.request.check_prompt()?;
        Ok(recipe)
    }

    /// Validates everything that needs no model.
    fn check(&self, wanted: &Wanted, output: &OutputArgs, model: &str) -> Result<Checked> {
        let Wanted { recipe, count, source, .. } = wanted;
        source.as_ref().map_or(Ok(()), |source| source.check_stdin(recipe))?;
        let request = recipe.request().map_err(|e| e.at(wanted.prompt_place))?;
        let mut stdin = io::stdin();
        let mut files = InputSource::new(&mut stdin);
        files.embedded = source.as_ref().map_or_else(Default::default, |source| source.embedded.clone());
        files.keeps = self.args.embed_inputs;
        if self.upsampler.is_on {
            files.load(recipe)?;
        }
        let inputs = Arc::new(Inputs::read(recipe, &mut files)?);
        let pictures = files.embedded;
        let request = inputs.apply(request);
        let of = source.as_ref().and_then(Source::position).filter(|_| *count == 1 && is_of_file(recipe));
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
        Ok(Checked { request, pictures, inputs, outputs, targets, tensors, folders })
    }

    /// Opens the model, unless it is already open.
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
            ..self.args.engine(&wanted.model)?
        };
        let device = self.device.clone().unwrap_or(args.device.clone());
        let args = EngineArgs { device, ..args };
        let engine = Engine::open(files, &args, Some(first), &mut self.console, &self.signals.cancel_flag())?;
        self.open = Some(Open { model: wanted.model.clone(), has_text_encoder, engine: Arc::new(engine) });
        Ok(())
    }

    /// Returns an encoder for prompts of this recipe that are typed in advance. `None` if no model is open.
    pub fn ahead(&self, recipe: &Recipe) -> Option<Ahead> {
        // The encoder reads the prompt that the language model writes, which is not known yet.
        let engine = Arc::clone(&self.open.as_ref().filter(|_| !self.upsampler.is_on)?.engine);
        let request = recipe.request().ok()?;
        Some(Ahead::new(move |prompt, cancel| {
            // Errors are reported when the prompt is used.
            let _ = engine.encode_ahead(&Request { prompt, ..request.clone() }, cancel);
        }))
    }

    /// Leaks the models at the end of the program: the system reclaims the memory faster than freeing it.
    pub fn end(self) {
        mem::forget(self.open);
    }
}

/// Returns `true` if a recipe starts from noise or latents in a file.
fn is_of_file(recipe: &Recipe) -> bool {
    recipe.noise.is_some() || recipe.latents.is_some()
}

/// Returns the folder for cached quantized weights.
fn cache_folder(dir: &ModelFiles) -> Result<PathBuf> {
    let folder = dir.folder().map(Path::to_path_buf);
    folder.ok_or_else(|| {
        Error::usage("the built-in model and single files have no folder for cached weights")
            .at("--fp8-cache")
            .hint("name a model in the diffusers layout with `-d`")
    })
}
