//! `--quantize`: weights in fewer bits.

use clap::Args;
use flux::model::{Quantisation, WeightFormat, weight_format};

use super::MODEL;

/// A value, and what to tell whoever gave it.
#[derive(Debug, Clone)]
pub struct Noted<T> {
    pub value: T,
    pub notes: Vec<String>,
}

/// How weights are stored.
#[derive(Args)]
pub struct QuantizeArgs {
    /// Bring weights to fewer bits as they load
    #[arg(help_heading = MODEL, long, value_name = "FORMAT", value_parser = quantisation, long_help = long_help())]
    quantize: Option<Noted<Quantisation>>,
}

impl QuantizeArgs {
    /// The formats that weights are brought to.
    pub fn formats(&self) -> Option<Quantisation> {
        self.quantize.as_ref().map(|quantize| quantize.value)
    }

    /// What to tell of the names of formats.
    pub fn notes(&self) -> &[String] {
        self.quantize.as_ref().map_or(&[], |quantize| &quantize.notes)
    }
}

fn long_help() -> String {
    let names: Vec<&str> = WeightFormat::made().map(|(name, _)| name).collect();
    let (last, others) = names.split_last().expect("a format is made");
    format!(
        "Bring weights to fewer bits as they load\n\nFormats are {} and {last}; with `transformer=FORMAT,text=FORMAT` \
         each part has its own, and either may be left out.",
        others.join(", ")
    )
}

fn quantisation(text: &str) -> Result<Noted<Quantisation>, String> {
    Quantisation::read(text).map(|(value, notes)| Noted { value, notes })
}

/// The format of a name.
pub fn format(name: &str) -> Result<Noted<WeightFormat>, String> {
    weight_format(name).map(|(value, note)| Noted { value, notes: Vec::from_iter(note) })
}
