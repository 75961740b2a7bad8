//! What the factors of an adapter are multiplied by: alpha by their rank, from wherever a writer put it.
//!
//! | where | counts |
//! |---|---|
//! | PEFT: `lora_adapter_metadata` of the header, `adapter_config.json` | first, for factors that are named as PEFT's |
//! | a tensor `alpha` beside the factors | for all others |
//! | the header's `ss_network_alpha` (kohya), `ot_config` (OneTrainer), `lora_alpha` | where neither is there |
//!
//! What contradicts another in a way that this table does not settle is an error, and so is a scale that is no number.

use std::collections::HashMap;

use serde_json::Value;

use super::peft::Peft;
use crate::error::{Error, Result};

/// Keys of the header that are an alpha, or a rank.
const ALPHAS: [&str; 4] = ["ss_network_alpha", "network_alpha", "lora_alpha", "alpha"];
const RANKS: [&str; 6] = ["ss_network_dim", "network_dim", "network_rank", "lora_dim", "lora_rank", "rank"];
/// Where OneTrainer puts its settings.
const ONE_TRAINER: &str = "ot_config";
/// Keys of the header that would scale all factors, in ways that no writer has said.
const SCALES: [&str; 6] = ["scale", "scaling", "lora_scale", "lora_scaling", "network_scale", "use_rslora"];
const HINT: &str = "export the adapter again, with a tensor `alpha` beside the factors of each layer";
/// Scales that differ by less are the same: files hold them in few bits.
const SAME: f64 = 1e-2;

/// All scales that a file says beside its tensors.
#[derive(Debug, Default)]
pub struct Scaling {
    peft: Vec<Peft>,
    header: Header,
}

/// Numbers of the header, each with its key.
#[derive(Debug, Default)]
struct Header {
    alpha: Option<(String, f64)>,
    rank: Option<(String, f64)>,
    /// A key and its value that is no number.
    unclear: Option<(String, String)>,
}

/// The factors of a layer.
pub struct Factors<'a> {
    /// All names of the layer.
    pub names: &'a [String],
    /// The tensor that says alpha, and its value.
    pub alpha: Option<(&'a str, f64)>,
    /// Whether they are named as PEFT's.
    pub is_peft: bool,
}

impl Scaling {
    /// Reads it from the header's metadata, and from the `config` of PEFT that belongs to the file.
    ///
    /// Errors when it says what this program does not do.
    pub fn new(header: &HashMap<String, String>, config: Option<Peft>) -> Result<Self> {
        for key in SCALES {
            let said = header.get(key).map(|text| unquoted(text));
            if let Some(text) =
                said.filter(|text| !is_none(text) && !text.parse::<f64>().is_ok_and(|value| value == 1.0))
            {
                return Err(unclear(key, text));
            }
        }
        Ok(Self { peft: Peft::of_header(header)?.into_iter().chain(config).collect(), header: Header::read(header) })
    }

    /// What PEFT says.
    pub fn peft(&self) -> &[Peft] {
        &self.peft
    }

    /// What the product of factors is multiplied by, and whether the tensor of alpha says something else.
    ///
    /// Errors when two say something else, a scale is no number, or more than float32 holds.
    pub fn of(&self, factors: &Factors<'_>, rank: usize) -> Result<(f32, bool)> {
        let layer = factors.names.first().map_or("", String::as_str);
        let by_tensor = factors.alpha.map(|(key, alpha)| (format!("tensor `{key}`"), alpha / rank as f64));
        let mut by_peft: Option<(String, f64)> = None;
        for peft in &self.peft {
            let Some(scale) = peft.scale(factors.names, rank)? else { continue };
            let said = (peft.source().to_string(), scale);
            if let Some(other) = by_peft.as_ref().filter(|other| !is_same(other.1, scale)) {
                return Err(contradiction(layer, other, &said));
            }
            by_peft = Some(said);
        }
        let (scale, is_overridden) = match (by_peft, by_tensor) {
            (Some(peft), Some(tensor)) if is_same(peft.1, tensor.1) => (tensor, false),
            (Some(peft), Some(tensor)) if !factors.is_peft => return Err(contradiction(layer, &peft, &tensor)),
            (Some(peft), tensor) => (peft, tensor.is_some()),
            (None, Some(tensor)) => (tensor, false),
            (None, None) => (self.header.scale(layer, rank)?, false),
        };
        let (source, value) = scale;
        match value as f32 {
            narrow if narrow.is_finite() => Ok((narrow, is_overridden)),
            _ => Err(Error::new(format!(
                "the factors of `{layer}` are multiplied by {value:e} ({source}), more than float32 holds"
            ))
            .hint("the adapter is damaged: fetch it again")),
        }
    }
}

impl Header {
    fn read(header: &HashMap<String, String>) -> Self {
        let mut read = Self::default();
        let config = header.get(ONE_TRAINER).map(|text| serde_json::from_str::<Value>(text));
        let of_config = |field: &str| match &config {
            Some(Ok(config)) => config.get(field).map(Value::to_string),
            Some(Err(_)) => Some("no JSON".to_string()),
            None => None,
        };
        let config_key = |field: &str| format!("{ONE_TRAINER}.{field}");
        let of_header = |key: &&str| Some((key.to_string(), header.get(*key)?.clone()));
        let alphas = ALPHAS.iter().filter_map(of_header);
        let alphas = alphas.chain(of_config("lora_alpha").map(|text| (config_key("lora_alpha"), text)));
        for (key, text) in alphas.filter(|(_, text)| !is_none(unquoted(text))) {
            match (unquoted(&text).parse::<f64>(), &read.alpha) {
                (Ok(value), None) if value.is_finite() => read.alpha = Some((key, value)),
                (Ok(value), Some((_, other))) if is_same(value, *other) => {}
                _ => read.unclear = Some((key, unquoted(&text).to_string())),
            }
        }
        let ranks = RANKS.iter().filter_map(of_header);
        let ranks = ranks.chain(of_config("lora_rank").map(|text| (config_key("lora_rank"), text)));
        read.rank = ranks.filter_map(|(key, text)| Some((key, unquoted(&text).parse().ok()?))).next();
        read
    }

    /// The scale of factors of which nothing else says it, and where it is from; 1 where this does not say it either.
    fn scale(&self, layer: &str, rank: usize) -> Result<(String, f64)> {
        if let Some((key, text)) = &self.unclear {
            return Err(unclear(key, text));
        }
        let Some((key, alpha)) = &self.alpha else { return Ok((String::new(), 1.0)) };
        if let Some((rank_key, said)) = self.rank.as_ref().filter(|(_, said)| *said != rank as f64) {
            let what = format!(
                "the header says alpha {alpha} (`{key}`) for rank {said} (`{rank_key}`), and `{layer}` has rank {rank}"
            );
            return Err(Error::new(what).hint(HINT));
        }
        Ok((format!("the header's `{key}`"), alpha / rank as f64))
    }
}

fn is_same(a: f64, b: f64) -> bool {
    (a - b).abs() <= SAME * a.abs().max(b.abs())
}

/// A value without spaces and quotes around it.
fn unquoted(text: &str) -> &str {
    text.trim().trim_matches(['"', '\''])
}

/// Whether a value says that nothing is said.
fn is_none(text: &str) -> bool {
    text.is_empty() || ["none", "null", "false"].iter().any(|none| text.eq_ignore_ascii_case(none))
}

fn unclear(key: &str, text: &str) -> Error {
    const MOST_CHARS: usize = 40;
    let text: String = text.chars().take(MOST_CHARS).collect();
    Error::new(format!("the header says `{key}` is `{text}`, which does not say how the factors are scaled")).hint(HINT)
}

fn contradiction(layer: &str, one: &(String, f64), other: &(String, f64)) -> Error {
    let what = format!("the factors of `{layer}` are scaled by {} ({}) and by {} ({})", one.1, one.0, other.1, other.0);
    Error::new(what).hint("remove what is not of this adapter, or fetch it again as a whole")
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = r#"{"transformer.r": 4, "transformer.lora_alpha": 8}"#;

    fn scale(header: &[(&str, &str)], alpha: Option<f64>, is_peft: bool) -> Result<(f32, bool)> {
        let header = header.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let factors = Factors { names: &["a".to_string()], alpha: alpha.map(|alpha| ("a.alpha", alpha)), is_peft };
        Scaling::new(&header, None)?.of(&factors, 4)
    }

    #[track_caller]
    fn refused(header: &[(&str, &str)], alpha: Option<f64>, words: &[&str]) {
        let error = scale(header, alpha, false).unwrap_err().to_string();
        assert!(error.contains("hint: ") && words.iter().all(|word| error.contains(word)), "{error}");
    }

    #[test]
    fn scales_are_taken_from_where_writers_put_them() {
        let peft = ("lora_adapter_metadata", METADATA);
        assert_eq!(scale(&[], None, true).unwrap(), (1.0, false));
        assert_eq!(scale(&[], Some(2.0), true).unwrap(), (0.5, false));
        assert_eq!(scale(&[peft], None, false).unwrap(), (2.0, false));
        assert_eq!(scale(&[peft], Some(8.0), false).unwrap(), (2.0, false), "both say the same");
        assert_eq!(scale(&[peft], Some(1.0), true).unwrap(), (2.0, true), "the metadata counts");
        refused(&[peft], Some(1.0), &["`a` are scaled by 2", "by 0.25", "tensor `a.alpha`"]);
        for header in [
            [("ss_network_alpha", "2"), ("ss_network_dim", "4")],
            [("ss_network_alpha", "2.0"), ("ss_network_dim", "Dynamic")],
            [("lora_alpha", "\"2\""), ("lora_rank", "4")],
            [("ot_config", r#"{"lora_alpha": 2.0, "lora_rank": 4}"#), ("format", "pt")],
        ] {
            assert_eq!(scale(&header, None, false).unwrap(), (0.5, false), "{header:?}");
            assert_eq!(scale(&header, Some(1.0), false).unwrap(), (0.25, false), "tensors count: {header:?}");
        }
        assert_eq!(scale(&[("ss_network_alpha", "None"), ("scale", "1.0")], None, false).unwrap(), (1.0, false));
        assert_eq!(scale(&[("ss_network_alpha", "Dynamic")], Some(1.0), false).unwrap(), (0.25, false));
    }

    #[test]
    fn a_scale_that_is_not_understood_is_refused() {
        refused(&[("ss_network_alpha", "Dynamic")], None, &["`ss_network_alpha` is `Dynamic`"]);
        refused(&[("ss_network_alpha", "nan")], None, &["`ss_network_alpha` is `nan`"]);
        refused(&[("ot_config", "{")], None, &["`ot_config.lora_alpha` is `no JSON`"]);
        refused(&[("ss_network_alpha", "2"), ("alpha", "3")], None, &["`alpha` is `3`"]);
        refused(
            &[("ss_network_alpha", "2"), ("ss_network_dim", "8")],
            None,
            &["for rank 8 (`ss_network_dim`)", "rank 4"],
        );
        refused(&[("lora_scale", "0.5")], Some(1.0), &["`lora_scale` is `0.5`"]);
    }

    #[test]
    fn a_scale_that_overflows_is_refused() {
        let header = [("lora_adapter_metadata", r#"{"lora_alpha": 1e40}"#)];
        refused(&header, None, &["multiplied by 2.5e39", "more than float32 holds"]);
        refused(&[], Some(1e300), &["tensor `a.alpha`", "more than float32 holds"]);
    }
}
