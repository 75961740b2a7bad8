//! `flux bench`: selects measurements and devices.

#[cfg(feature = "server")]
use std::env;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use flux::Result;
use flux::default_model::default_model;
use flux::engine::choice::{Device, ParallelChoice};
use flux::engine::devices::{self, Devices, Needs};
use flux::engine::{Engine, EngineArgs};
use flux::stage::CancelFlag;

use super::{named_model, print};
use crate::cli::Bench;
#[cfg(feature = "server")]
use flux_bench::serve::{self, Asks, Load};
use flux_bench::{Effort, Settings, live};
use flux_runtime::progress::{Console, Shown};

/// Runs the measurements and prints each line as soon as it is measured.
pub fn run(args: &Bench) -> Result<()> {
    #[cfg(feature = "server")]
    if args.names == ["serve"] {
        return measure_server(args);
    }
    args.on.check()?;
    args.model.check_kv(args.kv)?;
    if args.names.first().is_some_and(|name| name == "live") {
        return measure_live(args);
    }
    let dir = named_model(&args.model)?;
    let mut console = Console::new(args.json, false, Shown::Nothing);
    let notes = dir.iter().flat_map(|dir| dir.notes()).chain(args.quantize.notes());
    notes.for_each(|note| console.note(note));
    let engine_args = EngineArgs { parallel: ParallelChoice::Off, ..args.on.engine() };
    let (devices, _) = devices::open(&engine_args, &Needs::UNKNOWN, &mut console)?;
    let (mut effort, size) = match devices {
        Devices::Cpu(_) => (Effort::CPU, 256),
        Devices::Cuda(_) => (Effort::GPU, 1024),
    };
    if let Some(runs) = args.runs {
        (effort.op_runs, effort.image_runs) = (runs as usize, runs as usize);
    }
    let settings = Settings {
        names: args.names.clone(),
        sizes: if args.sizes.is_empty() { vec![size] } else { args.sizes.iter().map(|&size| size as usize).collect() },
        references: args.references.iter().map(|&references| references as usize).collect(),
        kv: args.kv,
        quantization: args.quantize.formats().unwrap_or_default(),
        prompt: args.prompt.clone().unwrap_or_else(|| flux_bench::PROMPT.to_string()),
        batch: args.batch as usize,
        steps: args.steps.map(|steps| steps as usize),
        in_a_row: args.in_a_row,
        pause: args.pause.map(Duration::from_secs_f64),
        json: args.json,
        effort,
    };
    let print = &mut |line: &str| print(line.as_bytes());
    match devices {
        Devices::Cpu(cpu) => flux_bench::run(&cpu, dir.as_ref(), settings, default_model, print).map(drop),
        Devices::Cuda(mut open) => {
            let mut gpus = mem::take(&mut open.first);
            open.take_others(|group| {
                gpus.extend(group);
                Ok(())
            })?;
            let wants_group = flux_bench::run(&gpus, dir.as_ref(), settings.clone(), default_model, print)?;
            let Device::Cuda(list) = &args.on.device() else { return Ok(()) };
            if !wants_group {
                return Ok(());
            }
            drop(gpus); // frees memory for the group
            flux_bench::run_over(
                &devices::open_group(&engine_args, list)?,
                dir.as_ref(),
                settings,
                default_model,
                print,
            )
        }
    }
}

/// Measures live video with each size.
fn measure_live(args: &Bench) -> Result<()> {
    let mut console = Console::new(args.json, false, Shown::Nothing);
    let files = super::model(&args.model)?;
    files.notes().iter().chain(args.quantize.notes()).for_each(|note| console.note(note));
    let engine_args = EngineArgs {
        caches_references: args.kv,
        quantize: args.quantize.formats(),
        parallel: ParallelChoice::Off,
        ..args.on.engine()
    };
    let engine = Engine::open(files, &engine_args, None, &mut console, &CancelFlag::default())?;
    engine.wait_for_devices()?;
    let on_gpu = engine.devices(1).iter().any(|(name, _)| name.starts_with("cuda"));
    let (size, frames) = if on_gpu { (512, 60) } else { (128, 12) };
    let what = live::Settled {
        names: args.names[1..].to_vec(),
        sizes: if args.sizes.is_empty() { vec![size] } else { args.sizes.iter().map(|&size| size as usize).collect() },
        prompt: args.prompt.clone().unwrap_or_else(|| flux_bench::PROMPT.to_string()),
        steps: args.steps.map(|steps| steps as usize),
        frames: args.runs.map_or(frames, |runs| runs as usize),
        json: args.json,
    };
    let engine = Arc::new(engine);
    if !args.json {
        engine.devices(1).iter().try_for_each(|(_, about)| print(about.as_bytes()))?;
    }
    let measured = live::run(&engine, &what, &mut |line| print(line.as_bytes()));
    mem::forget(engine);
    measured
}

/// Measures a server with each size and number of clients.
#[cfg(feature = "server")]
fn measure_server(args: &Bench) -> Result<()> {
    let clients = if args.clients.is_empty() { vec![1, 16] } else { args.clients.clone() };
    let asks: Vec<Asks> = match args.rate {
        Some(rate) => vec![Asks::Rate(rate)],
        None => clients.into_iter().map(|clients| Asks::Clients(clients as usize)).collect(),
    };
    let sizes = if args.sizes.is_empty() { &[1024][..] } else { &args.sizes };
    for (&size, &asks) in sizes.iter().flat_map(|size| asks.iter().map(move |asks| (size, asks))) {
        let load = Load {
            url: args.url.clone(),
            key: env::var("FLUX_API_KEY").ok(),
            seconds: args.seconds,
            size: size as usize,
            steps: args.steps.map(|steps| steps as usize),
            prompts: args.prompts,
            asks,
        };
        print(serve::run(&load, args.json)?.as_bytes())?;
    }
    Ok(())
}
