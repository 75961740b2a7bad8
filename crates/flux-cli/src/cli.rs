//! The command line: parses flags into typed values, and knows nothing of how commands run. `Model::plan` decides
//! whether a model supports the values. Start reading at [`Cli`] and [`Command`].

mod adapters;
mod again;
mod batch;
mod bench;
mod boxes;
mod chat;
mod command_line;
mod compare;
mod controls;
mod convert;
mod download;
mod draw;
mod expand;
mod explain;
mod fields;
mod flag_settings;
pub mod foreign;
mod generate;
mod grid;
mod help;
mod hires;
mod images;
mod info;
mod live;
mod marks;
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
mod sign;
mod source;
mod tensors;
#[cfg(test)]
mod tests;
mod upsample;
mod upscale;
mod values;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

pub use adapters::{AdapterArgs, in_folders};
pub use again::Again;
pub use batch::{Batch, BatchFormat, Shard};
pub use bench::Bench;
pub use chat::Chat;
use clap::{Args, ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};
pub use command_line::{arguments, command_line, given_command, has_flags, set_arguments};
pub use compare::Compare;
pub use convert::{ComponentChoice, Convert};
pub use download::{Download, List, NamesOf, Remove};
pub use draw::{ConsoleArgs, DrawArgs, ModelChoice};
pub use fields::flag;
use flux::engine::EngineArgs;
use flux::engine::choice::{AttentionChoice, Device, PrecisionChoice};
use flux::error::{Field, Form};
use flux::files::{ModelPaths, Variant};
use flux::{Error, Result};
pub use generate::Generate;
pub use grid::Grid;
pub use help::{Completions, Devices, Man, Selftest};
pub use images::ImageArgs;
pub use info::Info;
pub use live::Live;
pub use marks::{Strip, Verify};
pub use output::OutputArgs;
pub use pages::{completions, man_pages};
pub use prompt::text as prompt_text;
pub use quantize::QuantizeArgs;
#[cfg(feature = "queue")]
pub use queue::{DeadChoice, Queue, QueueArgs, QueueCommand, Submit, Worker};
pub use recipe::RecipeArgs;
pub use sampler::SamplerArgs;
#[cfg(feature = "server")]
pub use serve::{Key, ListenAt, Mcp, SdapiSteps, Serve};
use settings::settings;
pub use sheet::{Label, LabelField, LabelPart, Sheet};
pub use show::{ProtocolChoice, Show, ShowArgs};
pub use sign::SignArgs;
pub use source::SourceArgs;
pub use tensors::TensorArgs;
pub use upsample::{Upsample, UpsampleArgs, UpsampleFails};
pub use upscale::{Upscale, UpscalerChoice};
pub use values::{ProgressChoice, Seed, TimingsFormat};
use values::{gibibytes, one_of, whole};

/// The headings of `--help`.
const VARIANTS: &[(&str, Variant)] = &[("distilled", Variant::Distilled), ("base", Variant::Base), ("kv", Variant::Kv)];
const PROMPT: &str = "Prompt";
const IMAGES: &str = "Input images";
const SAMPLING: &str = "Size and sampling";
const MODEL: &str = "Model";
const DEVICE: &str = "Device";
const FRAMES: &str = "Frames";
const OUTPUT: &str = "Output";
const TENSORS: &str = "Tensors";
const INFORMATION: &str = "Information";

/// Maximum number of images of one command.
const MAX_COUNT: u64 = 10_000;
/// Maximum number of threads.
const MAX_THREADS: u64 = flux_runtime::threads::MAX as u64;

/// The output of `flux` without arguments.
pub const OVERVIEW: &str = "\
flux generates images from text prompts, and edits images:

  flux \"a red circle on a blue background\" -o circle.png
  flux \"make the circle green\" -i circle.png -o green.png
  flux \"a lighthouse in a storm\" -d 4b --size 768x512

The built-in model generates emoji-like scenes; -d selects a full-size model.
The seed is printed: -S SEED reproduces the image.
flux info PATH describes a model, flux convert quantizes it.
-h lists the usual flags, and --help all flags.";

/// Generate an image from a text prompt, or edit images
///
/// Without --dir, flux uses the built-in model, which generates and edits emoji-like scenes of 128 to 512 pixels a
/// side.
#[derive(Parser)]
#[command(name = "flux", version, disable_help_flag = true, disable_version_flag = true)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(override_usage = "flux [OPTIONS] PROMPT\n       flux [OPTIONS] --prompt TEXT\n       flux COMMAND")]
#[command(after_help = "--help lists all flags.")]
#[command(
    after_long_help = "Exit codes: 0 success, 1 failure, 2 invalid usage, 130 ended by Ctrl-C, 143 by SIGTERM, 129 by \
                        SIGHUP, 70 a bug in the program.\n\
                        The seed of an image is printed, and stored in the image; `flux info IMAGE` shows how it was made.\n\
                        Examples:\n  \
                        flux \"a red circle on a blue background\" -o circle.png\n  \
                        flux -p \"an owl on a beige background\" -S 42 -n 3 -o owl.png\n  \
                        flux \"make the circle green\" -i circle.png -o green.png\n  \
                        echo \"a rocket on a beige background\" | flux -p - --size 256x192\n  \
                        flux -d 4b \"a lighthouse in a storm\" --size 768x512"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub generate: Generate,
    /// Append all messages to a file, with timestamps
    ///
    /// The file gets the messages of -v, even with -q.
    #[arg(help_heading = INFORMATION, long, value_name = "FILE", value_parser = values::path(), global = true)]
    #[arg(hide_short_help = true)]
    pub log: Option<PathBuf>,
}

/// The reason why a command line gives no [`Cli`].
pub enum Unread {
    /// A request for help or the version.
    ByClap(clap::Error),
    /// An invalid command line.
    Explained(Error),
}

/// Returns the colour setting of clap's help and errors for a kind of terminal. clap itself handles `NO_COLOR` and
/// `CLICOLOR`, and uses colours in every terminal if `CI` is set.
fn colors(terminal: Option<&OsStr>) -> ColorChoice {
    if terminal.is_some_and(|kind| kind == "dumb") { ColorChoice::Never } else { ColorChoice::Auto }
}

impl Cli {
    /// Parses the command line. Flags may have other names, see [`foreign`].
    pub fn read(arguments: &[OsString]) -> std::result::Result<Self, Unread> {
        let mut command = foreign::with_other_names(Self::command()).color(colors(std::env::var_os("TERM").as_deref()));
        let matches = command.try_get_matches_from_mut(arguments);
        let matches = match matches {
            Ok(given) => Self::with_settings(&mut command, arguments, given).map_err(Unread::Explained)?,
            wrong => wrong,
        };
        let parsed = matches.and_then(|matches| Self::from_arg_matches(&matches));
        parsed.map_err(|error| {
            let word = arguments.get(1).and_then(|word| word.to_str());
            let explained = word.and_then(foreign::no_command).filter(|_| error.use_stderr());
            let explained = explained.or_else(|| foreign::explain(&error));
            match explained.or_else(|| explain::explain(&error, &command, arguments)) {
                Some(explained) => Unread::Explained(explained),
                None => Unread::ByClap(error.format(&mut command)),
            }
        })
    }
}

impl Cli {
    /// Adds the flags that flux.toml sets for the command.
    ///
    /// Errors when a config file is invalid.
    fn with_settings(
        command: &mut clap::Command,
        arguments: &[OsString],
        given: clap::ArgMatches,
    ) -> Result<clap::error::Result<clap::ArgMatches>> {
        let name = given.subcommand_name().map(str::to_string);
        let tables = flag_settings::tables_for(name.as_deref());
        if tables.is_empty() {
            return Ok(Ok(given));
        }
        let set = settings::read_flags()?;
        let (own, of_own) = match (&name, given.subcommand()) {
            (Some(name), Some((_, of_own))) => (command.find_subcommand(name), of_own),
            _ => (Some(&*command), &given),
        };
        let Some(own) = own else { return Ok(Ok(given)) };
        let more = tables.iter().map(|table| flag_settings::arguments(own, of_own, &set, *table));
        let more = more.collect::<Result<Vec<_>>>()?.concat();
        if more.is_empty() {
            return Ok(Ok(given));
        }
        // Inserted after the command's name, because at the end they could become words of the prompt.
        let is_name = |word: &OsString| name.as_ref().is_some_and(|name| word == name.as_str());
        let place = 1 + arguments.iter().position(is_name).unwrap_or(0);
        let (before, behind) = arguments.split_at(place.min(arguments.len()));
        Ok(command.try_get_matches_from_mut([before, &more, behind].concat()))
    }
}

/// The subcommands. Commands for scripts are hidden from `--help`.
#[derive(Subcommand)]
pub enum Command {
    /// Reproduce images from their metadata
    ///
    /// The same machine, model and files give the same bytes. Differences from the original setup are reported before
    /// the work starts. Flags override the metadata: `flux again cat.png -S random -n 4`. Each image is written to the
    /// current folder as NAME-again, unless -o names another place.
    Again(Box<Again>),
    /// Generate images from a list of prompts
    ///
    /// The model is loaded once for all images. A second run generates only missing images. The manifest in the folder,
    /// manifest.jsonl, records the recipe, seed, SHA-256 and time of each image, and the error of each failed line.
    /// Flags apply to fields that a line does not set. If a line is invalid, the other lines are still generated, and
    /// the exit code is 1.
    Batch(Box<Batch>),
    /// Interactive mode: one prompt per line
    ///
    /// The model is loaded once. Each line is a prompt. In a prompt, $1 is the first image so far, as an input image,
    /// and 512x768 is a size. Lines that begin with ! are commands; !help lists them. Ctrl-C cancels an image, and
    /// Ctrl-D ends the session. Without a terminal, lines are read from standard input. The paths of the images are
    /// printed to standard output.
    Chat(Box<Chat>),
    /// Generate live from video frames or changing prompts
    ///
    /// Frames are read from standard input, and images are written to standard output: raw RGB, Y4M or MJPEG. Each
    /// frame is a reference image, or with --strength the image to edit. The model stays loaded, and nothing queues:
    /// while an image is generated, newer frames replace older ones. The book has commands for ffmpeg, cameras and OBS.
    Live(Box<Live>),
    /// Generate a labelled sheet of images with varied options
    Grid(Box<Grid>),
    /// Print the prompt that a language model writes for --upsample
    ///
    /// No image is generated. The prompt is printed to standard output; notes go to standard error.
    Upsample(Box<Upsample>),
    /// Serve images over HTTP, with a page for browsers
    ///
    /// The server has OpenAI's Images API (/v1/images/generations, /v1/images/edits, /v1/models), a jobs API
    /// (/v1/jobs), /openapi.json, /healthz, /readyz and /metrics. By default it listens on this machine only; `--host
    /// 0.0.0.0` also accepts other machines, which then need a key. On SIGTERM and Ctrl-C it finishes accepted requests
    /// and exits; on SIGHUP it reloads the keys.
    #[cfg(feature = "server")]
    Serve(Box<Serve>),
    /// Run an MCP server on stdio for AI agents
    ///
    /// The agent's program starts the server of the Model Context Protocol; the book has the lines for its
    /// configuration. `flux serve` has the same tools at /mcp.
    #[cfg(feature = "server")]
    Mcp(Box<Mcp>),
    /// Create an API key for a client of `flux serve`
    ///
    /// The key is printed to standard error, and its line for the file of `--api-keys` to standard output.
    #[cfg(feature = "server")]
    Key(Key),
    /// Send a batch of images to workers on many machines
    ///
    /// The file is a list for `flux batch`. Jobs go through a broker, RabbitMQ, to machines that run `flux worker`;
    /// results go to a store, S3 or a folder. The name of the batch is printed: `flux queue status BATCH` shows its
    /// progress. Submitting a list again sends only jobs without a result, and so recovers lost jobs.
    #[cfg(feature = "queue")]
    Submit(Box<Submit>),
    /// Generate images for `flux submit` until stopped
    ///
    /// On SIGTERM and Ctrl-C, a worker finishes the images that it has started, and exits. A worker that crashes loses
    /// no job: the broker sends its jobs to other workers.
    #[cfg(feature = "queue")]
    Worker(Box<Worker>),
    /// Show batch progress and failed jobs
    #[cfg(feature = "queue")]
    Queue(Box<Queue>),
    /// Describe a model, or show how an image was made
    ///
    /// For a model: its files, formats and sizes. Only configs and headers are read, so this is fast and needs little
    /// memory. For an image from flux: the command line that reproduces it, and its recipe as JSON. For any other
    /// image: its format, size and colours, and the settings that other programs stored in it.
    Info(Info),
    /// Remove recipes and prompts from images, without changing pixels
    ///
    /// The parts of a file with the recipe, the parameters and other texts are left out, and all other bytes are
    /// copied. The mark as AI-generated, the colour profile and the orientation stay. Each image is replaced when the
    /// new file is complete.
    Strip(Strip),
    /// Check the marks of images, and their pixels against their recipes
    ///
    /// The marks are the source type and the AI system in XMP, the recipe, settings for other programs, and C2PA
    /// manifests, which a program with the feature `c2pa` verifies. Exit code 0 means that all marks hold, 1 that one
    /// does not, and 3 that an image has no mark.
    Verify(Box<Verify>),
    /// Measure the difference between images of the same size
    ///
    /// max and mean are absolute differences of 8-bit values, over all pixels and colours. psnr is in dB, and inf for
    /// equal images. ssim is the structural similarity of Wang et al. 2004, 1 for equal images: Gaussian windows of 11
    /// x 11 pixels with sigma 1.5, averaged over red, green and blue. differing is the number of pixels that differ in
    /// any colour. Two folders are compared by the names of their images.
    Compare(Compare),
    /// Enlarge images, with an upscaler such as Real-ESRGAN
    ///
    /// Nothing is generated: an upscaler is a small network of its own. Its file is a safetensors file or a .pth of the
    /// kinds ESRGAN, Real-ESRGAN, BSRGAN, Compact and SPAN. Without one, a Lanczos filter enlarges the images.
    Upscale(Box<Upscale>),
    /// Combine images into one labelled contact sheet
    Sheet(Sheet),
    /// Show images in the terminal
    ///
    /// Images are sent with the protocol of kitty or iTerm2, or as sixels. If the terminal supports none of these, they
    /// are shown as blocks of two pixels per character.
    Show(Show),
    /// Download models from Hugging Face
    ///
    /// Models go to the cache that other tools share, and their folders are printed. An interrupted download resumes.
    /// Tokens, mirrors and the cache folder are set by the variables of other tools: HF_TOKEN, HF_ENDPOINT, HF_HOME,
    /// HF_HUB_CACHE, HF_HUB_OFFLINE.
    Download(Download),
    /// List installed models and adapters
    ///
    /// The list has the models in the cache, in ./models and in $FLUX_MODELS, and parts of models. Only configs and
    /// headers are read. Damaged models are listed with the problem.
    List(List),
    /// Remove models from the cache
    ///
    /// Blobs that other snapshots use are kept, and nothing outside the cache is touched.
    Rm(Remove),
    /// Convert or quantize a model to a single file
    ///
    /// The input is a transformer or a text encoder. stable-diffusion.cpp, ComfyUI and diffusers read the output.
    /// Norms, embeddings and the layers around the transformer's blocks keep 16 bits or more.
    Convert(Convert),
    /// Show settings from flux.toml and variables, with their origin
    Config {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show the GPUs, CPU and memory that flux can use
    ///
    /// A hyphen stands for an unknown value. A machine without a GPU is not an error; the output says why no GPU is
    /// used.
    Devices(Devices),
    /// Check this machine: kernels, accuracy, speed
    ///
    /// The check computes every op, generates an image, and allocates and frees memory, in less than a minute. Attach
    /// the output to bug reports. Exit code 0 means that all checks passed.
    Selftest(Selftest),
    /// Measure the speed of stages and ops
    ///
    /// Ops have the shapes of the model, or of klein 4B without a model. Each op is compared with the best speed of the
    /// device, which is that of a copy or a large GEMM, and each fused op also with the simpler ops that define it.
    Bench(Box<Bench>),
    /// Print a shell completion script for flags, commands and file names
    #[command(hide = true)]
    Completions(Completions),
    /// Write man pages to a folder
    #[command(hide = true)]
    Man(Man),
}

/// Flags for the model and its components.
#[derive(Args)]
pub struct ModelArgs {
    /// Model: a folder, a file, or a name, as in 4b
    ///
    /// A folder has the layout of diffusers or ComfyUI, a file is a transformer; names are those of `flux download`
    /// [default: $FLUX_MODEL, else the built-in model].
    #[arg(help_heading = MODEL, short, long, value_name = "PATH", value_parser = values::path())]
    dir: Option<PathBuf>,
    /// Text encoder: a file, its folder, or the folder of a whole model
    ///
    /// [default: the model's, else a matching one next to it]
    #[arg(help_heading = MODEL, long, value_name = "PATH", value_parser = values::path(), hide_short_help = true)]
    pub text_encoder: Option<PathBuf>,
    /// VAE: a file, its folder, or the folder of a whole model
    ///
    /// [default: the model's, else a matching one next to it]
    #[arg(help_heading = MODEL, long, value_name = "PATH", value_parser = values::path(), hide_short_help = true)]
    pub vae: Option<PathBuf>,
    /// tokenizer.json, or its folder [default: the model's, else Qwen3's]
    #[arg(help_heading = MODEL, long, value_name = "PATH", value_parser = values::path(), hide_short_help = true)]
    pub tokenizer: Option<PathBuf>,
    /// Training variant of the transformer
    ///
    /// [default: from its folder, else from its name, else distilled]
    #[arg(help_heading = MODEL, long, value_name = "KIND", value_parser = one_of(VARIANTS), hide_short_help = true)]
    pub variant: Option<Variant>,
}

impl ModelArgs {
    /// Returns the model from the flag, otherwise from the settings.
    pub fn dir(&self) -> Option<PathBuf> {
        self.dir.clone().or_else(|| settings().model().map(|(model, _)| model))
    }

    /// Returns `true` if the flag names a model.
    pub fn names_dir(&self) -> bool {
        self.dir.is_some()
    }

    /// Returns the model's paths, and the flag or setting that names the model. Missing paths come from `base`, or
    /// without a base the model from the settings. If the flag names another model, the base's other paths are ignored,
    /// too.
    pub fn paths(&self, base: Option<&ModelPaths>) -> (ModelPaths, Option<String>) {
        let base = base.filter(|_| !self.names_dir());
        let model = match base {
            Some(base) => base.model.clone(),
            None => self.dir(),
        };
        let place = match (&self.dir, base) {
            (Some(_), _) => Some(flag(Field::Model, Form::Full).to_string()),
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
            variant: self.variant.or_else(|| base.and_then(|base| base.variant)),
        };
        (paths, place)
    }

    /// Errors if `--kv` is combined with another variant.
    pub fn check_kv(&self, kv: bool) -> Result<()> {
        if kv && self.variant.is_some_and(|variant| variant != Variant::Kv) {
            return Err(Error::usage("`--kv` can only be used with `--variant kv`").hint("leave one of them out"));
        }
        Ok(())
    }
}

/// Flags for devices and arithmetic.
#[derive(Args, Clone)]
pub struct DeviceArgs {
    /// Device: auto, cpu, cuda or cuda:N [default: auto]
    ///
    /// Several GPUs, as in cuda:0,1 or cuda:all, share the images.
    #[arg(help_heading = DEVICE, long, value_name = "DEVICE")]
    device: Option<Device>,
    /// Arithmetic precision [default: auto]
    ///
    /// native is f32 on the CPU and bf16 on a GPU, or fp16 on a GPU without bf16. auto is native on Hopper GPUs; on
    /// other GPUs, it is the fastest that computes correctly there, measured once. On a CPU it is bf16 for full-size
    /// models, if that is faster than f32. fast is auto, and fp8 on Hopper GPUs. fp8 needs a GPU of compute capability
    /// 8.9, 9.0 or 12.x. int8 and w4a8 work on all devices.
    #[arg(help_heading = DEVICE, long, value_name = "TYPE", hide_short_help = true, value_parser = values::precision())]
    pub precision: Option<PrecisionChoice>,
    /// Precision of long attention without a mask, on GPUs [default: auto]
    ///
    /// auto is fp8 on Hopper GPUs with --precision fp8, and int8 on GeForce GPUs from Ampere on with --precision int8,
    /// w4a8 or fp8; otherwise the precision of all other ops. fp8 needs a Hopper GPU, int8 a GPU of compute capability
    /// 8.0 or later.
    #[arg(help_heading = DEVICE, long, value_name = "TYPE", hide_short_help = true, value_parser = values::attention())]
    pub attention: Option<AttentionChoice>,
    /// Memory limit of each GPU, in GiB [default: 80% of free memory]
    ///
    /// The limit covers weights, activations, CUDA graphs and the workspace of cuBLASLt.
    #[arg(help_heading = DEVICE, long, value_name = "GIB", value_parser = gibibytes, allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    gpu_memory: Option<f64>,
    /// CPU threads, 1 to 1024 [default: $RAYON_NUM_THREADS, else one per core]
    ///
    /// Images do not depend on the number of threads.
    #[arg(help_heading = DEVICE, long, value_name = "N", value_parser = whole(1..=MAX_THREADS), hide_short_help = true)]
    pub threads: Option<u64>,
}

impl DeviceArgs {
    /// Returns the devices from the flag, otherwise from the settings.
    pub fn device(&self) -> Device {
        self.device.clone().or_else(|| settings().device()).unwrap_or_default()
    }

    /// Returns the precision from the flag, otherwise from the settings.
    pub fn precision(&self) -> Option<PrecisionChoice> {
        self.precision.or_else(|| settings().precision())
    }

    /// Errors if flags contradict each other in a way that clap does not express.
    pub fn check(&self) -> Result<()> {
        if self.gpu_memory.is_some() && self.device() == Device::Cpu {
            return Err(Error::usage("`--gpu-memory` cannot be used with `--device cpu`").hint("leave one of them out"));
        }
        Ok(())
    }

    /// Returns the arguments for opening an engine, as far as these flags determine them.
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
