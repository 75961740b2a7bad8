//! Which of the models of one architecture a transformer is: its shapes do not tell.

use std::fmt;
use std::path::Path;

use serde::Serialize;

/// The pipeline of the reference that caches keys and values of reference images.
const CACHING_CLASS: &str = "Flux2KleinKVPipeline";
/// The one of all other klein models.
const CLASS: &str = "Flux2KleinPipeline";

/// How a transformer was trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// To draw in few steps without guidance.
    Distilled,
    /// Undistilled: many steps with guidance.
    Base,
    /// Distilled, with keys and values of reference images that are made once for all steps.
    Kv,
}

impl Variant {
    /// What the class of the pipeline says, and `is_distilled` beside it. A base model may leave that out; the
    /// distilled models say that they are, but for those of the caching class, which all are.
    pub fn of_index(class: Option<&str>, is_distilled: Option<bool>) -> Self {
        match (class == Some(CACHING_CLASS), is_distilled) {
            (true, _) => Self::Kv,
            (false, Some(true)) => Self::Distilled,
            (false, _) => Self::Base,
        }
    }

    /// The class of its pipeline.
    pub fn class(self) -> &'static str {
        match self {
            Self::Distilled | Self::Base => CLASS,
            Self::Kv => CACHING_CLASS,
        }
    }

    /// What the name of a file or folder says, in words between other characters.
    pub fn of_name(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_string_lossy().to_lowercase();
        let has = |word: &str| name.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| part == word);
        if has("base") {
            Some(Self::Base)
        } else if has("kv") {
            Some(Self::Kv)
        } else {
            None
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Distilled => "distilled",
            Self::Base => "base",
            Self::Kv => "kv",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_the_variant_by_whole_words() {
        for (name, variant) in [
            ("a/flux-2-klein-base-4b-fp8.safetensors", Some(Variant::Base)),
            ("FLUX.2-Klein-9B-KV-Q5_K_M.gguf", Some(Variant::Kv)),
            ("flux-2-klein-4b.safetensors", None),
            ("base/database.safetensors", None),
        ] {
            assert_eq!(Variant::of_name(Path::new(name)), variant, "{name}");
        }
    }
}
