//! The command line: flags to values of the right type. `Model::plan` decides whether the model can do what they ask.

mod adapters;
mod bench;
mod command_line;
mod convert;
mod fields;
mod foreign;
mod images;
mod info;
mod prompt;
mod quantize;
mod sampler;
mod tensors;
#[cfg(test)]
mod tests;
mod values;

use std::env;
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

pub use adapters::AdapterArgs;
pub use bench::Bench;
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
pub use command_line::command_line;
pub use convert::{ComponentChoice, Convert};
pub use fields::flag;
use flux::engine::choice::{DeviceChoice, Gpus, ParallelChoice, PrecisionChoice};
use flux::engine::{EngineArgs, Recipe};
use flux::input::is_stdin;
use flux::{Error, Result};
pub use images::ImageArgs;
pub use info::Info;
pub use quantize::QuantizeArgs;
pub use sampler::SamplerArgs;
pub use tensors::TensorArgs;
pub use values::{ProgressChoice, TimingsFormat, VariantChoice};
use values::{SIDE, Seed, Size, decibels, decimal, gibibytes, whole, whole_of};

/// The headings of `--help`.
const PROMPT: &str = "What to draw";
const IMAGES: &str = "Images to draw from";
const SAMPLING: &str = "Size and sampling";
const MODEL: &str = "Model";
const DEVICE: &str = "Device";
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
}

/// Why a command line is none.
pub enum Unread {
    /// It is wrong, or asks for help.
    ByClap(clap::Error),
    /// It is that of another program.
    Explained(Error),
}

impl Cli {
    /// The command line, whose flags may have other names, see [`foreign`].
    pub fn read(arguments: &[OsString]) -> std::result::Result<Self, Unread> {
        let mut command = foreign::with_other_names(Self::command());
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
    /// Measures how long stages and ops take.
    ///
    /// Ops have the shapes of the model, or of klein 4B when no folder is named. Each op is compared with what the
    /// device does at best, which is a copy or a large product, and each fused op also with the simpler ops that define
    /// it.
    Bench(Bench),
    /// Writes a transformer or a text encoder as one file in another format.
    ///
    /// stable-diffusion.cpp, ComfyUI and diffusers read these files. Norms, embeddings and the layers around the
    /// transformer's blocks stay in 16 bits or more.
    Convert(Convert),
    /// Prints what a model is, or how an image was made.
    ///
    /// Of a model: its files, formats and sizes; only configs and headers are read, so this takes no time and no
    /// memory. Of an image that flux made: the command line that makes it again, and its recipe as JSON.
    Info(Info),
    /// Prints how far two images (PNG, JPEG, WebP) of one size are apart: max and mean of the 8-bit differences, PSNR.
    #[command(hide = true)]
    Compare {
        #[arg(value_parser = values::path())]
        a: PathBuf,
        #[arg(value_parser = values::path())]
        b: PathBuf,
        /// Fail when the PSNR is lower
        #[arg(long, value_name = "DB", value_parser = decibels)]
        min_psnr: Option<f64>,
    },
}

/// The model.
#[derive(Args)]
pub struct ModelArgs {
    /// Model: a folder, or the file of a transformer
    ///
    /// A folder has the layout of diffusers or ComfyUI [default: $FLUX_MODEL, else the built-in model].
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
    /// What the flag names, else FLUX_MODEL unless it is empty.
    pub fn dir(&self) -> Option<PathBuf> {
        self.dir.clone().or_else(|| env::var_os("FLUX_MODEL").filter(|value| !value.is_empty()).map(PathBuf::from))
    }

    /// Whether the flag names a model.
    pub fn names_dir(&self) -> bool {
        self.dir.is_some()
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
    /// Device: auto, cpu, cuda or cuda:N
    ///
    /// Several GPUs, as in cuda:0,1 or cuda:all, share the images.
    #[arg(help_heading = DEVICE, long, value_name = "DEVICE", default_value = "auto")]
    pub device: DeviceChoice,
    /// Precision of the arithmetic; auto is f32 on the CPU and bf16 on a GPU (fp16 where it has none), fp8 is for
    /// Hopper GPUs
    #[arg(help_heading = DEVICE, long, value_name = "TYPE", default_value = "auto", hide_short_help = true)]
    #[arg(value_parser = values::precision())]
    pub precision: PrecisionChoice,
    /// Memory of each GPU for weights, activations, CUDA graphs and cuBLASLt's workspace, in GiB [default: 80% of what
    /// is free]
    #[arg(help_heading = DEVICE, long, value_name = "GIB", value_parser = gibibytes, allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub gpu_memory: Option<f64>,
    /// Threads on the CPU, 1 to 1024; an image is the same on any number [default: $RAYON_NUM_THREADS, else one per
    /// core]
    #[arg(help_heading = DEVICE, long, value_name = "N", value_parser = whole(1..=MAX_THREADS), hide_short_help = true)]
    pub threads: Option<u64>,
}

impl DeviceArgs {
    /// Errors where flags contradict each other in a way that clap does not express.
    pub fn check(&self) -> Result<()> {
        if self.gpu_memory.is_some() && self.device == DeviceChoice::Cpu {
            return Err(Error::usage("`--gpu-memory` has no meaning with `--device cpu`").hint("leave one of them out"));
        }
        Ok(())
    }

    /// What an engine is to open, as far as these flags say it.
    pub fn engine(&self) -> EngineArgs {
        EngineArgs {
            device: self.device.clone(),
            precision: self.precision,
            gpu_memory: self.gpu_memory.map(|gib| (gib * f64::from(1 << 30)) as u64),
            ..EngineArgs::default()
        }
    }
}

/// `flux` without a subcommand. Every flag is under one of the headings.
#[derive(Args)]
pub struct Generate {
    /// What to draw; `-` reads it from standard input
    ///
    /// At most 64 KiB.
    #[arg(short, long, value_name = "TEXT", required_unless_present_any = ["words", "embeddings"], allow_hyphen_values = true)]
    #[arg(help_heading = PROMPT)]
    prompt: Option<OsString>,
    /// The same without a flag, in quotes
    ///
    /// The name of a command alone is the command.
    #[arg(value_name = "PROMPT", help_heading = PROMPT)]
    words: Vec<OsString>,
    /// File to write [default: flux-SEED.png]
    ///
    /// It ends with .png, .jpg, .jpeg or .webp; a folder gets flux-SEED.png, and `-` writes a PNG to standard output.
    #[arg(help_heading = OUTPUT, short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Fail before any work when a file to write is there already, instead of overwriting it
    #[arg(help_heading = OUTPUT, long, hide_short_help = true)]
    pub no_clobber: bool,
    /// Do not say in the image's XMP that a model made it
    #[arg(help_heading = OUTPUT, long, hide_short_help = true)]
    pub no_provenance: bool,
    /// Write over an image or tensors that this run reads, once they have been read
    #[arg(help_heading = OUTPUT, long, hide_short_help = true, conflicts_with = "no_clobber")]
    pub force: bool,
    /// Width in pixels, rounded down to a multiple of 16 [default: the first input's, else the model's]
    #[arg(help_heading = SAMPLING, short = 'W', long, value_name = "PIXELS", value_parser = whole_of(SIDE))]
    #[arg(hide_short_help = true, allow_negative_numbers = true)]
    width: Option<usize>,
    /// Height in pixels, rounded down to a multiple of 16 [default: the first input's, else the model's]
    #[arg(help_heading = SAMPLING, short = 'H', long, value_name = "PIXELS", value_parser = whole_of(SIDE))]
    #[arg(hide_short_help = true, allow_negative_numbers = true)]
    height: Option<usize>,
    /// Size, as in 768x512, or the side of a square
    #[arg(help_heading = SAMPLING)]
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["width", "height"], allow_negative_numbers = true)]
    size: Option<Size>,
    /// Denoising steps [default: 4 when distilled, else 50]
    #[arg(help_heading = SAMPLING, short, long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = whole_of("steps, from 1 to 1000"))]
    steps: Option<usize>,
    /// Seed: one seed, one image
    ///
    /// random or -1 draws one. Seeds repeat after 2^32, as in the reference.
    #[arg(help_heading = SAMPLING)]
    #[arg(short = 'S', long, value_name = "N", default_value = "random", allow_negative_numbers = true)]
    seed: Seed,
    /// Images, with this and the following seeds
    ///
    /// out.png becomes out-SEED.png.
    #[arg(help_heading = SAMPLING)]
    #[arg(short = 'n', long, value_name = "K", default_value_t = 1, allow_negative_numbers = true)]
    #[arg(value_parser = values::count)]
    pub count: u64,
    /// How strongly to follow the prompt
    ///
    /// 1 is without guidance; only undistilled models use it [default: the model's].
    #[arg(help_heading = SAMPLING, short, long, value_name = "SCALE", allow_negative_numbers = true)]
    #[arg(value_parser = decimal::<f32>("from 0 to 1000"))]
    guidance: Option<f32>,
    #[command(flatten)]
    pub images: ImageArgs,
    #[command(flatten)]
    pub sampler: SamplerArgs,
    #[command(flatten)]
    pub tensors: TensorArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub adapters: AdapterArgs,
    #[command(flatten)]
    pub quantize: QuantizeArgs,
    #[command(flatten)]
    pub on: DeviceArgs,
    /// How many of several GPUs make each image together: a number, auto or off
    #[arg(help_heading = DEVICE, long, value_name = "N", default_value = "auto", hide_short_help = true)]
    pub parallel: ParallelChoice,
    /// With --precision fp8: cache the quantised weights in a file in the model's folder, and load them from it later
    #[arg(help_heading = DEVICE, long, hide_short_help = true)]
    pub fp8_cache: bool,
    /// Print nothing but errors, and the seed when it was random
    #[arg(help_heading = INFORMATION, short, long)]
    pub quiet: bool,
    /// Print more, such as the device
    #[arg(help_heading = INFORMATION, short, long, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Print how long each stage took, and the most memory used: text to stderr, json to stdout
    #[arg(help_heading = INFORMATION, long, value_name = "FORMAT", value_enum)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "text", hide_short_help = true)]
    pub timings: Option<TimingsFormat>,
    /// How to show the stages: bars on a terminal, plain lines, or nothing; auto shows lines elsewhere, of long runs
    #[arg(help_heading = INFORMATION, long, value_name = "KIND", value_enum, default_value_t = ProgressChoice::Auto)]
    #[arg(hide_short_help = true)]
    pub progress: ProgressChoice,
    /// Print the path of the image to stdout
    #[arg(help_heading = OUTPUT, long, hide_short_help = true)]
    pub print_path: bool,
    /// Panic once the first image is computed
    #[cfg(debug_assertions)]
    #[arg(help_heading = INFORMATION, long, hide = true)]
    pub panic_for_test: bool,
    /// Print this help; -h prints less of it
    #[arg(help_heading = INFORMATION, short, long, action = ArgAction::Help, global = true)]
    help: Option<bool>,
    /// Print the version
    #[arg(help_heading = INFORMATION, short = 'V', long, action = ArgAction::Version)]
    version: Option<bool>,
}

/// Whether a path is a folder, or is written as one.
fn names_folder(path: &Path) -> bool {
    path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/")
}

impl Generate {
    /// What to draw, and how. Reads `stdin` for the prompt `-`; draws a seed when none is given.
    ///
    /// Errors when the prompt is too long, no text, or missing from standard input, and when the strength of an adapter
    /// is no number.
    pub fn recipe(&self, stdin: &mut dyn Read) -> Result<Recipe> {
        let prompt = match self.prompt() {
            Some(_) if self.reads_stdin() => prompt::read(stdin),
            Some(given) => prompt::text(given.as_encoded_bytes().to_vec()),
            None => Ok(String::new()),
        };
        let recipe = Recipe {
            prompt: prompt.map_err(|e| e.at(self.prompt_place()))?,
            width: self.size.map(|size| size.width).or(self.width),
            height: self.size.map(|size| size.height).or(self.height),
            steps: self.steps,
            seed: match self.seed {
                Seed::Given(seed) => seed,
                // 32 bits: short enough to type again.
                Seed::Random => u64::from(rand::random::<u32>()),
            },
            guidance: self.guidance,
            ..Recipe::default()
        };
        self.adapters.apply(self.tensors.apply(self.images.apply(self.sampler.apply(recipe))))
    }

    /// Where the prompt comes from.
    pub fn prompt_place(&self) -> &'static str {
        if self.reads_stdin() { "standard input" } else { "--prompt" }
    }

    /// The prompt as it was given; clap sees to it that there is one.
    fn prompt(&self) -> Option<&OsString> {
        self.prompt.as_ref().or(self.words.first())
    }

    /// Errors when there are several prompts. A value that clap takes for one is told apart.
    fn check_prompts(&self) -> Result<()> {
        let first = self.words.first().filter(|_| self.prompt.is_none()).and_then(|word| word.to_str());
        if let Some(error) = first.and_then(foreign::no_command) {
            return Err(error);
        }
        let words = self.words.iter().map(|word| word.to_string_lossy());
        if let Some(format) = words.clone().find(|word| TimingsFormat::from_str(word, false).is_ok())
            && self.timings.is_some()
        {
            return Err(Error::usage(format!("`{format}` is read as the prompt"))
                .at("--timings")
                .hint(format!("write `--timings={format}`; the prompt of this word is `--prompt={format}`")));
        }
        let given: Vec<_> = self.prompt.iter().map(|prompt| prompt.to_string_lossy()).chain(words).collect();
        if let [first, second, ..] = given.as_slice() {
            let error = Error::usage(format!("there are several prompts: `{first}` and `{second}`")).at("--prompt");
            // Elsewhere `-q 8` are the bits of weights.
            let bits = given.iter().find(|word| self.quiet && matches!(word.as_ref(), "3" | "4" | "5" | "6" | "8"));
            if let Some(bits) = bits {
                return Err(error.hint(format!("`-q` is `--quiet`; weights of {bits} bits are `--quantize FORMAT`")));
            }
            return Err(error.hint("put a prompt of several words in quotes, and give it once: flux \"a red circle\""));
        }
        Ok(())
    }

    /// Whether the prompt comes from standard input.
    pub fn reads_stdin(&self) -> bool {
        self.prompt().is_some_and(|prompt| prompt == "-")
    }

    /// The number of steps that was asked for.
    pub fn steps(&self) -> Option<usize> {
        self.steps
    }

    /// Whether the seed was drawn at random.
    pub fn seed_is_random(&self) -> bool {
        self.seed == Seed::Random
    }

    /// Whether the image goes to standard output.
    pub fn to_stdout(&self) -> bool {
        self.output.as_deref() == Some(Path::new("-"))
    }

    /// The file of one image of those whose file the user calls `path`: of several, each has its seed in the name.
    pub fn of_seed(&self, path: &Path, seed: u64) -> PathBuf {
        if self.count == 1 {
            return path.to_path_buf();
        }
        let mut name = path.file_stem().unwrap_or_default().to_os_string();
        name.push(format!("-{seed}"));
        if let Some(extension) = path.extension() {
            name.push(".");
            name.push(extension);
        }
        path.with_file_name(name)
    }

    /// The files to write, one for each image. The first image has the seed `seed`.
    ///
    /// Errors when the seeds would exceed the largest one.
    pub fn outputs(&self, seed: u64) -> Result<Vec<PathBuf>> {
        let end = seed.checked_add(self.count - 1);
        let last = end
            .ok_or_else(|| Error::usage(format!("seed {seed} is too large for {} images", self.count)).at("--seed"))?;
        let is_folder = self.output.as_deref().is_some_and(names_folder);
        let numbered = |seed: u64| match &self.output {
            None => PathBuf::from(format!("flux-{seed}.png")),
            Some(folder) if is_folder => folder.join(format!("flux-{seed}.png")),
            Some(path) => self.of_seed(path, seed),
        };
        Ok((seed..=last).map(numbered).collect())
    }

    /// The files of final latents to write, one for each image where they are asked for.
    pub fn latents_outputs(&self, seed: u64) -> Vec<PathBuf> {
        let seeds = seed..=seed.saturating_add(self.count - 1);
        let of_file = |path: &PathBuf| seeds.map(|seed| self.of_seed(path, seed)).collect();
        self.tensors.save_latents.as_ref().map(of_file).unwrap_or_default()
    }

    /// Errors where flags contradict each other in a way that clap does not express.
    pub fn check(&self) -> Result<()> {
        self.check_prompts()?;
        self.images.check(self.reads_stdin())?;
        if self.adapters.paths().any(is_stdin) {
            return Err(Error::usage(format!("`-`: {}", values::NO_HYPHEN)).at("--lora"));
        }
        self.model.check_kv(self.images.kv)?;
        if self.print_path && self.timings == Some(TimingsFormat::Json) {
            return Err(Error::usage("`--print-path` and `--timings=json` both write to standard output")
                .hint("leave out `--print-path`: the JSON names the file under `output`"));
        }
        if self.to_stdout() {
            let other = [
                (self.print_path, "--print-path"),
                (self.timings == Some(TimingsFormat::Json), "--timings=json"),
                (self.count > 1, "--count"),
            ];
            if let Some((_, flag)) = other.iter().find(|(given, _)| *given) {
                return Err(Error::usage(format!("`{flag}` does not go with an image on standard output"))
                    .at("--output")
                    .hint(format!("leave out `{flag}`, or name a file with `-o`")));
            }
        }
        if self.fp8_cache && self.on.precision != PrecisionChoice::Fp8 {
            return Err(
                Error::usage("`--fp8-cache` is for `--precision fp8`").hint("give both, or leave out `--fp8-cache`")
            );
        }
        if self.fp8_cache && self.quantize.formats().is_some_and(|formats| formats.transformer.is_some()) {
            return Err(Error::usage(
                "`--fp8-cache` holds the weights of the model's files, and `--quantize` other ones",
            )
            .hint("leave one of them out"));
        }
        self.on.check()?;
        match &self.on.device {
            DeviceChoice::Cuda(gpus @ Gpus::Numbers(numbers)) => self.parallel.check_enough(numbers.len(), gpus),
            DeviceChoice::Cuda(Gpus::All) => Ok(()),
            DeviceChoice::Auto | DeviceChoice::Cpu => self.parallel.check_alone(),
        }
    }

    /// Whether GPUs may make an image together.
    pub fn may_share_images(&self) -> bool {
        self.parallel.may_share(self.on.device.count(), self.count as usize)
    }
}
