//! Scales in the metadata of a file's header. Writers store them under keys of their own: in JSON of any depth, in the
//! text of a Python dictionary, or as `name=value`.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::peft::Peft;
use super::values::{HINT, is_none, is_same, unclear, unquoted};
use flux_base::error::{Error, Result};

/// Names of alpha, and of the rank.
const ALPHAS: [&str; 4] = ["ss_network_alpha", "network_alpha", "lora_alpha", "alpha"];
const RANKS: [&str; 8] = ["ss_network_dim", "network_dim", "network_rank", "lora_dim", "lora_rank", "rank", "dim", "r"];
/// A name that means alpha only in the header itself or next to a rank.
const BARE_ALPHA: &str = "alpha";
/// The key of OneTrainer's settings.
const ONE_TRAINER: &str = "ot_config";
/// Names that would scale all factors; no writer documents how.
const SCALES: [&str; 5] = ["scale", "scaling", "lora_scale", "lora_scaling", "network_scale"];
const ROOT_OF_RANK: &str = "use_rslora";
/// Names with `alpha` that scale no factors of these models: for convolutions, for masks of pixels, and in PEFT's
/// patterns.
const NO_MATTER: [&str; 5] = ["conv_alpha", "ss_conv_alpha", "alpha_mask", "ss_alpha_mask", "alpha_pattern"];
/// Parts of keys whose values are about images and may contain any words.
const ABOUT_IMAGES: [&str; 6] = ["tag", "dataset", "bucket", "caption", "prompt", "workflow"];
/// The key that `Peft::from_header` reads.
const PEFT: &str = "lora_adapter_metadata";

/// The scales in a header, each with its key.
#[derive(Debug, Default)]
pub struct Header {
    /// Configs in PEFT's format.
    pub peft: Vec<Peft>,
    /// A key that may hold a scale and is not understood.
    pub unread: Option<String>,
    alpha: Option<(String, f64)>,
    rank: Option<(String, f64)>,
    by_root: bool,
    /// A key of alpha, and a value that is not understood.
    unclear: Option<(String, String)>,
}

/// A value, with the keys that lead to it.
struct Leaf {
    path: String,
    name: String,
    text: String,
    /// `true` if the value is in the header itself.
    is_top: bool,
    /// `true` if a rank is next to the value.
    has_rank: bool,
}

impl Header {
    /// Reads the header's metadata.
    ///
    /// Errors if it holds a scale that this program does not apply.
    pub fn read(header: &HashMap<String, String>) -> Result<Self> {
        let mut read = Self::default();
        let mut leaves = Vec::new();
        let mut keys: Vec<_> = header.iter().filter(|(key, _)| *key != PEFT && !is_about_images(key)).collect();
        let place = |key: &str| ALPHAS.iter().position(|alpha| *alpha == key).unwrap_or(ALPHAS.len());
        keys.sort_by_key(|(key, _)| (place(key), *key));
        for (key, text) in keys {
            match parsed(text) {
                Some(value) => read.collect(key, &value, text, &mut leaves)?,
                None if key == ONE_TRAINER => {
                    read.unclear = Some((format!("{ONE_TRAINER}.lora_alpha"), "not JSON".to_string()));
                }
                None => {
                    let has_rank = RANKS.iter().any(|rank| header.contains_key(*rank));
                    let words = pairs(text);
                    if words.is_empty() && names_an_alpha(text) {
                        read.unread.get_or_insert_with(|| key.clone());
                    }
                    leaves.extend(words.into_iter().map(|leaf| Leaf { path: format!("{key}.{}", leaf.name), ..leaf }));
                    let (path, name, text) = (key.clone(), key.clone(), text.clone());
                    leaves.push(Leaf { path, name, text, is_top: true, has_rank });
                }
            }
        }
        leaves.iter().try_for_each(|leaf| read.add(leaf))?;
        if read.by_root && read.alpha.is_none() {
            return Err(unclear(ROOT_OF_RANK, "true"));
        }
        Ok(read)
    }

    /// Collects the values of a JSON text, and adds the configs in PEFT's format.
    fn collect(&mut self, path: &str, value: &Value, text: &str, leaves: &mut Vec<Leaf>) -> Result<()> {
        match value {
            Value::Object(fields) if is_peft(path, fields) => {
                self.peft.push(Peft::from_other_writer(text, fields, format!("the metadata `{path}`"))?);
            }
            Value::Object(fields) => {
                let has_rank = fields.keys().any(|name| RANKS.contains(&name.as_str()));
                for (name, value) in fields.iter().filter(|(name, _)| !is_about_images(name)) {
                    let path = format!("{path}.{name}");
                    match value {
                        Value::Object(_) | Value::Array(_) => self.collect(&path, value, &value.to_string(), leaves)?,
                        value => {
                            let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
                            leaves.push(Leaf { path, name: name.clone(), text, is_top: false, has_rank });
                        }
                    }
                }
            }
            Value::Array(values) => {
                for value in values {
                    match value {
                        Value::String(text) => leaves.extend(
                            pairs(text).into_iter().map(|leaf| Leaf { path: format!("{path}.{}", leaf.name), ..leaf }),
                        ),
                        value => self.collect(path, value, &value.to_string(), leaves)?,
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn add(&mut self, leaf: &Leaf) -> Result<()> {
        let (name, text) = (leaf.name.as_str(), unquoted(&leaf.text));
        if is_none(text) || NO_MATTER.contains(&name) {
            return Ok(());
        }
        let number = text.parse::<f64>();
        if ALPHAS.contains(&name) && (name != BARE_ALPHA || leaf.is_top || leaf.has_rank) {
            match (number, &self.alpha) {
                (Ok(value), None) if value.is_finite() => self.alpha = Some((leaf.path.clone(), value)),
                (Ok(value), Some((_, other))) if is_same(value, *other) => {}
                _ => self.unclear = Some((leaf.path.clone(), text.to_string())),
            }
        } else if RANKS.contains(&name) {
            if let (Ok(rank), None) = (number, &self.rank) {
                self.rank = Some((leaf.path.clone(), rank));
            }
        } else if name == ROOT_OF_RANK {
            match text.to_ascii_lowercase().as_str() {
                "true" | "1" => self.by_root = true,
                "0" => {}
                _ => return Err(unclear(&leaf.path, text)),
            }
        } else if SCALES.contains(&name) {
            match number {
                Ok(1.0) => {}
                _ if leaf.is_top => return Err(unclear(&leaf.path, text)),
                // In a trainer's settings, `scale` alone may belong to anything.
                _ if name != "scale" => drop(self.unread.get_or_insert_with(|| leaf.path.clone())),
                _ => {}
            }
        } else if name.to_ascii_lowercase().contains("alpha") {
            self.unread.get_or_insert_with(|| leaf.path.clone());
        }
        Ok(())
    }

    /// Returns the scale of factors that nothing else scales, with its source; `None` if the header has no alpha.
    pub fn scale(&self, layer: &str, rank: usize) -> Result<Option<(String, f64)>> {
        if let Some((key, text)) = &self.unclear {
            return Err(unclear(key, text));
        }
        let Some((key, alpha)) = &self.alpha else { return Ok(None) };
        if let Some((rank_key, said)) = self.rank.as_ref().filter(|(_, said)| *said != rank as f64) {
            let what = format!(
                "the header has alpha {alpha} (`{key}`) for rank {said} (`{rank_key}`), but `{layer}` has rank {rank}"
            );
            return Err(Error::new(what).hint(HINT));
        }
        let divisor = if self.by_root { (rank as f64).sqrt() } else { rank as f64 };
        Ok(Some((format!("the header's `{key}`"), alpha / divisor)))
    }
}

/// Returns `true` if an object has the format of PEFT's config.
fn is_peft(path: &str, fields: &Map<String, Value>) -> bool {
    let signs = ["r", "peft_type", "alpha_pattern", "rank_pattern", ROOT_OF_RANK];
    path != ONE_TRAINER && fields.contains_key("lora_alpha") && signs.iter().any(|sign| fields.contains_key(*sign))
}

fn is_about_images(key: &str) -> bool {
    ABOUT_IMAGES.iter().any(|word| key.contains(word))
}

/// Returns `true` if a text that is neither JSON nor pairs contains a name that trainers use for alpha.
fn names_an_alpha(text: &str) -> bool {
    ["lora_alpha", "network_alpha", "alpha_pattern"].iter().any(|name| text.contains(name))
}

/// Parses the object or list of a text, in JSON or as Python prints it.
fn parsed(text: &str) -> Option<Value> {
    let text = text.trim();
    if !text.starts_with(['{', '[']) {
        return None;
    }
    let of_python = || {
        let words = [("'", "\""), ("None", "null"), ("True", "true"), ("False", "false")];
        words.iter().fold(text.to_string(), |text, (from, to)| text.replace(from, to))
    };
    serde_json::from_str(text).or_else(|_| serde_json::from_str(&of_python())).ok()
}

/// Returns the `name=value` words of a text.
fn pairs(text: &str) -> Vec<Leaf> {
    let words = text.split([' ', ',', ';', '\n']).filter_map(|word| word.split_once('='));
    let leaf = |(name, value): (&str, &str)| Leaf {
        path: name.to_string(),
        name: name.trim_start_matches('-').to_string(),
        text: value.to_string(),
        is_top: false,
        has_rank: false,
    };
    words.map(leaf).collect()
}
