//! What to convert, and to what.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use flux::model::WeightFormat;

use super::ProgressChoice;
use super::quantize::{Noted, format};
use super::values::{path, whole};

/// `flux convert`
#[derive(Args)]
pub struct Convert {
    /// A model's folder, or the folder or file of a transformer or text encoder
    #[arg(value_name = "IN", value_parser = path())]
    pub from: PathBuf,
    /// The file to write: .gguf or .safetensors
    #[arg(value_name = "OUT", value_parser = path())]
    pub to: PathBuf,
    #[arg(short, long, value_name = "FORMAT", value_parser = format, help = format_help())]
    pub format: Noted<WeightFormat>,
    /// Which part of a whole model [default: what the file or folder is, else the transformer]
    #[arg(long, value_name = "NAME", value_enum)]
    pub component: Option<ComponentChoice>,
    /// tokenizer.json, or a folder that has it, for the GGUF file of a text encoder [default: the model's, else
    /// Qwen3's]
    #[arg(long, value_name = "PATH", value_parser = path())]
    pub tokenizer: Option<PathBuf>,
    /// Fail before any work when OUT is there already, instead of overwriting it
    #[arg(long)]
    pub no_clobber: bool,
    /// Threads on the CPU, 1 to 1024 [default: $RAYON_NUM_THREADS, else one per core]
    #[arg(long, value_name = "N", value_parser = whole(1..=super::MAX_THREADS))]
    pub threads: Option<u64>,
    /// How to show how far it is: a bar on a terminal, plain lines, or nothing
    #[arg(long, value_name = "KIND", value_enum, default_value_t = ProgressChoice::Auto)]
    pub progress: ProgressChoice,
    /// Print nothing but errors
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
        "Format of the weights of layers; GGUF: {}; safetensors: {}",
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
