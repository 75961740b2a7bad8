//! What to measure.

use clap::Args;
use flux::pipeline::MAX_REFERENCES;

use super::values::{seconds, whole};
use super::{DeviceArgs, ModelArgs, QuantizeArgs};

/// `flux bench`
#[derive(Args)]
pub struct Bench {
    /// Parts of the names of what to measure, such as stages/, adapters/, ops/, linear or 512x512; on several GPUs also
    /// replicas/ and exchange/; `serve` alone measures a server, and `live` first video as it comes in [default: all
    /// but these]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub quantize: QuantizeArgs,
    /// Sides of the square images, such as 512,1024, rounded down to multiples of 16 [default: 1024 on a GPU, 256 on
    /// the CPU]
    #[arg(long = "size", value_name = "PIXELS", value_delimiter = ',')]
    #[arg(value_parser = whole::<u64>(16..=8192))]
    pub sizes: Vec<u64>,
    /// Numbers of reference images, such as 1,2: also measure images that are made from so many of their own size
    #[arg(long, value_name = "N", value_delimiter = ',')]
    #[arg(value_parser = whole::<u64>(1..=MAX_REFERENCES as u64))]
    pub references: Vec<u64>,
    /// Make keys and values of the references once for all steps, whatever the model's folder says
    #[arg(long)]
    pub kv: bool,
    /// What images show, which takes FLUX.3-klein longer the longer it is [default: a short sentence]
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Images at once, where there are no references
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = whole::<u64>(1..=8))]
    pub batch: u64,
    /// Denoising steps [default: the model's]
    #[arg(short, long, value_name = "N", value_parser = whole::<u64>(1..=1000))]
    pub steps: Option<u64>,
    /// Runs of which the median is taken [default: 20 of ops and 5 of images on a GPU, 3 and 2 on the CPU]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..=1000))]
    pub runs: Option<u64>,
    /// Also run every op for so long without a pause, which shows how long it takes when the GPU's power limit lowers
    /// the clock
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub in_a_row: Option<f64>,
    /// Wait for so long before every image, as someone does who looks at each; the GPU is below its power limit for a
    /// while then
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub pause: Option<f64>,
    /// With serve: where the server is; the key is in $FLUX_API_KEY
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7860")]
    pub url: String,
    /// With serve: clients that send one request after the other, such as 1,16 [default: 1,16]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = whole::<u64>(1..=1024), conflicts_with = "rate")]
    pub clients: Vec<u64>,
    /// With serve: requests a second, whatever the answers do
    #[arg(long, value_name = "R", value_parser = seconds)]
    pub rate: Option<f64>,
    /// With serve: how long
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "20")]
    pub seconds: f64,
    /// With serve: different prompts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(1..=1_000_000))]
    pub prompts: u64,
    #[command(flatten)]
    pub on: DeviceArgs,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}
