//! The command line: flags to values of the right type. `Model::plan` decides whether the model can do what they ask.

mod adapters;
mod again;
mod batch;
mod bench;
mod chat;
mod command_line;
mod compare;
mod convert;
mod download;
mod draw;
mod fields;
mod foreign;
mod generate;
mod grid;
mod help;
mod images;
mod info;
mod live;
mod output;
mod pages;
mod prompt;
mod quantize;
#[cfg(feature = "queue")]
mod queue;
mod recipe;
mod sampler;
#[cfg(feature = "server")]
mod serve;
pub mod settings;
mod sheet;
mod show;
mod source;
mod tensors;
#[cfg(test)]
mod tests;
mod values;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

pub use adapters::{AdapterArgs, in_folders};
pub use again::Again;
pub use batch::{Batch, BatchFormat, Shard};
pub use bench::Bench;
pub use chat::Chat;
use clap::{Args, ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};
pub use command_line::command_line;
pub use compare::Compare;
pub use convert::{ComponentChoice, Convert};
pub use download::{Download, List, NamesOf, Remove};
pub use draw::{ConsoleArgs, DrawArgs, ModelChoice};
pub use fields::flag;
use flux::engine::EngineArgs;
use flux::engine::choice::{AttentionChoice, DeviceChoice, PrecisionChoice};
use flux::files::{ModelPaths, Variant};
use flux::{Error, Result};
pub use generate::Generate;
pub use grid::Grid;
pub use help::{Completions, Devices, Man, Selftest};
pub use images::ImageArgs;
pub use info::Info;
pub use live::Live;
pub use output::OutputArgs;
pub use pages::{completions, man_pages};
pub use prompt::text as prompt_text;
pub use quantize::QuantizeArgs;
#[cfg(feature = "queue")]
pub use queue::{DeadChoice, FileFormatChoice, Queue, QueueArgs, QueueCommand, Submit, Worker};
pub use recipe::RecipeArgs;
pub use sampler::SamplerArgs;
#[cfg(feature = "server")]
pub use serve::{Key, ListenAt, Mcp, SdapiSteps, Serve};
use settings::settings;
pub use sheet::{Label, LabelField, LabelPart, Sheet};
pub use show::{ProtocolChoice, Show, ShowArgs};
pub use source::SourceArgs;
pub use tensors::TensorArgs;
pub use values::{ProgressChoice, Seed, TimingsFormat, VariantChoice};
use values::{gibibytes, whole};

/// The headings of `--help`.
const PROMPT: &str = "What to draw";
const IMAGES: &str = "Images to draw from";
const SAMPLING: &str = "Size and sampling";
const MODEL: &str = "Model";
const DEVICE: &str = "Device";
const FRAMES: &str = "Frames in and out";
const OUTPUT: &str = "Output";
const TENSORS: &str = "Tensors in and out";
const INFORMATION: &str = "Information";

/// The most images of one command.
const MAX_COUNT: u64 = 10_000;
/// The most threads.
const MAX_THREADS: u64 = crate::threads::MAX as u64;

/// What `flux` alone prints.
pub const OVERVIEW: &str = "\
flux draws images of words, and changes images by words:

  flux \"a red circle on a blue background\" -o circle.png
  flux \"make the circle green\" -i circle.png -o green.png
  flux \"a lighthouse in a storm\" -d models/klein-4b --size 768x512

The model in the program draws emoji-like scenes; -d names a full-size one.
The seed is printed: -S SEED draws the same image again.
flux info PATH tells what a model is, flux convert writes it in fewer bits.
-h lists the usual flags, and --help all of them.";

/// Draws the image that a prompt describes, also from images.
///
/// Without --dir it uses a small model that is part of the program and draws and edits emoji-like scenes of 128 to 512
/// pixels a side.
#[derive(Parser)]
#[command(name = "flux", version, disable_help_flag = true, disable_version_flag = true)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(override_usage = "flux [OPTIONS] PROMPT\n       flux [OPTIONS] --prompt TEXT\n       flux COMMAND")]
#[command(after_help = "--help tells all flags.")]
#[command(
    after_long_help = "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 by SIGTERM, 129 by \
                        SIGHUP, 70 a defect of the program.\n\
                        The seed of an image is printed, and stored in the image; `flux info IMAGE` tells how it was made.\n\
                        Examples:\n  \
                        flux \"a red circle on a blue background\" -o circle.png\n  \
                        flux -p \"an owl on a beige background\" -S 42 -n 3 -o owl.png\n  \
                        flux \"make the circle green\" -i circle.png -o green.png\n  \
                        echo \"a rocket on a beige background\" | flux -p - --size 256x192\n  \
                        flux -d models/klein-4b \"a lighthouse in a storm\" --size 768x512"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub generate: Generate,
    /// Also write all that is said into a file, at its end, with times: as with -v, and with -q too
    #[arg(help_heading = INFORMATION, long, value_name = "FILE", value_parser = values::path(), global = true)]
    #[arg(hide_short_help = true)]
    pub log: Option<PathBuf>,
}

/// Why a command line is none.
pub enum Unread {
    /// It is wrong, or asks for help.
    ByClap(clap::Error),
    /// It is that of another program.
    Explained(Error),
}

/// Which colours help and errors of clap have in a terminal of this kind. `NO_COLOR` and `CLICOLOR` are heard by clap,
/// which gives every terminal colours where `CI` is set.
fn colors(terminal: Option<&OsStr>) -> ColorChoice {
    if terminal.is_some_and(|kind| kind == "dumb") { ColorChoice::Never } else { ColorChoice::Auto }
}

impl Cli {
    /// The command line, whose flags may have other names, see [`foreign`].
    pub fn read(arguments: &[OsString]) -> std::result::Result<Self, Unread> {
        let mut command = foreign::with_other_names(Self::command()).color(colors(std::env::var_os("TERM").as_deref()));
        let parsed = command.try_get_matches_from_mut(arguments).and_then(|matches| Self::from_arg_matches(&matches));
        parsed.map_err(|error| {
            let word = arguments.get(1).and_then(|word| word.to_str());
            let explained = word.and_then(foreign::no_command).filter(|_| error.use_stderr());
            match explained.or_else(|| foreign::explain(&error)) {
                Some(explained) => Unread::Explained(explained),
                None => Unread::ByClap(error.format(&mut command)),
            }
        })
    }
}

/// The subcommands. Those for scripts are not in `--help`.
#[derive(Subcommand)]
pub enum Command {
    /// Makes images again, from what their files say of themselves.
    ///
    /// The same machine, model and files give the same bytes. What is not as it was is told before the work. A flag
    /// changes what it says: `flux again cat.png -S random -n 4`. An image is written beside nothing else, as
    /// NAME-again, unless -o names another place.
    Again(Box<Again>),
    /// Makes an image for each line of a file.
    ///
    /// One model stays open for all of them. Given again, it makes what is missing: a manifest in the folder,
    /// manifest.jsonl, says of each image its recipe, seed, SHA-256 and time, and of each line that failed why. Flags
    /// say what the lines leave out. A line that is wrong does not stop the others; the exit code is 1 then.
    Batch(Box<Batch>),
    /// Draws what one types, line by line.
    ///
    /// One model stays open. A line is a prompt. $1 in it is the first image so far, which it is drawn from, and
    /// 512x768 a size. Lines that begin with ! are commands: !help lists them. Ctrl-C ends an image, Ctrl-D the
    /// conversation. Where standard input is no terminal, its lines are read. The files of images are printed to
    /// standard output.
    Chat(Box<Chat>),
    /// Draws video as it comes in, and images as fast as prompts change.
    ///
    /// Frames are read from standard input, and images written to standard output: raw RGB, Y4M or MJPEG. Each frame is
    /// drawn from, or with --strength changed. A model stays open, and nothing queues: while an image is made, the
    /// newest frame takes the place of older ones. The book has commands for ffmpeg, cameras and OBS.
    Live(Box<Live>),
    /// Draws a prompt with several values of options, as a labelled sheet.
    Grid(Box<Grid>),
    /// Serves images over HTTP, and a page for browsers.
    ///
    /// OpenAI's Images API (/v1/images/generations, /v1/images/edits, /v1/models), jobs of its own (/v1/jobs),
    /// /openapi.json, /healthz, /readyz and /metrics. It listens on this machine alone; `--listen 0.0.0.0:7860` answers
    /// others, which then need a key. SIGTERM and Ctrl-C make what was taken, and end; SIGHUP reads the keys again.
    #[cfg(feature = "server")]
    Serve(Box<Serve>),
    /// Lets an agent draw: tools of the Model Context Protocol over standard input and output.
    ///
    /// The agent's program starts it; the book tells the lines for its configuration. `flux serve` has the same tools
    /// at /mcp.
    #[cfg(feature = "server")]
    Mcp(Box<Mcp>),
    /// Makes a key for clients of `flux serve`.
    ///
    /// The key is told on standard error; its line for the file of `--api-keys` is printed.
    #[cfg(feature = "server")]
    Key(Key),
    /// Gives the images of a file to workers, on many machines.
    ///
    /// The file is one of `flux batch`. Jobs go through a broker, RabbitMQ, to those who run `flux worker`; results lie
    /// in a store, S3 or a folder. The name of the batch is printed: `flux queue status BATCH` tells how far it is.
    /// Given again, it sends what has no result, and nothing else: that mends whatever was lost.
    #[cfg(feature = "queue")]
    Submit(Box<Submit>),
    /// Draws what `flux submit` gives to a queue, until it is ended.
    ///
    /// SIGTERM and Ctrl-C finish what was begun, and end. A worker that dies loses nothing: the broker hands its jobs
    /// to others.
    #[cfg(feature = "queue")]
    Worker(Box<Worker>),
    /// Tells how far batches are, and which jobs cannot be drawn.
    #[cfg(feature = "queue")]
    Queue(Box<Queue>),
    /// Prints what a model is, or how an image was made.
    ///
    /// Of a model: its files, formats and sizes; only configs and headers are read, so this takes no time and no
    /// memory. Of an image that flux made: the command line that makes it again, and its recipe as JSON.
    Info(Info),
    /// Prints how far two images of one size are apart.
    ///
    /// max and mean are of the absolute differences of 8-bit values, over all pixels and colours. psnr is in dB, and
    /// inf for equal images. ssim is the structural similarity of Wang et al. 2004, 1 for equal images: windows of 11 x
    /// 11 pixels under a Gaussian of sigma 1.5, mean of red, green and blue. differing is how many pixels differ in any
    /// colour. Of two folders the images of the same names are compared.
    Compare(Compare),
    /// Lays images side by side in one file, with labels.
    Sheet(Sheet),
    /// Shows images in the terminal.
    ///
    /// By the protocol of kitty or iTerm2, as sixels, or where the terminal has none of these as blocks of two pixels a
    /// character.
    Show(Show),
    /// Fetches models from Hugging Face.
    ///
    /// They go into the cache that other tools share, and their folders are printed. A download that was ended goes on
    /// where it was. Tokens, mirrors and the folder of the cache come from the variables that other tools read:
    /// HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE.
    Download(Download),
    /// Lists the models and adapters that are there.
    ///
    /// Those in the cache, in ./models and in $FLUX_MODELS, and parts of models. Only configs and headers are read.
    /// Damaged ones are listed with what is wrong.
    List(List),
    /// Removes models from the cache.
    ///
    /// Blobs that other snapshots use stay, and nothing outside the cache is touched.
    Rm(Remove),
    /// Writes a transformer or a text encoder as one file in another format.
    ///
    /// stable-diffusion.cpp, ComfyUI and diffusers read these files. Norms, embeddings and the layers around the
    /// transformer's blocks stay in 16 bits or more.
    Convert(Convert),
    /// Prints what flux.toml and variables set, and where.
    Config {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Prints the GPUs, processor and memory that flux can use.
    ///
    /// What is not known is a hyphen. That there is no GPU is no error; the output says why.
    Devices(Devices),
    /// Tests that this machine computes right.
    ///
    /// It computes every op, draws an image, and takes and gives back memory, in less than a minute. The output is a
    /// report for a defect; exit code 0 says that all of it holds.
    Selftest(Selftest),
    /// Measures how long stages and ops take.
    ///
    /// Ops have the shapes of the model, or of klein 4B when no folder is named. Each op is compared with what the
    /// device does at best, which is a copy or a large product, and each fused op also with the simpler ops that define
    /// it.
    Bench(Box<Bench>),
    /// Prints the script that has a shell complete flags, commands and the names of files.
    #[command(hide = true)]
    Completions(Completions),
    /// Writes the pages of `man` into a folder.
    #[command(hide = true)]
    Man(Man),
}

/// The model.
#[derive(Args)]
pub struct ModelArgs {
    /// Model: a folder, the file of a transformer, or the name of a downloaded model, as in 4b
    ///
    /// A folder has the layout of diffusers or ComfyUI; names are those of `flux download` [default: $FLUX_MODEL, else
    /// the built-in model].
    #[arg(help_heading = MODEL, short, long, value_name = "PATH", value_parser = values::path())]
    dir: Option<PathBuf>,
    /// Text encoder: a file, its folder, or that of a whole model [default: the model's, else what fits beside it]
    #[arg(help_heading = MODEL, long, value_name = "PATH", value_parser = values::path(), hide_short_help = true)]
    pub text_encoder: Option<PathBuf>,
    /// VAE: a file, its folder, or that of a whole model [default: the model's, else what fits beside it]
    #[arg(help_heading = MODEL, long, value_name = "PATH", value_parser = values::path(), hide_short_help = true)]
    pub vae: Option<PathBuf>,
    /// tokenizer.json, or a folder that has it [default: the model's, else Qwen3's]
    #[arg(help_heading = MODEL, long, value_name = "PATH", value_parser = values::path(), hide_short_help = true)]
    pub tokenizer: Option<PathBuf>,
    /// How the transformer was trained [default: what its folder says, else its name, else distilled]
    #[arg(help_heading = MODEL, long, value_name = "KIND", value_enum, hide_short_help = true)]
    pub variant: Option<VariantChoice>,
}

impl ModelArgs {
    /// What the flag names, else what is set.
    pub fn dir(&self) -> Option<PathBuf> {
        self.dir.clone().or_else(|| settings().model().map(|(model, _)| model))
    }

    /// Whether the flag names a model.
    pub fn names_dir(&self) -> bool {
        self.dir.is_some()
    }

    /// The paths that the flags name, and what names the model: what they leave out is as in `base`, or without one as
    /// the environment says. With another model, the parts of the base's are left out, too.
    pub fn paths(&self, base: Option<&ModelPaths>) -> (ModelPaths, Option<String>) {
        let base = base.filter(|_| !self.names_dir());
        let model = match base {
            Some(base) => base.model.clone(),
            None => self.dir(),
        };
        let place = match (&self.dir, base) {
            (Some(_), _) => Some("--dir".to_string()),
            (None, Some(_)) => Some("the recipe".to_string()),
            (None, None) => settings().model().map(|(_, from)| from.to_string()),
        };
        let part = |given: &Option<PathBuf>, of: fn(&ModelPaths) -> &Option<PathBuf>| {
            given.clone().or_else(|| base.and_then(|base| of(base).clone()))
        };
        let paths = ModelPaths {
            model,
            text_encoder: part(&self.text_encoder, |paths| &paths.text_encoder),
            vae: part(&self.vae, |paths| &paths.vae),
            tokenizer: part(&self.tokenizer, |paths| &paths.tokenizer),
            variant: self.variant.map(Variant::from).or_else(|| base.and_then(|base| base.variant)),
        };
        (paths, place)
    }

    /// Errors when `--kv` is given and the variant is another one.
    pub fn check_kv(&self, kv: bool) -> Result<()> {
        if kv && self.variant.is_some_and(|variant| variant != VariantChoice::Kv) {
            return Err(Error::usage("`--kv` is for `--variant kv` alone").hint("leave one of them out"));
        }
        Ok(())
    }
}

/// Where and how to compute.
#[derive(Args, Clone)]
pub struct DeviceArgs {
    /// Device: auto, cpu, cuda or cuda:N [default: auto]
    ///
    /// Several GPUs, as in cuda:0,1 or cuda:all, share the images.
    #[arg(help_heading = DEVICE, long, value_name = "DEVICE")]
    device: Option<DeviceChoice>,
    /// Precision of the arithmetic; auto is f32 on the CPU and bf16 on a GPU (fp16 where it has none), fp8 is for GPUs
    /// of compute capability 8.9, 9.0 and 12.x, int8 and w4a8 for all devices [default: auto]
    #[arg(help_heading = DEVICE, long, value_name = "TYPE", hide_short_help = true, value_parser = values::precision())]
    pub precision: Option<PrecisionChoice>,
    /// Precision of long attention without a mask, on GPUs; auto is fp8 on Hopper GPUs with --precision fp8, else that
    /// of everything else, fp8 is for Hopper GPUs [default: auto]
    #[arg(help_heading = DEVICE, long, value_name = "TYPE", hide_short_help = true, value_parser = values::attention())]
    pub attention: Option<AttentionChoice>,
    /// Memory of each GPU for weights, activations, CUDA graphs and cuBLASLt's workspace, in GiB [default: 80% of what
    /// is free]
    #[arg(help_heading = DEVICE, long, value_name = "GIB", value_parser = gibibytes, allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    gpu_memory: Option<f64>,
    /// Threads on the CPU, 1 to 1024; an image is the same on any number [default: $RAYON_NUM_THREADS, else one per
    /// core]
    #[arg(help_heading = DEVICE, long, value_name = "N", value_parser = whole(1..=MAX_THREADS), hide_short_help = true)]
    pub threads: Option<u64>,
}

impl DeviceArgs {
    /// Which devices: what the flag says, else what is set.
    pub fn device(&self) -> DeviceChoice {
        self.device.clone().or_else(|| settings().device()).unwrap_or_default()
    }

    /// In which precision they compute, as far as the flag or what is set says it.
    pub fn precision(&self) -> Option<PrecisionChoice> {
        self.precision.or_else(|| settings().precision())
    }

    /// Errors where flags contradict each other in a way that clap does not express.
    pub fn check(&self) -> Result<()> {
        if self.gpu_memory.is_some() && self.device() == DeviceChoice::Cpu {
            return Err(Error::usage("`--gpu-memory` has no meaning with `--device cpu`").hint("leave one of them out"));
        }
        Ok(())
    }

    /// What an engine is to open, as far as these flags say it.
    pub fn engine(&self) -> EngineArgs {
        EngineArgs {
            device: self.device(),
            precision: self.precision().unwrap_or_default(),
            attention: self.attention.unwrap_or_default(),
            gpu_memory: self
                .gpu_memory
                .or_else(|| settings().gpu_memory_gib())
                .map(|gib| (gib * f64::from(1 << 30)) as u64),
            ..EngineArgs::default()
        }
    }
}
