//! `--quantize`: weights in fewer bits.

use clap::Args;
use flux::pipeline::Quantisation;

use super::MODEL;

/// How weights are stored.
#[derive(Args)]
pub struct QuantizeArgs {
    /// Bring weights to fewer bits while they are loaded: bf16, fp8, int8, mxfp8, nvfp4, q8_0, q6_k, q5_k, q5_1, q5_0,
    /// q4_k, q4_1 or q4_0; or `transformer=FORMAT,text=FORMAT`, either of which may be left out
    #[arg(help_heading = MODEL, long, value_name = "FORMAT")]
    pub quantize: Option<Quantisation>,
}
