//! `flux` without a subcommand: makes images and writes them to files.

use std::io::{self, IsTerminal};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use flux::engine::{Engine, EngineArgs, Inputs};
use flux::files::{ModelFiles, quantised_cache};
use flux::{Error, Result};

use super::claims;
use super::destination::Destination;
use super::drawing::Drawing;
use super::signals::Signals;
use super::tensors::Tensors;
use super::{console, model, prompt_notes};
use crate::cli::Generate;
use crate::progress::say;

/// Makes the images. Everything that can be checked without a model is checked before one is opened. A signal ends the
/// work as cancelled once the flags are checked, and the program at once before that.
pub fn run(args: Arc<Generate>, start: Instant, signals: &Signals) -> Result<()> {
    args.check()?;
    if args.reads_stdin() && !args.quiet && io::stdin().is_terminal() {
        say("type the prompt; Ctrl-D on a line of its own ends it");
    }
    if args.images.reads_stdin() && io::stdin().is_terminal() {
        return Err(Error::usage("standard input is a terminal, which holds no image")
            .at("--input")
            .hint("send it a file, as with `-i - < image.png`, or name the file"));
    }
    let recipe = args.recipe(&mut io::stdin())?;
    let request = recipe.request().map_err(|e| e.at(args.prompt_place()))?;
    let inputs = Arc::new(Inputs::read(&recipe, &mut io::stdin())?);
    let mut request = inputs.apply(request);
    request.check_count(args.count as usize)?;
    let targets = Destination::all(&args, request.seed)?;
    let tensors = Tensors::new(&args, request.seed)?;
    let files = model(&args.model)?;
    targets.iter().try_for_each(|target| target.check_room(&recipe, files.paths()))?;
    let cache_folder = args.fp8_cache.then(|| cache_folder(&files)).transpose()?;
    let cache = cache_folder.as_ref().map(|folder| folder.join(quantised_cache::FILE));
    claims::of_images(&args, request.seed, &files, cache.as_deref())?;
    // Before this only standard input is waited for, and a signal ends the program there.
    signals.listen()?;
    let cancel = signals.cancel_flag();
    let mut console = console(args.quiet, args.verbose, args.progress);
    files.notes().iter().chain(args.quantize.notes()).for_each(|note| console.note(note));
    prompt_notes::of(&args, &request.prompt).iter().for_each(|note| console.note(note));
    let name = files.name().to_string();
    let engine_args = EngineArgs {
        without_text_encoder: args.tensors.has_embeddings(),
        caches_references: args.images.kv,
        adapters: recipe.adapters.iter().map(|used| used.file.clone()).collect(),
        quantise: args.quantize.formats(),
        fp8_cache: cache_folder,
        parallel: args.parallel,
        images: Some(args.count as usize),
        ..args.on.engine()
    };
    let engine = Engine::open(files, &engine_args, Some(&request), &mut console, &cancel)?;
    request.adapters = engine.adapters(&recipe)?;
    engine.prefetch(&request, 1)?;
    engine.wait_for_devices()?;
    let drawing = Drawing { args, recipe, inputs, targets, tensors, name, request, cancel, start };
    drawing.run(&engine, &mut console)?;
    // The program ends here, and the system takes back all memory at once, faster than it would be freed.
    mem::forget(engine);
    Ok(())
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
