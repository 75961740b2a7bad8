//! The command line: flags to values of the right type. `Model::plan` decides whether the model can do what they ask.

use std::env;
use std::io::Read;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use flux::pipeline::{MAX_PROMPT_BYTES, Request};
use flux::{Error, Result};

/// The most images of one command.
const MAX_COUNT: u64 = 10_000;
/// The most threads.
const MAX_THREADS: u64 = crate::threads::MAX as u64;

/// Draws the image that a prompt describes.
///
/// Without --dir it uses a small model that is part of the program and draws emoji-like scenes of 256x256 pixels.
#[derive(Parser)]
#[command(name = "flux", version, arg_required_else_help = true, disable_help_subcommand = true)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 ended by SIGTERM, \
                        70 ended by a defect of the program.\n\
                        The seed of an image is printed, and stored in a PNG.\n\
                        Examples:\n  \
                        flux -p \"a red circle on a blue background\" -o circle.png\n  \
                        flux -d models/klein-4b -p \"a lighthouse in a storm\" -W 1024 -H 1024 -S 42 \
                        -o lighthouse.png")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub generate: Generate,
}

/// The subcommands. Those for scripts are not in `--help`.
#[derive(Subcommand)]
pub enum Command {
    /// Measures how long the stages of an image and the ops of a model take on this machine.
    ///
    /// Ops have the shapes of the model, or of klein 4B when no folder is named. Each op is compared with what the
    /// device does at best, which is a copy or a large product, and each fused op also with the simpler ops that define
    /// it.
    Bench(Bench),
    /// Prints how far two PNG images of one size are apart: max and mean of the 8-bit differences, PSNR.
    #[command(hide = true)]
    Compare {
        a: PathBuf,
        b: PathBuf,
        /// Fail when the PSNR is lower
        #[arg(long, value_name = "DB", value_parser = decibels)]
        min_psnr: Option<f64>,
    },
}

/// The model.
#[derive(Args)]
pub struct ModelArgs {
    /// Model folder in the diffusers layout [default: $FLUX_MODEL, else the built-in model]
    #[arg(short, long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

impl ModelArgs {
    /// The model folder that the flag names, else FLUX_MODEL unless it is empty.
    pub fn dir(&self) -> Option<PathBuf> {
        self.dir.clone().or_else(|| env::var_os("FLUX_MODEL").filter(|value| !value.is_empty()).map(PathBuf::from))
    }

    /// Whether the flag names a folder.
    pub fn names_dir(&self) -> bool {
        self.dir.is_some()
    }
}

/// Where and how to compute.
#[derive(Args)]
pub struct DeviceArgs {
    /// Where to compute: auto, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: DeviceChoice,
    /// Precision of the arithmetic; auto is f32 on the CPU and bf16 on a GPU, fp8 is for Hopper GPUs
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = PrecisionChoice::Auto)]
    pub precision: PrecisionChoice,
    /// GPU memory for weights, activations, CUDA graphs and cuBLASLt's workspace, in GiB [default: 80% of what is free]
    #[arg(long, value_name = "GIB", value_parser = gibibytes)]
    pub gpu_memory: Option<f64>,
    /// Threads on the CPU, 1 to 1024; an image is the same on any number [default: $RAYON_NUM_THREADS, else one per core]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=MAX_THREADS))]
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

    /// The cap on GPU memory in bytes.
    pub fn gpu_memory_bytes(&self) -> Option<u64> {
        self.gpu_memory.map(|gib| (gib * f64::from(1 << 30)) as u64)
    }
}

/// `flux bench`
#[derive(Args)]
pub struct Bench {
    /// Parts of the names of what to measure, such as stages/, ops/, linear or 512x512 [default: all]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub model: ModelArgs,
    /// Sides of the square images, such as 512,1024, rounded down to multiples of 16 [default: 1024 on a GPU, 256 on
    /// the CPU]
    #[arg(long = "size", value_name = "PIXELS", value_delimiter = ',')]
    #[arg(value_parser = value_parser!(u64).range(16..=8192))]
    pub sizes: Vec<u64>,
    /// Images at once
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = value_parser!(u64).range(1..=8))]
    pub batch: u64,
    /// Denoising steps [default: the model's]
    #[arg(short, long, value_name = "N", value_parser = value_parser!(u64).range(1..=1000))]
    pub steps: Option<u64>,
    /// Runs of which the median is taken [default: 20 of ops and 5 of images on a GPU, 3 and 2 on the CPU]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=1000))]
    pub runs: Option<u64>,
    /// Also run every op for so long without a pause, which shows how long it takes when the GPU's power limit lowers
    /// the clock
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub in_a_row: Option<f64>,
    /// Wait for so long before every image, as someone does who looks at each; the GPU is below its power limit for a
    /// while then
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub pause: Option<f64>,
    #[command(flatten)]
    pub on: DeviceArgs,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Generate {
    #[command(flatten)]
    pub model: ModelArgs,
    /// What to draw, at most 64 KiB; `-` reads it from standard input
    #[arg(short, long, value_name = "TEXT", required = true)]
    prompt: Option<String>,
    /// File to write: .png, .jpg, .jpeg or .webp [default: flux-SEED.png]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Width in pixels, rounded down to a multiple of 16 [default: the model's]
    #[arg(short = 'W', long, value_name = "PIXELS")]
    width: Option<usize>,
    /// Height in pixels, rounded down to a multiple of 16 [default: the model's]
    #[arg(short = 'H', long, value_name = "PIXELS")]
    height: Option<usize>,
    /// Denoising steps [default: the model's: 4 when distilled, else 50]
    #[arg(short, long, value_name = "N")]
    steps: Option<usize>,
    /// Seed of the noise: one seed, one image [default: random]
    #[arg(short = 'S', long, value_name = "N")]
    seed: Option<u64>,
    /// Images of the prompt, with this and the following seeds; out.png becomes out-SEED.png
    #[arg(short = 'n', long, value_name = "K", default_value_t = 1)]
    #[arg(value_parser = value_parser!(u64).range(1..=MAX_COUNT))]
    pub count: u64,
    /// How strongly to follow the prompt, 1 is without guidance; only undistilled models use it [default: the model's]
    #[arg(short, long, value_name = "SCALE")]
    guidance: Option<f32>,
    #[command(flatten)]
    pub on: DeviceArgs,
    /// With --precision fp8: cache the quantised weights in a file in the model's folder, and load them from it later
    #[arg(long)]
    pub fp8_cache: bool,
    /// Print nothing but errors, and the seed when it was random
    #[arg(short, long)]
    pub quiet: bool,
    /// Print more, such as the device
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Print how long each stage took, and the most memory used: text to stderr, json to stdout
    #[arg(long, value_name = "FORMAT", value_enum)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "text")]
    pub timings: Option<TimingsFormat>,
    /// Print the path of the image to stdout
    #[arg(long)]
    pub print_path: bool,
    /// Panic once the first image is computed
    #[cfg(debug_assertions)]
    #[arg(long, hide = true)]
    pub panic_for_test: bool,
}

/// `--device`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU when there is one.
    Auto,
    Cpu,
    /// The GPU with this number.
    Cuda(usize),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let ordinal = text.strip_prefix("cuda:").and_then(|n| n.parse().ok());
                ordinal.map(Self::Cuda).ok_or_else(|| "expected auto, cpu, cuda or cuda:N".to_string())
            }
        }
    }
}

/// `--precision`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PrecisionChoice {
    Auto,
    F32,
    Bf16,
    Fp8,
}

/// `--timings`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TimingsFormat {
    Text,
    Json,
}

/// A number from 0 to `max`.
fn number(text: &str, max: f64) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..=max).contains(&value) => Ok(value),
        _ => Err(format!("expected a number from 0 to {max}")),
    }
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    number(text, 60.0)
}

fn gibibytes(text: &str) -> std::result::Result<f64, String> {
    number(text, 4096.0).and_then(|value| if value > 0.0 { Ok(value) } else { Err("expected more than 0".to_string()) })
}

fn decibels(text: &str) -> std::result::Result<f64, String> {
    number(text, 1000.0)
}

/// Reads the prompt from standard input, and no more than the longest prompt.
fn read_prompt(stdin: &mut dyn Read) -> Result<String> {
    // One more byte for a line end, and one to see that the prompt is longer.
    let most = MAX_PROMPT_BYTES as u64 + 2;
    let failed = |e: &dyn std::fmt::Display| Error::usage(format!("cannot read the prompt: {e}"));
    let mut bytes = Vec::new();
    stdin.take(most).read_to_end(&mut bytes).map_err(|e| failed(&e))?;
    if bytes.ends_with(b"\n") {
        bytes.pop(); // the line end that `echo` adds; others belong to the prompt
    }
    if bytes.len() > MAX_PROMPT_BYTES {
        let read = bytes.len();
        return Err(Error::usage(format!(
            "the prompt is {read} bytes long or more, expected at most {MAX_PROMPT_BYTES}"
        )));
    }
    String::from_utf8(bytes).map_err(|e| failed(&e))
}

impl Generate {
    /// What to draw. Reads `stdin` for the prompt `-`; draws a seed when none is given.
    ///
    /// Errors when the prompt is too long, or standard input cannot be read as UTF-8.
    pub fn request(&self, stdin: &mut dyn Read) -> Result<Request> {
        let mut prompt = self.prompt.clone().unwrap_or_default();
        if prompt == "-" {
            prompt = read_prompt(stdin).map_err(|e| e.at("standard input"))?;
        }
        let request = Request {
            prompt,
            width: self.width,
            height: self.height,
            steps: self.steps,
            // 32 bits: short enough to type again.
            seed: self.seed.unwrap_or_else(|| u64::from(rand::random::<u32>())),
            guidance: self.guidance,
        };
        request.check_prompt()?;
        Ok(request)
    }

    /// Whether the seed was drawn at random.
    pub fn seed_is_random(&self) -> bool {
        self.seed.is_none()
    }

    /// The files to write, one for each image. The first image has the seed `seed`.
    ///
    /// Errors when the seeds would exceed the largest one.
    pub fn outputs(&self, seed: u64) -> Result<Vec<PathBuf>> {
        let end = seed.checked_add(self.count - 1);
        let last = end
            .ok_or_else(|| Error::usage(format!("seed {seed} is too large for {} images", self.count)).at("--seed"))?;
        let numbered = |seed: u64| match &self.output {
            None => PathBuf::from(format!("flux-{seed}.png")),
            Some(path) if self.count == 1 => path.clone(),
            Some(path) => {
                let mut name = path.file_stem().unwrap_or_default().to_os_string();
                name.push(format!("-{seed}"));
                if let Some(extension) = path.extension() {
                    name.push(".");
                    name.push(extension);
                }
                path.with_file_name(name)
            }
        };
        Ok((seed..=last).map(numbered).collect())
    }

    /// Errors where flags contradict each other in a way that clap does not express.
    pub fn check(&self) -> Result<()> {
        if self.print_path && self.timings == Some(TimingsFormat::Json) {
            return Err(Error::usage("`--print-path` and `--timings=json` both write to standard output")
                .hint("leave out `--print-path`: the JSON names the file under `output`"));
        }
        if self.fp8_cache && self.on.precision != PrecisionChoice::Fp8 {
            return Err(
                Error::usage("`--fp8-cache` is for `--precision fp8`").hint("give both, or leave out `--fp8-cache`")
            );
        }
        self.on.check()
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> std::result::Result<Generate, String> {
        Cli::try_parse_from(format!("flux {line}").split_whitespace())
            .map(|cli| cli.generate)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn the_flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn numbers_are_strict() {
        for bad in
            ["-W 12abc", "-H -64", "-s 1.5", "-S abc", "-S -1", "-S 18446744073709551616", "-W 1e3", "-g x", "-g 3,5"]
        {
            assert!(parse(&format!("-p x {bad}")).is_err(), "{bad}");
        }
        for bad in ["0", "-2", "nan"] {
            assert!(parse(&format!("-p x --gpu-memory={bad}")).is_err(), "{bad}");
        }
        let good = parse("-p x -W 17 -H 64 -s 9 -S 18446744073709551615 -g 3.5 --gpu-memory 0.5")
            .unwrap()
            .request(&mut std::io::empty())
            .unwrap();
        assert_eq!(
            (good.width, good.height, good.steps, good.seed, good.guidance),
            (Some(17), Some(64), Some(9), u64::MAX, Some(3.5))
        );
    }

    #[test]
    fn devices_are_parsed() {
        let device = |text: &str| parse(&format!("-p x --device {text}")).map(|g| g.on.device);
        assert_eq!(device("cuda"), Ok(DeviceChoice::Cuda(0)));
        assert_eq!(device("cuda:3"), Ok(DeviceChoice::Cuda(3)));
        for bad in ["gpu", "cuda:", "cuda:-1", "CUDA"] {
            assert!(device(bad).unwrap_err().contains("cuda:N"), "{bad}");
        }
    }

    #[test]
    fn timings_take_their_format_after_an_equals_sign_only() {
        assert_eq!(parse("-p x --timings").unwrap().timings, Some(TimingsFormat::Text));
        assert_eq!(parse("-p x --timings=json").unwrap().timings, Some(TimingsFormat::Json));
        assert!(parse("-p x --timings json").is_err());
    }

    #[test]
    fn an_empty_prompt_is_a_prompt_and_none_is_not() {
        let empty = Cli::try_parse_from(["flux", "-p", ""]).unwrap().generate;
        assert_eq!(empty.request(&mut std::io::empty()).unwrap().prompt, "");
        assert!(parse("-S 1").is_err_and(|e| e.contains("--prompt")));
    }

    #[test]
    fn without_an_output_the_seed_names_the_file() {
        assert_eq!(parse("-p x").unwrap().outputs(7).unwrap(), [PathBuf::from("flux-7.png")]);
    }

    #[test]
    fn each_of_many_images_is_named_after_its_seed() {
        let outputs = |line: &str, seed| parse(line).unwrap().outputs(seed).map_err(|e| e.to_string());
        let paths = |names: &[&str]| Ok(names.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(outputs("-p x -o a.b/out.x.png", 7), paths(&["a.b/out.x.png"]));
        assert_eq!(outputs("-p x -o a.b/out.x.png -n 2", 7), paths(&["a.b/out.x-7.png", "a.b/out.x-8.png"]));
        assert_eq!(
            outputs("-p x --count 2", u64::MAX - 1),
            paths(&["flux-18446744073709551614.png", "flux-18446744073709551615.png"])
        );
        assert!(outputs("-p x --count 2", u64::MAX).unwrap_err().contains("--seed"));
        for bad in ["0", "-1", "1.5", "x", "10001"] {
            assert!(parse(&format!("-p x --count={bad}")).is_err_and(|e| e.contains("--count")), "{bad}");
        }
    }

    #[test]
    fn random_seeds_differ() {
        let seed = || parse("-p x").unwrap().request(&mut std::io::empty()).unwrap().seed;
        let seeds = [seed(), seed(), seed()]; // all equal once in 2^64
        assert!(seeds[0] != seeds[1] || seeds[1] != seeds[2]);
    }
}
