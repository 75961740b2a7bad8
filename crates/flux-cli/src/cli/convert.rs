//! Flags of `flux convert`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use flux::model::WeightFormat;

use super::ProgressChoice;
use super::quantize::{Noted, format};
use super::values::{path, whole};

/// The help of `--format` without the names of the formats.
const FORMAT_HELP: &str = "Format of the weights of layers";

/// `flux convert`
#[derive(Args)]
pub struct Convert {
    /// Model folder, or folder or file of a transformer or text encoder
    #[arg(value_name = "IN", value_parser = path())]
    pub from: PathBuf,
    /// Output file: .gguf or .safetensors
    #[arg(value_name = "OUT", value_parser = path())]
    pub to: PathBuf,
    #[arg(short, long, value_name = "FORMAT", value_parser = format)]
    #[arg(help = FORMAT_HELP, long_help = format_help())]
    pub format: Noted<WeightFormat>,
    /// Component to convert [default: what IN is, else the transformer]
    #[arg(long, value_name = "NAME", value_enum)]
    pub component: Option<ComponentChoice>,
    /// tokenizer.json, or its folder [default: the model's, else Qwen3's]
    ///
    /// For the GGUF file of a text encoder.
    #[arg(long, value_name = "PATH", value_parser = path())]
    pub tokenizer: Option<PathBuf>,
    /// Never overwrite an existing file
    ///
    /// If the output file exists, the command fails before any work.
    #[arg(long)]
    pub no_clobber: bool,
    /// CPU threads, 1 to 1024 [default: $RAYON_NUM_THREADS, else one per core]
    #[arg(long, value_name = "N", value_parser = whole(1..=super::MAX_THREADS))]
    pub threads: Option<u64>,
    /// Progress display
    #[arg(long, value_name = "KIND", value_enum, default_value_t = ProgressChoice::Auto)]
    pub progress: ProgressChoice,
    /// Print only errors
    #[arg(short, long)]
    pub quiet: bool,
    /// Print one JSON object: the file, its tensors, bytes and seconds
    #[arg(long)]
    pub json: bool,
}

fn format_help() -> String {
    let names = |is_in: fn(WeightFormat) -> bool| {
        let names = WeightFormat::made().filter(|(_, format)| is_in(*format)).map(|(name, _)| name);
        names.collect::<Vec<_>>().join(", ")
    };
    format!(
        "{FORMAT_HELP}\n\nGGUF: {}; safetensors: {}",
        names(WeightFormat::is_in_gguf),
        names(WeightFormat::is_in_safetensors)
    )
}

/// `--component`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ComponentChoice {
    Transformer,
    Text,
}
