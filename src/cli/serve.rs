//! Flags of `flux serve`, `flux mcp` and `flux key`.

use std::net::{IpAddr, SocketAddr};
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
use super::{DEVICE, DeviceArgs, INFORMATION, MODEL, ModelArgs, OUTPUT, QuantizeArgs, settings};

const LISTENING: &str = "Whom it answers";
const LIMITS: &str = "Limits";

/// Flags that have no meaning where workers behind a queue draw.
#[cfg(feature = "queue")]
const OF_AN_ENGINE: [&str; 13] = [
    "ModelArgs",
    "QuantizeArgs",
    "DeviceArgs",
    "models_open",
    "idle_unload",
    "kv",
    "preview_decoder",
    "parallel",
    "batch_max",
    "batch_window_ms",
    "batch_latency_ms",
    "batch_exact",
    "start_timeout",
];

/// `flux serve`
#[derive(Args)]
#[cfg_attr(feature = "queue", command(mut_arg("queue", |arg| arg.conflicts_with_all(OF_AN_ENGINE))))]
#[cfg_attr(feature = "queue", command(mut_arg("store", |arg| arg.conflicts_with_all(OF_AN_ENGINE))))]
pub struct Serve {
    #[command(flatten)]
    pub model: ModelArgs,
    /// One more model, and the name by which requests ask for it; the first is the default. With a queue the name
    /// alone, as workers have it, or nothing where the store knows one model
    #[arg(help_heading = MODEL, long = "model", value_name = "NAME=PATH")]
    pub models: Vec<String>,
    /// An adapter that requests may ask for by its name [default name: that of the file]
    #[arg(help_heading = MODEL, long = "lora", value_name = "[NAME=]FILE")]
    pub loras: Vec<String>,
    /// Refuse names of models that there are not, instead of using the default one
    #[arg(help_heading = MODEL, long)]
    pub strict_models: bool,
    /// Models that may be in memory at once
    #[arg(help_heading = MODEL, long, value_name = "N", default_value_t = 1, value_parser = whole(1..=64u64))]
    pub models_open: u64,
    /// Give back the memory of models that nobody used for so many seconds
    #[arg(help_heading = MODEL, long, value_name = "SECONDS", value_parser = whole(1..=31_536_000u64))]
    pub idle_unload: Option<u64>,
    /// Make keys and values of references once, as with klein 9b-kv
    #[arg(help_heading = MODEL, long, hide_short_help = true)]
    pub kv: bool,
    /// A file of TAEF2, by which previews are drawn
    #[arg(help_heading = MODEL, long, value_name = "FILE", value_parser = path())]
    pub preview_decoder: Option<PathBuf>,
    #[command(flatten)]
    pub quantize: QuantizeArgs,
    #[command(flatten)]
    pub on: DeviceArgs,
    /// How many of several GPUs make each image together: a number, auto or off [default: off, each makes its own]
    #[arg(help_heading = DEVICE, long, value_name = "N", hide_short_help = true)]
    pub parallel: Option<ParallelChoice>,
    #[cfg(feature = "queue")]
    #[command(flatten)]
    pub to: QueueArgs,
    /// With a queue, answer `response_format: url` by addresses that S3 signs for 15 minutes, not by files of its own
    #[cfg(feature = "queue")]
    #[arg(help_heading = super::queue::QUEUE, long, hide_short_help = true)]
    pub presigned_urls: bool,
    /// Address and port, or unix: and the file of a socket; several times, too [default: 127.0.0.1:7860, or the sockets
    /// that systemd hands over]
    #[arg(help_heading = LISTENING, long, value_name = "ADDRESS:PORT")]
    pub listen: Vec<ListenAt>,
    /// Permissions of the file of a socket, in octal; 660 lets its group in
    #[arg(help_heading = LISTENING, long, value_name = "MODE", default_value = "600", value_parser = mode)]
    #[arg(hide_short_help = true)]
    pub socket_mode: u32,
    /// A user who may ask over the file of a socket, beside root and your own; several times, too [default: all whom
    /// its permissions let in]
    #[arg(help_heading = LISTENING, long = "allow-user", value_name = "USER", hide_short_help = true)]
    pub users: Vec<String>,
    /// File of the keys that clients need; `flux key NAME` makes a line of it [default: $FLUX_API_KEYS, keys by commas]
    #[arg(help_heading = LISTENING, long, value_name = "FILE", value_parser = path())]
    pub api_keys: Option<PathBuf>,
    /// Answer other machines without keys
    #[arg(help_heading = LISTENING, long, conflicts_with = "api_keys")]
    pub no_auth: bool,
    /// A name of this machine by which it may be called; it may be given several times
    #[arg(help_heading = LISTENING, long = "host", value_name = "NAME")]
    pub hosts: Vec<String>,
    /// Origin of pages that may call it, as in https://example.com; it may be given several times
    #[arg(help_heading = LISTENING, long, value_name = "ORIGIN")]
    pub cors: Vec<String>,
    /// Address of a proxy whose X-Forwarded-For says who asks
    #[arg(help_heading = LISTENING, long, value_name = "ADDRESS")]
    pub trust_proxy: Option<IpAddr>,
    /// Certificate for HTTPS, in PEM, with those that signed it
    #[arg(help_heading = LISTENING, long, value_name = "FILE", value_parser = path(), requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, in PEM
    #[arg(help_heading = LISTENING, long, value_name = "FILE", value_parser = path(), requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// What the steps that A1111's clients send count for on a distilled model: at most 8, else its own number; or all
    #[arg(help_heading = LIMITS, long, value_name = "HOW", value_enum, default_value_t = SdapiSteps::Limit)]
    #[arg(hide_short_help = true)]
    pub sdapi_steps: SdapiSteps,
    /// Requests that may wait
    #[arg(help_heading = LIMITS, long, value_name = "N", default_value_t = 256, value_parser = whole(1..=100_000u64))]
    pub queue_max: u64,
    /// Images of one client that may wait: of a key, an address, or a user of this machine
    #[arg(help_heading = LIMITS, long, value_name = "N", value_parser = whole(1..=100_000u64), hide_short_help = true)]
    pub max_per_client: Option<u64>,
    /// Megapixels that one client may ask for in a minute
    #[arg(help_heading = LIMITS, long, value_name = "N", value_parser = whole(1..=1_000_000u64), hide_short_help = true)]
    pub megapixels_per_minute: Option<u64>,
    /// MiB of images that requests which wait may have sent
    #[arg(help_heading = LIMITS, long, value_name = "MIB", default_value_t = 1024, value_parser = whole(1..=1u64 << 20))]
    pub queue_mib: u64,
    /// Images that are made at once
    #[arg(help_heading = LIMITS, long, value_name = "N", default_value_t = 8, value_parser = whole(1..=8u64))]
    pub batch_max: u64,
    /// Milliseconds for which an image waits for others that could be made at once with it
    #[arg(help_heading = LIMITS, long, value_name = "MS", default_value_t = 0, value_parser = whole(0..=10_000u64))]
    #[arg(hide_short_help = true)]
    pub batch_window_ms: u64,
    /// Milliseconds that images which are made at once may take together, as far as that is known
    #[arg(help_heading = LIMITS, long, value_name = "MS", default_value_t = 1000, value_parser = whole(0..=3_600_000u64))]
    #[arg(hide_short_help = true)]
    pub batch_latency_ms: u64,
    /// Make each image alone, so that a seed gives the same bytes whatever else is asked for; as --batch-max 1
    #[arg(help_heading = LIMITS, long, conflicts_with_all = ["batch_max", "batch_window_ms", "batch_latency_ms"])]
    pub batch_exact: bool,
    /// Pixels that an image may have
    #[arg(help_heading = LIMITS, long, value_name = "N", default_value_t = 4_200_000)]
    #[arg(value_parser = whole(4096..=1u64 << 28))]
    pub max_pixels: u64,
    /// MiB of results that are kept, for an hour at most
    #[arg(help_heading = LIMITS, long, value_name = "MIB", default_value_t = 1024, value_parser = whole(1..=1u64 << 20))]
    pub keep_mib: u64,
    /// Seconds in which a server that is ended makes what it has taken
    #[arg(help_heading = LIMITS, long, value_name = "SECONDS", default_value_t = 30, value_parser = whole(0..=86_400u64))]
    pub drain: u64,
    /// Seconds after which /healthz fails where no step was done yet, or a model is still being opened
    #[arg(help_heading = LIMITS, long, value_name = "SECONDS", default_value_t = 600)]
    #[arg(value_parser = whole(1..=86_400u64), hide_short_help = true)]
    pub start_timeout: u64,
    /// Write the prompts to the log
    #[arg(help_heading = INFORMATION, long)]
    pub log_prompts: bool,
    /// Write a line of each request
    #[arg(help_heading = INFORMATION, short, long, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Say nothing but errors
    #[arg(help_heading = INFORMATION, short, long)]
    pub quiet: bool,
}

impl Serve {
    /// Errors where flags contradict each other in a way that clap does not express.
    pub fn check(&self, has_keys: bool) -> Result<()> {
        self.on.check()?;
        self.model.check_kv(self.kv)?;
        #[cfg(feature = "queue")]
        self.to.check_needed(self.presigned_urls)?;
        let addresses = self.listen.iter().filter_map(|listen| match listen {
            ListenAt::Address(address) => Some(address.ip()),
            ListenAt::Socket(_) => None,
        });
        let open = addresses.into_iter().find(|ip| !ip.is_loopback());
        if let Some(ip) = open.filter(|_| !has_keys && !self.no_auth) {
            return Err(Error::usage(format!("{ip} is open to other machines, and there are no keys"))
                .at("--listen")
                .hint("`--api-keys FILE` asks clients for keys; `--no-auth` does without"));
        }
        Ok(())
    }

    /// How a model is opened.
    pub fn engine(&self) -> EngineArgs {
        EngineArgs {
            caches_references: self.kv,
            quantise: self.quantize.formats(),
            preview_decoder: preview_decoder(self.preview_decoder.as_deref()),
            parallel: self.parallel.or_else(|| settings::settings().parallel()).unwrap_or(ParallelChoice::Off),
            ..self.on.engine()
        }
    }
}

/// `--listen`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAt {
    Address(SocketAddr),
    /// The file of a socket.
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

/// `--socket-mode`
fn mode(text: &str) -> std::result::Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "expected permissions in octal, from 0 to 777".to_string())
}

/// `--sdapi-steps`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SdapiSteps {
    Limit,
    Honour,
}

/// `flux key`
#[derive(Args)]
pub struct Key {
    /// Whose key it is
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// `flux mcp`
#[derive(Args)]
pub struct Mcp {
    #[command(flatten)]
    pub model: ModelArgs,
    /// An adapter that may be asked for by its name [default name: that of the file]
    #[arg(help_heading = MODEL, long = "lora", value_name = "[NAME=]FILE")]
    pub loras: Vec<String>,
    #[command(flatten)]
    pub quantize: QuantizeArgs,
    #[command(flatten)]
    pub on: DeviceArgs,
    /// Folder for the images; it is made when it is missing [default: flux-mcp in the folder for temporary files]
    #[arg(help_heading = OUTPUT, short, long, value_name = "FOLDER", value_parser = path())]
    pub output: Option<PathBuf>,
    /// Say nothing but errors
    #[arg(help_heading = INFORMATION, short, long)]
    pub quiet: bool,
}

impl Mcp {
    /// Errors where flags contradict each other in a way that clap does not express.
    pub fn check(&self) -> Result<()> {
        self.on.check()
    }

    /// How the model is opened.
    pub fn engine(&self) -> EngineArgs {
        EngineArgs { quantise: self.quantize.formats(), parallel: ParallelChoice::Off, ..self.on.engine() }
    }
}
