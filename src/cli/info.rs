//! Of which model or image to print what it is.

use std::path::PathBuf;

use clap::Args;

use super::values::path;
use super::{ModelArgs, QuantizeArgs};

/// `flux info`
#[derive(Args)]
pub struct Info {
    /// The model, as with --dir, or an image that flux made
    #[arg(value_name = "PATH", value_parser = path(), conflicts_with = "dir")]
    pub path: Option<PathBuf>,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub quantize: QuantizeArgs,
    /// Print one JSON object; of an image its recipe
    #[arg(long)]
    pub json: bool,
}
