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
use crate::video::VideoFormat;

/// `flux live`
#[derive(Args)]
pub struct Live {
    /// What to draw
    #[arg(help_heading = PROMPT, short, long, value_name = "TEXT", allow_hyphen_values = true)]
    #[arg(value_parser = no_hyphen, required_unless_present_any = ["prompt_file", "control"])]
    prompt: Option<String>,
    /// Read the prompt from this file, again whenever it changes
    #[arg(help_heading = PROMPT, long, value_name = "FILE", value_parser = path(), conflicts_with = "prompt")]
    pub prompt_file: Option<PathBuf>,
    /// Hear changes at this FIFO, or at a Unix socket that is made there
    ///
    /// A line is an object of JSON with any of prompt, seed, steps, strength, feedback and references (files in the
    /// place of those of --input). The next frame has it; no frame is lost. A socket answers each line.
    #[arg(help_heading = PROMPT, long, value_name = "PATH", value_parser = path())]
    pub control: Option<PathBuf>,
    /// Image that the model sees behind each frame, up to 15 times
    #[arg(help_heading = IMAGES, short, long = "input", value_name = "FILE", value_parser = path())]
    inputs: Vec<PathBuf>,
    /// Change the frame, in place of drawing from it: how far to go, from 0 to 1
    ///
    /// That is which part of the steps runs, as without a subcommand.
    #[arg(help_heading = IMAGES, long, value_name = "X", allow_negative_numbers = true)]
    #[arg(value_parser = decimal::<f64>("from 0 to 1"))]
    strength: Option<f64>,
    /// With --strength: do not show the frame to the model, which then knows it from the noisy latents alone
    #[arg(help_heading = IMAGES, long, action = ArgAction::SetTrue, requires = "strength")]
    no_self_reference: bool,
    /// Begin each image with this part of the latents of the one before, from 0 to below 1: images flicker less
    #[arg(help_heading = IMAGES, long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    #[arg(value_parser = decimal::<f32>("from 0 to below 1"), conflicts_with = "strength")]
    pub feedback: f32,
    /// Compute only what changed since an earlier frame: squares of 16 x 16 pixels that differ by more than this, from
    /// 0 to 1, and those around them
    ///
    /// That is the mean absolute difference of values, as a part of the largest one: 0.02 leaves out a camera's noise,
    /// and at 0 only what is equal to the byte is kept. Where nothing changed, the image is given again.
    #[arg(help_heading = IMAGES, long, value_name = "X", allow_negative_numbers = true)]
    #[arg(value_parser = decimal::<f32>("from 0 to 1"), conflicts_with_all = ["feedback", "no_input"])]
    reuse: Option<f32>,
    /// With --reuse: compute all of one of so many frames at least
    #[arg(help_heading = IMAGES, long, value_name = "N", default_value_t = 100, value_parser = whole(1..=1_000_000u64))]
    #[arg(requires = "reuse")]
    refresh: u64,
    /// Make keys and values of the references once for all steps: for models that were trained so. Their folders say
    /// so themselves
    #[arg(help_heading = IMAGES, long, action = ArgAction::SetTrue)]
    kv: bool,
    /// Make the images by a file of TAEF2, the tiny autoencoder of FLUX.2, in place of the VAE's decoder: sooner, and
    /// less exactly
    #[arg(help_heading = IMAGES, long, value_name = "FILE", value_parser = path())]
    preview_decoder: Option<PathBuf>,
    /// Size of frames, as in 512x512: raw ones have no other, and others are brought to it [default: that of the first
    /// frame]
    #[arg(help_heading = FRAMES, long, value_name = "SIZE", allow_negative_numbers = true)]
    size: Option<Size>,
    /// What standard input is [default: what its first bytes say; raw frames say nothing]
    #[arg(help_heading = FRAMES, long, value_name = "FORMAT", value_enum)]
    from: Option<VideoChoice>,
    /// What standard output is [default: what standard input is]
    #[arg(help_heading = FRAMES, long, value_name = "FORMAT", value_enum)]
    to: Option<VideoChoice>,
    /// Take one of so many frames
    #[arg(help_heading = FRAMES, long, value_name = "N", default_value_t = 1, value_parser = whole(1..=1_000_000u64))]
    pub every: u64,
    /// Make an image of every frame, and let the input wait; otherwise the newest frame wins
    #[arg(help_heading = FRAMES, long)]
    pub all: bool,
    /// Write so many images a second: the newest again where there is no newer one [default: each once, when it is
    /// made]
    #[arg(help_heading = FRAMES, long, value_name = "RATE", value_parser = rate)]
    pub fps: Option<f64>,
    /// Quality of MJPEG
    #[arg(help_heading = FRAMES, long, value_name = "Q", default_value_t = 85, value_parser = whole(1..=100u8))]
    pub quality: u8,
    /// Read no frames: draw an image at first, and whenever the prompt or something else changes
    #[arg(help_heading = FRAMES, long, conflicts_with_all = ["from", "every", "all", "strength"])]
    pub no_input: bool,
    /// Denoising steps: 1, 2 or 4 with models that were distilled [default: 4 when distilled, else 50]
    #[arg(help_heading = SAMPLING, short, long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = whole_of("steps, from 1 to 1000"))]
    steps: Option<usize>,
    /// Seed of the noise, the same for all frames [default: random]
    #[arg(help_heading = SAMPLING, short = 'S', long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<Seed>,
    /// How strongly to follow the prompt
    ///
    /// 1 is without guidance; only undistilled models use it [default: the model's].
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
    /// Tell each second, in a line of JSON, how many frames came and went, the time from frame to image, and flicker:
    /// on standard error, or at the end of a file
    #[arg(help_heading = INFORMATION, long, value_name = "FILE")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub stats: Option<PathBuf>,
    /// Say nothing but errors
    #[arg(help_heading = INFORMATION, short, long)]
    pub quiet: bool,
    /// Say more, such as the device
    #[arg(help_heading = INFORMATION, short, long, conflicts_with = "quiet")]
    pub verbose: bool,
}

/// `--from` and `--to`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum VideoChoice {
    /// Three bytes a pixel, of the size of --size
    Rgb24,
    /// YUV4MPEG2, as `ffmpeg -f yuv4mpegpipe` writes it
    Y4m,
    /// One JPEG behind the other
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

/// The least `--fps`: Y4M says rates in thousandths.
const LEAST_RATE: f64 = 0.001;

/// `--fps`
fn rate(text: &str) -> std::result::Result<f64, String> {
    let rate = number(text, 1000.0)?;
    if rate >= LEAST_RATE { Ok(rate) } else { Err(format!("expected at least {LEAST_RATE}")) }
}

impl Live {
    /// What frames become; its inputs are the references behind the frame. Draws a seed where none is given.
    ///
    /// Errors when the strength of an adapter is no number.
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

    /// Which tokens of frames are those of an earlier one, where any are.
    pub fn reuse(&self) -> Option<Reuse> {
        self.reuse.map(|threshold| Reuse { threshold, refresh: self.refresh as usize })
    }

    /// Whether the seed is drawn.
    pub fn seed_is_random(&self) -> bool {
        self.seed.is_none_or(Seed::is_random)
    }

    pub fn from(&self) -> Option<VideoFormat> {
        self.from.map(VideoFormat::from)
    }

    pub fn to(&self) -> Option<VideoFormat> {
        self.to.map(VideoFormat::from)
    }

    /// The size of frames, where it is given.
    pub fn frame_size(&self) -> Option<[usize; 2]> {
        self.size.map(|size| [size.width, size.height]).filter(|_| !self.no_input)
    }

    /// How a model is opened.
    pub fn engine(&self) -> EngineArgs {
        EngineArgs {
            caches_references: self.kv,
            quantise: self.quantize.formats(),
            preview_decoder: (self.preview_decoder.clone())
                .map(|file| PreviewDecoder { file, decodes: Decodes::Images }),
            parallel: ParallelChoice::Off,
            ..self.on.engine()
        }
    }

    /// Errors where flags contradict each other in a way that clap does not express.
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
            return Err(Error::usage("without frames to read, nothing says what is written")
                .at("--no-input")
                .hint("add `--to mjpeg`, or another format"));
        }
        if self.adapters.named().into_iter().any(is_stdin) {
            return Err(Error::usage("standard input is no adapter here").at("--lora").hint("name a file"));
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
