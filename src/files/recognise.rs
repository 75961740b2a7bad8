//! What a file of weights is, by the names of its tensors. File names say nothing for certain.

use std::collections::HashSet;

use serde::Serialize;

use super::names::{Names, PREFIXES, Style};

/// A part of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Qwen3.
    TextEncoder,
    /// The FLUX.2 transformer.
    Transformer,
    /// The FLUX.2 VAE.
    Vae,
}

impl Role {
    /// The folder of a model in the diffusers layout that holds it.
    pub fn folder(self) -> &'static str {
        match self {
            Self::TextEncoder => "text_encoder",
            Self::Transformer => "transformer",
            Self::Vae => "vae",
        }
    }

    /// The name of its weights in that folder, without an ending.
    pub fn stem(self) -> &'static str {
        match self {
            Self::TextEncoder => "model",
            Self::Transformer | Self::Vae => "diffusion_pytorch_model",
        }
    }

    /// What it is called in messages.
    pub fn title(self) -> &'static str {
        match self {
            Self::TextEncoder => "text encoder",
            Self::Transformer => "transformer",
            Self::Vae => "VAE",
        }
    }

    /// The option that names it.
    pub fn option(self) -> &'static str {
        match self {
            Self::TextEncoder => "--text-encoder",
            Self::Transformer => "--dir",
            Self::Vae => "--vae",
        }
    }
}

/// What a file of weights is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A component, and whose names it has.
    Component(Role, Names),
    /// An adapter.
    Adapter,
    /// Something else that is known.
    Other(&'static str),
    /// None of these.
    Unknown,
}

impl Kind {
    /// What a file with these tensors is.
    pub fn of<'a>(keys: impl Iterator<Item = &'a str>) -> Self {
        const ADAPTER: [&str; 5] = ["lora_", ".lora.", "lokr_", "hada_", ".diff"];
        let keys: HashSet<&str> = keys.collect();
        // The prefix `model.diffusion_model.` has none of these parts.
        if keys.iter().any(|key| ADAPTER.iter().any(|part| key.contains(part) && !key.contains(".diffusion_model."))) {
            return Self::Adapter;
        }
        PREFIXES.iter().find_map(|prefix| transformer(&keys, prefix)).unwrap_or_else(|| others(&keys))
    }

    /// What it is called in messages.
    pub fn title(&self) -> String {
        match self {
            Self::Component(role, _) => format!("a {}", role.title()),
            Self::Adapter => "an adapter".to_string(),
            Self::Other(what) => (*what).to_string(),
            Self::Unknown => "no part of a klein model".to_string(),
        }
    }

    /// What to do with such a file.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Component(Role::Transformer, _) => "name it with `--dir` (`-d`)",
            Self::Component(Role::TextEncoder, _) => "name it with `--text-encoder`",
            Self::Component(Role::Vae, _) => "name it with `--vae`",
            Self::Adapter => "name it with `--lora`, and a model with `-d`",
            Self::Other(_) | Self::Unknown => "this program runs FLUX.2-klein models with a Qwen3 text encoder",
        }
    }
}

fn transformer(keys: &HashSet<&str>, prefix: &'static str) -> Option<Kind> {
    let has = |key: &str| keys.contains(&*format!("{prefix}{key}"));
    let found = |style| Some(Kind::Component(Role::Transformer, Names { prefix, style }));
    if has("single_stream_modulation.lin.weight") {
        found(Style::Bfl)
    } else if has("single_stream_modulation.linear.weight") {
        found(Style::Diffusers)
    } else if has("double_blocks.0.img_mod.lin.weight") {
        Some(Kind::Other("a FLUX.1 transformer"))
    } else {
        None
    }
}

fn others(keys: &HashSet<&str>) -> Kind {
    let component = |role, style| Kind::Component(role, Names { prefix: "", style });
    if keys.contains("model.layers.0.self_attn.q_norm.weight") {
        return component(Role::TextEncoder, Style::Diffusers);
    }
    if keys.contains("blk.0.attn_q_norm.weight") {
        return component(Role::TextEncoder, Style::LlamaCpp);
    }
    let style = if keys.contains("decoder.mid.block_1.conv1.weight") {
        let level = |key: &&str| key.strip_prefix("decoder.up.")?.split('.').next()?.parse::<usize>().ok();
        Style::Ldm { levels: keys.iter().filter_map(level).max().map_or(0, |highest| highest.saturating_add(1)) }
    } else if keys.contains("decoder.mid_block.resnets.0.conv1.weight") {
        Style::Diffusers
    } else if keys.iter().any(|key| key.starts_with("model.layers.0.") || key.starts_with("blk.0.")) {
        return Kind::Other("a language model, but not Qwen3");
    } else {
        return Kind::Unknown;
    };
    if keys.contains("bn.running_mean") {
        component(Role::Vae, style)
    } else {
        Kind::Other("a VAE, but not that of FLUX.2")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_by_their_tensors() {
        let of = |keys: &[&str]| Kind::of(keys.iter().copied());
        let component = |role, prefix, style| Kind::Component(role, Names { prefix, style });
        for prefix in PREFIXES {
            let key = |name: &str| format!("{prefix}{name}");
            assert_eq!(
                of(&[&key("single_stream_modulation.lin.weight"), &key("img_in.weight")]),
                component(Role::Transformer, prefix, Style::Bfl)
            );
            assert_eq!(
                of(&[&key("single_stream_modulation.linear.weight")]),
                component(Role::Transformer, prefix, Style::Diffusers)
            );
            assert_eq!(of(&[&key("double_blocks.0.img_mod.lin.weight")]), Kind::Other("a FLUX.1 transformer"));
        }
        assert_eq!(of(&["model.layers.0.self_attn.q_norm.weight"]), component(Role::TextEncoder, "", Style::Diffusers));
        assert_eq!(of(&["blk.0.attn_q_norm.weight"]), component(Role::TextEncoder, "", Style::LlamaCpp));
        let ldm = ["decoder.mid.block_1.conv1.weight", "bn.running_mean", "decoder.up.3.block.0.conv1.weight"];
        assert_eq!(of(&ldm), component(Role::Vae, "", Style::Ldm { levels: 4 }));
        assert_eq!(of(&ldm[..1]), Kind::Other("a VAE, but not that of FLUX.2"));
        assert_eq!(of(&["model.layers.0.mlp.up_proj.weight"]), Kind::Other("a language model, but not Qwen3"));
        for key in
            ["diffusion_model.double_blocks.0.img_attn.qkv.lora_A.weight", "lora_unet_img_in.alpha", "img_in.diff"]
        {
            assert_eq!(of(&[key]), Kind::Adapter, "{key}");
        }
        assert_eq!((of(&[]), of(&["x"])), (Kind::Unknown, Kind::Unknown));
    }
}
