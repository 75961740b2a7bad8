//! Answers on disk, so that the same request gives the same prompt without a language model.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use flux::files::{atomic, read_text};
use flux::pipeline::MAX_PROMPT_BYTES;

/// Maximum bytes of all answers; older ones are removed.
const MAX_BYTES: u64 = 10_000_000;

/// The folder of the answers.
#[derive(Debug, Clone)]
pub struct Cache(PathBuf);

impl Cache {
    /// Creates a cache in a folder, which need not exist.
    pub fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    fn file(&self, key: &str) -> PathBuf {
        self.0.join(format!("{key}.txt"))
    }

    /// Returns the answer with this key.
    pub fn get(&self, key: &str) -> Option<String> {
        read_text(&self.file(key), MAX_PROMPT_BYTES).ok().filter(|text| !text.is_empty())
    }

    /// Stores an answer. Failures have no effect: the language model is asked again.
    pub fn put(&self, key: &str, answer: &str) {
        let _ = fs::create_dir_all(&self.0);
        let _ = atomic::write(&self.file(key), answer.as_bytes());
        self.shrink(MAX_BYTES);
    }

    /// Removes the oldest answers beyond a number of bytes.
    fn shrink(&self, max_bytes: u64) {
        let mut files: Vec<_> =
            fs::read_dir(&self.0).into_iter().flatten().flatten().filter_map(|e| own(&e.path())).collect();
        files.sort_by_key(|(_, written, _)| std::cmp::Reverse(*written));
        let mut sum = 0;
        for (path, _, bytes) in files {
            sum += bytes;
            if sum > max_bytes {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// Returns path, time and bytes of an answer's file.
fn own(path: &Path) -> Option<(PathBuf, SystemTime, u64)> {
    let key = path.file_name()?.to_str()?.strip_suffix(".txt")?;
    let is_own = key.len() == 64 && key.bytes().all(|byte| byte.is_ascii_hexdigit());
    let found = fs::symlink_metadata(path).ok().filter(|found| is_own && found.is_file())?;
    Some((path.to_path_buf(), found.modified().ok()?, found.len()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_newest_answers_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().join("answers"));
        let keys = ['a', 'b', 'c'].map(|letter| letter.to_string().repeat(64));
        for (age, key) in keys.iter().enumerate() {
            cache.put(key, "twelve bytes");
            let time = SystemTime::now() - Duration::from_secs(100 * age as u64);
            fs::File::options().append(true).open(cache.file(key)).unwrap().set_modified(time).unwrap();
        }
        let other = folder.path().join("answers/notes.txt");
        fs::write(&other, "mine").unwrap();
        cache.shrink(24);
        let kept = keys.clone().map(|key| cache.get(&key).is_some());
        assert_eq!((kept, other.exists()), ([true, true, false], true));
        assert_eq!(cache.get(&keys[0]).as_deref(), Some("twelve bytes"));
    }
}
