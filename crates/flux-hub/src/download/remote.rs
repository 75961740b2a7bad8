//! Files as the server describes them.

use crate::{Repository, is_plain};
use flux_base::Result;
use flux_base::error::{Error, shortened};

/// The list of checksums of a mirror, in its root folder.
pub const MANIFEST: &str = "SHA256SUMS";
/// The max bytes of this list, and of a list of shards.
pub const MANIFEST_BYTES: u64 = 1 << 20;
pub const INDEX_BYTES: u64 = 16 << 20;
/// The max bytes of a file: 100 TB.
const LARGEST: u64 = 100_000_000_000_000;

/// The check of a file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sum {
    /// Its SHA-256.
    Sha256(String),
    /// Its name in git.
    Git(String),
    /// Only its size.
    None,
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// The path in the repository.
    pub path: String,
    /// The size in bytes.
    pub size: u64,
    /// The name of the blob in the cache.
    pub blob: String,
    /// The check of the content.
    pub sum: Sum,
}

impl RemoteFile {
    /// Creates a file with this path, size and entity tag.
    ///
    /// Errors if the path leads elsewhere, the size is missing, or the tag cannot be a file name.
    pub fn new(path: &str, size: Option<u64>, etag: &str) -> Result<Self> {
        check_path(path)?;
        let size = size.filter(|size| *size <= LARGEST).ok_or_else(|| {
            Error::new(format!("the server did not report the size of `{path}`")).hint(wrong_server())
        })?;
        let sum = match etag.len() {
            _ if !etag.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) => Sum::None,
            64 => Sum::Sha256(etag.to_string()),
            40 => Sum::Git(etag.to_string()),
            _ => Sum::None,
        };
        if !is_name(etag) {
            let what = format!("the server sent an invalid entity tag for `{path}`: `{}`", shortened(etag, 40));
            return Err(Error::new(what).hint(wrong_server()));
        }
        Ok(Self { path: path.to_string(), size, blob: etag.to_string(), sum })
    }

    /// Uses the checksum that a manifest names for the file, if it names one.
    ///
    /// Errors if that is not a checksum.
    pub fn apply_manifest(&mut self, manifest: &str) -> Result<()> {
        let line = manifest.lines().find_map(|line| {
            let (sum, name) = line.split_once(char::is_whitespace)?;
            (name.trim_start().trim_start_matches('*') == self.path).then_some(sum)
        });
        let Some(sum) = line.map(str::to_ascii_lowercase) else { return Ok(()) };
        if sum.len() != 64 || !sum.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let what = format!("{MANIFEST} has an invalid checksum for `{}`: `{}`", self.path, shortened(&sum, 80));
            return Err(Error::new(what).hint(wrong_server()));
        }
        self.blob.clone_from(&sum);
        self.sum = Sum::Sha256(sum);
        Ok(())
    }
}

/// Returns `true` if an entity tag can be a file name.
pub fn is_name(tag: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=128).contains(&tag.len()) && tag.bytes().all(is_plain)
}

/// Errors if a path from a server would lead out of the folder of the model.
pub fn check_path(path: &str) -> Result<()> {
    if is_plain(path) {
        return Ok(());
    }
    let what = format!("the server sent an invalid file name: `{}`", shortened(path, 80));
    Err(Error::new(what).hint(wrong_server()))
}

/// Returns the path of a file on a server.
pub fn path_of(repository: &Repository, revision: &str, file: &str) -> String {
    format!("/{repository}/resolve/{}/{}", encoded(revision, false), encoded(file, true))
}

/// Returns a text as a part of an address, with reserved characters as `%XX`.
pub fn encoded(text: &str, keeps_slashes: bool) -> String {
    let mut address = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => address.push(byte.into()),
            b'/' if keeps_slashes => address.push('/'),
            _ => address.push_str(&format!("%{byte:02X}")),
        }
    }
    address
}

/// Returns the hint for a response that is not from a hub.
pub fn wrong_server() -> &'static str {
    "check HF_ENDPOINT, and that no proxy answers instead of the server"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_of_a_file_is_checked() {
        let file = |path: &str, size, etag: &str| RemoteFile::new(path, size, etag).map_err(|e| e.to_string());
        let sha = "a".repeat(64);
        assert_eq!(file("vae/a.json", Some(1), &sha).unwrap().sum, Sum::Sha256(sha.clone()));
        assert_eq!(file("a", Some(1), &"b".repeat(40)).unwrap().sum, Sum::Git("b".repeat(40)));
        assert_eq!(file("a", Some(1), "5f3e-abc").unwrap().sum, Sum::None);
        for (path, size, etag, words) in [
            ("../a", Some(1), "a", "invalid file name"),
            ("/etc/passwd", Some(1), "a", "invalid file name"),
            ("a", None, "a", "size of `a`"),
            ("a", Some(u64::MAX), "a", "size of `a`"),
            ("a", Some(1), "", "entity tag"),
            ("a", Some(1), "../x", "entity tag"),
        ] {
            assert!(file(path, size, etag).is_err_and(|e| e.contains(words)), "{path} {etag}");
        }
    }

    #[test]
    fn a_manifest_counts_more_than_the_tag() {
        let mut file = RemoteFile::new("vae/a", Some(1), "tag").unwrap();
        let sum = "AB".repeat(32);
        file.apply_manifest(&format!("{}  other\n{sum} *vae/a\n", "c".repeat(64))).unwrap();
        assert_eq!(file.sum, Sum::Sha256(sum.to_lowercase()));
        assert!(file.apply_manifest("0  vae/a\n").is_err_and(|e| e.to_string().contains("invalid checksum")));
    }

    #[test]
    fn addresses_have_no_characters_that_mean_something_there() {
        let repository = Repository::parse("a/b").unwrap();
        assert_eq!(path_of(&repository, "refs/pr/1", "x/a b#?.json"), "/a/b/resolve/refs%2Fpr%2F1/x/a%20b%23%3F.json");
    }
}
