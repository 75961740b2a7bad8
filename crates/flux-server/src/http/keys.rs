//! API keys: a file of lines `NAME:HASH[:RATE][:PRIORITY]`, with the BLAKE3 hash of each key in hexadecimal.
//!
//! Only clients have the keys themselves. All hashes are compared, each in constant time.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use flux::engine::Priority;
use flux::files::read_text;
use flux::{Error, Result};
use parking_lot::RwLock;

use crate::http::rate::RateLimit;

/// Random bytes of a new key.
const KEY_BYTES: usize = 24;
/// Max bytes of a key file.
const MAX_FILE: usize = 4 << 20;

/// The API keys of a server.
pub struct Keys {
    source: Source,
    known: RwLock<Vec<Arc<Key>>>,
}

enum Source {
    /// No key is required.
    None,
    File(PathBuf),
    Environment,
}

/// A key.
pub struct Key {
    pub name: String,
    hash: blake3::Hash,
    pub rate: RateLimit,
    /// The highest priority that the client may request.
    pub priority: Priority,
}

impl Keys {
    /// Returns an empty set: no key is required.
    pub fn none() -> Self {
        Self { source: Source::None, known: RwLock::default() }
    }

    /// Reads the keys of a file.
    ///
    /// Errors if the file cannot be read, other users can read it, or a line is invalid.
    pub fn from_file(path: &Path) -> Result<Self> {
        let keys = read_file(path)?.into_iter().map(Arc::new).collect();
        Ok(Self { source: Source::File(path.to_path_buf()), known: RwLock::new(keys) })
    }

    /// Parses keys in plain text, separated by commas.
    ///
    /// Errors if there are none.
    pub fn parse(text: &str) -> Result<Self> {
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
            return Err(Error::usage("`FLUX_API_KEYS` has no key").hint("add a key, or unset the variable"));
        }
        Ok(Self { source: Source::Environment, known: RwLock::new(keys) })
    }

    /// Returns `true` if clients need a key.
    pub fn are_needed(&self) -> bool {
        !matches!(self.source, Source::None)
    }

    /// Looks up a key by its text.
    pub fn find(&self, text: &str) -> Option<Arc<Key>> {
        let hash = blake3::hash(text.as_bytes());
        let known = self.known.read();
        // All hashes are compared, so that timing does not reveal which one matched.
        known.iter().fold(None, |found, key| if key.hash == hash { Some(Arc::clone(key)) } else { found })
    }

    /// Reads the file again. The used part of a key's rate limit stays used, even if the rate or the key itself
    /// changes.
    ///
    /// Errors as [`Keys::from_file`]. Nothing changes then.
    pub fn reload(&self) -> Result<()> {
        let Source::File(path) = &self.source else { return Ok(()) };
        let (keys, now) = (read_file(path)?, Instant::now());
        let mut known = self.known.write();
        let keys = keys.into_iter().map(|key| {
            let old = known.iter().find(|old| old.name == key.name);
            match old.or_else(|| known.iter().find(|old| old.hash == key.hash)) {
                Some(old) => Key { rate: key.rate.after(&old.rate, now), ..key },
                None => key,
            }
        });
        *known = keys.map(Arc::new).collect();
        Ok(())
    }
}

/// Creates a key. Returns the key and its line for the key file.
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
        return Err(Error::usage(format!("`{name}` is not a valid key name"))
            .hint("use up to 64 letters, digits and any of `-_.@`"));
    }
    Ok(())
}

fn read_file(path: &Path) -> Result<Vec<Key>> {
    let mode = path.metadata().map_or(0, |found| found.permissions().mode());
    if mode & 0o077 != 0 {
        return Err(Error::usage("other users can read or write the key file")
            .at_path(path)
            .hint(format!("`chmod 600 {}`", flux::error::shell_word(path))));
    }
    let text = read_text(path, MAX_FILE).map_err(|e| {
        Error::usage(format!("the key file: {}", e.what())).at_path(path).hint("create a line with `flux key NAME`")
    })?;
    let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let mut keys: Vec<Key> = Vec::new();
    for (number, line) in lines {
        let at_line = |e: Error| e.at(format!("{}, line {number}", path.display()));
        let key = read_line(line).map_err(at_line)?;
        if keys.iter().any(|other| other.name == key.name) {
            return Err(at_line(
                Error::usage(format!("the name `{}` is used twice", key.name)).hint("use another name"),
            ));
        }
        keys.push(key);
    }
    if keys.is_empty() {
        return Err(Error::usage("the file contains no key").at_path(path).hint("create a line with `flux key NAME`"));
    }
    Ok(keys)
}

/// Parses `name:hash[:rate][:priority]`.
fn read_line(line: &str) -> Result<Key> {
    let wrong = |what: String| Error::usage(what).hint("expected NAME:HASH[:IMAGES_A_MINUTE][:low|normal|high]");
    let mut parts = line.split(':');
    let name = parts.next().unwrap_or_default();
    check_name(name)?;
    let hash = parts.next().and_then(|hash| blake3::Hash::from_hex(hash).ok());
    let hash = hash.ok_or_else(|| wrong(format!("the hash of `{name}` is not a BLAKE3 hash")))?;
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
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_of_keys_that_is_no_regular_file_or_too_long_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let made = std::process::Command::new("mkfifo").args(["-m", "600"]).arg(path("pipe")).status();
        assert!(made.is_ok_and(|made| made.success()), "mkfifo is there");
        fs::DirBuilder::new().create(path("folder")).unwrap();
        fs::set_permissions(path("folder"), fs::Permissions::from_mode(0o700)).unwrap();
        symlink("/dev/zero", path("device")).unwrap();
        fs::File::create(path("long")).unwrap().set_len(1 << 42).unwrap();
        fs::set_permissions(path("long"), fs::Permissions::from_mode(0o600)).unwrap();
        for name in ["pipe", "folder", "device", "long"] {
            assert!(Keys::from_file(&path(name)).is_err(), "{name}");
        }
        let keys = path("keys");
        let (text, line) = new_key("alice").unwrap();
        fs::write(&keys, line).unwrap();
        fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
        let known = Keys::from_file(&keys).unwrap();
        fs::rename(path("pipe"), &keys).unwrap();
        assert!(known.reload().is_err() && known.find(&text).is_some());
    }

    #[test]
    fn a_key_that_stays_has_no_new_rate_when_the_file_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let made = ["alice", "bob"].map(|name| new_key(name).unwrap());
        let write = |rates: [u32; 2]| {
            let lines = made.iter().zip(rates).map(|((_, line), rate)| format!("{line}:{rate}\n"));
            fs::write(&path, lines.collect::<String>()).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        };
        write([2, 2]);
        let keys = Keys::from_file(&path).unwrap();
        let take = |place: usize, images: f64| keys.find(&made[place].0).unwrap().rate.take(images, Instant::now());
        assert!(take(0, 2.0).is_ok() && take(1, 2.0).is_ok());
        write([2, 5]);
        keys.reload().unwrap();
        assert!(take(0, 1.0).is_err(), "an unchanged limit keeps its state");
        assert!(take(1, 4.0).is_err() && take(1, 3.0).is_ok(), "the rate was raised by three");
    }

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
            ("alice", "not a BLAKE3 hash"),
            ("alice:xyz", "not a BLAKE3 hash"),
            (&format!("a b:{hash}"), "not a valid key name"),
            (&format!("alice:{hash}:fast"), "neither a rate nor a priority"),
            (&format!("alice:{hash}:0"), "neither a rate nor a priority"),
        ] {
            let error = read_line(line).err().expect(line);
            assert!(error.what().contains(what), "{line}: {error}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        fs::write(&path, format!("# keys\n\n{}\n", new_key("alice").unwrap().1)).unwrap();
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o644);
        assert!(Keys::from_file(&path).is_err());
        mode(0o600);
        let keys = Keys::from_file(&path).unwrap();
        let (text, line) = new_key("bob").unwrap();
        fs::write(&path, line).unwrap();
        assert!(keys.find(&text).is_none());
        keys.reload().unwrap();
        assert!(keys.find(&text).is_some());
        fs::write(&path, "broken").unwrap();
        assert!(keys.reload().is_err() && keys.find(&text).is_some(), "the previous keys stay valid");
    }
}
