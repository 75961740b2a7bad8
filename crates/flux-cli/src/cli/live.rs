//! Flags of `flux live`.

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};
use flux::engine::choice::ParallelChoice;
use flux::engine::{Decodes, EngineArgs, PreviewDecoder, Recipe};
use flux::input::is_stdin;
use flux::pipeline::Reuse;
use flux::{Error, Result};

use super::prompt::without_ends;
use super::values::{SIDE, Seed, Size, decimal, no_hyphen, number, path, whole, whole_of};
use super::{
    AdapterArgs, DeviceArgs, FRAMES, IMAGES, INFORMATION, ModelArgs, PROMPT, QuantizeArgs, SAMPLING, SamplerArgs,
};
use flux_media::video::VideoFormat;

/// `flux live`
#[derive(Args)]
pub struct Live {
    /// Prompt
    #[arg(help_heading = PROMPT, short, long, value_name = "TEXT", allow_hyphen_values = true)]
    #[arg(value_parser = no_hyphen, required_unless_present_any = ["prompt_file", "control"])]
    prompt: Option<String>,
    /// Read the prompt from a file, again after each change
    #[arg(help_heading = PROMPT, long, value_name = "FILE", value_parser = path(), conflicts_with = "prompt")]
    pub prompt_file: Option<PathBuf>,
    /// FIFO, or Unix socket to create, that receives changes
    ///
    /// Each line is a JSON object with any of prompt, seed, steps, strength, feedback and references (files that
    /// replace those of --input). The next frame uses the changes, and no frame is lost. A socket replies to each line.
    #[arg(help_heading = PROMPT, long, value_name = "PATH", value_parser = path())]
    pub control: Option<PathBuf>,
    /// Reference image after each frame, up to 15 times
    #[arg(help_heading = IMAGES, short, long = "input", value_name = "FILE", value_parser = path())]
    inputs: Vec<PathBuf>,
    /// Edit each frame, with a strength from 0 to 1
    ///
    /// Without --strength, frames are references. The value is the part of the steps that runs, as without a
    /// subcommand.
    #[arg(help_heading = IMAGES, long, value_name = "X", allow_negative_numbers = true)]
    #[arg(value_parser = decimal::<f64>("from 0 to 1"))]
    strength: Option<f64>,
    /// With --strength: do not use the frame as a reference
    ///
    /// The model then sees the frame only in the noisy latents.
    #[arg(help_heading = IMAGES, long, action = ArgAction::SetTrue, requires = "strength")]
    no_self_reference: bool,
    /// Start each image with this part of the previous latents
    ///
    /// From 0 to below 1. Images flicker less.
    #[arg(help_heading = IMAGES, long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    #[arg(value_parser = decimal::<f32>("from 0 to below 1"), conflicts_with = "strength")]
    pub feedback: f32,
    /// Compute only what changed by more than this, from 0 to 1
    ///
    /// The unit is a square of 16 x 16 pixels, and the squares around it. The change is the mean absolute difference of
    /// values since an earlier frame, relative to the largest value: 0.02 ignores the noise of a camera, and 0 reuses
    /// only byte-identical squares. If nothing changed, the image is repeated.
    #[arg(help_heading = IMAGES, long, value_name = "X", allow_negative_numbers = true)]
    #[arg(value_parser = decimal::<f32>("from 0 to 1"), conflicts_with_all = ["feedback", "no_input"])]
    reuse: Option<f32>,
    /// With --reuse: compute at least one full frame per N frames
    #[arg(help_heading = IMAGES, long, value_name = "N", default_value_t = 100, value_parser = whole(1..=1_000_000u64))]
    #[arg(requires = "reuse")]
    refresh: u64,
    /// Compute keys and values of references once for all steps
    ///
    /// For models that were trained this way, such as klein 9b-kv. Their folders enable it without the flag.
    #[arg(help_heading = IMAGES, long, action = ArgAction::SetTrue)]
    kv: bool,
    /// TAEF2 file that decodes images in place of the VAE
    ///
    /// TAEF2 is the tiny autoencoder of FLUX.2. It is faster than the VAE, and less exact.
    #[arg(help_heading = IMAGES, long, value_name = "FILE", value_parser = path())]
    preview_decoder: Option<PathBuf>,
    /// Frame size, as in 512x512 [default: size of the first frame]
    ///
    /// Raw frames need a size. Other frames are scaled to it.
    #[arg(help_heading = FRAMES, long, value_name = "SIZE", allow_negative_numbers = true)]
    size: Option<Size>,
    /// Format of standard input [default: detected from the first bytes]
    ///
    /// Raw frames cannot be detected.
    #[arg(help_heading = FRAMES, long, value_name = "FORMAT", value_enum)]
    from: Option<VideoChoice>,
    /// Format of standard output [default: format of standard input]
    #[arg(help_heading = FRAMES, long, value_name = "FORMAT", value_enum)]
    to: Option<VideoChoice>,
    /// Use one of N frames
    #[arg(help_heading = FRAMES, long, value_name = "N", default_value_t = 1, value_parser = whole(1..=1_000_000u64))]
    pub every: u64,
    /// Generate an image for every frame, and let the input wait
    ///
    /// Without the flag, stale frames are dropped.
    #[arg(help_heading = FRAMES, long)]
    pub all: bool,
    /// Output rate, in images per second [default: each image once]
    ///
    /// If there is no newer image, the newest one is repeated.
    #[arg(help_heading = FRAMES, long, value_name = "RATE", value_parser = rate)]
    pub fps: Option<f64>,
    /// MJPEG quality, from 1 to 100
    #[arg(help_heading = FRAMES, long, value_name = "Q", default_value_t = 85, value_parser = whole(1..=100u8))]
    pub quality: u8,
    /// Generate without frames: at the start, and after each change
    ///
    /// Changes are those of the prompt or other settings.
    #[arg(help_heading = FRAMES, long, conflicts_with_all = ["from", "every", "all", "strength"])]
    pub no_input: bool,
    /// Denoising steps [default: 4 if distilled, else 50]
    ///
    /// Use 1, 2 or 4 steps with distilled models.
    #[arg(help_heading = SAMPLING, short, long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = whole_of("steps, from 1 to 1000"))]
    steps: Option<usize>,
    /// Seed of the noise, the same for all frames [default: random]
    #[arg(help_heading = SAMPLING, short = 'S', long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<Seed>,
    /// Guidance scale: how closely to follow the prompt
    ///
    /// 1 disables guidance. Only undistilled models use guidance [default: the model's].
    #[arg(help_heading = SAMPLING, short, long, value_name = "SCALE", allow_negative_numbers = true)]
    #[arg(value_parser = decimal::<f32>("from 0 to 1000"))]
    guidance: Option<f32>,
    #[command(flatten)]
    sampler: SamplerArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub quantize: QuantizeArgs,
    #[command(flatten)]
    pub on: DeviceArgs,
    /// Report frames, latency and flicker each second, as JSON lines
    ///
    /// Each line has the frames that were read and written, the time from frame to image, and the flicker. Lines go to
    /// standard error, or are appended to FILE.
    #[arg(help_heading = INFORMATION, long, value_name = "FILE")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub stats: Option<PathBuf>,
    /// Print only errors
    #[arg(help_heading = INFORMATION, short, long)]
    pub quiet: bool,
    /// Print more details, such as the device
    #[arg(help_heading = INFORMATION, short, long, conflicts_with = "quiet")]
    pub verbose: bool,
}

/// `--from` and `--to`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum VideoChoice {
    /// Three bytes per pixel, in the size of --size
    Rgb24,
    /// YUV4MPEG2, as from `ffmpeg -f yuv4mpegpipe`
    Y4m,
    /// Consecutive JPEGs
    Mjpeg,
}

impl From<VideoChoice> for VideoFormat {
    fn from(choice: VideoChoice) -> Self {
        match choice {
            VideoChoice::Rgb24 => Self::Rgb24,
            VideoChoice::Y4m => Self::Y4m,
            VideoChoice::Mjpeg => Self::Mjpeg,
        }
    }
}

/// Minimum of `--fps`: Y4M rates have a resolution of a thousandth.
const MIN_RATE: f64 = 0.001;

/// Parses `--fps`.
fn rate(text: &str) -> std::result::Result<f64, String> {
    let rate = number(text, 1000.0)?;
    if rate >= MIN_RATE { Ok(rate) } else { Err(format!("expected at least {MIN_RATE}")) }
}

impl Live {
    /// Returns the recipe for frames, with the references after the frame as inputs. Without a seed flag, a random one
    /// is chosen.
    ///
    /// Errors when the strength of an adapter is not a number.
    pub fn recipe(&self) -> Result<Recipe> {
        let recipe = Recipe {
            prompt: self.prompt.as_deref().map(without_ends).unwrap_or_default(),
            steps: self.steps,
            seed: self.seed.unwrap_or(Seed::Random).value(),
            guidance: self.guidance,
            inputs: self.inputs.clone(),
            strength: self.strength,
            no_self_reference: self.no_self_reference,
            ..Recipe::default()
        };
        let size = self.size.filter(|_| self.no_input);
        let (width, height) = (size.map(|size| size.width), size.map(|size| size.height));
        self.adapters.apply(self.sampler.apply(Recipe { width, height, ..recipe }))
    }

    /// Returns the reuse of earlier frames' tokens, if enabled.
    pub fn reuse(&self) -> Option<Reuse> {
        self.reuse.map(|threshold| Reuse { threshold, refresh: self.refresh as usize })
    }

    /// Returns `true` if the seed is random.
    pub fn seed_is_random(&self) -> bool {
        self.seed.is_none_or(Seed::is_random)
    }

    pub fn from(&self) -> Option<VideoFormat> {
        self.from.map(VideoFormat::from)
    }

    pub fn to(&self) -> Option<VideoFormat> {
        self.to.map(VideoFormat::from)
    }

    /// Returns the size of frames, if given.
    pub fn frame_size(&self) -> Option<[usize; 2]> {
        self.size.map(|size| [size.width, size.height]).filter(|_| !self.no_input)
    }

    /// Returns the arguments for opening a model.
    pub fn engine(&self) -> EngineArgs {
        EngineArgs {
            caches_references: self.kv,
            quantize: self.quantize.formats(),
            preview_decoder: (self.preview_decoder.clone())
                .map(|file| PreviewDecoder { file, decodes: Decodes::Images }),
            parallel: ParallelChoice::Off,
            ..self.on.engine()
        }
    }

    /// Errors if flags contradict each other in a way that clap does not express.
    pub fn check(&self) -> Result<()> {
        self.on.check()?;
        self.model.check_kv(self.kv)?;
        if let Some(size) = self.size
            && [size.width, size.height].iter().any(|side| !(16..=8192).contains(side))
        {
            let what = format!("frames are {}x{}, expected {SIDE} a side", size.width, size.height);
            return Err(Error::usage(what).at("--size").hint("write a size such as 512x512"));
        }
        if self.no_input && self.to.is_none() {
            return Err(Error::usage("`--no-input` requires an output format")
                .at("--no-input")
                .hint("add `--to mjpeg`, or another format"));
        }
        if self.adapters.named().iter().any(|file| is_stdin(file)) {
            return Err(Error::usage("an adapter cannot be read from standard input here")
                .at("--lora")
                .hint("name a file"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_between_two_images_is_one_that_a_clock_has() {
        for (text, is_taken) in [("0.001", true), ("30", true), ("0", false), ("1e-20", false), ("1e-4", false)] {
            assert_eq!(rate(text).is_ok(), is_taken, "{text}");
        }
        assert_eq!(rate("1e-20"), Err("expected at least 0.001".to_string()));
    }
}
