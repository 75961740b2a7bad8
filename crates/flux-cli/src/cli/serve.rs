//! Flags of `flux serve`, `flux mcp` and `flux key`.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use flux::engine::EngineArgs;
use flux::engine::choice::ParallelChoice;
use flux::{Error, Result};

#[cfg(feature = "queue")]
use super::queue::QueueArgs;
use super::show::preview_decoder;
use super::values::{path, whole};
use super::{
    DEVICE, DeviceArgs, INFORMATION, MODEL, ModelArgs, OUTPUT, PROMPT, QuantizeArgs, SignArgs, UpsampleArgs, settings,
};

/// The defaults of `--host` and `--port`.
const DEFAULT_HOST: &str = "127.0.0.1";
const DEFAULT_PORT: u16 = 7860;
const LISTENING: &str = "Network and access";
const LIMITS: &str = "Limits";

/// Flags that do not apply if workers behind a queue generate the images.
#[cfg(feature = "queue")]
const OF_AN_ENGINE: [&str; 14] = [
    "ModelArgs", "UpsampleArgs", "QuantizeArgs", "DeviceArgs", "models_open", "idle_unload", "kv", "preview_decoder",
    "parallel", "batch_max", "batch_window_ms", "batch_latency_ms", "batch_exact", "start_timeout",
];

/// `flux serve`
#[derive(Args)]
#[cfg_attr(feature = "queue", command(mut_arg("queue", |arg| arg.conflicts_with_all(OF_AN_ENGINE))))]
#[cfg_attr(feature = "queue", command(mut_arg("store", |arg| arg.conflicts_with_all(OF_AN_ENGINE))))]
pub struct Serve {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Additional model and its name for requests; repeatable
    ///
    /// The first model is the default. With a queue, it is the NAME alone, as workers use it, or no --model if the
    /// store has only one.
    #[arg(help_heading = MODEL, long = "model", value_name = "NAME=PATH")]
    pub models: Vec<String>,
    /// Adapter that requests can name; repeatable
    ///
    /// The default name is the name of the file.
    #[arg(help_heading = MODEL, long = "lora", value_name = "[NAME=]FILE")]
    pub loras: Vec<String>,
    /// Reject unknown model names, instead of using the default model
    #[arg(help_heading = MODEL, long)]
    pub strict_models: bool,
    /// Max number of models in memory
    #[arg(help_heading = MODEL, long, value_name = "N", default_value_t = 1, value_parser = whole(1..=64u64))]
    pub models_open: u64,
    /// Unload models after this many seconds without use
    #[arg(help_heading = MODEL, long, value_name = "SECONDS", value_parser = whole(1..=31_536_000u64))]
    pub idle_unload: Option<u64>,
    /// Compute keys and values of references once for all steps
    ///
    /// For models that were trained this way, such as klein 9b-kv. Their folders enable it without the flag.
    #[arg(help_heading = MODEL, long, hide_short_help = true)]
    pub kv: bool,
    /// TAEF2 file that decodes previews
    ///
    /// TAEF2 is the tiny autoencoder of FLUX.2.
    #[arg(help_heading = MODEL, long, value_name = "FILE", value_parser = path())]
    pub preview_decoder: Option<PathBuf>,
    #[command(flatten)]
    pub quantize: QuantizeArgs,
    #[command(flatten)]
    pub upsample: UpsampleArgs,
    #[command(flatten)]
    pub on: DeviceArgs,
    #[command(flatten)]
    pub sign: SignArgs,
    /// GPUs that share each image: a number, auto or off [default: off]
    ///
    /// With off, each GPU generates its own images.
    #[arg(help_heading = DEVICE, long, value_name = "N", hide_short_help = true)]
    pub parallel: Option<ParallelChoice>,
    #[cfg(feature = "queue")]
    #[command(flatten)]
    pub to: QueueArgs,
    /// With a queue: answer `response_format: url` with presigned URLs
    ///
    /// S3 signs them for 15 minutes. Without the flag, URLs name files of the server.
    #[cfg(feature = "queue")]
    #[arg(help_heading = super::queue::QUEUE, long, hide_short_help = true)]
    pub presigned_urls: bool,
    /// Address or host name to listen on
    ///
    /// [default: 127.0.0.1, or the sockets that systemd passes]
    #[arg(help_heading = LISTENING, long, value_name = "ADDRESS", conflicts_with = "listen")]
    pub host: Option<String>,
    /// Port to listen on; 0 picks a free port [default: 7860]
    #[arg(help_heading = LISTENING, long, value_name = "PORT", conflicts_with = "listen")]
    pub port: Option<u16>,
    /// Address and port, or unix: and the path of a socket; repeatable
    #[arg(help_heading = LISTENING, long, value_name = "ADDRESS:PORT")]
    pub listen: Vec<ListenAt>,
    /// Permissions of the socket file, in octal; 660 admits its group
    #[arg(help_heading = LISTENING, long, value_name = "MODE", default_value = "600", value_parser = mode)]
    #[arg(hide_short_help = true)]
    pub socket_mode: u32,
    /// User who may connect to the socket file; repeatable
    ///
    /// root and your own user may always connect [default: all users that its permissions admit].
    #[arg(help_heading = LISTENING, long = "allow-user", value_name = "USER", hide_short_help = true)]
    pub users: Vec<String>,
    /// File of API keys; `flux key NAME` creates a line of it
    ///
    /// [default: $FLUX_API_KEYS, keys separated by commas]
    #[arg(help_heading = LISTENING, long, value_name = "FILE", value_parser = path())]
    pub api_keys: Option<PathBuf>,
    /// Accept other machines without keys
    #[arg(help_heading = LISTENING, long, conflicts_with = "api_keys")]
    pub no_auth: bool,
    /// Allowed host name in requests (the Host header); repeatable
    #[arg(help_heading = LISTENING, long = "allow-host", value_name = "NAME")]
    pub hosts: Vec<String>,
    /// Allowed origin of pages, as in https://example.com; repeatable
    #[arg(help_heading = LISTENING, long, value_name = "ORIGIN")]
    pub cors: Vec<String>,
    /// Proxy or network whose X-Forwarded headers are trusted; repeatable
    #[arg(help_heading = LISTENING, long = "trust-proxy", value_name = "ADDRESS")]
    pub trusted_proxies: Vec<String>,
    /// Public address of the server, as in https://example.com/flux
    #[arg(help_heading = LISTENING, long, value_name = "URL")]
    pub public_url: Option<String>,
    /// Path of the server behind a proxy, as in /flux
    ///
    /// [default: the path of --public-url]
    #[arg(help_heading = LISTENING, long, value_name = "PATH")]
    pub base_path: Option<String>,
    /// TLS certificate with its chain, in PEM
    #[arg(help_heading = LISTENING, long, value_name = "FILE", value_parser = path(), requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM
    #[arg(help_heading = LISTENING, long, value_name = "FILE", value_parser = path(), requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Steps of A1111 clients on distilled models
    #[arg(help_heading = LIMITS, long, value_name = "POLICY", value_enum, default_value_t = SdapiSteps::Limit)]
    #[arg(hide_short_help = true)]
    pub sdapi_steps: SdapiSteps,
    /// Folder of wildcards for requests with `expand`
    #[arg(help_heading = PROMPT, long, value_name = "FOLDER", value_parser = path(), hide_short_help = true)]
    pub wildcards: Option<PathBuf>,
    /// Expand prompts of A1111 clients that enable Dynamic Prompts
    #[arg(help_heading = PROMPT, long, hide_short_help = true)]
    pub sdapi_expand: bool,
    /// Folder of upscalers that requests can name, for larger images
    #[arg(help_heading = MODEL, long, value_name = "FOLDER", value_parser = path(), hide_short_help = true)]
    pub upscalers: Option<PathBuf>,
    /// Max waiting requests
    #[arg(help_heading = LIMITS, long, value_name = "N", default_value_t = 256, value_parser = whole(1..=100_000u64))]
    pub queue_max: u64,
    /// Max waiting images per client: a key, an address or a local user
    #[arg(help_heading = LIMITS, long, value_name = "N", value_parser = whole(1..=100_000u64), hide_short_help = true)]
    pub max_per_client: Option<u64>,
    /// Max megapixels per minute and client
    #[arg(help_heading = LIMITS, long, value_name = "N", value_parser = whole(1..=1_000_000u64), hide_short_help = true)]
    pub megapixels_per_minute: Option<u64>,
    /// Max data of images in waiting requests, in MiB
    #[arg(help_heading = LIMITS, long, value_name = "MIB", default_value_t = 1024, value_parser = whole(1..=1u64 << 20))]
    pub queue_mib: u64,
    /// Max images per batch
    #[arg(help_heading = LIMITS, long, value_name = "N", default_value_t = 8, value_parser = whole(1..=8u64))]
    pub batch_max: u64,
    /// Max milliseconds that an image waits for others to join its batch
    #[arg(help_heading = LIMITS, long, value_name = "MS", default_value_t = 0, value_parser = whole(0..=10_000u64))]
    #[arg(hide_short_help = true)]
    pub batch_window_ms: u64,
    /// Max milliseconds per batch, by the estimate, if there is one
    #[arg(help_heading = LIMITS, long, value_name = "MS", default_value_t = 1000, value_parser = whole(0..=3_600_000u64))]
    #[arg(hide_short_help = true)]
    pub batch_latency_ms: u64,
    /// Generate each image alone, as with --batch-max 1
    ///
    /// A seed then gives the same bytes, regardless of other requests.
    #[arg(help_heading = LIMITS, long, conflicts_with_all = ["batch_max", "batch_window_ms", "batch_latency_ms"])]
    pub batch_exact: bool,
    /// Max pixels per image
    #[arg(help_heading = LIMITS, long, value_name = "N", default_value_t = 4_200_000)]
    #[arg(value_parser = whole(4096..=1u64 << 28))]
    pub max_pixels: u64,
    /// Max pixels per enlarged image
    #[arg(help_heading = LIMITS, long, value_name = "N", default_value_t = 34_000_000)]
    #[arg(value_parser = whole(4096..=1u64 << 29), hide_short_help = true)]
    pub upscale_max_pixels: u64,
    /// Max results kept, in MiB; results expire after an hour
    #[arg(help_heading = LIMITS, long, value_name = "MIB", default_value_t = 1024, value_parser = whole(1..=1u64 << 20))]
    pub keep_mib: u64,
    /// Seconds for a stopped server to finish accepted requests
    #[arg(help_heading = LIMITS, long, value_name = "SECONDS", default_value_t = 30, value_parser = whole(0..=86_400u64))]
    pub drain: u64,
    /// Seconds without progress until a load or first image is stuck
    #[arg(help_heading = LIMITS, long, value_name = "SECONDS", default_value_t = 600)]
    #[arg(value_parser = whole(1..=86_400u64), hide_short_help = true)]
    pub start_timeout: u64,
    /// Log prompts
    #[arg(help_heading = INFORMATION, long)]
    pub log_prompts: bool,
    /// Log a line per request
    #[arg(help_heading = INFORMATION, short, long, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Print only errors
    #[arg(help_heading = INFORMATION, short, long)]
    pub quiet: bool,
}

impl Serve {
    /// Returns the addresses to listen on, from `--listen`, or `--host` and `--port`; empty if no flag is given.
    ///
    /// Errors if the name of `--host` has no address.
    pub fn listen(&self) -> Result<Vec<ListenAt>> {
        if self.host.is_none() && self.port.is_none() {
            return Ok(self.listen.clone());
        }
        let (host, port) = (self.host.as_deref().unwrap_or(DEFAULT_HOST), self.port.unwrap_or(DEFAULT_PORT));
        let wrong = |what: String| {
            Error::usage(what)
                .at("--host")
                .hint("use an address such as 0.0.0.0 or ::1; allow the names that clients use with `--allow-host`")
        };
        let name = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(ip) = name.parse::<IpAddr>() {
            return Ok(vec![ListenAt::Address(SocketAddr::new(ip, port))]);
        }
        let found =
            (name, port).to_socket_addrs().map_err(|_| wrong(format!("`{host}` is not an address of this machine")))?;
        // IPv4 first, because clients try it first for `localhost`.
        let address = found.min_by_key(SocketAddr::is_ipv6);
        let address = address.ok_or_else(|| wrong(format!("`{host}` is not an address of this machine")))?;
        Ok(vec![ListenAt::Address(address)])
    }

    /// Errors if flags contradict each other in a way that clap does not express.
    pub fn check(&self, has_keys: bool) -> Result<()> {
        self.on.check()?;
        self.model.check_kv(self.kv)?;
        #[cfg(feature = "queue")]
        self.to.check_needed(self.presigned_urls)?;
        let addresses = self.listen()?.into_iter().filter_map(|listen| match listen {
            ListenAt::Address(address) => Some(address.ip()),
            ListenAt::Socket(_) => None,
        });
        let open = addresses.into_iter().find(|ip| !ip.is_loopback());
        if let Some(ip) = open.filter(|_| !has_keys && !self.no_auth) {
            return Err(Error::usage(format!("{ip} is open to other machines, and there are no keys"))
                .at(if self.host.is_some() { "--host" } else { "--listen" })
                .hint("require keys with `--api-keys FILE`, or accept all clients with `--no-auth`"));
        }
        Ok(())
    }

    /// Returns the arguments for opening a model.
    ///
    /// Errors as [`SignArgs::signer`].
    pub fn engine(&self) -> Result<EngineArgs> {
        Ok(EngineArgs {
            caches_references: self.kv,
            quantize: self.quantize.formats(),
            preview_decoder: preview_decoder(self.preview_decoder.as_deref()),
            parallel: self.parallel.or_else(|| settings::settings().parallel()).unwrap_or(ParallelChoice::Off),
            signer: self.sign.signer()?,
            ..self.on.engine()
        })
    }
}

/// `--listen`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAt {
    Address(SocketAddr),
    /// The file of a Unix socket.
    Socket(PathBuf),
}

impl FromStr for ListenAt {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || "expected an address and a port, as in 127.0.0.1:7860, or unix: and a path".to_string();
        match text.strip_prefix("unix:") {
            Some("") => Err(wrong()),
            Some(path) => Ok(Self::Socket(path.into())),
            None => text.parse().map(Self::Address).map_err(|_| wrong()),
        }
    }
}

/// Parses `--socket-mode`.
fn mode(text: &str) -> std::result::Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "expected permissions in octal, from 0 to 777".to_string())
}

/// `--sdapi-steps`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SdapiSteps {
    /// More than 8 steps become the model's own number.
    Limit,
    /// All steps that a client sends.
    Honour,
}

/// `flux key`
#[derive(Args)]
pub struct Key {
    /// Name of the key's client
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// `flux mcp`
#[derive(Args)]
pub struct Mcp {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Adapter that requests can name; repeatable
    ///
    /// The default name is the name of the file.
    #[arg(help_heading = MODEL, long = "lora", value_name = "[NAME=]FILE")]
    pub loras: Vec<String>,
    #[command(flatten)]
    pub quantize: QuantizeArgs,
    #[command(flatten)]
    pub upsample: UpsampleArgs,
    #[command(flatten)]
    pub on: DeviceArgs,
    #[command(flatten)]
    pub sign: SignArgs,
    /// Folder of wildcards for calls with `expand`
    #[arg(help_heading = PROMPT, long, value_name = "FOLDER", value_parser = path())]
    pub wildcards: Option<PathBuf>,
    /// Folder of upscalers that calls can name
    #[arg(help_heading = MODEL, long, value_name = "FOLDER", value_parser = path())]
    pub upscalers: Option<PathBuf>,
    /// Folder for the images; created if missing
    ///
    /// [default: flux-mcp in the folder for temporary files]
    #[arg(help_heading = OUTPUT, short, long, value_name = "FOLDER", value_parser = path())]
    pub output: Option<PathBuf>,
    /// Print only errors
    #[arg(help_heading = INFORMATION, short, long)]
    pub quiet: bool,
}

impl Mcp {
    /// Errors if flags contradict each other in a way that clap does not express.
    pub fn check(&self) -> Result<()> {
        self.on.check()
    }

    /// Returns the arguments for opening the model.
    ///
    /// Errors as [`SignArgs::signer`].
    pub fn engine(&self) -> Result<EngineArgs> {
        let (quantize, parallel, signer) = (self.quantize.formats(), ParallelChoice::Off, self.sign.signer()?);
        Ok(EngineArgs { quantize, parallel, signer, ..self.on.engine() })
    }
}
