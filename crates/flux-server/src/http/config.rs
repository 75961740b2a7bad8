//! The configuration of a server.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri};
use flux_upsample::Upsampler;

use crate::http::address::{self, Address, Network, PublicUrl};
use crate::http::keys::Keys;
#[cfg(feature = "queue")]
use flux_queue::broker::Broker;
#[cfg(feature = "queue")]
use flux_queue::store::Store;

/// The addresses, access rules and limits of a server.
pub struct Config {
    /// Addresses, in addition to inherited sockets. With neither, the server listens on port 7860 of localhost.
    pub listen: Vec<Listen>,
    /// The permissions of socket files.
    pub socket_mode: u32,
    /// IDs of users that may connect to a socket file, besides root and the server's own user. If empty, the file
    /// permissions decide.
    pub users: Vec<u32>,
    /// `true` to answer other machines without keys.
    pub answers_all: bool,
    pub keys: Keys,
    /// Host names of the server, in addition to IP addresses.
    pub hosts: Vec<String>,
    /// Origins of other sites that may call the server.
    pub cors: Vec<String>,
    /// Proxies whose `X-Forwarded` headers are trusted.
    pub trusted_proxies: Vec<Network>,
    /// The URL at which clients reach the server.
    pub public_url: Option<PublicUrl>,
    /// The path prefix of all routes, without a trailing slash.
    pub base_path: String,
    /// `true` to log prompts.
    pub logs_prompts: bool,
    /// `true` to log each request.
    pub logs_requests: bool,
    /// `true` to use the steps that A1111 clients request for distilled models, too.
    pub honours_sdapi_steps: bool,
    /// The folder of wildcards for requests that expand their prompt.
    pub wildcards: Option<PathBuf>,
    /// `true` to expand the prompts of A1111 clients that enable the extension Dynamic Prompts.
    pub expands_sdapi: bool,
    pub tls: Option<rustls::ServerConfig>,
    /// The language model that rewrites prompts, and `true` if it does so for requests that do not say.
    pub upsampling: Option<(Upsampler, bool)>,
    /// The broker and store of remote workers. Without them, jobs run on this machine.
    #[cfg(feature = "queue")]
    pub workers: Option<Workers>,
    pub drain: Duration,
    pub limits: Limits,
}

impl Config {
    /// Returns a configuration that listens, accepts these keys, and has defaults for everything else.
    pub fn new(listen: Vec<Listen>, keys: Keys) -> Self {
        Self {
            listen,
            socket_mode: 0o600,
            users: Vec::new(),
            answers_all: false,
            keys,
            hosts: Vec::new(),
            cors: Vec::new(),
            trusted_proxies: Vec::new(),
            public_url: None,
            base_path: String::new(),
            logs_prompts: false,
            logs_requests: false,
            honours_sdapi_steps: false,
            wildcards: None,
            expands_sdapi: false,
            tls: None,
            upsampling: None,
            #[cfg(feature = "queue")]
            workers: None,
            drain: Duration::ZERO,
            limits: Limits::default(),
        }
    }

    /// Returns `true` if the `X-Forwarded` headers of a peer are trusted.
    pub fn trusts(&self, ip: IpAddr) -> bool {
        self.trusted_proxies.iter().any(|network| network.contains(ip))
    }

    /// Returns the address of `--public-url`, else the address in the request. `X-Forwarded` headers count if
    /// `is_trusted`.
    pub fn address(&self, is_trusted: bool, uri: &Uri, headers: &HeaderMap) -> Address {
        if let Some(PublicUrl { origin, path, .. }) = &self.public_url {
            return Address { origin: Some(origin.clone()), prefix: path.clone() };
        }
        let forwarded = |name: &str| address::forwarded(headers, name).filter(|_| is_trusted);
        let own = if self.tls.is_some() { "https" } else { "http" };
        let scheme = forwarded("x-forwarded-proto").filter(|scheme| ["http", "https"].contains(scheme)).unwrap_or(own);
        let host = forwarded("x-forwarded-host").or_else(|| address::host(uri, headers));
        let host = host.and_then(|host| host.parse::<Authority>().ok()).filter(|host| !host.as_str().contains('@'));
        let prefix = forwarded("x-forwarded-prefix").and_then(|prefix| address::base_path(prefix).ok());
        Address {
            origin: host.map(|host| format!("{scheme}://{host}")),
            prefix: prefix.unwrap_or_else(|| self.base_path.clone()),
        }
    }
}

/// The queue of remote workers.
#[cfg(feature = "queue")]
pub struct Workers {
    pub broker: Broker,
    pub store: Store,
    /// `true` to return URLs of the store to clients that request URLs.
    pub presigns: bool,
}

/// A listening address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    Address(SocketAddr),
    /// The path of a Unix domain socket.
    Socket(PathBuf),
}

/// The limits of a server.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Max waiting requests.
    pub queue_max: usize,
    /// Max waiting images of one client.
    pub client_images: usize,
    /// Max pixels that one client may request per minute.
    pub client_pixels: Option<f64>,
    /// Max bytes of input images of waiting requests.
    pub queue_bytes: usize,
    /// Max images per batch.
    pub batch_max: usize,
    /// The time for which an image waits for others to form a batch.
    pub batch_window: Duration,
    /// The max duration of a batch, if it can be estimated.
    pub batch_latency: Duration,
    /// The max time without progress while loading a model, or for a small image of a model without timings.
    pub start: Duration,
    /// Max pixels of an image.
    pub max_pixels: usize,
    /// Max pixels of an enlarged image.
    pub upscale_max_pixels: usize,
    /// Max bytes of a JSON body.
    pub json_bytes: usize,
    /// Max bytes of a file in a form.
    pub file_bytes: usize,
    /// Max bytes of a form.
    pub form_bytes: usize,
    /// Max connections, in total and per client.
    pub connections: [usize; 2],
    /// The max time for which a client may send nothing.
    pub silence: Duration,
    /// The max time for receiving a body.
    pub body: Duration,
    /// The retention time of results.
    pub kept: Duration,
    /// Max bytes of retained results.
    pub kept_bytes: usize,
    /// The idle time after which models are unloaded.
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
            upscale_max_pixels: 34_000_000,
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
