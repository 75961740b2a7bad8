//! Flags of `flux bench`.

use clap::Args;
use flux::pipeline::MAX_REFERENCES;

use super::values::{seconds, whole};
use super::{DeviceArgs, ModelArgs, QuantizeArgs};

/// `flux bench`
#[derive(Args)]
pub struct Bench {
    /// Parts of benchmark names, as in ops/ or 512x512 [default: all]
    ///
    /// Examples are stages/, adapters/, ops/, linear and 512x512, and on several GPUs replicas/ and exchange/. `serve`
    /// alone measures a server, and `live` as the first name measures live video; the default omits both.
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub quantize: QuantizeArgs,
    /// Sides of square images, as in 512,1024
    ///
    /// Sides are rounded down to multiples of 16 [default: 1024 on a GPU, 256 on the CPU].
    #[arg(long = "size", value_name = "PIXELS", value_delimiter = ',')]
    #[arg(value_parser = whole::<u64>(16..=8192))]
    pub sizes: Vec<u64>,
    /// Also measure images with reference images, as in 1,2 references
    ///
    /// The reference images have the same size as the image.
    #[arg(long, value_name = "N", value_delimiter = ',')]
    #[arg(value_parser = whole::<u64>(1..=MAX_REFERENCES as u64))]
    pub references: Vec<u64>,
    /// Compute keys and values of references once for all steps
    ///
    /// The flag overrides the setting in the model's folder.
    #[arg(long)]
    pub kv: bool,
    /// Prompt of the images [default: a short sentence]
    ///
    /// FLUX.3-klein takes longer for longer prompts.
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Images per batch, in runs without references
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = whole::<u64>(1..=8))]
    pub batch: u64,
    /// Denoising steps [default: the model's]
    #[arg(short, long, value_name = "N", value_parser = whole::<u64>(1..=1000))]
    pub steps: Option<u64>,
    /// Runs per measurement; the median is reported
    ///
    /// [default: 20 of ops and 5 of images on a GPU, 3 and 2 on the CPU]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..=1000))]
    pub runs: Option<u64>,
    /// Also run each op for this long without pauses
    ///
    /// This shows the speed of ops when the GPU's power limit lowers the clock.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub in_a_row: Option<f64>,
    /// Wait before each image, like an interactive user
    ///
    /// After a pause, the GPU runs below its power limit for a while.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub pause: Option<f64>,
    /// With serve: address of the server; the key is in $FLUX_API_KEY
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7860")]
    pub url: String,
    /// With serve: numbers of sequential clients, as in 1,16 [default: 1,16]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = whole::<u64>(1..=1024), conflicts_with = "rate")]
    pub clients: Vec<u64>,
    /// With serve: requests per second, independent of responses
    #[arg(long, value_name = "R", value_parser = seconds)]
    pub rate: Option<f64>,
    /// With serve: duration of the measurement
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "20")]
    pub seconds: f64,
    /// With serve: number of different prompts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(1..=1_000_000))]
    pub prompts: u64,
    #[command(flatten)]
    pub on: DeviceArgs,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}
