//! Flags of `flux submit`, `flux worker` and `flux queue`.

use std::env;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use flux::engine::EngineArgs;
use flux::engine::choice::ParallelChoice;
use flux::output::ImageFormat;
use flux::{Error, Result};

use super::values::{image_format, path, whole};
use super::{
    BatchFormat, DEVICE, DeviceArgs, INFORMATION, MODEL, ModelArgs, OUTPUT, QuantizeArgs, RecipeArgs, SAMPLING,
    SignArgs, settings, values,
};

pub const QUEUE: &str = "Queue and store";
const LIMITS: &str = "Limits";

/// The variable with the store, if no flag names it.
const STORE_VARIABLE: &str = "FLUX_STORE";

/// Flags for the broker of jobs and the store of results.
#[derive(Args)]
pub struct QueueArgs {
    /// Broker, as in amqps://USER@HOST/VHOST, without a password
    ///
    /// The address in the variable may have a password [default: $FLUX_QUEUE].
    #[arg(help_heading = QUEUE, long, value_name = "URL")]
    pub queue: Option<String>,
    /// File with the broker's password [default: $FLUX_QUEUE_PASSWORD]
    ///
    /// The variable has the password itself.
    #[arg(help_heading = QUEUE, long, value_name = "FILE", value_parser = path())]
    pub queue_password_file: Option<PathBuf>,
    /// CA certificates for the broker in PEM, besides the system's
    #[arg(help_heading = QUEUE, long, value_name = "FILE", value_parser = path(), hide_short_help = true)]
    pub queue_ca: Option<PathBuf>,
    /// Client certificate for the broker, in PEM
    #[arg(help_heading = QUEUE, long, value_name = "FILE", value_parser = path(), hide_short_help = true)]
    #[arg(requires = "queue_key")]
    pub queue_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM
    #[arg(help_heading = QUEUE, long, value_name = "FILE", value_parser = path(), hide_short_help = true)]
    #[arg(requires = "queue_cert")]
    pub queue_key: Option<PathBuf>,
    /// Store of inputs and results [default: $FLUX_STORE]
    ///
    /// The store is a bucket, as in s3://BUCKET/PREFIX, or a folder, as in file:///FOLDER.
    #[arg(help_heading = QUEUE, long, value_name = "URL")]
    store: Option<String>,
}

impl QueueArgs {
    /// Returns `true` if a flag names a broker or a store.
    #[cfg(feature = "server")]
    pub fn is_named(&self) -> bool {
        self.queue.is_some() || self.store.is_some()
    }

    /// Errors if flags configure a broker or store, but none names one.
    #[cfg(feature = "server")]
    pub fn check_needed(&self, presigns: bool) -> Result<()> {
        let flags = [
            (presigns, "--presigned-urls"),
            (self.queue_password_file.is_some(), "--queue-password-file"),
            (self.queue_ca.is_some(), "--queue-ca"),
            (self.queue_cert.is_some(), "--queue-cert"),
        ];
        match flags.iter().find(|(given, _)| *given && !self.is_named()) {
            Some((_, flag)) => Err(Error::usage(format!("`{flag}` requires a queue"))
                .at(*flag)
                .hint("add `--queue URL` or `--store URL`; the other one can come from its environment variable")),
            None => Ok(()),
        }
    }

    /// Returns the address of the store.
    ///
    /// Errors when there is none.
    pub fn store(&self) -> Result<String> {
        let store = self.store.clone().or_else(|| env::var(STORE_VARIABLE).ok());
        store.ok_or_else(|| {
            Error::usage("no store is specified")
                .at("--store")
                .hint(format!("use `--store s3://BUCKET/PREFIX`, or set {STORE_VARIABLE}"))
        })
    }
}

/// `flux submit`
#[derive(Args)]
pub struct Submit {
    /// List of prompts: .txt, .jsonl or .csv; `-` is standard input
    ///
    /// The list is one for `flux batch`.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Format of the list [default: by extension]
    ///
    /// From standard input, the default is jsonl if the list begins with a brace, otherwise txt.
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub format: Option<BatchFormat>,
    /// Model, by its name at the workers [default: the store's only model]
    #[arg(help_heading = MODEL, long, value_name = "NAME")]
    pub model: Option<String>,
    /// Images per line, with consecutive seeds
    #[arg(help_heading = SAMPLING, short = 'n', long, value_name = "K", default_value_t = 1)]
    #[arg(allow_negative_numbers = true, value_parser = values::count)]
    pub count: u64,
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// File format of the results
    #[arg(help_heading = OUTPUT, long, value_name = "FORMAT", value_parser = image_format(), default_value = "png")]
    pub output_format: ImageFormat,
    /// JPEG quality, from 1 to 100 [default: 95]
    #[arg(help_heading = OUTPUT, long, value_name = "N", value_parser = whole(1..=100u8))]
    pub quality: Option<u8>,
    /// Also send failed jobs again
    #[arg(long)]
    pub retry_failed: bool,
    /// Max seconds to wait for a missing broker or a full queue
    #[arg(help_heading = LIMITS, long, value_name = "SECONDS", default_value_t = 300, value_parser = whole(0..=86_400u64))]
    pub wait: u64,
    /// Count the jobs without sending them
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub to: QueueArgs,
    /// Print only errors
    #[arg(help_heading = INFORMATION, short, long)]
    pub quiet: bool,
    /// Print one JSON object instead of the name of the batch
    #[arg(help_heading = INFORMATION, long)]
    pub json: bool,
}

impl Submit {
    /// Errors if flags contradict each other in a way that clap does not express.
    pub fn check(&self) -> Result<()> {
        self.recipe.check(false)?;
        if let Some(flag) = self.recipe.tensors.saves().or(self.recipe.images.kv.then_some("--kv")) {
            return Err(Error::usage(format!("`{flag}` cannot be used for a job"))
                .at(flag)
                .hint("leave it out; `--kv` is a flag of `flux worker`"));
        }
        self.recipe.images.check_no_stdin()?;
        if self.quality.is_some() && self.output_format != ImageFormat::Jpeg {
            return Err(Error::usage("`--quality` requires JPEG").at("--quality").hint("add `--output-format jpeg`"));
        }
        Ok(())
    }
}

/// `flux worker`
#[derive(Args)]
pub struct Worker {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Name of the model in the queue and the store [default: its own name]
    #[arg(help_heading = MODEL, long, value_name = "NAME")]
    pub name: Option<String>,
    /// Compute keys and values of references once for all steps
    ///
    /// For models that were trained this way, such as klein 9b-kv. Their folders enable it without the flag.
    #[arg(help_heading = MODEL, long, hide_short_help = true)]
    pub kv: bool,
    /// Register the model in the store, and exit
    ///
    /// A registered model of the same name is replaced.
    #[arg(help_heading = MODEL, long)]
    pub register: bool,
    #[command(flatten)]
    pub quantize: QuantizeArgs,
    #[command(flatten)]
    pub on: DeviceArgs,
    #[command(flatten)]
    pub sign: SignArgs,
    /// GPUs that share each image: a number, auto or off [default: off]
    ///
    /// With off, each GPU generates its own images.
    #[arg(help_heading = DEVICE, long, value_name = "N", hide_short_help = true)]
    pub parallel: Option<ParallelChoice>,
    #[command(flatten)]
    pub from: QueueArgs,
    /// Max images per batch, on each device
    #[arg(help_heading = LIMITS, long, value_name = "N", default_value_t = 8, value_parser = whole(1..=8u64))]
    pub batch_max: u64,
    /// Max pixels per image
    #[arg(help_heading = LIMITS, long, value_name = "N", default_value_t = 4_200_000)]
    #[arg(value_parser = whole(4096..=1u64 << 28))]
    pub max_pixels: u64,
    /// Max seconds per image
    ///
    /// After this time, the worker exits with code 75, and another worker gets its jobs.
    #[arg(help_heading = LIMITS, long, value_name = "SECONDS", default_value_t = 600, value_parser = whole(1..=86_400u64))]
    pub job_timeout: u64,
    /// Seconds for a stopped worker to finish its images
    ///
    /// The other jobs return to the queue.
    #[arg(help_heading = LIMITS, long, value_name = "SECONDS", default_value_t = 60, value_parser = whole(0..=86_400u64))]
    pub drain: u64,
    /// File to touch for probes, while broker and store respond
    ///
    /// The file is touched every 5 seconds.
    #[arg(help_heading = LIMITS, long, value_name = "FILE", value_parser = path())]
    pub heartbeat: Option<PathBuf>,
    /// Log the outcome of each job
    #[arg(help_heading = INFORMATION, short, long, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Print only errors
    #[arg(help_heading = INFORMATION, short, long)]
    pub quiet: bool,
}

impl Worker {
    /// Errors if flags contradict each other in a way that clap does not express.
    pub fn check(&self) -> Result<()> {
        self.on.check()?;
        self.model.check_kv(self.kv)
    }

    /// Returns the arguments for opening the model.
    ///
    /// Errors as [`SignArgs::signer`].
    pub fn engine(&self) -> Result<EngineArgs> {
        Ok(EngineArgs {
            caches_references: self.kv,
            quantize: self.quantize.formats(),
            parallel: self.parallel.or_else(|| settings::settings().parallel()).unwrap_or(ParallelChoice::Off),
            signer: self.sign.signer()?,
            ..self.on.engine()
        })
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
    /// Show the progress of a batch, or list queues and batches
    Status {
        /// Batch, by the name from `flux submit`
        #[arg(value_name = "BATCH")]
        batch: Option<String>,
        /// Follow the batch until its end, with images per second and ETA
        #[arg(long, requires = "batch", conflicts_with = "json")]
        watch: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        of: QueueArgs,
    },
    /// Cancel a batch or a job
    ///
    /// Finished images are kept. Submitting the batch again resumes it.
    Cancel {
        /// Batch or job
        #[arg(value_name = "BATCH")]
        name: String,
        #[command(flatten)]
        of: QueueArgs,
    },
    /// List, retry or drop jobs that workers rejected or crashed on
    Dead {
        /// Action
        #[arg(value_name = "ACTION", value_enum)]
        what: DeadChoice,
        /// Batch or job; without one, `list` lists all
        #[arg(value_name = "BATCH")]
        name: Option<String>,
        /// All dead jobs
        #[arg(long, conflicts_with = "name")]
        all: bool,
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        of: QueueArgs,
    },
}

/// The action of `flux queue dead`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeadChoice {
    /// List the jobs.
    List,
    /// Send the jobs again.
    Retry,
    /// Forget the jobs.
    Drop,
}
