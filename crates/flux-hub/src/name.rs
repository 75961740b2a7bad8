//! Names of models and their files.

use std::fmt;

use super::registry::Published;
use super::repository::Repository;

/// The short name of the system prompts with which a language model writes captions for FLUX.3, and their file.
pub const FLUX3_PROMPTS: &str = "flux3-prompts";
const FLUX3_PROMPTS_FILE: &str = "black-forest-labs/flux-3-image-klein-pup:system_prompts.json";

/// The max bytes of a file's path.
const LONGEST_PATH: usize = 512;

/// Returns `true` if the path of a file stays below the folder that it is read in, and can be a part of an address: no
/// `..`, no absolute path, no characters that control a terminal.
pub fn is_plain(path: &str) -> bool {
    let is_part = |part: &str| !matches!(part, "" | "." | "..") && part.len() < 256;
    !path.is_empty()
        && path.len() <= LONGEST_PATH
        && path.split('/').all(is_part)
        && !path.contains(['\\', ':', '"'])
        && matches!(flux_base::error::escaped(path), std::borrow::Cow::Borrowed(_))
}

/// A model or a file by its name: `4b`, `owner/name`, `owner/name:FILE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The repository.
    pub repository: Repository,
    /// The file in the repository, if one is named.
    pub file: Option<String>,
    /// The model with a short name that has this repository.
    pub published: Option<&'static Published>,
}

impl Named {
    /// Parses a name; `None` if the text does not have the form of a name.
    pub fn parse(text: &str) -> Option<Self> {
        let text = if text.eq_ignore_ascii_case(FLUX3_PROMPTS) { FLUX3_PROMPTS_FILE } else { text };
        let (model, file) = match text.split_once(':') {
            Some((model, file)) => (model, Some(file)),
            None => (text, None),
        };
        if file.is_some_and(|file| !is_plain(file)) {
            return None;
        }
        let published = Published::named(model);
        let repository = Repository::parse(published.map_or(model, |published| published.repository))?;
        let published = published.or_else(|| Published::for_repository(&repository));
        Some(Self { repository, file: file.map(String::from), published })
    }

    /// Returns the name of the model that the file belongs to.
    pub fn without_file(&self) -> Self {
        Self { file: None, ..self.clone() }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A repository in another case may be another one in the cache.
        let short = self.published.filter(|published| published.repository == self.repository.as_str());
        f.write_str(short.map_or(self.repository.as_str(), |published| published.name))?;
        self.file.as_ref().map_or(Ok(()), |file| write!(f, ":{file}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_ones_or_repositories_with_a_file() {
        let parsed = |text: &str| Named::parse(text).map(|named| (named.repository.to_string(), named.file.clone()));
        let klein = "black-forest-labs/FLUX.2-klein-4B";
        for text in ["4b", "4B", "klein-4b", klein] {
            let named = Named::parse(text).unwrap();
            assert_eq!((named.to_string().as_str(), named.repository.as_str()), ("4b", klein));
        }
        assert_eq!(parsed("4b:vae/config.json"), Some((klein.to_string(), Some("vae/config.json".to_string()))));
        let prompts = ("black-forest-labs/flux-3-image-klein-pup".to_string(), Some("system_prompts.json".to_string()));
        assert_eq!(parsed(FLUX3_PROMPTS), Some(prompts));
        let file = Some("sub/a.safetensors".to_string());
        assert_eq!(parsed("someone/style:sub/a.safetensors"), Some(("someone/style".to_string(), file)));
        for none in [
            "", "5b", "models", "a/b/c", "/a/b", "./b", "a/", "../b", "a/b.safetensors", "a b/c", "a/b:../c", "a/b:/c",
            "a/b:", "-a/b", "a/b--c", "a\\b/c", "a/b:c\u{1b}", "a/b:c\u{202e}d", "models/a",
        ] {
            assert_eq!(parsed(none), None, "{none}");
        }
    }

    #[test]
    fn paths_from_a_server_stay_below_their_folder() {
        for fine in ["a", "vae/config.json", "a b/c.json", "käse.json", ".gitattributes"] {
            assert!(is_plain(fine), "{fine}");
        }
        let long = "a/".repeat(300) + "b";
        for bad in ["", "/a", "a//b", "a/", "../a", "a/../b", "a/./b", "..", "a\\b", "C:a", "a\nb", "a\u{1b}", &long] {
            assert!(!is_plain(bad), "{bad}");
        }
    }
}
