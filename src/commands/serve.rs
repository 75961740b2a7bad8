//! `flux serve`: models behind HTTP. `flux mcp`: the same for one agent. `flux key`: a key for clients.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use flux::engine::{Engine, EngineArgs};
use flux::error::shown;
use flux::files::{ModelFiles, ModelPaths};
use flux::stage::CancelFlag;
use flux::{Error, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

#[cfg(feature = "queue")]
use super::queue;
use super::signals::Signals;
#[cfg(feature = "queue")]
use super::submit;
use super::{model_at, names, print};
use crate::allocator;
use crate::cli::{Key, ListenAt, Mcp, SdapiSteps, Serve};
use crate::progress::{Console, Shown, say};
#[cfg(feature = "queue")]
use crate::server::config;
use crate::server::config::{Config, Limits, Listen};
use crate::server::keys::{Keys, new_key};
use crate::server::models::{Models, Served};
use crate::server::{self, Outside};

/// Keys in plain text, by commas.
const KEYS_VARIABLE: &str = "FLUX_API_KEYS";

/// Serves until a signal ends it.
pub fn run(args: &Serve, start: Instant, signals: &Signals) -> Result<()> {
    allocator::keep_little();
    let keys = keys(args)?;
    args.check(keys.are_needed())?;
    let tls = args.tls_cert.as_deref().zip(args.tls_key.as_deref()).map(|(cert, key)| tls(cert, key)).transpose()?;
    let adapters = adapters(&args.loras)?;
    #[cfg(feature = "queue")]
    let workers = workers(args)?;
    #[cfg(feature = "queue")]
    let served = match &workers {
        Some(workers) => served_by(args, workers)?,
        None => served(args)?,
    };
    #[cfg(not(feature = "queue"))]
    let served = served(args)?;
    let models = Models::new(served, adapters, args.strict_models, args.models_open as usize);
    let limits = Limits {
        queue_max: args.queue_max as usize,
        client_images: args.max_per_client.map_or(usize::MAX, |images| images as usize),
        client_pixels: args.megapixels_per_minute.map(|pixels| pixels as f64 * 1e6),
        queue_bytes: (args.queue_mib as usize) << 20,
        batch_max: if args.batch_exact { 1 } else { args.batch_max as usize },
        batch_window: Duration::from_millis(args.batch_window_ms),
        batch_latency: Duration::from_millis(args.batch_latency_ms),
        start: Duration::from_secs(args.start_timeout),
        max_pixels: args.max_pixels as usize,
        kept_bytes: (args.keep_mib as usize) << 20,
        idle_unload: args.idle_unload.map(Duration::from_secs),
        ..Limits::default()
    };
    let config = Config {
        listen: args.listen.iter().map(listen).collect(),
        socket_mode: args.socket_mode,
        users: args.users.iter().map(|user| user_number(user)).collect::<Result<_>>()?,
        answers_all: args.no_auth,
        keys,
        hosts: args.hosts.clone(),
        cors: args.cors.clone(),
        trusted_proxy: args.trust_proxy,
        logs_prompts: args.log_prompts,
        logs_requests: args.verbose,
        honours_sdapi_steps: args.sdapi_steps == SdapiSteps::Honour,
        tls,
        #[cfg(feature = "queue")]
        workers,
        drain: Duration::from_secs(args.drain),
        limits,
    };
    signals.listen_as_server()?;
    let quiet = args.quiet;
    let told = |text: &str| {
        if !quiet {
            say(text);
        }
    };
    let names: Vec<_> = models.names().map(str::to_string).collect();
    let ready = move || {
        if !quiet {
            say(&format!("ready after {:.1} s: {}", start.elapsed().as_secs_f64(), names.join(", ")));
        }
    };
    server::run(
        config,
        models,
        Outside {
            is_ended: &|| signals.received(),
            reloads: &|| signals.take_reload(),
            listens: &|place| told(&format!("listening on {place}")),
            is_ready: Box::new(ready),
        },
    )?;
    told("ended");
    Ok(())
}

/// Serves the program that started this one, until that closes standard input.
pub fn tools(args: &Mcp, signals: &Signals) -> Result<()> {
    args.check()?;
    let folder = args.output.clone().unwrap_or_else(|| env::temp_dir().join("flux-mcp"));
    fs::create_dir_all(&folder).map_err(|e| {
        Error::new(format!("cannot make the folder: {e}"))
            .at_path(&folder)
            .hint("name one that you may write to with `-o`")
    })?;
    let (paths, place) = args.model.paths(None);
    let name = model_at(&paths, place.as_deref())?.name().to_string();
    let models = Models::new(vec![one(name, paths, place, args.engine())], adapters(&args.loras)?, false, 1);
    let config = Config::new(Vec::new(), Keys::none());
    signals.listen()?;
    let outside =
        Outside { is_ended: &|| signals.received(), reloads: &|| false, listens: &|_| {}, is_ready: Box::new(|| {}) };
    server::run_tools(config, models, folder, outside)
}

/// Prints a new key, and the line of a file for it.
pub fn key(args: &Key) -> Result<()> {
    let (key, line) = new_key(&args.name)?;
    say(&format!("note: `{key}` is the key; it is shown this once. What follows is its line for `--api-keys`"));
    print(line.as_bytes())
}

fn listen(at: &ListenAt) -> Listen {
    match at {
        ListenAt::Address(address) => Listen::Address(*address),
        ListenAt::Socket(path) => Listen::Socket(path.clone()),
    }
}

/// The number of a user of this machine.
///
/// Errors when the system knows none of this name.
fn user_number(name: &str) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    // Where users come from, such as a directory of a network, is the system's to know.
    let told = Command::new("id").args(["-u", "--", name]).output();
    let number = told.ok().and_then(|told| String::from_utf8(told.stdout).ok()?.trim().parse().ok());
    number.ok_or_else(|| {
        Error::usage(format!("there is no user `{}`", shown(name)))
            .at("--allow-user")
            .hint("name one, or give a number")
    })
}

fn keys(args: &Serve) -> Result<Keys> {
    match (&args.api_keys, env::var(KEYS_VARIABLE)) {
        _ if args.no_auth => Ok(Keys::none()),
        (Some(path), _) => Keys::of_file(path),
        (None, Ok(text)) => Keys::of_environment(&text),
        (None, Err(_)) => Ok(Keys::none()),
    }
}

fn tls(cert: &Path, key: &Path) -> Result<rustls::ServerConfig> {
    let wrong = |what: &str, path: &Path, e: &dyn std::fmt::Display| {
        Error::usage(format!("cannot read the {what}: {e}")).at_path(path).hint("name a file in PEM")
    };
    let certs: std::result::Result<Vec<_>, _> = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect);
    let certs = certs.map_err(|e| wrong("certificate", cert, &e))?;
    if certs.is_empty() {
        return Err(wrong("certificate", cert, &"there is none in the file"));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| wrong("private key", key, &e))?;
    let provider = rustls::crypto::ring::default_provider();
    let config = rustls::ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map(|builder| builder.with_no_client_auth())
        .and_then(|builder| builder.with_single_cert(certs, private));
    config.map_err(|e| Error::usage(format!("the certificate and the key cannot be used: {e}")).at_path(cert))
}

/// The models that are served. Their files are looked for now, so that what is wrong with one is told at once.
fn served(args: &Serve) -> Result<Vec<Served>> {
    let (paths, place) = args.model.paths(None);
    let mut served = Vec::new();
    if paths != ModelPaths::default() || args.models.is_empty() {
        let files = model_at(&paths, place.as_deref())?;
        let name = files.name().to_string();
        served.push(one(name, paths, place, args.engine()));
    }
    for text in &args.models {
        let (name, path) =
            text.split_once('=').filter(|(name, path)| !name.is_empty() && !path.is_empty()).ok_or_else(|| {
                Error::usage(format!("`{text}` has no name"))
                    .at("--model")
                    .hint("write NAME=PATH, as in `--model klein=models/klein-4b`")
            })?;
        let paths = ModelPaths { model: Some(PathBuf::from(path)), ..ModelPaths::default() };
        model_at(&paths, Some("--model"))?;
        if served.iter().any(|known: &Served| known.name == name) {
            return Err(Error::usage(format!("the name `{name}` is there twice"))
                .at("--model")
                .hint("take another one"));
        }
        served.push(one(name.to_string(), paths, Some("--model".to_string()), args.engine()));
    }
    Ok(served)
}

/// Where jobs go, where flags name a queue or a store.
#[cfg(feature = "queue")]
fn workers(args: &Serve) -> Result<Option<config::Workers>> {
    if !args.to.is_named() {
        return Ok(None);
    }
    let (broker, store, presigns) = (queue::broker(&args.to)?, queue::store(&args.to)?, args.presigned_urls);
    if presigns && !store.presigns() {
        return Err(Error::usage("a folder has no addresses that others could be given")
            .at("--presigned-urls")
            .hint("leave it out: files are then the server's; or name a store as s3://BUCKET/PREFIX"));
    }
    Ok(Some(config::Workers { broker, store, presigns }))
}

/// The models that workers draw with. No model is opened here.
///
/// Errors when the store knows no such model, or several and none is named.
#[cfg(feature = "queue")]
fn served_by(args: &Serve, workers: &config::Workers) -> Result<Vec<Served>> {
    let asked: Vec<_> = match &args.models[..] {
        [] => vec![None],
        names => names.iter().map(|name| Some(&**name)).collect(),
    };
    let mut names: Vec<String> = Vec::new();
    for name in asked {
        let (name, _) = crate::queue::run(submit::model(name, &workers.store))?;
        if names.contains(&name) {
            return Err(Error::usage(format!("the name `{name}` is there twice")).at("--model").hint("name it once"));
        }
        names.push(name);
    }
    let nowhere = |_: &CancelFlag| Err(Error::new("workers open the model, and this server does not"));
    Ok(names.into_iter().map(|name| Served { name, open: Box::new(nowhere) }).collect())
}

fn one(name: String, paths: ModelPaths, place: Option<String>, engine: EngineArgs) -> Served {
    let named = name.clone();
    let open = move |cancel: &CancelFlag| {
        let files = model_at(&paths, place.as_deref())?;
        // What images say of their model holds no path of this machine.
        let files = match paths == ModelPaths::default() {
            true => files,
            false => files.named_as(ModelPaths { model: Some(PathBuf::from(&named)), ..ModelPaths::default() }),
        };
        open(files, &engine, cancel)
    };
    Served { name, open: Box::new(open) }
}

fn open(files: ModelFiles, args: &EngineArgs, cancel: &CancelFlag) -> Result<Engine> {
    let mut console = Console::new(false, false, Shown::Nothing);
    let engine = Engine::open(files, args, None, &mut console, cancel)?;
    engine.wait_for_devices()?;
    Ok(engine)
}

/// Adapters by their names.
fn adapters(loras: &[String]) -> Result<BTreeMap<String, PathBuf>> {
    let mut adapters = BTreeMap::new();
    for text in loras {
        let (name, file) = match text.split_once('=') {
            Some((name, file)) if !name.is_empty() && !name.contains('/') => (name.to_string(), file),
            _ => (Path::new(text).file_stem().unwrap_or_default().to_string_lossy().into_owned(), text.as_str()),
        };
        let file = names::adapter(Path::new(file)).map_err(|e| e.at("--lora"))?;
        if !file.exists() {
            return Err(Error::usage(format!("there is no `{}`", file.display()))
                .at("--lora")
                .hint("name a file of an adapter"));
        }
        if adapters.insert(name.clone(), file).is_some() {
            return Err(Error::usage(format!("the name `{name}` is there twice")).at("--lora").hint("write NAME=FILE"));
        }
    }
    Ok(adapters)
}
