//! Connections: how many, and how long they may be silent.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::Request;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use super::config::Config;
use super::patient::Patient;
use super::sockets::{Listener, Peer, Stream};

/// The longest head of a request.
const MOST_HEADERS: usize = 64;
const HEAD_BYTES: usize = 16 << 10;
/// A handshake of TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long connections that were taken before the server ends may take to send something.
const LAST_REQUESTS: Duration = Duration::from_millis(500);
/// After a failure to take a connection, such as too many open files.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// Whose connections are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Who {
    Address(IpAddr),
    User(u32),
}

impl From<Peer> for Who {
    fn from(peer: Peer) -> Self {
        match peer {
            Peer::Address(address) => Self::Address(address.ip()),
            Peer::User(user) => Self::User(user),
        }
    }
}

/// How many connections each has.
type Counts = Arc<Mutex<HashMap<Who, usize>>>;

/// A connection that counts, as long as this is somewhere: requests carry it, so that a socket that outlives its
/// request counts too.
pub struct Counted {
    counts: Counts,
    who: Who,
    _one: OwnedSemaphorePermit,
}

impl Counted {
    /// None where it has too many.
    fn new(all: &Counts, who: Who, most: usize, one: OwnedSemaphorePermit) -> Option<Self> {
        let mut counts = all.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(who).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Self { counts: Arc::clone(all), who, _one: one })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.who) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.who);
            }
        }
    }
}

/// Answers connections until `stop` says so; then takes no new ones, and waits for the answers that are on their way.
pub async fn serve(
    listeners: Vec<Listener>,
    routes: Router,
    tls: Option<TlsAcceptor>,
    Config { limits, trusted_proxy, .. }: &Config,
    stop: watch::Receiver<bool>,
) {
    let ([most, most_of_one], trusted) = (limits.connections, *trusted_proxy);
    let room = Arc::new(Semaphore::new(most));
    let counts = Counts::default();
    // Each connection has one end, until its last answer is sent.
    let (answering, mut answered) = mpsc::channel::<()>(1);
    let listen = async |listener: Listener| {
        let mut stopped = stop.clone();
        loop {
            let accepted = tokio::select! {
                accepted = accept(&listener, &room) => accepted,
                _ = stopped.wait_for(|stop| *stop) => break,
            };
            let Some((stream, peer, one)) = accepted else { continue };
            // A proxy has the connections of all its clients.
            let is_trusted = |ip: IpAddr| ip.is_loopback() || trusted == Some(ip);
            let is_trusted = matches!(peer, Peer::Address(address) if is_trusted(address.ip()));
            let most = if is_trusted { usize::MAX } else { most_of_one };
            let Some(counted) = Counted::new(&counts, peer.into(), most, one) else { continue };
            set_up(&stream, limits.silence);
            let tls = tls.clone().filter(|_| matches!(stream, Stream::Tcp(_)));
            let service = Service { routes: routes.clone(), peer, counted: Arc::new(counted) };
            let connection = connection(stream, service, tls, limits.silence, stop.clone());
            let answering = answering.clone();
            tokio::spawn(async move {
                connection.await;
                drop(answering);
            });
        }
    };
    futures_util::future::join_all(listeners.into_iter().map(listen)).await;
    drop(answering);
    answered.recv().await;
}

async fn accept(listener: &Listener, room: &Arc<Semaphore>) -> Option<(Stream, Peer, OwnedSemaphorePermit)> {
    let one = Arc::clone(room).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, peer, one)),
        Err(_) => {
            tokio::time::sleep(AFTER_FAILURE).await;
            None
        }
    }
}

/// What is not acknowledged in time ends a connection: its client does not read.
fn set_up(stream: &Stream, silence: Duration) {
    let Stream::Tcp(stream) = stream else { return };
    // Without these it works too.
    let _ = stream.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, u32::try_from(silence.as_millis()).unwrap_or(u32::MAX));
    #[cfg(not(target_os = "linux"))]
    let _ = silence;
}

/// What answers the requests of a connection.
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
    // hyper has no limit on a client that sends nothing at all, such as a browser that connects ahead of its requests.
    let mut stopped = stop.clone();
    let stops = async {
        let _ = stopped.wait_for(|stop| *stop).await;
        tokio::time::sleep(LAST_REQUESTS).await;
    };
    let is_there = tokio::select! {
        readable = timeout(silence, stream.readable()) => matches!(readable, Ok(Ok(()))),
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
    let service = hyper::service::service_fn(move |mut request: Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(ConnectInfo(service.peer));
        request.extensions_mut().insert(Arc::clone(&service.counted));
        service.routes.clone().oneshot(request)
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(silence)
            .max_headers(MOST_HEADERS)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(Patient::new(stream, silence)), service)
            .with_upgrades()
    );
    // What goes wrong with a connection is its client's.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stop.wait_for(|stop| *stop) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}
