//! Recognition of weight files by the names of their tensors. File names are not reliable.

use std::collections::HashSet;

use crate::catalog::names::{Names, Style};
use crate::catalog::other_models;
use crate::catalog::own_models::{Architecture, OWN_MODELS, OwnModel, OwnPart, Sign};
use crate::catalog::role::Role;
use flux_base::error::{Error, Field, Result};

/// A part of a model in a file, and its names there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownComponent {
    /// The role of the part.
    pub role: Role,
    /// The names of its tensors.
    pub names: Names,
    /// The architecture of its model, as far as names tell.
    pub architecture: Architecture,
}

/// The kind of a weight file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileKind {
    parts: Vec<KnownComponent>,
    /// A part that the file contains under two prefixes.
    twice: Option<(Role, [String; 2])>,
    is_adapter: bool,
    /// Titles of other models in it, such as `a transformer of FLUX.1`.
    others: Vec<String>,
}

/// The max number of signs, and of words in a prefix, that are examined.
const MAX_PATTERNS: usize = 32;
pub const MAX_WORDS: usize = 16;
/// Parts of the tensor names of adapters.
const ADAPTER: [&str; 5] = ["lora_", ".lora.", "_lora.", "lokr_", "hada_"];
const CHANGES: [&str; 3] = [".diff", ".diff_b", ".set_weight"];

impl FileKind {
    /// Recognises files with these tensors. `shape` returns the shape of a tensor.
    pub fn from_tensors<'a>(keys: impl Iterator<Item = &'a str>, shape: impl Fn(&str) -> Option<Vec<usize>>) -> Self {
        let keys: HashSet<&str> = keys.collect();
        let is_change = |key: &&str| CHANGES.iter().any(|end| key.ends_with(end));
        if keys.iter().any(|key| ADAPTER.iter().any(|part| key.contains(part)) || is_change(key)) {
            return Self { is_adapter: true, ..Self::default() };
        }
        let mut kind = Self::default();
        for part in parts_of(&keys) {
            match kind.parts.iter().find(|other| other.role == part.role) {
                Some(other) => {
                    kind.twice.get_or_insert((part.role, [other.names.prefix.clone(), part.names.prefix]));
                }
                None => kind.parts.push(part),
            }
        }
        let own: Vec<Role> = kind.parts.iter().map(|part| part.role).collect();
        kind.others = other_models::titles(&keys, shape, &own);
        kind
    }

    /// Returns the names of a part, if the files contain the part.
    pub fn part(&self, role: Role) -> Option<&Names> {
        self.parts.iter().find(|part| part.role == role).map(|part| &part.names)
    }

    /// Returns the model that the part `role` belongs to, as far as names tell.
    pub fn model(&self, role: Role) -> Option<&'static OwnModel> {
        self.parts.iter().find(|part| part.role == role).map(|part| part.architecture.model())
    }

    /// Returns the prefixes of all parts, and the beginnings of these prefixes; each ends with a dot.
    pub fn fronts(&self) -> Vec<String> {
        let front = |part: &KnownComponent| {
            let prefix = part.names.prefix.clone();
            let ends: Vec<usize> = prefix.match_indices('.').map(|(dot, _)| dot + 1).take(MAX_WORDS).collect();
            ends.into_iter().map(move |end| prefix[..end].to_string()).collect::<Vec<_>>()
        };
        self.parts.iter().flat_map(front).collect()
    }

    /// Returns the only part, or the transformer if there are several parts.
    pub fn main_role(&self) -> Option<Role> {
        match &self.parts[..] {
            [only] => Some(only.role),
            parts => parts.iter().map(|part| part.role).find(|role| *role == Role::Transformer),
        }
    }

    /// Returns `true` if a tensor belongs to the part `role`. A tensor without an owner belongs to the only part.
    pub fn owns(&self, role: Role, key: &str) -> bool {
        self.owner(key).map_or(self.parts.len() < 2, |owner| owner == role)
    }

    /// Returns the part that a tensor belongs to by its name.
    pub fn owner(&self, key: &str) -> Option<Role> {
        let behind = || self.parts.iter().filter_map(|part| Some((part, part.names.strip(key)?)));
        let longest = |(part, _): &(&KnownComponent, &str)| part.names.prefix.len();
        let owner =
            behind().filter(|(part, rest)| part.names.know(part.role, rest)).max_by_key(longest).or_else(|| {
                let several = self.parts.len() > 1;
                behind().filter(|(part, _)| !several || !part.names.prefix.is_empty()).max_by_key(longest)
            });
        owner.map(|(part, _)| part.role)
    }

    /// Returns `true` if there are several parts.
    pub fn has_several(&self) -> bool {
        self.parts.len() > 1
    }

    /// Returns `true` if the kind of the files is known.
    pub fn is_known(&self) -> bool {
        self.is_adapter || !self.parts.is_empty() || !self.others.is_empty()
    }

    /// Returns `true` if the files are an adapter, or their kind is unknown.
    pub fn may_be_adapter(&self) -> bool {
        self.is_adapter || !self.is_known()
    }

    /// Returns `true` if the tensors have names of an adapter.
    pub fn is_adapter(&self) -> bool {
        self.is_adapter
    }

    /// Returns `true` if the files are the part `role` and nothing else.
    pub fn is_only(&self, role: Role) -> bool {
        matches!(&self.parts[..], [part] if part.role == role) && self.others.is_empty() && self.twice.is_none()
    }

    /// Returns the title for messages.
    pub fn title(&self) -> String {
        if self.is_adapter {
            return "an adapter".to_string();
        }
        let own = self.parts.iter().map(|part| format!("a {}", part.role.title()));
        let all: Vec<String> = own.chain(self.others.iter().cloned()).collect();
        match &all[..] {
            [] => "not a part of a klein model".to_string(),
            [only] => only.clone(),
            [first @ .., last] => format!("{} and {last}", first.join(", ")),
        }
    }

    /// Returns the hint on the use of such files.
    pub fn remedy(&self) -> String {
        match self.parts.first().map(|part| part.role) {
            _ if self.is_adapter => format!("pass it with `{}`, and a model with `{}`", Field::Adapters, Field::Model),
            Some(Role::Transformer) => format!("pass it with `{0:#}` (`{0}`)", Field::Model),
            Some(role) => format!("pass it with `{}`", role.field()),
            None if self.others == [other_models::TAEF2] => {
                format!("it decodes previews of the steps: pass it with `{}`", Field::PreviewDecoder)
            }
            None => {
                let models = OWN_MODELS.map(|OwnModel { name, text_encoder, .. }| {
                    format!("{name} models with a {text_encoder} text encoder")
                });
                format!("this program runs {}", models.join(" and "))
            }
        }
    }

    /// Returns the names of the part `role`.
    ///
    /// Errors with the title of the files if the part is missing, or if it is there twice.
    pub fn expect(&self, role: Role) -> Result<&Names> {
        if let Some((_, prefixes)) = self.twice.as_ref().filter(|(twice, _)| *twice == role) {
            let [one, other] = prefixes.each_ref().map(|prefix| if prefix.is_empty() { "no prefix" } else { prefix });
            return Err(Error::new(format!("the file contains a {} twice, under `{one}` and `{other}`", role.title()))
                .hint("write the intended one to a separate file"));
        }
        self.part(role).ok_or_else(|| {
            Error::new(format!("the file is {}, expected a {}", self.title(), role.title())).hint(self.remedy())
        })
    }
}

/// Returns the signs of all parts of supported models.
fn signs() -> impl Iterator<Item = (&'static OwnModel, &'static OwnPart, &'static Sign)> {
    let parts = OWN_MODELS.into_iter().flat_map(|model| model.parts.iter().map(move |part| (model, part)));
    parts.flat_map(|(model, part)| part.signs.iter().map(move |sign| (model, part, sign)))
}

/// Returns the parts that have signs among these names, in order. `MAX_PATTERNS` limits the work for hostile files.
fn parts_of(keys: &HashSet<&str>) -> Vec<KnownComponent> {
    let is_end = |prefix: &&str| prefix.is_empty() || prefix.ends_with('.');
    let all: Vec<_> = signs().collect();
    let ends = |key: &str| {
        let found = |(index, (.., (_, _, sign))): (usize, &(_, _, &Sign))| {
            let prefix = key.strip_suffix(sign).filter(is_end)?;
            Some((index, prefix.to_string()))
        };
        all.iter().enumerate().filter_map(found).collect::<Vec<_>>()
    };
    let mut found: Vec<(usize, String)> = keys.iter().flat_map(|key| ends(key)).collect();
    found.sort_unstable();
    found.truncate(MAX_PATTERNS);
    let has_word =
        |words: &[&str]| !words.is_empty() && keys.iter().any(|key| key.split('.').any(|word| words.contains(&word)));
    let part = |(index, prefix): (usize, String)| {
        let (model, own, &(style, lacks, _)) = all[index];
        let has = |rest: &&str| keys.contains(format!("{prefix}{rest}").as_str());
        let lacks_word = !own.needed_words.is_empty() && !has_word(own.needed_words);
        if own.foreign.iter().any(has) || !own.needs.iter().all(has) || has_word(own.foreign_words) || lacks_word {
            return None;
        }
        let is_inside = ["decoder", "encoder"].contains(&prefix.trim_end_matches('.').rsplit('.').next().unwrap_or(""));
        if lacks == "decoder." && is_inside {
            return None;
        }
        let style = match style {
            Style::Ldm { .. } if lacks.is_empty() => ldm(keys, &format!("{prefix}decoder.")),
            Style::Ldm { .. } => ldm(keys, &prefix),
            style => style,
        };
        Some(KnownComponent {
            role: own.role,
            names: Names { prefix, lacks, style, layers: model.layers },
            architecture: model.architecture,
        })
    };
    found.into_iter().filter_map(part).collect()
}

/// Returns the style of a VAE whose decoder has the prefix `decoder`.
fn ldm(keys: &HashSet<&str>, decoder: &str) -> Style {
    let level = |key: &&str| key.strip_prefix(decoder)?.strip_prefix("up.")?.split('.').next()?.parse::<usize>().ok();
    Style::Ldm { levels: keys.iter().filter_map(level).max().map_or(0, |highest| highest.saturating_add(1)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_from_keys(keys: &[&str]) -> FileKind {
        FileKind::from_tensors(keys.iter().copied(), |_| None)
    }

    /// Returns the only part of a file with these names.
    #[track_caller]
    fn part(keys: &[&str]) -> (Role, String, &'static str, Style) {
        let kind = kind_from_keys(keys);
        let [KnownComponent { role, names, .. }] = &kind.parts[..] else { panic!("{keys:?}: {kind:?}") };
        (*role, names.prefix.clone(), names.lacks, names.style)
    }

    #[test]
    fn parts_are_told_by_their_tensors_whatever_is_in_front_of_them() {
        let levels = Style::Ldm { levels: 4 };
        let prefixes = ["", "model.", "model.diffusion_model.", "pipe.dit.", "a.b.c.d.e.f.", "decoder_of.what."];
        for prefix in prefixes {
            let key = |name: &str| format!("{prefix}{name}");
            let found = |role, lacks, style| (role, prefix.to_string(), lacks, style);
            let transformer = |style| found(Role::Transformer, "", style);
            assert_eq!(part(&[&key("single_stream_modulation.lin.weight")]), transformer(Style::Bfl));
            assert_eq!(part(&[&key("single_stream_modulation.linear.weight")]), transformer(Style::Diffusers));
            let qwen = found(Role::TextEncoder, "model.", Style::Diffusers);
            assert_eq!(part(&[&key("layers.0.self_attn.q_norm.weight")]), qwen);
            assert_eq!(part(&[&key("blk.0.attn_q_norm.weight")]), found(Role::TextEncoder, "", Style::LlamaCpp));
            let bn = key("bn.running_mean");
            let ldm = |side: &str| [key(&format!("{side}mid.block_1.conv1.weight")), key(&format!("{side}up.3.x"))];
            for (side, lacks) in [("decoder.", ""), ("", "decoder.")] {
                let [middle, up] = ldm(side);
                assert_eq!(part(&[&middle, &up, &bn]), found(Role::Vae, lacks, levels));
                assert_eq!(kind_from_keys(&[&middle, &up]).title(), "a VAE, but not the FLUX.2 VAE");
            }
        }
    }

    #[test]
    fn a_model_in_one_file_has_all_parts_and_each_name_is_of_one() {
        let kind = kind_from_keys(&[
            "single_stream_modulation.lin.weight",
            "text_encoders.qwen3_4b.transformer.model.layers.0.self_attn.q_norm.weight",
            "vae.decoder.mid.block_1.conv1.weight",
            "vae.bn.running_mean",
        ]);
        assert_eq!(kind.title(), "a transformer, a text encoder and a VAE");
        assert_eq!(kind.main_role(), Some(Role::Transformer));
        for (key, owner) in [
            ("double_blocks.0.img_mlp.0.weight", Some(Role::Transformer)),
            ("text_encoders.qwen3_4b.transformer.model.norm.weight", Some(Role::TextEncoder)),
            ("text_encoders.qwen3_4b.transformer.lm_head.weight", Some(Role::TextEncoder)),
            ("vae.encoder.conv_in.weight", Some(Role::Vae)),
            ("vae.what.weight", Some(Role::Vae)),
            ("text_encoders.clip_l.weight", None),
            ("what", None),
        ] {
            let owners: Vec<Role> = Role::ALL.into_iter().filter(|r| kind.owns(*r, key)).collect();
            assert_eq!(owners, owner.into_iter().collect::<Vec<_>>(), "{key}");
        }
        let alone = kind_from_keys(&["a.single_stream_modulation.lin.weight"]);
        assert!(["a.what", "what"].iter().all(|key| alone.owns(Role::Transformer, key)), "there is no other part");
    }

    #[test]
    fn a_part_that_is_there_twice_is_refused_with_both_places() {
        let kind = kind_from_keys(&["single_stream_modulation.lin.weight", "ema.single_stream_modulation.lin.weight"]);
        let error = kind.expect(Role::Transformer).unwrap_err().to_string();
        assert!(error.contains("`no prefix`") && error.contains("`ema.`") && error.contains("hint: "), "{error}");
    }

    #[test]
    fn names_without_end_and_parts_without_number_take_no_time() {
        let key = format!("{}single_stream_modulation.lin.weight", "a.".repeat(1 << 19));
        assert_eq!(kind_from_keys(&[&key]).fronts().len(), MAX_WORDS);
        let many: Vec<String> = (0..50_000).map(|i| format!("{i}.layers.0.self_attn.q_norm.weight")).collect();
        let kind = kind_from_keys(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(kind.expect(Role::TextEncoder).is_err_and(|error| error.to_string().contains("twice, under")));
    }

    #[test]
    fn an_encoder_that_sees_is_of_another_kind_than_one_that_reads() {
        let reads = ["model.language_model.layers.0.self_attn.q_norm.weight"];
        let sees = [reads[0], "model.visual.blocks.0.attn.qkv.weight"];
        for (keys, is_flux3) in [(&reads[..], false), (&sees, true)] {
            let kind = kind_from_keys(keys);
            assert!(kind.is_only(Role::TextEncoder), "{keys:?}");
            assert_eq!(kind.part(Role::TextEncoder).unwrap().prefix, "model.language_model.");
            assert_eq!(kind.model(Role::TextEncoder).unwrap().text_encoder_sees, is_flux3);
        }
        let transformer = kind_from_keys(&["a.early_stream_modulations.image.lin.weight"]);
        assert_eq!(transformer.model(Role::Transformer).unwrap().architecture, Architecture::Flux3);
        let video = kind_from_keys(&["early_stream_modulations.image.lin.weight", "emb_in.video.weight"]);
        assert_eq!(video.title(), "a transformer of FLUX.3");
        assert!(video.part(Role::Transformer).is_none(), "one that generates videos, too");
    }

    #[test]
    fn parts_of_other_models_are_no_parts_of_this_one() {
        for (keys, title) in [
            (
                &["guidance_in.in_layer.weight", "single_stream_modulation.lin.weight"][..],
                "a transformer of FLUX.2-dev",
            ),
            (&["double_blocks.0.img_mod.lin.weight"], "a transformer of FLUX.1"),
            (
                &["model.layers.0.self_attn.q_norm.weight", "model.layers.0.pre_feedforward_layernorm.weight"],
                "a language model (Gemma 3), but not Qwen3",
            ),
            (&["model.layers.0.mlp.up_proj.weight"], "a language model, but not Qwen3"),
            (&["encoder.mid.block_1.conv1.weight", "bn.running_mean"], "a VAE encoder without its decoder"),
            (&["x"], "not a part of a klein model"),
            (&[], "not a part of a klein model"),
        ] {
            let kind = kind_from_keys(keys);
            assert_eq!((kind.title().as_str(), kind.main_role()), (title, None));
        }
        for key in [
            "diffusion_model.double_blocks.0.img_attn.qkv.lora_A.weight",
            "lora_unet_img_in.alpha",
            "img_in.diff",
            "img_in.set_weight",
            "img_in_lora.down.weight",
        ] {
            assert_eq!(kind_from_keys(&[key]).title(), "an adapter", "{key}");
        }
    }
}
