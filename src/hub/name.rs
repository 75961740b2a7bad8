//! What names of models mean.

use std::fmt;

use super::registry::Published;
use super::repository::Repository;

/// The longest path of a file.
const LONGEST_PATH: usize = 512;

/// Whether the path of a file stays below the folder that it is read in, and may stand in an address: no `..`, no
/// absolute path, nothing that a terminal obeys.
pub fn is_plain(path: &str) -> bool {
    let is_part = |part: &str| !matches!(part, "" | "." | "..") && part.len() < 256;
    !path.is_empty()
        && path.len() <= LONGEST_PATH
        && path.split('/').all(is_part)
        && !path.contains(['\\', ':', '"'])
        && matches!(crate::error::escaped(path), std::borrow::Cow::Borrowed(_))
}

/// A model or a file by its name: `4b`, `owner/name`, `owner/name:FILE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The repository.
    pub repository: Repository,
    /// The file in it, where one is named.
    pub file: Option<String>,
    /// The model of a short name that it is.
    pub published: Option<&'static Published>,
}

impl Named {
    /// What a text names, if it has the form of a name.
    pub fn parse(text: &str) -> Option<Self> {
        let (model, file) = match text.split_once(':') {
            Some((model, file)) => (model, Some(file)),
            None => (text, None),
        };
        if file.is_some_and(|file| !is_plain(file)) {
            return None;
        }
        let published = Published::named(model);
        let repository = Repository::parse(published.map_or(model, |published| published.repository))?;
        let published = published.or_else(|| Published::of_repository(&repository));
        Some(Self { repository, file: file.map(String::from), published })
    }

    /// The model that a file is of.
    pub fn without_file(&self) -> Self {
        Self { file: None, ..self.clone() }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.published.map_or(self.repository.as_str(), |published| published.name))?;
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
        let file = Some("sub/a.safetensors".to_string());
        assert_eq!(parsed("someone/style:sub/a.safetensors"), Some(("someone/style".to_string(), file)));
        for none in [
            "",
            "5b",
            "models",
            "a/b/c",
            "/a/b",
            "./b",
            "a/",
            "../b",
            "a/b.safetensors",
            "a b/c",
            "a/b:../c",
            "a/b:/c",
            "a/b:",
            "-a/b",
            "a/b--c",
            "a\\b/c",
            "a/b:c\u{1b}",
            "a/b:c\u{202e}d",
            "models/a",
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
