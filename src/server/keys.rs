//! Keys of clients: a file of lines `NAME:HASH[:RATE][:PRIORITY]`, the BLAKE3 hash of each key in hexadecimal.
//!
//! The keys themselves are nowhere but with their clients. All hashes are compared, each in constant time.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use flux::{Error, Result};

use super::rate::RateLimit;
use super::request::Priority;

/// Bytes of a key that is made here.
const KEY_BYTES: usize = 24;

/// The keys of a server.
pub struct Keys {
    source: Source,
    known: RwLock<Vec<Arc<Key>>>,
}

enum Source {
    /// Everybody may ask.
    None,
    File(PathBuf),
    Environment,
}

/// A key.
pub struct Key {
    pub name: String,
    hash: blake3::Hash,
    pub rate: RateLimit,
    /// The highest that it may ask for.
    pub priority: Priority,
}

impl Keys {
    /// No keys: everybody may ask.
    pub fn none() -> Self {
        Self { source: Source::None, known: RwLock::default() }
    }

    /// The keys of a file.
    ///
    /// Errors when it cannot be read, others may read it, or a line is wrong.
    pub fn of_file(path: &Path) -> Result<Self> {
        Ok(Self { source: Source::File(path.to_path_buf()), known: RwLock::new(read_file(path)?) })
    }

    /// Keys in plain text, by commas.
    ///
    /// Errors when there is none.
    pub fn of_environment(text: &str) -> Result<Self> {
        let keys = text.split(',').map(str::trim).filter(|key| !key.is_empty());
        let key = |(number, key): (usize, &str)| {
            Arc::new(Key {
                name: format!("key-{}", number + 1),
                hash: blake3::hash(key.as_bytes()),
                rate: RateLimit::none(),
                priority: Priority::High,
            })
        };
        let keys: Vec<_> = keys.enumerate().map(key).collect();
        if keys.is_empty() {
            return Err(Error::usage("`FLUX_API_KEYS` has no key").hint("name one, or unset it"));
        }
        Ok(Self { source: Source::Environment, known: RwLock::new(keys) })
    }

    /// Whether clients need a key.
    pub fn are_needed(&self) -> bool {
        !matches!(self.source, Source::None)
    }

    /// The key of this text.
    pub fn find(&self, text: &str) -> Option<Arc<Key>> {
        let hash = blake3::hash(text.as_bytes());
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        // All are compared, so that the time says nothing of which it was.
        known.iter().fold(None, |found, key| if key.hash == hash { Some(Arc::clone(key)) } else { found })
    }

    /// Reads the file again. Keys that it still has keep their rates.
    ///
    /// Errors as [`Keys::of_file`]; nothing changes then.
    pub fn reload(&self) -> Result<()> {
        if let Source::File(path) = &self.source {
            let keys = read_file(path)?;
            *self.known.write().unwrap_or_else(PoisonError::into_inner) = keys;
        }
        Ok(())
    }
}

/// A new key, and the line of a file for it.
pub fn new_key(name: &str) -> Result<(String, String)> {
    check_name(name)?;
    let bytes: [u8; KEY_BYTES] = rand::random();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let key = format!("flux-{hex}");
    let line = format!("{name}:{}", blake3::hash(key.as_bytes()).to_hex());
    Ok((key, line))
}

fn check_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@');
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_plain) {
        return Err(Error::usage(format!("`{name}` is no name of a key"))
            .hint("take up to 64 letters, digits and any of `-_.@`"));
    }
    Ok(())
}

fn read_file(path: &Path) -> Result<Vec<Arc<Key>>> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(path).map_or(0, |found| found.permissions().mode());
        if mode & 0o077 != 0 {
            return Err(Error::usage("others may read or write the file of keys")
                .at_path(path)
                .hint(format!("`chmod 600 {}`", flux::error::shell_word(path))));
        }
    }
    let text = fs::read_to_string(path).map_err(|e| {
        Error::usage(format!("cannot read the file of keys: {e}"))
            .at_path(path)
            .hint("`flux key NAME` makes a line of it")
    })?;
    let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let mut keys: Vec<Arc<Key>> = Vec::new();
    for (number, line) in lines {
        let at_line = |e: Error| e.at(format!("{}, line {number}", path.display()));
        let key = read_line(line).map_err(at_line)?;
        if keys.iter().any(|other| other.name == key.name) {
            return Err(at_line(
                Error::usage(format!("the name `{}` is there twice", key.name)).hint("take another one"),
            ));
        }
        keys.push(Arc::new(key));
    }
    if keys.is_empty() {
        return Err(Error::usage("the file has no key").at_path(path).hint("`flux key NAME` makes a line of it"));
    }
    Ok(keys)
}

/// `name:hash[:rate][:priority]`
fn read_line(line: &str) -> Result<Key> {
    let wrong = |what: String| Error::usage(what).hint("expected NAME:HASH[:IMAGES_A_MINUTE][:low|normal|high]");
    let mut parts = line.split(':');
    let name = parts.next().unwrap_or_default();
    check_name(name)?;
    let hash = parts.next().and_then(|hash| blake3::Hash::from_hex(hash).ok());
    let hash = hash.ok_or_else(|| wrong(format!("the hash of `{name}` is no BLAKE3 hash")))?;
    let (mut rate, mut priority) = (RateLimit::none(), Priority::Normal);
    for part in parts {
        match (part, part.parse::<u32>()) {
            ("", _) => {}
            ("low", _) => priority = Priority::Low,
            ("normal", _) => priority = Priority::Normal,
            ("high", _) => priority = Priority::High,
            (_, Ok(images)) if images > 0 => rate = RateLimit::per_minute(f64::from(images)),
            _ => return Err(wrong(format!("`{part}` is neither a rate nor a priority"))),
        }
    }
    Ok(Key { name: name.to_string(), hash, rate, priority })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_made_is_found_by_its_line() {
        let (text, line) = new_key("alice").unwrap();
        let key = read_line(&format!("{line}:30:high")).unwrap();
        assert_eq!((&*key.name, key.priority), ("alice", Priority::High));
        let keys = Keys { source: Source::Environment, known: RwLock::new(vec![Arc::new(key)]) };
        assert_eq!(keys.find(&text).map(|key| key.name.clone()).as_deref(), Some("alice"));
        assert!(keys.find("flux-0").is_none() && keys.find("").is_none());
    }

    #[test]
    fn lines_that_are_wrong_are_told() {
        let hash = blake3::hash(b"x").to_hex();
        for (line, what) in [
            ("alice", "no BLAKE3 hash"),
            ("alice:xyz", "no BLAKE3 hash"),
            (&format!("a b:{hash}"), "no name of a key"),
            (&format!("alice:{hash}:fast"), "neither a rate nor a priority"),
            (&format!("alice:{hash}:0"), "neither a rate nor a priority"),
        ] {
            let error = read_line(line).err().expect(line);
            assert!(error.what().contains(what), "{line}: {error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        fs::write(&path, format!("# keys\n\n{}\n", new_key("alice").unwrap().1)).unwrap();
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o644);
        assert!(Keys::of_file(&path).is_err());
        mode(0o600);
        let keys = Keys::of_file(&path).unwrap();
        let (text, line) = new_key("bob").unwrap();
        fs::write(&path, line).unwrap();
        assert!(keys.find(&text).is_none());
        keys.reload().unwrap();
        assert!(keys.find(&text).is_some());
        fs::write(&path, "broken").unwrap();
        assert!(keys.reload().is_err() && keys.find(&text).is_some(), "what held before still does");
    }
}
