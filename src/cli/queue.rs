//! Flags of `flux submit`, `flux worker` and `flux queue`.

use std::env;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use flux::engine::EngineArgs;
use flux::engine::choice::ParallelChoice;
use flux::{Error, Result};

use super::values::{path, whole};
use super::{
    BatchFormat, DEVICE, DeviceArgs, INFORMATION, MODEL, ModelArgs, OUTPUT, QuantizeArgs, RecipeArgs, SAMPLING,
    settings, values,
};

pub const QUEUE: &str = "Queue and store";
const LIMITS: &str = "Limits";

/// The store, where no flag names it.
const STORE_VARIABLE: &str = "FLUX_STORE";

/// Where jobs are, and what comes of them.
#[derive(Args)]
pub struct QueueArgs {
    /// Broker, as in amqps://USER@HOST/VHOST, without a password [default: $FLUX_QUEUE, which may have one]
    #[arg(help_heading = QUEUE, long, value_name = "URL")]
    pub queue: Option<String>,
    /// File of the password for the broker [default: $FLUX_QUEUE_PASSWORD]
    #[arg(help_heading = QUEUE, long, value_name = "FILE", value_parser = path())]
    pub queue_password_file: Option<PathBuf>,
    /// Certificates in PEM that may have signed the broker's, beside those of the system
    #[arg(help_heading = QUEUE, long, value_name = "FILE", value_parser = path(), hide_short_help = true)]
    pub queue_ca: Option<PathBuf>,
    /// Certificate of this program for the broker, in PEM
    #[arg(help_heading = QUEUE, long, value_name = "FILE", value_parser = path(), hide_short_help = true)]
    #[arg(requires = "queue_key")]
    pub queue_cert: Option<PathBuf>,
    /// Its private key, in PEM
    #[arg(help_heading = QUEUE, long, value_name = "FILE", value_parser = path(), hide_short_help = true)]
    #[arg(requires = "queue_cert")]
    pub queue_key: Option<PathBuf>,
    /// Store of inputs and results, as in s3://BUCKET/PREFIX or file:///FOLDER [default: $FLUX_STORE]
    #[arg(help_heading = QUEUE, long, value_name = "URL")]
    store: Option<String>,
}

impl QueueArgs {
    /// Whether a flag names a broker or a store.
    #[cfg(feature = "server")]
    pub fn is_named(&self) -> bool {
        self.queue.is_some() || self.store.is_some()
    }

    /// Errors where flags say more of a broker, and none that there is one.
    #[cfg(feature = "server")]
    pub fn check_needed(&self, presigns: bool) -> Result<()> {
        let flags = [
            (presigns, "--presigned-urls"),
            (self.queue_password_file.is_some(), "--queue-password-file"),
            (self.queue_ca.is_some(), "--queue-ca"),
            (self.queue_cert.is_some(), "--queue-cert"),
        ];
        match flags.iter().find(|(given, _)| *given && !self.is_named()) {
            Some((_, flag)) => Err(Error::usage(format!("`{flag}` is for a queue, and none is named"))
                .at(*flag)
                .hint("add `--queue URL` or `--store URL`: the other one may be in its variable")),
            None => Ok(()),
        }
    }

    /// The address of the store.
    ///
    /// Errors when there is none.
    pub fn store(&self) -> Result<String> {
        let store = self.store.clone().or_else(|| env::var(STORE_VARIABLE).ok());
        store.ok_or_else(|| {
            Error::usage("no store is named")
                .at("--store")
                .hint(format!("as in --store s3://BUCKET/PREFIX, or in {STORE_VARIABLE}"))
        })
    }
}

/// `flux submit`
#[derive(Args)]
pub struct Submit {
    /// File of what to draw: .txt, .jsonl or .csv, as of `flux batch`; `-` is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// What the file is [default: what its name says, of standard input jsonl where it begins with a brace, else txt]
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub format: Option<BatchFormat>,
    /// The model, by the name that workers have for it [default: the only one of the store]
    #[arg(help_heading = MODEL, long, value_name = "NAME")]
    pub model: Option<String>,
    /// Images of each line, with its seed and the following ones
    #[arg(help_heading = SAMPLING, short = 'n', long, value_name = "K", default_value_t = 1)]
    #[arg(allow_negative_numbers = true, value_parser = values::count)]
    pub count: u64,
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// What files the results are
    #[arg(help_heading = OUTPUT, long, value_name = "FORMAT", value_enum, default_value_t = FileFormatChoice::Png)]
    pub output_format: FileFormatChoice,
    /// Quality of JPEG, from 1 to 100 [default: 95]
    #[arg(help_heading = OUTPUT, long, value_name = "N", value_parser = whole(1..=100u8))]
    pub quality: Option<u8>,
    /// Send the jobs again that failed, too
    #[arg(long)]
    pub retry_failed: bool,
    /// Seconds to wait for a broker that is away, or for room in a queue that is full
    #[arg(help_heading = LIMITS, long, value_name = "SECONDS", default_value_t = 300, value_parser = whole(0..=86_400u64))]
    pub wait: u64,
    /// Count what would be sent, and send nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub to: QueueArgs,
    /// Say nothing but errors
    #[arg(help_heading = INFORMATION, short, long)]
    pub quiet: bool,
    /// Print one JSON object in place of the name of the batch
    #[arg(help_heading = INFORMATION, long)]
    pub json: bool,
}

/// `--output-format`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FileFormatChoice {
    Png,
    Jpeg,
    Webp,
}

impl Submit {
    /// Errors where flags contradict each other in a way that clap does not express.
    pub fn check(&self) -> Result<()> {
        self.recipe.check(false)?;
        let tensors = &self.recipe.tensors;
        let flags = [
            (tensors.save_latents.is_some(), "--save-latents"),
            (tensors.save_embeddings.is_some(), "--save-embeddings"),
            (self.recipe.images.kv, "--kv"),
        ];
        if let Some((_, flag)) = flags.iter().find(|(given, _)| *given) {
            return Err(Error::usage(format!("`{flag}` is nothing that a job can say"))
                .at(*flag)
                .hint("leave it out; `--kv` is a flag of `flux worker`"));
        }
        if self.recipe.images.reads_stdin() {
            return Err(Error::usage("standard input is no image here").at("--input").hint("name a file"));
        }
        if self.quality.is_some() && self.output_format != FileFormatChoice::Jpeg {
            return Err(Error::usage("`--quality` is for JPEG").at("--quality").hint("add `--output-format jpeg`"));
        }
        Ok(())
    }
}

/// `flux worker`
#[derive(Args)]
pub struct Worker {
    #[command(flatten)]
    pub model: ModelArgs,
    /// How the model is called in the queue and in the store [default: its own name]
    #[arg(help_heading = MODEL, long, value_name = "NAME")]
    pub name: Option<String>,
    /// Make keys and values of references once, as with klein 9b-kv
    #[arg(help_heading = MODEL, long, hide_short_help = true)]
    pub kv: bool,
    /// Tell the store of the model, in place of one that has its name, and end
    #[arg(help_heading = MODEL, long)]
    pub register: bool,
    #[command(flatten)]
    pub quantize: QuantizeArgs,
    #[command(flatten)]
    pub on: DeviceArgs,
    /// How many of several GPUs make each image together: a number, auto or off [default: off, each makes its own]
    #[arg(help_heading = DEVICE, long, value_name = "N", hide_short_help = true)]
    pub parallel: Option<ParallelChoice>,
    #[command(flatten)]
    pub from: QueueArgs,
    /// Images that each device makes at once
    #[arg(help_heading = LIMITS, long, value_name = "N", default_value_t = 8, value_parser = whole(1..=8u64))]
    pub batch_max: u64,
    /// Pixels that an image may have
    #[arg(help_heading = LIMITS, long, value_name = "N", default_value_t = 4_200_000)]
    #[arg(value_parser = whole(4096..=1u64 << 28))]
    pub max_pixels: u64,
    /// Seconds that an image may take; after them the worker ends itself with code 75, and another one gets its jobs
    #[arg(help_heading = LIMITS, long, value_name = "SECONDS", default_value_t = 600, value_parser = whole(1..=86_400u64))]
    pub job_timeout: u64,
    /// Seconds in which a worker that is ended finishes what it has; the rest goes back to the queue
    #[arg(help_heading = LIMITS, long, value_name = "SECONDS", default_value_t = 60, value_parser = whole(0..=86_400u64))]
    pub drain: u64,
    /// File that is touched each 5 seconds while the broker and the store answer, for probes
    #[arg(help_heading = LIMITS, long, value_name = "FILE", value_parser = path())]
    pub heartbeat: Option<PathBuf>,
    /// Say what becomes of each job
    #[arg(help_heading = INFORMATION, short, long, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Say nothing but errors
    #[arg(help_heading = INFORMATION, short, long)]
    pub quiet: bool,
}

impl Worker {
    /// Errors where flags contradict each other in a way that clap does not express.
    pub fn check(&self) -> Result<()> {
        self.on.check()?;
        self.model.check_kv(self.kv)
    }

    /// How the model is opened.
    pub fn engine(&self) -> EngineArgs {
        EngineArgs {
            caches_references: self.kv,
            quantise: self.quantize.formats(),
            parallel: self.parallel.or_else(|| settings::settings().parallel()).unwrap_or(ParallelChoice::Off),
            ..self.on.engine()
        }
    }
}

/// `flux queue`
#[derive(Args)]
pub struct Queue {
    #[command(subcommand)]
    pub command: QueueCommand,
}

#[derive(Subcommand)]
pub enum QueueCommand {
    /// Prints how far a batch is, or the queues and batches that there are.
    Status {
        /// A batch, as `flux submit` printed it
        #[arg(value_name = "BATCH")]
        batch: Option<String>,
        /// Go on until the batch is over: images a second, and how long it takes
        #[arg(long, requires = "batch", conflicts_with = "json")]
        watch: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        of: QueueArgs,
    },
    /// Has a batch or a job not be drawn any more.
    ///
    /// What is done stays. Submitted again, the batch goes on.
    Cancel {
        /// A batch, or a job
        #[arg(value_name = "BATCH")]
        name: String,
        #[command(flatten)]
        of: QueueArgs,
    },
    /// Lists jobs that workers did not survive or did not take, sends them again, or forgets them.
    Dead {
        /// List them, send them again, or forget them
        #[arg(value_name = "WHAT", value_enum)]
        what: DeadChoice,
        /// A batch, or a job; `list` without one lists all
        #[arg(value_name = "BATCH")]
        name: Option<String>,
        /// All of them
        #[arg(long, conflicts_with = "name")]
        all: bool,
        /// Print JSON, one object a line
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        of: QueueArgs,
    },
}

/// What `flux queue dead` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeadChoice {
    List,
    Retry,
    Drop,
}
