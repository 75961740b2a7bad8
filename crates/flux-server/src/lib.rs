//! `flux serve`: an engine behind HTTP.
//!
//! ```text
//! connections -> guard -> openai, jobs, live, comfy, health, page -> intake -> queue -> engine
//!                                                                                          |
//!                                                                     record <- follow <---+
//! ```
//!
//! A request holds a [`jobs::admission::Permit`], and becomes a [`jobs::record::JobRecord`] before any of its images is
//! decoded. The images are decoded when the client's turn comes. The [`jobs::queue::Queue`] checks the bounds, opens
//! the model, and submits the job to its engine, which decides what is generated next. A task follows each image to its
//! file. Handlers watch the record to wait for the end, or to stream events. This crate knows no commands and no
//! arguments. Start with [`jobs`] and [`jobs::intake`].
//!
//! [`run`] is a server with listeners of its own; [`router`] is the same server inside of another axum app.

mod guard;
mod http;
mod jobs;
mod page;
mod upscalers;
mod wire;

pub use http::{address, config, keys};
pub use jobs::models;

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZero;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::{ConnectInfo, DefaultBodyLimit, Request};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use flux::{Error, Result};
use rmcp::ServiceExt;
use scopeguard::guard;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use self::http::address::Address;
use self::http::client::Client;
use self::http::config::{Config, Limits};
use self::http::error::ApiError;
use self::http::log::Log;
use self::http::sockets::{Listener, Peer, Place};
use self::http::supervisor::Watchdog;
use self::http::{connections, sockets, supervisor};
use self::jobs::admission::{Admission, Permit};
use self::jobs::makers::Makers;
use self::jobs::metrics::Metrics;
use self::jobs::models::Models;
use self::jobs::queue::Queue;
use self::jobs::record::JobRecord;
use self::jobs::request::Route;
use self::jobs::store::Store;
use self::jobs::upsampling::Upsampling;
#[cfg(feature = "queue")]
use self::jobs::workers::Workers;
use self::wire::{FromClient, a1111, batches, comfy, health, live, mcp, openai, openapi, own_jobs};
use flux_runtime::{allocator, threads};

/// The interval between removals of expired results, and the number of intervals after which free memory is returned to
/// the system, since freed allocations of many sizes leave gaps.
const TIDY_EVERY: Duration = Duration::from_secs(1);
const TRIM_EVERY: u32 = 10;
/// The interval between checks for signals.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Threads needed in addition to the async ones: two for blocking work, and one that opens models.
const SPARE_THREADS: usize = 3;
/// Max threads for blocking work, and the time for which an idle one is kept.
const MAX_BLOCKING: usize = 32;
const KEEP_BLOCKING: Duration = Duration::from_secs(365 * 24 * 3600);

/// The state that all handlers share.
pub struct App {
    config: Config,
    queue: Makers,
    store: Store,
    sdapi: a1111::Clients,
    comfy: comfy::Comfy,
    metrics: Arc<Metrics>,
    log: Log,
    admission: Arc<Admission>,
    upsampling: Option<Arc<Upsampling>>,
    started_unix: u64,
}

impl App {
    /// Ends the preparation of jobs, and accepts no more.
    fn close(&self) {
        self.admission.close();
        self.upsampling.iter().for_each(|upsampling| upsampling.close());
    }

    /// Returns a permit for a request of a client.
    fn permit(&self, client: &Client) -> Arc<Permit> {
        Arc::new(self.admission.permit(&client.share))
    }
}

/// A job that is cancelled on drop, when its client disconnects.
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

/// Callbacks that connect the server to its process.
pub struct Outside<'a> {
    /// Returns `true` if the server should stop.
    pub is_ended: &'a dyn Fn() -> bool,
    /// Returns `true` if the server should reload its keys. Called repeatedly.
    pub reloads: &'a dyn Fn() -> bool,
    /// Called with each listening address.
    pub listens: &'a dyn Fn(&str),
    /// Called when the server accepts requests.
    pub is_ready: Box<dyn FnOnce() + Send>,
}

/// Serves until `is_ended` returns `true`. Accepted jobs then have [`Config::drain`] to finish.
///
/// Errors if an address is not available, or the default model cannot be loaded.
pub fn run(config: Config, models: Models, outside: Outside<'_>) -> Result<()> {
    let runtime = runtime()?;
    let inside = runtime.enter();
    let listeners = sockets::open(&config)?;
    drop(inside);
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    for listener in &listeners {
        (outside.listens)(&match &listener.place {
            Place::Address(address) => format!("{scheme}://{address}"),
            Place::File(path) => format!("unix:{}", path.display()),
            Place::Given(name) => format!("the inherited socket `{name}`"),
        });
    }
    let done = serve(&runtime, config, models, listeners, outside);
    // Threads that are still busy do not delay the exit.
    runtime.shutdown_timeout(LAST_THREADS);
    done
}

/// Creates the async runtime.
///
/// Errors if the system cannot start its threads, in which case tokio would panic.
fn runtime() -> Result<Runtime> {
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    let startable = threads::startable(workers + SPARE_THREADS);
    let none = || Error::no_thread(&std::io::Error::other("the limits allow too few"));
    let workers = startable.checked_sub(SPARE_THREADS).filter(|workers| *workers > 0).ok_or_else(none)?;
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(workers).max_blocking_threads(MAX_BLOCKING).thread_keep_alive(KEEP_BLOCKING).enable_all();
    let runtime = builder.build().map_err(|e| Error::no_thread(&e))?;
    // Keeps the first blocking thread alive, so that blocking work runs on it if the system starts no other one.
    runtime.spawn_blocking(|| ());
    Ok(runtime)
}

/// Starts loading the default model, or connects to the remote workers. Returns the shared state, and a receiver of the
/// result of loading.
fn start(
    config: Config,
    models: Models,
    is_ready: Box<dyn FnOnce() + Send>,
) -> Result<(Arc<App>, oneshot::Receiver<Result<()>>)> {
    let metrics = Arc::new(Metrics::default());
    let (opened, opening) = oneshot::channel();
    let mut config = config;
    let upsampling = config.upsampling.take().map(|(upsampler, by_default)| Upsampling::new(upsampler, by_default));
    let queue = makers(&mut config, models, &metrics, move |result| {
        if result.is_ok() {
            is_ready();
        }
        let _ = opened.send(result);
    })?;
    let app = Arc::new(App {
        queue,
        store: Store::default(),
        sdapi: a1111::Clients::default(),
        comfy: comfy::Comfy::default(),
        metrics,
        log: Log { requests: config.logs_requests, prompts: config.logs_prompts },
        admission: Admission::new(config.limits.queue_bytes, config.limits.form_bytes),
        upsampling,
        started_unix: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        config,
    });
    Ok((app, opening))
}

/// Returns a callback that reports to the supervisor of the process, too.
fn ready(is_ready: Box<dyn FnOnce() + Send>) -> Box<dyn FnOnce() + Send> {
    Box::new(|| {
        supervisor::is_ready();
        is_ready();
    })
}

/// Returns the routes of a server for another axum app, once the default model is loaded. Must be called within a tokio
/// runtime. The server ends when the last clone of the router is dropped.
///
/// Only the access rules and the limits of requests of the configuration are used: the app listens, has TLS, and
/// limits connections. To pass the addresses of clients, it is served with
/// `into_make_service_with_connect_info::<SocketAddr>()`; without an address, a client counts as another machine. Under
/// a path, add the routes as a fallback of the app, and set [`Config::base_path`].
///
/// Errors if the default model cannot be loaded.
pub async fn router(config: Config, models: Models) -> Result<Router> {
    let (app, opening) = start(config, models, Box::new(|| {}))?;
    let ends = Arc::new(guard(Arc::clone(&app), |app| {
        app.close();
        app.queue.drain(Duration::ZERO);
    }));
    let opened = opening.await;
    opened.unwrap_or_else(|_| Err(Error::new("the model loading thread panicked")))?;
    tokio::spawn(tidy(Arc::downgrade(&app)));
    Ok(Router::new().fallback_service(routes(&app).map_request(move |mut request: Request| {
        let _ = &ends;
        if request.extensions().get::<ConnectInfo<Peer>>().is_none() {
            let address = request.extensions().get::<ConnectInfo<SocketAddr>>();
            let address = address.map_or_else(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), |info| info.0);
            request.extensions_mut().insert(ConnectInfo(Peer::Address(address)));
        }
        request
    })))
}

/// Starts the backend that generates images. Must be called within a runtime.
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

/// Runs an MCP server over stdio until the client closes it. Images are written into `folder`.
///
/// Errors if the default model cannot be loaded, or the client does not speak MCP.
pub fn run_tools(config: Config, models: Models, folder: PathBuf, outside: Outside<'_>) -> Result<()> {
    let runtime = runtime()?;
    let (app, mut opening) = {
        let _inside = runtime.enter();
        start(config, models, ready(outside.is_ready))?
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
            done = end.map_err(|e| Error::new(format!("the client does not speak the Model Context Protocol: {e}")));
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    app.close();
    app.queue.drain(Duration::ZERO);
    // A pending read of standard input cannot be cancelled.
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
        start(config, models, ready(outside.is_ready))?
    };
    let (stop, stopped) = watch::channel(false);
    let routes = routes(&app);
    let of_app = Arc::clone(&app);
    let serving =
        runtime.spawn(async move { connections::serve(listeners, routes, tls, &of_app.config, stopped).await });
    runtime.spawn(tidy(Arc::downgrade(&app)));
    let mut watchdog = Watchdog::from_environment();
    let mut done = Ok(());
    while !(outside.is_ended)() {
        if let Ok(Err(error)) = opening.try_recv() {
            done = Err(error);
            break;
        }
        if (outside.reloads)() {
            let said = app.config.keys.reload().err().map(|e| format!("error: the keys were not reloaded: {e}"));
            flux_runtime::progress::say(said.as_deref().unwrap_or("note: reloaded the keys"));
        }
        watchdog.notify(|| app.queue.moves());
        std::thread::sleep(LOOK_EVERY);
    }
    supervisor::ends();
    // Accepts nothing new, and answers everything accepted.
    let _ = stop.send(true);
    app.close();
    app.queue.drain(if done.is_ok() { app.config.drain } else { Duration::ZERO });
    let last_answers = async {
        let _ = tokio::time::timeout(LAST_ANSWERS, async { tokio::join!(serving, app.comfy.finish()) }).await;
    };
    // Does not wait for clients that do not read their responses.
    runtime.block_on(last_answers);
    done
}

/// Removes expired results as long as the server lives.
async fn tidy(app: Weak<App>) {
    for time in (1..=TRIM_EVERY).cycle() {
        tokio::time::sleep(TIDY_EVERY).await;
        let Some(app) = app.upgrade() else { return };
        let tidy = move || {
            let Limits { kept, kept_bytes, .. } = app.config.limits;
            app.store.tidy(kept, kept_bytes);
            if time == TRIM_EVERY {
                allocator::trim();
            }
        };
        let _ = tokio::task::spawn_blocking(tidy).await;
    }
}

/// The time for busy threads to end.
const LAST_THREADS: Duration = Duration::from_secs(1);
/// The time for sending the last responses.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

fn routes(app: &Arc<App>) -> Router {
    let images = |route: Route| {
        post(move |from: FromClient, address: Extension<Address>, request: Request| {
            openai::images(from, address, request, route)
        })
    };
    let routes = Router::new()
        .route("/v1/images/generations", images(Route::Generations))
        .route("/v1/images/edits", images(Route::Edits))
        .route("/v1/images/upscale", images(Route::Upscale))
        .route("/v1/models", get(openai::models))
        .route("/v1/models/{*name}", get(openai::model))
        .route("/v1/files/{name}", get(openai::file))
        .route("/v1/jobs", post(own_jobs::submit).get(own_jobs::list))
        .route("/v1/jobs/{id}", get(own_jobs::get).delete(own_jobs::cancel))
        .route("/v1/jobs/{id}/events", get(own_jobs::events))
        .route("/v1/jobs/{id}/result", get(own_jobs::result))
        .route("/v1/jobs/{id}/images/{image}", get(own_jobs::image))
        .route("/v1/live", get(live::connect))
        .route("/v1/batches", get(batches::list))
        .route("/v1/batches/{id}", get(batches::get))
        .route("/v1/loras", get(health::loras))
        .route("/healthz", get(health::lives))
        .route("/health", get(health::lives))
        .route("/readyz", get(health::is_ready))
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(openapi::document))
        .merge(a1111::routes())
        .merge(comfy::routes())
        .merge(mcp::routes(app))
        .method_not_allowed_fallback(wrong_method)
        .fallback(other)
        .layer(DefaultBodyLimit::disable());
    let routes: Router = guard::guarded(routes, app).with_state(Arc::clone(app));
    let base_path = app.config.base_path.clone();
    // The path must change before it is matched, which a layer of the routes cannot do.
    Router::new().fallback_service(routes.map_request(move |request| normalized(request, &base_path)))
}

/// Removes double slashes, a trailing slash and the base path from the path of a request.
fn normalized(mut request: Request, base_path: &str) -> Request {
    let Some(path) = address::normalized(request.uri().path(), base_path) else { return request };
    let query = request.uri().query().map_or_else(String::new, |query| format!("?{query}"));
    let sent = page::SentPath(request.uri().path().to_string());
    request.extensions_mut().insert(sent);
    let mut parts = request.uri().clone().into_parts();
    // Parsing succeeds, since the original path was valid.
    parts.path_and_query = format!("{path}{query}").parse().ok();
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    request
}

async fn wrong_method(request: Request) -> Response {
    let error = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "the method is not allowed here");
    in_form_of(&request, error)
}

/// Returns an error in the format of the API that the request addresses.
fn in_form_of(request: &Request, error: ApiError) -> Response {
    if request.uri().path().starts_with("/sdapi/") { a1111::refusal(error) } else { error.into_response() }
}

/// Returns a file of the web page, or an error for an unknown route.
async fn other(request: Request) -> Response {
    if !matches!(*request.method(), axum::http::Method::GET | axum::http::Method::HEAD) {
        return in_form_of(&request, ApiError::not_found("there is no such route"));
    }
    let path = request.uri().path();
    let sent = request.extensions().get::<page::SentPath>();
    match sent.and_then(|sent| page::redirect(path, sent)) {
        Some(redirect) => redirect,
        None => page::part(path, request.headers()).unwrap_or_else(|error| in_form_of(&request, error)),
    }
}
