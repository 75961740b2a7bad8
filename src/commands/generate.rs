//! `flux` without a subcommand: makes images and writes them to files.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use std::{mem, thread};

use flux::engine::Engine;
use flux::files::{ModelFiles, quantised_cache};
use flux::pipeline::{ModelInfo, OpenModel, Replicas};
use flux::{Error, Result};

use super::claims;
use super::destination::Destination;
use super::device::{Devices, Wanted, choose_devices};
use super::images::Images;
use super::job::Job;
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
    let request = args.request(&mut io::stdin())?;
    let images = Images::read(&args.images, &mut io::stdin())?;
    let mut request = images.apply(request);
    request.check_count(args.count as usize)?;
    let targets = Destination::all(&args, request.seed)?;
    let tensors = Tensors::new(&args, request.seed)?;
    let dir = model(&args.model)?;
    let cache_folder = args.fp8_cache.then(|| cache_folder(&dir)).transpose()?;
    let cache = cache_folder.as_ref().map(|folder| folder.join(quantised_cache::FILE));
    claims::of_images(&args, request.seed, &dir, cache.as_deref())?;
    // Before this only standard input is waited for, and a signal ends the program there.
    signals.listen()?;
    let cancel = signals.cancel_flag();
    let mut console = console(args.quiet, args.verbose, args.progress);
    dir.notes().iter().chain(args.quantize.notes()).for_each(|note| console.note(note));
    prompt_notes::of(&args, &request.prompt).iter().for_each(|note| console.note(note));
    // Opening a GPU takes the driver long, so another thread opens the model meanwhile. The tokenizer is read on until
    // the prompt is encoded.
    let (name, dir) = (dir.name().to_string(), Arc::new(dir));
    let opening = thread::Builder::new().spawn({
        let text = !args.tensors.has_embeddings();
        let open = if text { OpenModel::open } else { OpenModel::open_without_text_encoder };
        let dir = Arc::clone(&dir);
        move || timed(|| open(&dir))
    });
    let opening = opening.map_err(|e| Error::no_thread(&e))?;
    // What is wrong with the model or the request, opening it says.
    let gains_by_sharing = || ModelInfo::read(&dir).and_then(|info| info.gains_by_sharing(&request)).unwrap_or(false);
    let wanted = Wanted { images: args.count as usize, parallel: args.parallel, gains_by_sharing: &gains_by_sharing };
    let (devices, device_s) = timed(|| choose_devices(&args.on, &wanted, &console));
    let devices = devices?;
    let (model, open_s) =
        opening.join().unwrap_or_else(|_| (Err(Error::new("the thread that opens the model panicked")), 0.0));
    let mut model = model?;
    model.notes().iter().for_each(|note| console.note(note));
    cancel.check()?;
    if args.images.kv {
        model.cache_references();
    }
    request.adapters = args.adapters.open(|path| model.adapter(path))?;
    if let Some(folder) = cache_folder {
        let cache = model.attach_quantised_cache(&folder, &cancel, &mut |progress| console.progress(progress))?;
        console.finish();
        if let Some(note) = cache.note() {
            console.note(&note);
        }
    }
    if let Some(wanted) = args.quantize.formats() {
        let done = model.quantise(&wanted, &cancel, &mut |progress| console.progress(progress))?;
        console.finish();
        done.iter().for_each(|quantised| console.detail(&quantised.to_string()));
    }
    let job = Job { args, images, targets, tensors, name, request, cancel, start, device_s, open_s };
    let engine = match devices {
        Devices::Cpu(cpu) => Engine::on(vec![cpu], model)?,
        Devices::Cuda(mut gpus) => {
            let mut replicas = Replicas::of_groups(vec![mem::take(&mut gpus.first)], model)?;
            replicas.prefetch(&job.request, 1)?;
            gpus.take_others(|group| replicas.add(group))?;
            Engine::of(&replicas)?
        }
    };
    job.run(&engine, &mut console)?;
    // The program ends here, and the system takes back all memory at once, faster than it would be freed.
    mem::forget(engine);
    Ok(())
}

/// What `work` returns, and the seconds that it took.
fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let done = work();
    (done, start.elapsed().as_secs_f64())
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
