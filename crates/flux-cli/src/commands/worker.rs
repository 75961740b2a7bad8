//! `flux worker`: generates the images of a queue.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use flux::Result;
use flux::engine::{Engine, ModelRecipe};
use flux::files::{ModelFiles, ModelPaths};
use flux::pipeline::Request;

use super::model_at;
use super::queue::{broker, store};
use super::signals::Signals;
use crate::cli::Worker;
use flux_queue::names;
use flux_queue::worker::{self, Config, Done, description, register};
use flux_runtime::progress::{Console, Shown, say};

/// Runs until a signal ends it.
pub fn run(args: &Worker, start: Instant, signals: &Signals) -> Result<()> {
    args.check()?;
    let (paths, place) = args.model.paths(None);
    let files = model_at(&paths, place.as_deref())?;
    let name = args.name.clone().unwrap_or_else(|| files.name().to_string());
    names::check_model(&name).map_err(|e| e.at("--name"))?;
    let store = store(&args.from)?;
    if args.register {
        let model = describe_model(args, &files)?;
        return flux_queue::run(register(&store, &name, &model, true));
    }
    let config = Config {
        model: name.clone(),
        broker: broker(&args.from)?,
        store,
        batch_max: args.batch_max as usize,
        max_pixels: args.max_pixels as usize,
        job_limit: Duration::from_secs(args.job_timeout),
        drain: Duration::from_secs(args.drain),
        heartbeat: args.heartbeat.clone(),
        is_verbose: args.verbose,
        is_quiet: args.quiet,
    };
    signals.listen()?;
    let engine = open(args, files, &paths, &name, signals)?;
    let quiet = args.quiet;
    let ready = |broker: &str| {
        if !quiet {
            let devices = engine.stats().devices;
            let after = start.elapsed().as_secs_f64();
            say(&format!("ready after {after:.1} s: {name} on {devices} devices, jobs from {broker}"));
        }
    };
    let received = signals.clone();
    let done = flux_queue::run(worker::run(Arc::clone(&engine), config, move || received.received(), ready));
    // Unfinished jobs are already assigned to other workers.
    std::mem::forget(engine);
    if !quiet {
        say(&summary(&*done?));
        return Ok(());
    }
    done.map(drop)
}

fn summary(done: &Done) -> String {
    let of = |count: &std::sync::atomic::AtomicUsize| count.load(Ordering::Relaxed);
    let Done { drawn, there, failed, dead } = done;
    format!("ended: {} generated, {} already existed, {} failed, {} dead", of(drawn), of(there), of(failed), of(dead))
}

/// Describes a model whose weights are not loaded, for the store.
fn describe_model(args: &Worker, files: &ModelFiles) -> Result<ModelRecipe> {
    let engine = args.engine()?;
    let digests = files.digests()?.into_iter().map(|(part, digest)| (part.to_string(), digest)).collect();
    let quantize = engine.quantize.map(|formats| formats.to_string());
    Ok(description(ModelRecipe {
        kv: engine.caches_references,
        quantize,
        precision: engine.precision,
        attention: engine.attention,
        digests,
        ..ModelRecipe::default()
    }))
}

/// Opens the model and generates a small warm-up image, so that no job waits for weights.
fn open(args: &Worker, files: ModelFiles, paths: &ModelPaths, name: &str, signals: &Signals) -> Result<Arc<Engine>> {
    // The model's name in image metadata contains no path of this machine.
    let files = match *paths == ModelPaths::default() {
        true => files,
        false => files.named_as(ModelPaths { model: Some(PathBuf::from(name)), ..ModelPaths::default() }),
    };
    let mut console = Console::new(args.quiet, args.verbose, Shown::Nothing);
    let cancel = signals.cancel_flag();
    let engine = Engine::open(files, &args.engine()?, None, &mut console, &cancel)?;
    engine.wait_for_devices()?;
    for (device, description) in engine.devices(1) {
        console.detail(&format!("device: {device}: {description}"));
    }
    let request = Request { width: Some(64), height: Some(64), steps: Some(1), ..Request::new("", 0) };
    engine.generate_images(&request, engine.stats().devices.max(1), &cancel, &mut |_| {})?;
    Ok(Arc::new(engine))
}
