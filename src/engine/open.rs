//! Opening of a model on devices.

use std::cell::{Cell, OnceCell};
use std::mem;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::Engine;
use super::args::{Decodes, EngineArgs, PreviewDecoder};
use super::choice::PrecisionChoice;
use super::devices::{self, Devices, Needs};
use super::digests::ModelDigests;
use super::executor::{Device, Executor};
use super::image_recipe::ModelRecipe;
use crate::error::{Error, Result};
use crate::files::ModelFiles;
use crate::files::adapter::Adapter;
use crate::model::{ModelInfo, OpenModel};
use crate::pipeline::{Replicas, Request};
use crate::stage::CancelFlag;
use crate::stage::Observer;

/// The time of opening, in seconds.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct OpeningTimes {
    /// Finding and opening the first device.
    pub device_s: f64,
    /// Opening and checking the model without its tokenizer, concurrently with the device.
    pub open_s: f64,
    /// Quantizing weights, or reading or writing their cache.
    pub quantize_s: f64,
}

impl Engine {
    /// Opens the model in `files` on devices. Returns as soon as the first device is open: [`Engine::prefetch`] can
    /// load weights to it while others are opened. `first` is the first request, if known; it decides if GPUs
    /// generate its images together.
    ///
    /// Errors if the model or an adapter is damaged, a device cannot be opened, weights cannot be quantized, or
    /// `cancel` is set.
    pub fn open(
        files: ModelFiles,
        args: &EngineArgs,
        first: Option<&Request>,
        observer: &mut dyn Observer,
        cancel: &CancelFlag,
    ) -> Result<Self> {
        // Opening a GPU takes the driver long, so another thread opens the model concurrently. The tokenizer is still
        // being read until a prompt is encoded.
        let files = Arc::new(files);
        let opening = thread::Builder::new().spawn({
            let open = if args.without_text_encoder { OpenModel::open_without_text_encoder } else { OpenModel::open };
            let files = Arc::clone(&files);
            move || timed(|| open(&files))
        });
        let opening = opening.map_err(|e| Error::no_thread(&e))?;
        // Opening the model reports errors in the model or the request.
        let gains = |request| ModelInfo::read(&files).and_then(|info| info.gains_by_sharing(request));
        let gains_by_sharing = || first.is_some_and(|request| gains(request).unwrap_or(false));
        let (opening, opened) = (Cell::new(Some(opening)), OnceCell::new());
        let wait = || {
            let panicked = || (Err(Error::new("the thread that opens the model panicked")), 0.0);
            opened.get_or_init(|| opening.take().and_then(|thread| thread.join().ok()).unwrap_or_else(panicked))
        };
        let info = || wait().0.as_ref().ok().map(|model| &model.info);
        let needs = Needs { first, gains_by_sharing: &gains_by_sharing, model: &info };
        let (devices, device_s) = timed(|| devices::open(args, &needs, observer));
        let (devices, precision) = devices?;
        wait();
        let (model, open_s) = opened.into_inner().unwrap_or_else(|| unreachable!("`wait` has filled it"));
        let mut model = model?;
        model.notes().iter().for_each(|note| observer.note(note));
        cancel.check()?;
        let adapters = prepare(&mut model, args, observer)?;
        let quantize_s = quantize(&mut model, args, observer, cancel)?;
        let mut engine = match devices {
            Devices::Cpu(cpus) => Self::on(cpus.into_iter().map(|cpu| vec![cpu]).collect(), model)?,
            Devices::Cuda(mut gpus) => {
                let replicas = Replicas::from_groups(vec![mem::take(&mut gpus.first)], model)?;
                let engine = Self::from_replicas(&replicas)?;
                engine.expect(Box::new(move || {
                    let mut devices: Vec<Arc<dyn Executor>> = Vec::new();
                    gpus.take_others(|group| {
                        replicas.add(group).map(|replica| devices.push(Device::executor(replica)))
                    })?;
                    Ok(devices)
                }));
                engine
            }
        };
        let (paths, kv) = (files.paths().clone(), args.caches_references);
        let attention = args.attention;
        // Recipes record the program's own choice of another precision, and nothing if there was none to make.
        let precision = if precision == PrecisionChoice::Native { PrecisionChoice::Auto } else { precision };
        engine.model = Arc::new(ModelRecipe { paths, kv, precision, attention, ..(*engine.model).clone() });
        engine.digests = Arc::new(ModelDigests::new(files));
        engine.digests.prepare(adapters.iter().map(|(_, adapter)| Arc::clone(adapter)).collect());
        engine.adapters = adapters;
        engine.signer = args.signer.clone();
        engine.times = OpeningTimes { device_s, open_s, quantize_s };
        Ok(engine)
    }
}

/// Prepares the model according to `args`, and opens the adapters.
fn prepare(
    model: &mut OpenModel,
    args: &EngineArgs,
    observer: &mut dyn Observer,
) -> Result<Vec<(PathBuf, Arc<Adapter>)>> {
    if args.caches_references {
        model.cache_references()?;
    }
    if let Some(PreviewDecoder { file, decodes }) = &args.preview_decoder {
        let decoder = model.preview_decoder(file)?;
        match model.attach_preview_decoder(decoder) {
            Err(error) if *decodes == Decodes::StepsIfItFits => {
                let what = error.what();
                observer.note(&format!("steps are shown with a linear map instead of {}: {what}", file.display()));
            }
            attached => attached?,
        }
        if *decodes == Decodes::Images {
            model.decode_by_preview_decoder();
        }
    }
    let mut adapters: Vec<(PathBuf, Arc<Adapter>)> = Vec::new();
    for path in &args.adapters {
        if !adapters.iter().any(|(known, _)| known == path) {
            adapters.push((path.clone(), model.adapter(path)?));
        }
    }
    Ok(adapters)
}

/// Quantizes weights according to `args`. Returns the seconds that it took.
fn quantize(model: &mut OpenModel, args: &EngineArgs, observer: &mut dyn Observer, cancel: &CancelFlag) -> Result<f64> {
    if args.fp8_cache.is_none() && args.quantize.is_none() {
        return Ok(0.0);
    }
    let start = Instant::now();
    if let Some(folder) = &args.fp8_cache {
        let cache = model.attach_quantized_cache(folder, cancel, &mut |progress| observer.progress(progress))?;
        observer.finish();
        if let Some(note) = cache.note() {
            observer.note(&note);
        }
    }
    if let Some(wanted) = &args.quantize {
        let done = model.quantize(wanted, cancel, &mut |progress| observer.progress(progress))?;
        observer.finish();
        done.iter().for_each(|quantized| observer.detail(&quantized.to_string()));
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Returns the result of `work`, and the seconds that it took.
fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let done = work();
    (done, start.elapsed().as_secs_f64())
}
