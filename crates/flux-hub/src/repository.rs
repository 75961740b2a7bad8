//! Names of model repositories.

use std::fmt;

/// The prefix of a model repository's folder in the cache.
const FOLDER: &str = "models--";
/// The max bytes of the owner or the name.
const LONGEST_PART: usize = 96;
/// Names that no owner has.
const FOLDERS: [&str; 4] = ["api", "datasets", "models", "spaces"];
/// Endings of file names, which are not names of repositories.
const FILES: [&str; 9] = [".safetensors", ".sft", ".gguf", ".json", ".png", ".jpg", ".jpeg", ".webp", ".md"];

/// A repository of the hub: `owner/name`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Repository(String);

impl Repository {
    /// Parses the name of a repository; `None` if it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let (owner, name) = text.split_once('/')?;
        // These names are parts of addresses and names of folders.
        let is_folder = FOLDERS.contains(&owner);
        let is_file = FILES.iter().any(|end| name.to_ascii_lowercase().ends_with(end));
        (is_part(owner) && is_part(name) && !is_file && !is_folder).then(|| Self(text.to_string()))
    }

    /// Returns the repository that a folder of the cache belongs to.
    pub fn from_folder(name: &str) -> Option<Self> {
        let (owner, name) = name.strip_prefix(FOLDER)?.split_once("--")?;
        Self::parse(&format!("{owner}/{name}"))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name of the repository's folder in the cache.
    pub fn folder(&self) -> String {
        format!("{FOLDER}{}", self.0.replace('/', "--"))
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns `true` if a text can be the owner or the name of a repository.
fn is_part(text: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_fine = !text.starts_with(['-', '.']) && !text.ends_with(['-', '.']);
    (1..=LONGEST_PART).contains(&text.len())
        && text.chars().all(is_letter)
        && is_fine
        && !text.contains("..")
        && !text.contains("--")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_cache_name_repositories() {
        let repository = Repository::parse("owner/a.b_c-d").unwrap();
        assert_eq!(repository.folder(), "models--owner--a.b_c-d");
        assert_eq!(Repository::from_folder(&repository.folder()), Some(repository));
        for none in ["datasets--a--b", "models--gpt2", "models--..--x", "models--a--b/c"] {
            assert_eq!(Repository::from_folder(none), None, "{none}");
        }
    }
}
