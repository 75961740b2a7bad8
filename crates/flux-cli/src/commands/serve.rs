//! `flux serve`: models over HTTP. `flux mcp`: models for one agent over stdio. `flux key`: creates a client key.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flux::engine::{Engine, EngineArgs, Observer};
use flux::error::shown;
use flux::files::{ModelFiles, ModelPaths, read_bounded};
use flux::model::ModelInfo;
use flux::stage::{CancelFlag, Progress};
use flux::{Error, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::info::licence as licence_of;
#[cfg(feature = "queue")]
use super::queue;
use super::signals::Signals;
#[cfg(feature = "queue")]
use super::submit;
use super::upsample::upsampler;
use super::{create_folder, model_at, names, print};
use crate::cli::{Key, ListenAt, Mcp, SdapiSteps, Serve, UpsampleArgs};
use flux_runtime::allocator;
use flux_runtime::panics;
use flux_runtime::progress::{Console, Shown, say};
use flux_server::Outside;
use flux_server::address::{self, PublicUrl};
#[cfg(feature = "queue")]
use flux_server::config;
use flux_server::config::{Config, Limits, Listen};
use flux_server::keys::{Keys, new_key};
use flux_server::models::{Models, Served};
use flux_upsample::Upsampler;

/// The variable with keys in plain text, separated by commas.
const KEYS_VARIABLE: &str = "FLUX_API_KEYS";
/// Maximum size of a file with certificates or a private key, in bytes.
const MAX_PEM_BYTES: usize = 1 << 20;

/// Serves until a signal ends it.
pub fn run(args: &Serve, start: Instant, signals: &Signals) -> Result<()> {
    allocator::keep_little();
    panics::survive();
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
    let models = Models::new(served, adapters, args.strict_models, args.models_open as usize)
        .with_upscalers(upscalers(args.upscalers.as_deref())?);
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
        upscale_max_pixels: args.upscale_max_pixels as usize,
        kept_bytes: (args.keep_mib as usize) << 20,
        idle_unload: args.idle_unload.map(Duration::from_secs),
        ..Limits::default()
    };
    let proxies = args.trusted_proxies.iter().map(|text| parsed("--trust-proxy", text, str::parse));
    let trusted_proxies = proxies.collect::<Result<_>>()?;
    let public_url: Option<PublicUrl> =
        args.public_url.as_deref().map(|text| parsed("--public-url", text, str::parse)).transpose()?;
    let base_path =
        args.base_path.as_deref().map(|text| parsed("--base-path", text, address::base_path)).transpose()?;
    let base_path = base_path.or_else(|| Some(public_url.as_ref()?.path.clone())).unwrap_or_default();
    let config = Config {
        listen: args.listen()?.iter().map(listen).collect(),
        socket_mode: args.socket_mode,
        users: args.users.iter().map(|user| user_number(user)).collect::<Result<_>>()?,
        answers_all: args.no_auth,
        keys,
        hosts: args.hosts.clone(),
        cors: args.cors.clone(),
        trusted_proxies,
        base_path,
        public_url,
        logs_prompts: args.log_prompts,
        logs_requests: args.verbose,
        honours_sdapi_steps: args.sdapi_steps == SdapiSteps::Honour,
        wildcards: args.wildcards.clone(),
        expands_sdapi: args.sdapi_expand,
        tls,
        upsampling: upsampling(&args.upsample)?,
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
    flux_server::run(
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

/// Serves the parent process over stdio, until it closes standard input.
pub fn tools(args: &Mcp, signals: &Signals) -> Result<()> {
    panics::survive();
    args.check()?;
    let folder = args.output.clone().unwrap_or_else(|| env::temp_dir().join("flux-mcp"));
    create_folder(&folder)?;
    let (paths, place) = args.model.paths(None);
    let files = model_at(&paths, place.as_deref())?;
    let name = files.name().to_string();
    let models = Models::new(vec![one(name, &files, paths, place, args.engine()?)], adapters(&args.loras)?, false, 1)
        .with_upscalers(upscalers(args.upscalers.as_deref())?);
    let (wildcards, upsampling) = (args.wildcards.clone(), upsampling(&args.upsample)?);
    let config = Config { wildcards, upsampling, ..Config::new(Vec::new(), Keys::none()) };
    signals.listen()?;
    let outside =
        Outside { is_ended: &|| signals.received(), reloads: &|| false, listens: &|_| {}, is_ready: Box::new(|| {}) };
    flux_server::run_tools(config, models, folder, outside)
}

/// Prints a new key, and its line for the key file.
pub fn key(args: &Key) -> Result<()> {
    let (key, line) = new_key(&args.name)?;
    say(&format!("note: `{key}` is the key; it is shown only once. The next line is for the `--api-keys` file"));
    print(line.as_bytes())
}

/// Returns the language model for requests, if there is one, and `true` if it rewrites all prompts.
fn upsampling(args: &UpsampleArgs) -> Result<Option<(Upsampler, bool)>> {
    let is_named = args.is_on() || args.url().is_some();
    is_named.then(|| Ok((upsampler(args)?, args.is_on()))).transpose()
}

/// Returns the folder of upscalers.
///
/// Errors if the folder cannot be read.
fn upscalers(folder: Option<&Path>) -> Result<Option<PathBuf>> {
    let Some(folder) = folder else { return Ok(None) };
    fs::read_dir(folder).map_err(|e| {
        Error::usage(format!("cannot read the folder `{}`: {e}", folder.display()))
            .at("--upscalers")
            .hint("name a folder with .safetensors and .pth files")
    })?;
    Ok(Some(folder.to_path_buf()))
}

fn listen(at: &ListenAt) -> Listen {
    match at {
        ListenAt::Address(address) => Listen::Address(*address),
        ListenAt::Socket(path) => Listen::Socket(path.clone()),
    }
}

/// Parses the value of a flag.
///
/// Errors with the expected form.
fn parsed<T>(flag: &str, text: &str, parse: impl Fn(&str) -> std::result::Result<T, String>) -> Result<T> {
    parse(text).map_err(|expected| Error::usage(format!("`{}`: {expected}", shown(text))).at(flag))
}

/// Returns the user id of a user of this machine.
///
/// Errors when the system has no user of this name.
fn user_number(name: &str) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    // `id` also finds users of network directories.
    let told = Command::new("id").args(["-u", "--", name]).output();
    let number = told.ok().and_then(|told| String::from_utf8(told.stdout).ok()?.trim().parse().ok());
    number.ok_or_else(|| {
        Error::usage(format!("unknown user `{}`", shown(name)))
            .at("--allow-user")
            .hint("pass the name or number of a user")
    })
}

fn keys(args: &Serve) -> Result<Keys> {
    match (&args.api_keys, env::var(KEYS_VARIABLE)) {
        _ if args.no_auth => Ok(Keys::none()),
        (Some(path), _) => Keys::from_file(path),
        (None, Ok(text)) => Keys::parse(&text),
        (None, Err(_)) => Ok(Keys::none()),
    }
}

fn tls(cert: &Path, key: &Path) -> Result<rustls::ServerConfig> {
    let wrong = |what: &str, path: &Path, e: &dyn std::fmt::Display| {
        Error::usage(format!("cannot read the {what}: {e}")).at_path(path).hint("name a PEM file")
    };
    let read = |what: &str, path: &Path| {
        read_bounded(path, MAX_PEM_BYTES, "name a PEM file").map_err(|e| wrong(what, path, &e.what()))
    };
    let certs: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read("certificate", cert)?).collect();
    let certs = certs.map_err(|e| wrong("certificate", cert, &e))?;
    if certs.is_empty() {
        return Err(wrong("certificate", cert, &"the file contains none"));
    }
    let private = PrivateKeyDer::from_pem_slice(&read("private key", key)?);
    let private = private.map_err(|e| wrong("private key", key, &e))?;
    let provider = rustls::crypto::ring::default_provider();
    let config = rustls::ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map(|builder| builder.with_no_client_auth())
        .and_then(|builder| builder.with_single_cert(certs, private));
    config.map_err(|e| Error::usage(format!("the certificate and the key cannot be used: {e}")).at_path(cert))
}

/// Returns the models to serve. Their files are checked now, so that errors are reported at startup.
fn served(args: &Serve) -> Result<Vec<Served>> {
    let (paths, place) = args.model.paths(None);
    let mut served = Vec::new();
    if paths != ModelPaths::default() || args.models.is_empty() {
        let files = model_at(&paths, place.as_deref())?;
        let name = files.name().to_string();
        served.push(one(name, &files, paths, place, args.engine()?));
    }
    for text in &args.models {
        let (name, path) =
            text.split_once('=').filter(|(name, path)| !name.is_empty() && !path.is_empty()).ok_or_else(|| {
                Error::usage(format!("`{text}` has no name"))
                    .at("--model")
                    .hint("write NAME=PATH, as in `--model klein=models/klein-4b`")
            })?;
        let paths = ModelPaths { model: Some(PathBuf::from(path)), ..ModelPaths::default() };
        let files = model_at(&paths, Some("--model"))?;
        if served.iter().any(|known: &Served| known.name == name) {
            return Err(Error::usage(format!("the name `{name}` is used twice"))
                .at("--model")
                .hint("use another name"));
        }
        served.push(one(name.to_string(), &files, paths, Some("--model".to_string()), args.engine()?));
    }
    Ok(served)
}

/// Returns the connections to broker and store, if flags name them.
#[cfg(feature = "queue")]
fn workers(args: &Serve) -> Result<Option<config::Workers>> {
    if !args.to.is_named() {
        return Ok(None);
    }
    let (broker, store, presigns) = (queue::broker(&args.to)?, queue::store(&args.to)?, args.presigned_urls);
    if presigns && !store.presigns() {
        return Err(Error::usage("a folder cannot presign URLs")
            .at("--presigned-urls")
            .hint("leave it out to serve files through the server, or name a store as s3://BUCKET/PREFIX"));
    }
    Ok(Some(config::Workers { broker, store, presigns }))
}

/// Returns the models that workers serve. No model is opened here.
///
/// Errors when the store does not know a model, or knows several and none is named.
#[cfg(feature = "queue")]
fn served_by(args: &Serve, workers: &config::Workers) -> Result<Vec<Served>> {
    let asked: Vec<_> = match &args.models[..] {
        [] => vec![None],
        names => names.iter().map(|name| Some(&**name)).collect(),
    };
    let mut names: Vec<String> = Vec::new();
    for name in asked {
        let (name, _) = flux_queue::run(submit::model(name, &workers.store))?;
        if names.contains(&name) {
            return Err(Error::usage(format!("the name `{name}` is used twice")).at("--model").hint("pass it once"));
        }
        names.push(name);
    }
    let nowhere = |_: &CancelFlag, _: &dyn Fn()| Err(Error::new("workers open the model, not this server"));
    Ok(names.into_iter().map(|name| Served { name, info: None, licence: None, open: Box::new(nowhere) }).collect())
}

fn one(name: String, files: &ModelFiles, paths: ModelPaths, place: Option<String>, engine: EngineArgs) -> Served {
    let named = name.clone();
    // Opening the model reports a damaged configuration.
    let info = ModelInfo::read(files).ok().map(Arc::new);
    let licence = info.as_ref().filter(|_| files.folder().is_some());
    let licence = licence.and_then(|info| licence_of(files, info.kind.files.name));
    let licence = licence.map(|licence| (licence.name, licence.link));
    let open = move |cancel: &CancelFlag, progress: &dyn Fn()| {
        let files = model_at(&paths, place.as_deref())?;
        // The model's name in image metadata contains no path of this machine.
        let files = match paths == ModelPaths::default() {
            true => files,
            false => files.named_as(ModelPaths { model: Some(PathBuf::from(&named)), ..ModelPaths::default() }),
        };
        open(files, &engine, cancel, progress).map(Arc::new)
    };
    Served { name, info, licence, open: Box::new(open) }
}

/// A console without stages that also calls a function on progress.
struct Opening<'a> {
    console: Console,
    progress: &'a dyn Fn(),
}

impl Observer for Opening<'_> {
    fn note(&mut self, text: &str) {
        self.console.note(text);
    }

    fn detail(&mut self, text: &str) {
        self.console.detail(text);
    }

    fn progress(&mut self, _progress: Progress) {
        (self.progress)();
    }

    fn finish(&mut self) {
        (self.progress)();
    }
}

fn open(files: ModelFiles, args: &EngineArgs, cancel: &CancelFlag, progress: &dyn Fn()) -> Result<Engine> {
    let mut opening = Opening { console: Console::new(false, false, Shown::Nothing), progress };
    let engine = Engine::open(files, args, None, &mut opening, cancel)?;
    progress();
    engine.wait_for_devices()?;
    Ok(engine)
}

/// Returns the adapters' files by name.
fn adapters(loras: &[String]) -> Result<BTreeMap<String, PathBuf>> {
    let mut adapters = BTreeMap::new();
    for text in loras {
        let (name, file) = match text.split_once('=') {
            Some((name, file)) if !name.is_empty() && !name.contains('/') => (name.to_string(), file),
            _ => (Path::new(text).file_stem().unwrap_or_default().to_string_lossy().into_owned(), text.as_str()),
        };
        let file = names::adapter(Path::new(file)).map_err(|e| e.at("--lora"))?;
        if !file.exists() {
            return Err(Error::usage(format!("`{}` does not exist", file.display()))
                .at("--lora")
                .hint("name an adapter file"));
        }
        if adapters.insert(name.clone(), file).is_some() {
            return Err(Error::usage(format!("the name `{name}` is used twice"))
                .at("--lora")
                .hint("choose another name with NAME=FILE"));
        }
    }
    Ok(adapters)
}
