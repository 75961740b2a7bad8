//! `--lora`: files that change the model.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use flux::Result;
use flux::pipeline::{Adapter, AdapterUse};

use super::MODEL;

/// Adapters of the model.
#[derive(Args)]
pub struct AdapterArgs {
    /// Adapter (LoRA, LoKr, LoHa, DoRA) and how strongly it changes the model, 1 when left out; may be given several
    /// times
    #[arg(help_heading = MODEL, long, value_name = "FILE[:STRENGTH]")]
    #[arg(value_parser = OsStringValueParser::new().map(Lora::from))]
    lora: Vec<Lora>,
}

/// `FILE` or `FILE:STRENGTH`
#[derive(Debug, Clone, PartialEq)]
struct Lora {
    path: PathBuf,
    strength: f32,
}

impl From<OsString> for Lora {
    /// Splits at the last colon if a number follows: names may have colons.
    fn from(text: OsString) -> Self {
        let split = text.to_str().and_then(|text| text.rsplit_once(':'));
        let number = |text: &str| text.parse().ok().filter(|_| text.contains(|c: char| c.is_ascii_digit()));
        match split.and_then(|(file, strength)| Some((file, number(strength)?))) {
            Some((file, strength)) if !file.is_empty() => Self { path: file.into(), strength },
            _ => Self { path: text.into(), strength: 1.0 },
        }
    }
}

impl AdapterArgs {
    /// The adapters, in the order of the flags. `open` opens a file, each once.
    ///
    /// Errors as `open`.
    pub fn open(&self, open: impl Fn(&Path) -> Result<Arc<Adapter>>) -> Result<Vec<AdapterUse>> {
        let mut uses: Vec<AdapterUse> = Vec::new();
        for Lora { path, strength } in &self.lora {
            let known = uses.iter().find(|used| used.adapter.path() == path).map(|used| Arc::clone(&used.adapter));
            let adapter = known.map_or_else(|| open(path), Ok)?;
            uses.push(AdapterUse { adapter, strength: *strength });
        }
        Ok(uses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strength_is_a_number_behind_the_last_colon() {
        let parse = |text: &str| {
            let Lora { path, strength } = Lora::from(OsString::from(text));
            (path.to_str().unwrap().to_string(), strength)
        };
        for (text, path, strength) in [
            ("a.safetensors", "a.safetensors", 1.0),
            ("a.safetensors:0.8", "a.safetensors", 0.8),
            ("a:-1", "a", -1.0),
            ("a:0", "a", 0.0),
            ("a:1e-1", "a", 0.1),
            ("C:/a:b.safetensors:2", "C:/a:b.safetensors", 2.0),
            ("C:/a.safetensors", "C:/a.safetensors", 1.0),
            ("a:b", "a:b", 1.0),
            ("a:", "a:", 1.0),
            ("a:nan", "a:nan", 1.0),
            (":2", ":2", 1.0),
        ] {
            assert_eq!(parse(text), (path.to_string(), strength), "{text}");
        }
    }
}
