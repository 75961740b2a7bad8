//! Flags of `flux info`.

use std::path::PathBuf;

use clap::Args;

use super::values::path;
use super::{ModelArgs, QuantizeArgs};

/// `flux info`
#[derive(Args)]
pub struct Info {
    /// Model, as for --dir, an image, or an adapter
    ///
    /// For an adapter, it prints the norm of the change by block.
    #[arg(value_name = "PATH", value_parser = path(), conflicts_with = "dir")]
    pub path: Option<PathBuf>,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub quantize: QuantizeArgs,
    /// Print one JSON object; for an image, its recipe if it has one
    #[arg(long)]
    pub json: bool,
}
