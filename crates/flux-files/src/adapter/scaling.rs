//! Scales of an adapter's factors: alpha divided by the rank, from the place that the writer chose.
//!
//! | place | precedence |
//! |---|---|
//! | PEFT: `lora_adapter_metadata` of the header, `adapter_config.json` | first, for factors with PEFT's names |
//! | a tensor `alpha` next to the factors | for all other factors |
//! | the header's `ss_network_alpha` (kohya), `ot_config` (OneTrainer), `lora_alpha`, at any depth | last |
//!
//! A config in the header in PEFT's format counts as PEFT's, under any key. A contradiction that this table does not
//! settle is an error, and so is a scale that is not a number.

use std::cell::Cell;
use std::collections::HashMap;

use super::header::Header;
use super::peft::Peft;
use super::values::is_same;
use flux_base::error::{Error, Result};

/// All scales that a file holds besides its tensors.
#[derive(Debug, Default)]
pub struct Scaling {
    peft: Vec<Peft>,
    header: Header,
    /// `true` once factors were scaled by 1 because no scale was found.
    is_assumed: Cell<bool>,
}

/// The factors of a layer.
pub struct Factors<'a> {
    /// All names of the layer.
    pub names: &'a [String],
    /// The key of the alpha tensor, and its value.
    pub alpha: Option<(&'a str, f64)>,
    /// `true` if the factors have PEFT's names.
    pub is_peft: bool,
}

impl Scaling {
    /// Reads the scales from the header's metadata, and from PEFT's `config` that belongs to the file.
    ///
    /// Errors if one of them holds a setting that this program does not apply.
    pub fn new(header: &HashMap<String, String>, config: Option<Peft>) -> Result<Self> {
        let found = Header::read(header)?;
        let peft = Peft::from_header(header)?.into_iter().chain(found.peft.iter().cloned()).chain(config);
        Ok(Self { peft: peft.collect(), header: found, is_assumed: Cell::new(false) })
    }

    /// Returns the configs of PEFT.
    pub fn peft(&self) -> &[Peft] {
        &self.peft
    }

    /// Returns a note that names a key of the header that may hold a scale, if factors were scaled by 1 for lack of
    /// one.
    pub fn note(&self) -> Option<String> {
        let key = self.header.unread.as_ref().filter(|_| self.is_assumed.get())?;
        Some(format!("the header's `{key}` is not recognized: the factors are applied with scale 1"))
    }

    /// Returns the scale of the product of factors, and `true` if it overrides a different alpha tensor.
    ///
    /// Errors if two sources contradict each other, or a scale is not a number or overflows float32.
    pub fn scale_for(&self, factors: &Factors<'_>, rank: usize) -> Result<(f32, bool)> {
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
            (None, None) => {
                let said = self.header.scale(layer, rank)?;
                self.is_assumed.set(self.is_assumed.get() || said.is_none());
                (said.unwrap_or((String::new(), 1.0)), false)
            }
        };
        let (source, value) = scale;
        match value as f32 {
            narrow if narrow.is_finite() => Ok((narrow, is_overridden)),
            _ => Err(Error::new(format!(
                "the factors of `{layer}` are multiplied by {value:e} ({source}), which overflows float32"
            ))
            .hint("the adapter is damaged: fetch it again")),
        }
    }
}

fn contradiction(layer: &str, one: &(String, f64), other: &(String, f64)) -> Error {
    let what = format!("the factors of `{layer}` are scaled by {} ({}) and by {} ({})", one.1, one.0, other.1, other.0);
    Error::new(what).hint("remove the scale that does not belong to this adapter, or fetch the complete adapter again")
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = r#"{"transformer.r": 4, "transformer.lora_alpha": 8}"#;

    fn scale(header: &[(&str, &str)], alpha: Option<f64>, is_peft: bool) -> Result<(f32, bool)> {
        let header = header.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let factors = Factors { names: &["a".to_string()], alpha: alpha.map(|alpha| ("a.alpha", alpha)), is_peft };
        Scaling::new(&header, None)?.scale_for(&factors, 4)
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
        assert_eq!(scale(&[peft], Some(8.0), false).unwrap(), (2.0, false), "both agree");
        assert_eq!(scale(&[peft], Some(1.0), true).unwrap(), (2.0, true), "the metadata takes precedence");
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
        refused(&[("ot_config", "{")], None, &["`ot_config.lora_alpha` is `not JSON`"]);
        refused(&[("ss_network_alpha", "2"), ("alpha", "3")], None, &["`alpha` is `3`"]);
        refused(&[("ss_network_alpha", "2"), ("ss_network_dim", "8")], None, &["rank 8 (`ss_network_dim`)", "rank 4"]);
        refused(&[("lora_scale", "0.5")], Some(1.0), &["`lora_scale` is `0.5`"]);
        refused(&[("use_rslora", "true")], None, &["`use_rslora` is `true`"]);
        refused(&[("lora_config", r#"{"lora_alpha": "x", "r": 4}"#)], None, &["`lora_alpha` is \"x\""]);
    }

    #[test]
    fn a_config_in_the_header_counts_at_any_depth_and_whatever_its_key_is() {
        for (header, expected) in [
            (("lora_config", r#"{"r": 4, "lora_alpha": 2}"#), 0.5),
            (("lora_config", r#"{"r": "4", "lora_alpha": "2"}"#), 0.5),
            (("lora_config", "{'r': 4, 'lora_alpha': 2, 'bias': None, 'use_rslora': False}"), 0.5),
            (("peft_config", r#"{"default": {"peft_type": "LORA", "r": 4, "lora_alpha": 2, "steps": 7}}"#), 0.5),
            (("lora_config", r#"{"r": 4, "lora_alpha": 2, "use_rslora": true}"#), 1.0),
            (("x", r#"{"r": 8, "rank_pattern": {"a": 4}, "lora_alpha": 8, "alpha_pattern": {"a": 2}}"#), 0.5),
            (("training", r#"{"network": {"alpha": 2, "rank": 4}}"#), 0.5),
            (("args", r#"["network_dim=4", "network_alpha=2.0"]"#), 0.5),
            (("ss_network_args", r#"{"lora_alpha": "2", "conv_alpha": "1"}"#), 0.5),
            (("network_args", "network_dim=4 network_alpha=2"), 0.5),
            (("ss_tag_frequency", r#"{"a": {"lora_alpha": 9, "alpha": 3, "rank": 1}}"#), 1.0),
            (("ss_network_args", r#"{"conv_alpha": "1"}"#), 1.0),
        ] {
            assert_eq!(scale(&[header], None, true).unwrap().0, expected, "{header:?}");
        }
        let root = [("lora_alpha", "2"), ("use_rslora", "True"), ("rank", "4")];
        assert_eq!(scale(&root, None, false).unwrap(), (1.0, false));
        refused(&[("args", r#"{"lora_alpha": 2, "lora_rank": 8}"#)], None, &["rank 8 (`args.lora_rank`)", "rank 4"]);
        refused(&[("lora_config", r#"{"lora_alpha": 2, "r": 8}"#)], None, &["`lora_config`", "rank 8", "rank 4"]);
    }

    #[test]
    fn what_may_be_an_alpha_and_is_not_understood_is_noted_where_nothing_else_says_it() {
        let note = |header: &[(&str, &str)], alpha: Option<f64>| {
            let header = header.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
            let scaling = Scaling::new(&header, None).unwrap();
            let names = ["a".to_string()];
            let factors = Factors { names: &names, alpha: alpha.map(|alpha| ("a.alpha", alpha)), is_peft: true };
            scaling.scale_for(&factors, 4).unwrap();
            scaling.note()
        };
        for header in [
            ("block_alphas", "1,2,3"),
            ("config", r#"{"network": {"linear_alpha": 2}}"#),
            ("lora_config", "r: 4\nlora_alpha: 2"),
            ("settings", r#"{"a": {"alpha": 3}}"#),
            ("settings", r#"{"lora_scale": 0.5}"#),
        ] {
            let said = note(&[header], None).unwrap_or_else(|| panic!("{header:?}"));
            assert!(said.contains(header.0) && said.contains("scale 1"), "{said}");
            assert_eq!(note(&[header], Some(4.0)), None, "{header:?}");
            assert_eq!(note(&[header, ("lora_alpha", "2")], None), None, "{header:?}");
        }
        for fine in [("ss_alpha_mask", "None"), ("conv_alpha", "3"), ("title", "alpha male"), ("format", "pt")] {
            assert_eq!(note(&[fine], None), None, "{fine:?}");
        }
    }

    #[test]
    fn a_scale_that_overflows_is_refused() {
        let header = [("lora_adapter_metadata", r#"{"lora_alpha": 1e40}"#)];
        refused(&header, None, &["multiplied by 2.5e39", "overflows float32"]);
        refused(&[], Some(1e300), &["tensor `a.alpha`", "overflows float32"]);
    }
}
