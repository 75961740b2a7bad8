//! The name of the architecture in a GGUF file.
//!
//! The names of tensors tell the kind of a file. The architecture is missing in many files, and packagers invent names,
//! so an unknown name is no reason to refuse a file. The name of another architecture is a reason: its layers may have
//! the same names and shapes and compute something else.

use crate::catalog::own_models::{FLUX2_KLEIN, OWN_MODELS};
use crate::catalog::recognise::FileKind;
use crate::catalog::role::Role;
use crate::containers::gguf::Gguf;
use flux_base::error::{Error, Result};

/// The key of the architecture's name.
const KEY: &str = "general.architecture";
/// Names that packagers use for anything they pack.
const PACKAGERS: [&str; 2] = ["pig", "cow"];
/// The first words of other architectures, as llama.cpp, ComfyUI-GGUF and stable-diffusion.cpp name them.
const OTHERS: &str = "afmoe anima apertus arcee arctic arwkv aura auraflow baichuan bailingmoe bert bitnet bloom chameleon \
    chatglm chroma clip codeshell cogview cogvideo cogvideox cogvlm cohere command cosmos dbrx deci deepseek dots dream \
    ernie eurobert exaone falcon flux gemma glm gpt gptj gptneox granite granitehybrid granitemoe grok grovemoe hidream \
    hunyuan hunyuanvideo hyvid ideogram internlm jais jamba jina kandinsky kimi kolors krea lfm llada llama llava longcat \
    ltx ltxv lumina maincoder mamba mellum megrez mimo minicpm minimax mistral mixtral mochi modern moondream mpt nemotron \
    neo nomic olmo olmoe omnigen openelm orion ovis paddleocr pangu phi phimoe pixart pixtral plamo plm qwen refact rnd \
    rwkv sana sd sdxl seed smallthinker smollm solar stable stablelm starcoder step t umt voxtral wan wavtokenizer xverse z";

/// Errors if the file's architecture computes something else than the part `role` of a klein model.
pub fn check(file: &Gguf, role: Role) -> Result<()> {
    let Some(name) = name(file)? else { return Ok(()) };
    // A file of several parts has one name, that of any of its parts.
    let is_of_another_part = || {
        let kind = FileKind::from_tensors(file.names(), |name| file.shape(name).map(<[usize]>::to_vec));
        Role::ALL.into_iter().any(|part| kind.part(part).is_some() && is_own(name, part))
    };
    if is_other(name, role) && !is_of_another_part() {
        let own = FLUX2_KLEIN.part(role).architectures[0];
        return Err(Error::new(format!(
            "the file has the architecture `{name}`, which differs from the {} of a klein model",
            role.title()
        ))
        .at_path(file.path())
        .hint(match role {
            Role::TextEncoder => format!("name a {} file with the architecture `{own}`", FLUX2_KLEIN.text_encoder),
            Role::Transformer | Role::Vae => {
                format!("name a file of a {} model with the architecture `{own}`", FLUX2_KLEIN.name)
            }
        }));
    }
    Ok(())
}

/// Returns the name of the file's architecture.
///
/// Errors if the name is no text.
pub fn name(file: &Gguf) -> Result<Option<&str>> {
    file.has(KEY).then(|| file.string(KEY)).transpose()
}

/// Returns `true` if the name is of no known architecture and no packager.
pub fn is_unknown(name: &str, role: Role) -> bool {
    !is_own(name, role) && !PACKAGERS.contains(&name) && !is_other(name, role)
}

/// Returns `true` if the name is one of a part of an own model.
fn is_own(name: &str, role: Role) -> bool {
    OWN_MODELS.iter().any(|model| model.part(role).is_architecture(name))
}

/// Returns `true` if the name is that of another architecture, with any number.
fn is_other(name: &str, role: Role) -> bool {
    if is_own(name, role) {
        return false;
    }
    let name = name.to_lowercase();
    // A number may follow, as in `sd3`, or a kind, as in `llama-embed`.
    let word = name.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    !word.is_empty() && OTHERS.split_whitespace().any(|other| other == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_own_or_those_of_others_or_unknown() {
        let of = |name: &str, role| (is_own(name, role), is_other(name, role), is_unknown(name, role));
        for name in ["flux", "flux2", "FLUX.2", "flux-2-klein", "klein", "flux3"] {
            assert_eq!(of(name, Role::Transformer), (true, false, false), "{name}");
        }
        for name in ["flux1", "flux.1", "wan", "wan2.1", "sd3", "sd1", "sdxl", "ltxv", "qwen_image", "llama", "t5"] {
            assert_eq!(of(name, Role::Transformer), (false, true, false), "{name}");
        }
        for name in ["qwen3", "qwen3vl"] {
            assert_eq!(of(name, Role::TextEncoder), (true, false, false), "{name}");
        }
        for name in [
            "llama", "llama4", "qwen2", "qwen2vl", "qwen3moe", "qwen35", "qwen3next", "gemma3", "gemma3n", "mistral3",
            "phi3", "exaone4", "flux", "deepseek2",
        ] {
            assert_eq!(of(name, Role::TextEncoder), (false, true, false), "{name}");
        }
        for role in [Role::TextEncoder, Role::Transformer] {
            assert_eq!(of("pig", role), (false, false, false));
            assert_eq!(of("my-own", role), (false, false, true));
            assert_eq!(of("", role), (false, false, true));
        }
    }
}
