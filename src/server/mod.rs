//! `flux serve`: an engine behind HTTP.
//!
//! ```text
//! connections -> guard -> openai, jobs, live, comfy, health, page -> intake -> queue -> engine
//!                                                                         |
//!                                                  record <- follow <- ticket
//! ```
//!
//! A request becomes a [`record::JobRecord`], whose images wait in the one [`queue::Queue`]. A thread hands them to the
//! engine in groups that it makes as one batch, another one follows each image to its file, and whoever asked watches
//! the record: a handler that waits for the end, or a stream of events.

mod answer;
mod backlog;
mod batches;
mod body;
mod comfy;
pub mod config;
mod connections;
mod error;
mod fair;
mod fields;
mod follow;
mod guard;
mod health;
mod ids;
mod intake;
mod jobs;
pub mod keys;
mod lanes;
mod live;
mod log;
mod makers;
mod masks;
mod mcp;
mod metrics;
pub mod models;
mod openai;
mod openapi;
mod page;
mod patient;
mod pieces;
mod queue;
mod rate;
mod rates;
mod record;
mod repeats;
mod request;
mod room;
mod running;
mod sdapi;
mod silence;
mod sockets;
mod sse;
mod store;
mod supervisor;
mod uploads;
mod work;
#[cfg(feature = "queue")]
mod workers;

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use flux::{Error, Result};
use rmcp::ServiceExt;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio_rustls::TlsAcceptor;

use self::config::{Config, Limits};
use self::error::ApiError;
use self::log::Log;
use self::makers::Makers;
use self::metrics::Metrics;
use self::models::Models;
use self::queue::Queue;
use self::record::JobRecord;
use self::repeats::Turns;
use self::room::Room;
use self::sockets::{Listener, Place};
use self::store::Store;
use self::supervisor::Watchdog;
#[cfg(feature = "queue")]
use self::workers::Workers;

/// How often old results are forgotten.
const TIDY_EVERY: Duration = Duration::from_secs(10);
/// How often a signal is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Requests whose images are decoded at once.
const DECODING: usize = 4;

/// What all handlers share.
pub struct App {
    config: Config,
    queue: Makers,
    store: Store,
    sdapi: sdapi::Clients,
    comfy: comfy::Comfy,
    metrics: Arc<Metrics>,
    log: Log,
    decoding: Arc<Semaphore>,
    bodies: Arc<Room>,
    /// Requests with one key of a client are taken one after the other.
    idempotent: Turns,
    started_unix: u64,
}

/// A job that ends when its client is gone: when this is dropped.
struct EndsWithClient {
    app: Arc<App>,
    job: Arc<JobRecord>,
}

impl EndsWithClient {
    fn new(app: &Arc<App>, job: Arc<JobRecord>) -> Self {
        Self { app: Arc::clone(app), job }
    }
}

impl Deref for EndsWithClient {
    type Target = JobRecord;

    fn deref(&self) -> &JobRecord {
        &self.job
    }
}

impl Drop for EndsWithClient {
    fn drop(&mut self) {
        if !self.job.status().is_over() {
            self.app.metrics.disconnects.inc();
            self.app.queue.cancel(&self.job);
        }
    }
}

/// What a server is told from outside.
pub struct Outside<'a> {
    /// Whether it should end.
    pub is_ended: &'a dyn Fn() -> bool,
    /// Whether it should read its keys again; asked each time.
    pub reloads: &'a dyn Fn() -> bool,
    /// Hears of each place at which it listens.
    pub listens: &'a dyn Fn(&str),
    /// Hears that requests are taken.
    pub is_ready: Box<dyn FnOnce() + Send>,
}

/// Serves until it is told to end; then what was taken is made, within [`Config::drain`].
///
/// Errors when the address cannot be had, or the default model cannot be opened.
pub fn run(config: Config, models: Models, outside: Outside<'_>) -> Result<()> {
    let runtime = Builder::new_multi_thread().enable_all().build().map_err(|e| Error::no_thread(&e))?;
    let inside = runtime.enter();
    let listeners = sockets::open(&config)?;
    drop(inside);
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    for listener in &listeners {
        (outside.listens)(&match &listener.place {
            Place::Address(address) => format!("{scheme}://{address}"),
            Place::File(path) => format!("unix:{}", path.display()),
            Place::Given(name) => format!("the socket `{name}` that was handed over"),
        });
    }
    serve(&runtime, config, models, listeners, outside)
}

/// Starts to open the default model, or connects to its workers, and what all handlers share. The other end hears
/// whether it could be opened.
fn start(
    config: Config,
    models: Models,
    is_ready: Box<dyn FnOnce() + Send>,
) -> Result<(Arc<App>, oneshot::Receiver<Result<()>>)> {
    let metrics = Arc::new(Metrics::default());
    let (opened, opening) = oneshot::channel();
    let mut config = config;
    let queue = makers(&mut config, models, &metrics, move |result| {
        if result.is_ok() {
            supervisor::is_ready();
            is_ready();
        }
        let _ = opened.send(result);
    })?;
    let app = Arc::new(App {
        queue,
        store: Store::default(),
        sdapi: sdapi::Clients::default(),
        comfy: comfy::Comfy::default(),
        metrics,
        log: Log { requests: config.logs_requests, prompts: config.logs_prompts },
        decoding: Arc::new(Semaphore::new(DECODING)),
        bodies: Room::new(config.limits.queue_bytes),
        idempotent: Turns::default(),
        started_unix: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        config,
    });
    Ok((app, opening))
}

/// What makes images. Must be called within a runtime.
fn makers(
    config: &mut Config,
    models: Models,
    metrics: &Arc<Metrics>,
    opened: impl FnOnce(Result<()>) + Send + 'static,
) -> Result<Makers> {
    #[cfg(feature = "queue")]
    if let Some(workers) = config.workers.take() {
        let opened = Box::new(|| opened(Ok(())));
        let (limits, metrics) = (config.limits.clone(), Arc::clone(metrics));
        return Ok(Makers::Workers(Workers::start(workers, models, limits, metrics, opened)));
    }
    Queue::start(models, config.limits.clone(), Arc::clone(metrics), opened).map(Makers::Here)
}

/// Lets the program that started this one draw by the tools of the Model Context Protocol, over standard input and
/// output, until it closes them. Images are written into a folder.
///
/// Errors when the default model cannot be opened, or the protocol is not spoken.
pub fn run_tools(config: Config, models: Models, folder: PathBuf, outside: Outside<'_>) -> Result<()> {
    let runtime = Builder::new_multi_thread().enable_all().build().map_err(|e| Error::no_thread(&e))?;
    let (app, mut opening) = {
        let _inside = runtime.enter();
        start(config, models, outside.is_ready)?
    };
    let tools = mcp::Tools::local(Arc::clone(&app), folder);
    let (ended, mut ends) = oneshot::channel();
    runtime.spawn(async move {
        let served = async {
            let running = tools.serve(rmcp::transport::stdio()).await.map_err(|e| e.to_string())?;
            running.waiting().await.map(drop).map_err(|e| e.to_string())
        };
        let _ = ended.send(served.await);
    });
    let mut done = Ok(());
    while !(outside.is_ended)() {
        if let Ok(Err(error)) = opening.try_recv() {
            done = Err(error);
            break;
        }
        if let Ok(end) = ends.try_recv() {
            done =
                end.map_err(|e| Error::new(format!("the other side does not speak the Model Context Protocol: {e}")));
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    app.queue.drain(Duration::ZERO);
    // A read of standard input cannot be ended.
    runtime.shutdown_background();
    done
}

fn serve(
    runtime: &Runtime,
    config: Config,
    models: Models,
    listeners: Vec<Listener>,
    outside: Outside<'_>,
) -> Result<()> {
    let tls = config.tls.clone().map(|tls| TlsAcceptor::from(Arc::new(tls)));
    let (app, mut opening) = {
        let _inside = runtime.enter();
        start(config, models, outside.is_ready)?
    };
    let (stop, stopped) = watch::channel(false);
    let routes = routes(&app);
    let of_app = Arc::clone(&app);
    let serving =
        runtime.spawn(async move { connections::serve(listeners, routes, tls, &of_app.config, stopped).await });
    let tidied = Arc::clone(&app);
    runtime.spawn(async move {
        loop {
            tokio::time::sleep(TIDY_EVERY).await;
            let Limits { kept, kept_bytes, .. } = tidied.config.limits;
            tidied.store.tidy(kept, kept_bytes);
        }
    });
    let mut watchdog = Watchdog::of_environment();
    let mut done = Ok(());
    while !(outside.is_ended)() {
        if let Ok(Err(error)) = opening.try_recv() {
            done = Err(error);
            break;
        }
        if (outside.reloads)() {
            let said = app.config.keys.reload().err().map(|e| format!("error: the keys stay as they were: {e}"));
            crate::progress::say(said.as_deref().unwrap_or("note: the keys were read again"));
        }
        watchdog.tell(|| health::moves(&app));
        std::thread::sleep(LOOK_EVERY);
    }
    supervisor::ends();
    // Nothing new is taken, and what was taken is answered.
    let _ = stop.send(true);
    app.queue.drain(if done.is_ok() { app.config.drain } else { Duration::ZERO });
    let last_answers = async {
        let _ = tokio::time::timeout(LAST_ANSWERS, async { tokio::join!(serving, app.comfy.finish()) }).await;
    };
    // Clients that do not read their answers are not waited for.
    runtime.block_on(last_answers);
    done
}

/// How long answers that are made may take to be sent.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

fn routes(app: &Arc<App>) -> Router {
    let routes = Router::new()
        .route("/v1/images/generations", post(openai::generations))
        .route("/v1/images/edits", post(openai::edits))
        .route("/v1/models", get(openai::models))
        .route("/v1/models/{*name}", get(openai::model))
        .route("/v1/files/{name}", get(openai::file))
        .route("/v1/jobs", post(jobs::submit).get(jobs::list))
        .route("/v1/jobs/{id}", get(jobs::get).delete(jobs::cancel))
        .route("/v1/jobs/{id}/events", get(jobs::events))
        .route("/v1/jobs/{id}/result", get(jobs::result))
        .route("/v1/jobs/{id}/images/{image}", get(jobs::image))
        .route("/v1/live", get(live::connect))
        .route("/v1/batches", get(batches::list))
        .route("/v1/batches/{id}", get(batches::get))
        .route("/v1/loras", get(health::loras))
        .route("/healthz", get(health::lives))
        .route("/readyz", get(health::is_ready))
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(openapi::document))
        .merge(sdapi::routes())
        .merge(comfy::routes())
        .merge(mcp::routes(app))
        .method_not_allowed_fallback(wrong_method)
        .fallback(other)
        .layer(DefaultBodyLimit::disable());
    guard::guarded(routes, app).with_state(Arc::clone(app))
}

async fn wrong_method() -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "the route has no such method")
}

/// The page, and what there is not.
async fn other(request: Request) -> error::Result<Response> {
    if matches!(*request.method(), axum::http::Method::GET | axum::http::Method::HEAD) {
        return page::part(request.uri().path(), request.headers());
    }
    Err(ApiError::not_found("there is no such route"))
}
