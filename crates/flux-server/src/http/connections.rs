//! HTTP connections: limits, timeouts, and eviction of idle ones.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::either::Either;
use tower::ServiceExt;

use crate::http::activity::{Activity, Received};
use crate::http::config::Config;
use crate::http::patient::Patient;
use crate::http::sockets::{Listener, Peer, Stream, network, readable};

/// Max headers of a request, and max bytes of its head.
const MAX_HEADERS: usize = 64;
const HEAD_BYTES: usize = 16 << 10;
/// The timeout of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The time in which open connections may still send a request when the server shuts down.
const LAST_REQUESTS: Duration = Duration::from_millis(500);
/// The delay after a failed accept, for example with too many open files, or while there is no room.
const AFTER_FAILURE: Duration = Duration::from_millis(100);
/// The limit of open files to request, and the part of it that is reserved for other uses.
const MAX_FILES: u64 = 16_384;
const OTHER_FILES: usize = 256;

/// A client whose connections are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Who {
    Address(IpAddr),
    User(u32),
}

impl From<Peer> for Who {
    fn from(peer: Peer) -> Self {
        match peer {
            Peer::Address(address) => Self::Address(network(address.ip())),
            Peer::User(user) => Self::User(user),
        }
    }
}

/// The connections of one listener. Listeners have separate limits.
struct Pool {
    max: usize,
    table: Mutex<Table>,
    /// Notified when there may be room.
    changed: Notify,
}

#[derive(Default)]
struct Table {
    counts: HashMap<Who, usize>,
    open: HashMap<u64, (Who, Arc<Activity>)>,
    last: u64,
}

/// The reason to refuse a connection.
#[derive(Debug, PartialEq, Eq)]
enum Full {
    /// The client has too many connections.
    OfClient,
    /// All clients together have too many, and none of the connections is idle.
    All,
}

impl Pool {
    fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, table: Mutex::default(), changed: Notify::new() })
    }

    /// Counts a connection. If there are too many, evicts the connection that has been idle for the longest: one of
    /// this client, or of the client with the most connections.
    fn admit(self: &Arc<Self>, who: Who, max_of_client: usize) -> Result<Counted, Full> {
        let mut table = self.table.lock();
        if table.counts.get(&who).is_some_and(|count| *count >= max_of_client) && !table.evict(|other| other == who) {
            return Err(Full::OfClient);
        }
        if table.open.len() >= self.max {
            let most = table.counts.iter().max_by_key(|(_, count)| **count).map(|(who, _)| *who);
            if !table.evict(|other| Some(other) == most) && !table.evict(|_| true) {
                return Err(Full::All);
            }
        }
        table.last += 1;
        let (number, activity) = (table.last, Activity::new());
        *table.counts.entry(who).or_default() += 1;
        table.open.insert(number, (who, Arc::clone(&activity)));
        Ok(Counted { pool: Arc::clone(self), number, activity })
    }

    /// Evicts the connection that has been idle for the longest. Returns `false` if none is idle.
    fn make_room(&self) -> bool {
        self.table.lock().evict(|_| true)
    }
}

impl Table {
    fn evict(&mut self, may_go: impl Fn(Who) -> bool) -> bool {
        let idle = self.open.iter().filter(|(_, (who, _))| may_go(*who));
        let idle = idle.filter_map(|(number, (_, activity))| Some((activity.idle_since()?, *number)));
        let Some((_, number)) = idle.min() else { return false };
        if let Some(activity) = self.remove(number) {
            activity.evict();
        }
        true
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Activity>> {
        let (who, activity) = self.open.remove(&number)?;
        if let Some(count) = self.counts.get_mut(&who) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&who);
            }
        }
        Some(activity)
    }
}

/// A counted connection. Requests carry it, so that an upgraded socket that outlives its request still counts.
pub struct Counted {
    pool: Arc<Pool>,
    number: u64,
    activity: Arc<Activity>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.pool.table.lock().remove(self.number);
        self.pool.changed.notify_one();
    }
}

/// A response in progress. An upgraded socket is never idle.
struct Answering {
    counted: Arc<Counted>,
    is_taken_over: bool,
}

impl Answering {
    fn new(counted: &Arc<Counted>) -> Self {
        counted.activity.begin_answer();
        Self { counted: Arc::clone(counted), is_taken_over: false }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if !self.is_taken_over {
            self.counted.activity.end_answer();
            self.counted.pool.changed.notify_one();
        }
    }
}

/// Raises the limit of open files as far as the system allows. Returns the max connections per listener.
fn share(max: usize, listeners: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(MAX_FILES, |maximum| maximum.min(MAX_FILES));
    let has_more = current.is_none_or(|current| current >= wanted)
        || setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).is_ok();
    let files = if has_more { wanted.max(current.unwrap_or(wanted)) } else { current.unwrap_or(wanted) };
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    max.min(files.saturating_sub(OTHER_FILES) / listeners.max(1)).max(1)
}

/// Serves connections until `stop` is `true`. Then accepts no new ones, and waits for responses in progress.
pub async fn serve(
    listeners: Vec<Listener>,
    routes: Router,
    tls: Option<TlsAcceptor>,
    config: &Config,
    stop: watch::Receiver<bool>,
) {
    let limits = &config.limits;
    let [max, max_of_client] = limits.connections;
    let max = share(max, listeners.len());
    // Each connection holds a sender until its last response is sent.
    let (answering, mut answered) = mpsc::channel::<()>(1);
    let listen = async |listener: Listener| {
        let pool = Pool::new(max);
        let mut stopped = stop.clone();
        loop {
            let admitted = async {
                let (stream, peer) = accept(&listener, &pool).await?;
                // A proxy holds the connections of all its clients, but must leave room for others.
                let is_proxy = match peer {
                    Peer::Address(address) => address.ip().is_loopback() || config.trusts(address.ip()),
                    Peer::User(_) => true,
                };
                let max_of_client = if is_proxy { max - max / 4 } else { max_of_client };
                Some((stream, peer, admit(&pool, peer.into(), max_of_client).await?))
            };
            let admitted = tokio::select! {
                admitted = admitted => admitted,
                _ = stopped.wait_for(|stop| *stop) => break,
            };
            let Some((stream, peer, counted)) = admitted else { continue };
            set_up(&stream, limits.silence);
            let tls = tls.clone().filter(|_| matches!(stream, Either::Left(_)));
            let service = Service { routes: routes.clone(), peer, counted: Arc::new(counted) };
            let (activity, silence) = (Arc::clone(&service.counted.activity), limits.silence);
            let connection = connection(stream, service, tls, silence, stop.clone());
            let answering = answering.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = connection => {}
                    () = activity.ends(silence) => {}
                }
                drop(answering);
            });
        }
    };
    futures_util::future::join_all(listeners.into_iter().map(listen)).await;
    drop(answering);
    answered.recv().await;
}

async fn accept(listener: &Listener, pool: &Pool) -> Option<(Stream, Peer)> {
    let accepted = listener.accept().await;
    if accepted.is_err() {
        // Too many files are open, and idle connections may be the reason.
        pool.make_room();
        tokio::time::sleep(AFTER_FAILURE).await;
    }
    accepted.ok()
}

/// Counts a connection once there is room. `None` if its client has too many.
async fn admit(pool: &Arc<Pool>, who: Who, max_of_client: usize) -> Option<Counted> {
    loop {
        match pool.admit(who, max_of_client) {
            Ok(counted) => return Some(counted),
            Err(Full::OfClient) => return None,
            Err(Full::All) => {
                let _ = timeout(AFTER_FAILURE, pool.changed.notified()).await;
            }
        }
    }
}

/// Sets socket options. A connection ends if data is not acknowledged in time, since its client does not read.
fn set_up(stream: &Stream, silence: Duration) {
    let Either::Left(stream) = stream else { return };
    // The options are optional, so errors are ignored.
    let _ = stream.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, u32::try_from(silence.as_millis()).unwrap_or(u32::MAX));
    #[cfg(not(target_os = "linux"))]
    let _ = silence;
}

/// The service that answers the requests of a connection.
struct Service {
    routes: Router,
    peer: Peer,
    counted: Arc<Counted>,
}

async fn connection(
    stream: Stream,
    service: Service,
    tls: Option<TlsAcceptor>,
    silence: Duration,
    stop: watch::Receiver<bool>,
) {
    // hyper does not end a connection on which nothing was sent. Browsers open such connections ahead of requests.
    let mut stopped = stop.clone();
    let stops = async {
        let _ = stopped.wait_for(|stop| *stop).await;
        tokio::time::sleep(LAST_REQUESTS).await;
    };
    let is_there = tokio::select! {
        readable = readable(&stream) => readable.is_ok(),
        () = stops => false,
    };
    if !is_there {
        return;
    }
    match tls {
        None => answer(stream, service, silence, stop).await,
        Some(tls) => {
            if let Ok(Ok(stream)) = timeout(HANDSHAKE, tls.accept(stream)).await {
                answer(stream, service, silence, stop).await;
            }
        }
    }
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    service: Service,
    silence: Duration,
    mut stop: watch::Receiver<bool>,
) {
    let activity = Arc::clone(&service.counted.activity);
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        let mut answering = Answering::new(&service.counted);
        let activity = Arc::clone(&service.counted.activity);
        let mut request = request.map(|body| Body::new(Received { body, activity }));
        request.extensions_mut().insert(ConnectInfo(service.peer));
        request.extensions_mut().insert(Arc::clone(&service.counted));
        let answer = service.routes.clone().oneshot(request);
        async move {
            let response = answer.await?;
            answering.is_taken_over = response.status() == StatusCode::SWITCHING_PROTOCOLS;
            // The body drops it at its end.
            let keep = move |error: axum::Error| {
                let _held = &answering;
                error
            };
            Ok::<_, Infallible>(response.map(|body| Body::new(body.map_err(keep))))
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(silence)
            .max_headers(MAX_HEADERS)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(Patient::new(stream, silence, activity)), service)
            .with_upgrades()
    );
    // Errors of a connection concern its client only.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stop.wait_for(|stop| *stop) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

#[cfg(test)]
mod tests;
