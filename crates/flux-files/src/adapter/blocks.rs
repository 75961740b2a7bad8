//! Strengths of an adapter by blocks of the transformer, such as `single=0.5,double0-2=0,other=1`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::modules::Modules;
use crate::catalog::own_models::Architecture;
use flux_base::error::{Error, Field, Result};

/// The group of layers outside blocks: embedders, modulations and the final layer.
pub const OTHER: &str = "other";
const FLUX2: [Group; 2] = [
    Group { name: "double", names: ["transformer_blocks", "double_blocks"] },
    Group { name: "single", names: ["single_transformer_blocks", "single_blocks"] },
];
const FLUX3: [Group; 4] = [
    Group { name: "text", names: ["txt_mode_blocks", "txt_mode_blocks"] },
    Group { name: "image", names: ["mode_blocks.image", "content_mode_blocks.image"] },
    Group { name: "reference", names: ["mode_blocks.image_cond", "content_mode_blocks.image_cond"] },
    Group { name: "joint", names: ["single_transformer_blocks", "single_blocks"] },
];
/// Maximum length of a text of strengths, in bytes.
const MAX_TEXT: usize = 4096;

/// Blocks of one kind.
pub(super) struct Group {
    pub name: &'static str,
    /// The words before a block's number: in the checkpoint, and in single files.
    pub names: [&'static str; 2],
}

/// Returns the groups of blocks of an architecture.
pub(super) fn groups(architecture: Architecture) -> &'static [Group] {
    match architecture {
        Architecture::Flux2 => &FLUX2,
        Architecture::Flux3 => &FLUX3,
    }
}

/// Returns the group of a layer by its name in the checkpoint, and the number of its block.
fn block_of(layer: &str, architecture: Architecture) -> (&'static str, Option<usize>) {
    let block = groups(architecture).iter().find_map(|Group { name, names: [own, _] }| {
        let number = layer.strip_prefix(own)?.strip_prefix('.')?.split('.').next()?;
        Some((*name, number.parse().ok()?))
    });
    block.map_or((OTHER, None), |(group, number)| (group, Some(number)))
}

/// Factors of an adapter's strength by blocks. Later ones win, and blocks without one have the factor 1.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BlockStrengths(Vec<Rule>);

/// The factor of a group, or of some of its blocks.
#[derive(Debug, Clone, PartialEq)]
struct Rule {
    group: &'static str,
    /// The first and the last block; `None` for all blocks and for the last of all.
    blocks: Option<(usize, Option<usize>)>,
    factor: f32,
}

impl BlockStrengths {
    /// Returns `true` if all blocks have the factor 1.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the factor of a layer by its name in the checkpoint.
    pub fn factor(&self, layer: &str, architecture: Architecture) -> f32 {
        if self.is_empty() {
            return 1.0;
        }
        let (group, number) = block_of(layer, architecture);
        let is_meant = |rule: &&Rule| {
            let is_in = |(first, last): (usize, Option<usize>)| {
                number.is_some_and(|number| number >= first && last.is_none_or(|last| number <= last))
            };
            rule.group == group && rule.blocks.is_none_or(is_in)
        };
        self.0.iter().rev().find(is_meant).map_or(1.0, |rule| rule.factor)
    }

    /// Returns the largest magnitude of the factors, at least 1.
    pub fn largest(&self) -> f32 {
        self.0.iter().fold(1.0, |most, rule| most.max(rule.factor.abs()))
    }

    /// Returns the text behind a strength: a colon and the factors, or nothing.
    pub fn suffix(&self) -> Cow<'static, str> {
        if self.is_empty() { "".into() } else { format!(":{self}").into() }
    }

    /// Errors if the model lacks a group or a block.
    pub fn check(&self, modules: &Modules) -> Result<()> {
        let groups = groups(modules.architecture());
        let [each, all] = modules.blocks();
        // The last group has the blocks of all streams.
        let count = |group: &str| if groups.last().is_some_and(|last| last.name == group) { all } else { each };
        for Rule { group, blocks, .. } in &self.0 {
            let wrong = |what: String| {
                let known =
                    groups.iter().map(|Group { name, .. }| format!("{name} (0 to {})", count(name).saturating_sub(1)));
                let known = known.collect::<Vec<_>>().join(", ");
                let error = Error::usage(what).for_field(Field::Adapters);
                Err(error.hint(format!("the blocks of this model are {known}, and {OTHER} for all other layers")))
            };
            if *group != OTHER && !groups.iter().any(|known| known.name == *group) {
                return wrong(format!("the model has no blocks `{group}`"));
            }
            if let Some((first, last)) = blocks
                && (*group == OTHER || last.unwrap_or(*first).max(*first) >= count(group))
            {
                return wrong(format!("the model has no block `{group}{}`", last.unwrap_or(*first)));
            }
        }
        Ok(())
    }
}

/// Reads factors such as `single=0.5,double0-2=0,single12-=1,other=1`.
impl FromStr for BlockStrengths {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text.len() > MAX_TEXT {
            return Err(format!("the strengths of blocks are longer than {MAX_TEXT} bytes"));
        }
        let rule = |part: &str| {
            let wrong =
                || format!("`{part}` is not a strength of blocks, expected one such as single=0.5 or double0-2=0");
            let (blocks, factor) = part.split_once('=').ok_or_else(wrong)?;
            let (blocks, factor) = (blocks.trim(), factor.trim());
            let digits = blocks.find(|c: char| c.is_ascii_digit()).unwrap_or(blocks.len());
            let (name, numbers) = blocks.split_at(digits);
            let known = FLUX2.iter().chain(&FLUX3).map(|group| group.name).chain([OTHER]);
            let group = known.clone().find(|group| *group == name).ok_or_else(|| {
                let known = known.collect::<Vec<_>>().join(", ");
                format!("`{name}` is not a group of blocks, expected one of {known}")
            })?;
            let number = |text: &str| text.parse::<usize>().map_err(|_| wrong());
            let blocks = match numbers.split_once('-') {
                _ if numbers.is_empty() => None,
                None => Some((number(numbers)?, Some(number(numbers)?))),
                Some((first, "")) => Some((number(first)?, None)),
                Some((first, last)) => Some((number(first)?, Some(number(last)?))),
            };
            if blocks.is_some_and(|(first, last)| last.is_some_and(|last| last < first)) {
                return Err(format!("`{part}` ends before it begins"));
            }
            let factor = factor.parse().ok().filter(|factor: &f32| factor.is_finite()).ok_or_else(wrong)?;
            Ok(Rule { group, blocks, factor })
        };
        text.split(',').map(str::trim).map(rule).collect::<std::result::Result<_, _>>().map(Self)
    }
}

impl fmt::Display for BlockStrengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Rule { group, blocks, factor }) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let blocks = match blocks {
                None => String::new(),
                Some((first, None)) => format!("{first}-"),
                Some((first, Some(last))) if first == last => first.to_string(),
                Some((first, Some(last))) => format!("{first}-{last}"),
            };
            write!(f, "{comma}{group}{blocks}={factor}")?;
        }
        Ok(())
    }
}

impl Serialize for BlockStrengths {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BlockStrengths {
    fn deserialize<D: Deserializer<'de>>(json: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(json)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_factor_of_a_block_counts() {
        let text = "single=0.5,double0-2=0,single12-=1.5,single14=-2,other=0.25";
        let blocks: BlockStrengths = text.parse().unwrap();
        assert_eq!(blocks.to_string(), text);
        for (layer, factor) in [
            ("transformer_blocks.0.attn.to_q.weight", 0.0),
            ("transformer_blocks.2.attn.to_q.weight", 0.0),
            ("transformer_blocks.3.attn.to_q.weight", 1.0),
            ("single_transformer_blocks.11.attn.to_out.weight", 0.5),
            ("single_transformer_blocks.12.attn.to_out.weight", 1.5),
            ("single_transformer_blocks.14.attn.to_out.weight", -2.0),
            ("proj_out.weight", 0.25),
            ("double_stream_modulation_img.linear.weight", 0.25),
        ] {
            assert_eq!(blocks.factor(layer, Architecture::Flux2), factor, "{layer}");
        }
        let blocks: BlockStrengths = "text=2, image1=3 ,reference=4,joint=5".parse().unwrap();
        for (layer, factor) in [
            ("txt_mode_blocks.4.attn.to_q.weight", 2.0),
            ("mode_blocks.image.1.attn.to_q.weight", 3.0),
            ("mode_blocks.image.2.attn.to_q.weight", 1.0),
            ("mode_blocks.image_cond.1.attn.to_q.weight", 4.0),
            ("single_transformer_blocks.9.attn.to_q.weight", 5.0),
        ] {
            assert_eq!(blocks.factor(layer, Architecture::Flux3), factor, "{layer}");
        }
        assert_eq!((BlockStrengths::default().factor("x", Architecture::Flux2), blocks.largest()), (1.0, 5.0));
    }

    #[test]
    fn texts_that_are_no_strengths_are_named() {
        for (text, words) in [
            ("", "expected one such as"),
            ("single", "expected one such as"),
            ("singles=1", "`singles`"),
            ("IN05=1", "`IN`"),
            ("0.5", "expected one such as"),
            ("single=x", "expected one such as"),
            ("single=nan", "expected one such as"),
            ("single1-x=1", "expected one such as"),
            ("single3-1=1", "ends before it begins"),
            ("single99999999999999999999=1", "expected one such as"),
            ("double=1,", "expected one such as"),
        ] {
            let error = text.parse::<BlockStrengths>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
        assert!("single=1,".repeat(1000).parse::<BlockStrengths>().unwrap_err().contains("4096"));
    }

    #[test]
    fn blocks_that_a_model_lacks_are_refused() {
        let modules = |architecture, blocks| Modules::new(Vec::new(), architecture, 8, blocks);
        let check = |text: &str, modules: &Modules| text.parse::<BlockStrengths>().unwrap().check(modules);
        let flux2 = modules(Architecture::Flux2, [5, 20]);
        for good in ["double4=1", "single0-19=0", "single12-=0", "other=0"] {
            check(good, &flux2).unwrap();
        }
        for (text, words) in [
            ("single20=1", "`single20`"),
            ("double0-5=1", "`double5`"),
            ("joint=1", "`joint`"),
            ("other1=1", "`other1`"),
        ] {
            let error = check(text, &flux2).unwrap_err();
            assert!(error.what().contains(words) && error.to_string().contains("single (0 to 19)"), "{error}");
        }
        check("text4=1,joint27=1", &modules(Architecture::Flux3, [5, 28])).unwrap();
        assert!(check("double=1", &modules(Architecture::Flux3, [5, 28])).is_err());
    }
}
