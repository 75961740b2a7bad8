//! `--quantize`: quantized weights.

use clap::Args;
use flux::model::{Quantization, WeightFormat, weight_format};

use super::MODEL;

/// A value with notes for the user.
#[derive(Debug, Clone)]
pub struct Noted<T> {
    pub value: T,
    pub notes: Vec<String>,
}

/// Flags for the storage of weights.
#[derive(Args)]
pub struct QuantizeArgs {
    /// Quantize weights while loading
    #[arg(help_heading = MODEL, long, value_name = "FORMAT", value_parser = quantization, long_help = long_help())]
    quantize: Option<Noted<Quantization>>,
}

impl QuantizeArgs {
    /// Returns the formats to quantize weights to.
    pub fn formats(&self) -> Option<Quantization> {
        self.quantize.as_ref().map(|quantize| quantize.value)
    }

    /// Returns the notes on the format names.
    pub fn notes(&self) -> &[String] {
        self.quantize.as_ref().map_or(&[], |quantize| &quantize.notes)
    }
}

fn long_help() -> String {
    let names: Vec<&str> = WeightFormat::made().map(|(name, _)| name).collect();
    let (last, others) = names.split_last().expect("at least one format can be created");
    format!(
        "Quantize weights while loading\n\nFormats are {} and {last}. With `transformer=FORMAT,text=FORMAT`, each part \
         has its own format, and either part may be omitted.",
        others.join(", ")
    )
}

fn quantization(text: &str) -> Result<Noted<Quantization>, String> {
    Quantization::read(text).map(|(value, notes)| Noted { value, notes })
}

/// Parses the name of a format.
pub fn format(name: &str) -> Result<Noted<WeightFormat>, String> {
    weight_format(name).map(|(value, note)| Noted { value, notes: Vec::from_iter(note) })
}
