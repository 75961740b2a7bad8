//! What a server is started with.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::keys::Keys;
#[cfg(feature = "queue")]
use crate::queue::broker::Broker;
#[cfg(feature = "queue")]
use crate::queue::store::Store;

/// How a server listens, and whom it answers.
pub struct Config {
    /// Beside the sockets that are handed over; with neither it is port 7860 of this machine.
    pub listen: Vec<Listen>,
    /// The permissions of the files of sockets.
    pub socket_mode: u32,
    /// Users, by number, who may ask over the file of a socket, beside root and the server's own; all whom the
    /// permissions let in where there are none.
    pub users: Vec<u32>,
    /// Whether other machines are answered without keys.
    pub answers_all: bool,
    pub keys: Keys,
    /// Names by which the server may be called, beside those of its addresses.
    pub hosts: Vec<String>,
    /// Pages of other origins that may call it.
    pub cors: Vec<String>,
    /// A proxy whose `X-Forwarded-For` counts.
    pub trusted_proxy: Option<IpAddr>,
    /// Whether prompts are written to the log.
    pub logs_prompts: bool,
    /// Whether each request is a line of the log.
    pub logs_requests: bool,
    /// Whether the steps of A1111's clients count where the model is distilled.
    pub honours_sdapi_steps: bool,
    pub tls: Option<rustls::ServerConfig>,
    /// Where jobs go that workers make; without it they are made here.
    #[cfg(feature = "queue")]
    pub workers: Option<Workers>,
    pub drain: Duration,
    pub limits: Limits,
}

impl Config {
    /// Listens somewhere, answers whoever has one of the keys, and leaves everything else out.
    pub fn new(listen: Vec<Listen>, keys: Keys) -> Self {
        Self {
            listen,
            socket_mode: 0o600,
            users: Vec::new(),
            answers_all: false,
            keys,
            hosts: Vec::new(),
            cors: Vec::new(),
            trusted_proxy: None,
            logs_prompts: false,
            logs_requests: false,
            honours_sdapi_steps: false,
            tls: None,
            #[cfg(feature = "queue")]
            workers: None,
            drain: Duration::ZERO,
            limits: Limits::default(),
        }
    }
}

/// Where jobs go that workers make.
#[cfg(feature = "queue")]
pub struct Workers {
    pub broker: Broker,
    pub store: Store,
    /// Whether clients who ask for addresses get those of the store.
    pub presigns: bool,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    Address(SocketAddr),
    /// The file of a socket.
    Socket(PathBuf),
}

/// How much a server takes.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Requests that wait.
    pub queue_max: usize,
    /// Images of one client that wait.
    pub client_images: usize,
    /// Pixels that one client may ask for in a minute.
    pub client_pixels: Option<f64>,
    /// Bytes of images of requests that wait.
    pub queue_bytes: usize,
    /// Images that are made at once.
    pub batch_max: usize,
    /// How long an image waits for others that are made with it.
    pub batch_window: Duration,
    /// How long images that are made at once may take together, as far as that is known.
    pub batch_latency: Duration,
    /// How long the work may rest before a step was timed, and a model may take to open.
    pub start: Duration,
    /// Pixels of an image.
    pub max_pixels: usize,
    /// A body of JSON.
    pub json_bytes: usize,
    /// A file of a form.
    pub file_bytes: usize,
    /// A form.
    pub form_bytes: usize,
    /// Connections, in all and of a client.
    pub connections: [usize; 2],
    /// How long a client may send nothing.
    pub silence: Duration,
    /// How long a body may take.
    pub body: Duration,
    /// How long results are kept.
    pub kept: Duration,
    /// Bytes of results that are kept.
    pub kept_bytes: usize,
    /// After how long models that nobody uses are closed.
    pub idle_unload: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_max: 256,
            client_images: usize::MAX,
            client_pixels: None,
            queue_bytes: 1 << 30,
            batch_max: 8,
            batch_window: Duration::ZERO,
            batch_latency: Duration::from_secs(1),
            start: Duration::from_secs(600),
            max_pixels: 4_200_000,
            json_bytes: 8 << 20,
            file_bytes: 64 << 20,
            form_bytes: 256 << 20,
            connections: [1024, 64],
            silence: Duration::from_secs(30),
            body: Duration::from_secs(300),
            kept: Duration::from_secs(3600),
            kept_bytes: 1 << 30,
            idle_unload: None,
        }
    }
}
