//! How things are called: exchanges and queues of the broker, and objects of the store.
//!
//! ```text
//! models/NAME.json              what workers draw with
//! in/HASH                       an image or an adapter that jobs draw with
//! out/aa/HASH.png               a result; `aa` are the first two digits of the hash
//! out/aa/HASH.error.json        why there is none
//! batches/ID/manifest.jsonl     the jobs of a batch
//! batches/ID/cursor             how many of them the broker has
//! batches/ID/cancelled          the batch is not to be drawn any more
//! cancelled/JOB                 a job is not to be drawn any more
//! trials/HASH                   a job that may have ended a worker is being drawn, and how often it was begun
//! ```

use std::fmt;

use flux::output::ImageFormat;
use flux::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Jobs go in here; the routing key is the queue.
pub const JOBS: &str = "flux";
/// What could not be drawn, an exchange and a queue.
pub const DEAD: &str = "flux.dead";
/// What all workers hear.
pub const CONTROL: &str = "flux.control";
/// What workers tell; the routing key is `JOB.EVENT`.
pub const EVENTS: &str = "flux.events";

/// The longest name of a model.
const MOST_NAME: usize = 64;
/// Digits of a BLAKE3 hash.
const HASH_DIGITS: usize = 64;
/// Digits of the names of jobs and batches.
const ID_DIGITS: usize = 32;

/// How soon a job is wanted: each has its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lane {
    /// Somebody waits for it.
    Online,
    Batch,
}

impl Lane {
    pub const ALL: [Self; 2] = [Self::Online, Self::Batch];

    /// The queue of a model.
    pub fn queue(self, model: &str) -> String {
        let lane = match self {
            Self::Online => "online",
            Self::Batch => "batch",
        };
        format!("flux.{model}.{lane}")
    }

    /// Jobs that the queue takes; beyond them it refuses more.
    pub fn most_jobs(self) -> i64 {
        match self {
            Self::Online => 10_000,
            Self::Batch => 2_000_000,
        }
    }
}

/// Errors when a model cannot be called so in the names of queues and objects.
pub fn check_model(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if (1..=MOST_NAME).contains(&name.len()) && name.chars().all(is_plain) && !name.starts_with('.') {
        return Ok(());
    }
    Err(Error::usage(format!("`{}` is no name for a model of a queue", flux::error::shown(name)))
        .hint(format!("take up to {MOST_NAME} letters, digits, `-`, `_` and `.`")))
}

/// Whether it is a hash in lower case.
pub fn is_hash(text: &str) -> bool {
    text.len() == HASH_DIGITS && text.bytes().all(is_digit)
}

fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// The name of a job or a batch, of the beginning of a hash.
pub fn id(hash: &blake3::Hash) -> String {
    hash.to_hex()[..ID_DIGITS].to_string()
}

/// Whether a job may be called so.
pub fn is_job(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(is_digit)
}

/// Whether a batch may be called so.
pub fn is_batch(text: &str) -> bool {
    text.strip_prefix("b-").is_some_and(is_job)
}

/// The object of a model.
pub fn model(name: &str) -> String {
    format!("models/{name}.json")
}

/// The object of an input, by its hash.
pub fn input(hash: &str) -> String {
    format!("{INPUTS}{hash}")
}

/// Where inputs are.
pub const INPUTS: &str = "in/";

/// The objects of a batch.
pub fn manifest(batch: &str) -> String {
    format!("batches/{batch}/manifest.jsonl")
}

pub fn cursor(batch: &str) -> String {
    format!("batches/{batch}/cursor")
}

pub fn cancelled(batch: &str) -> String {
    format!("batches/{batch}/cancelled")
}

/// The folder of [`cancelled_job`].
pub const CANCELLED_JOBS: &str = "cancelled";

/// The object of a job that is not to be drawn any more.
pub fn cancelled_job(job: &str) -> String {
    format!("{CANCELLED_JOBS}/{job}")
}

/// A kind of file that results are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    Png,
    Jpeg,
    Webp,
}

impl Ending {
    fn name(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Jpeg => "jpg",
            Self::Webp => "webp",
        }
    }

    fn of(name: &str) -> Option<Self> {
        [Self::Png, Self::Jpeg, Self::Webp].into_iter().find(|ending| ending.name() == name)
    }

    pub fn format(self) -> ImageFormat {
        match self {
            Self::Png => ImageFormat::Png,
            Self::Jpeg => ImageFormat::Jpeg,
            Self::Webp => ImageFormat::Webp,
        }
    }
}

/// Where a result lies: its hash, and what file it is. A message can name nothing else in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    pub hash: blake3::Hash,
    pub ending: Ending,
}

impl Key {
    /// The object of why there is no result.
    pub fn error(&self) -> String {
        format!("{}.error.json", self.stem())
    }

    /// The object that says that a job which may have ended a worker is being drawn.
    pub fn trial(&self) -> String {
        format!("trials/{}", self.hash.to_hex())
    }

    fn stem(&self) -> String {
        let hash = self.hash.to_hex();
        format!("out/{}/{hash}", &hash[..2])
    }

    /// The key that an object below `out/` is of, and whether it is a result.
    pub fn of_object(name: &str) -> Option<(blake3::Hash, bool)> {
        let (hash, ending) = name.rsplit('/').next()?.split_once('.')?;
        let hash = is_hash(hash).then(|| blake3::Hash::from_hex(hash).ok()).flatten()?;
        match ending {
            "error.json" => Some((hash, false)),
            _ => Ending::of(ending).map(|_| (hash, true)),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.stem(), self.ending.name())
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let parts = text.rsplit('/').next().and_then(|file| file.split_once('.'));
        let key = parts.and_then(|(hash, ending)| {
            let hash = is_hash(hash).then(|| blake3::Hash::from_hex(hash).ok()).flatten()?;
            Some(Self { hash, ending: Ending::of(ending)? })
        });
        // Only the one way in which it is written.
        key.filter(|key| key.to_string() == text).ok_or_else(|| serde::de::Error::custom("`key` is none of a result"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_place_below_out() {
        let hash = blake3::hash(b"a cat");
        let key = Key { hash, ending: Ending::Png };
        let text = key.to_string();
        assert_eq!(text, format!("out/{}/{hash}.png", &hash.to_hex()[..2]));
        let json = serde_json::to_string(&key).unwrap();
        assert_eq!(serde_json::from_str::<Key>(&json).unwrap(), key);
        assert_eq!(Key::of_object(&text), Some((hash, true)));
        assert_eq!(Key::of_object(&key.error()), Some((hash, false)));
        let hash = hash.to_hex();
        for wrong in [
            format!("out/00/{hash}.png"),
            format!("out/{}/../{hash}.png", &hash[..2]),
            format!("/out/{}/{hash}.png", &hash[..2]),
            format!("out/{}/{}.png", &hash[..2], hash.to_uppercase()),
            format!("out/{}/{hash}.exe", &hash[..2]),
            format!("out/{}/{hash}.png/", &hash[..2]),
            "../../etc/passwd".to_string(),
            String::new(),
        ] {
            assert!(serde_json::from_value::<Key>(wrong.clone().into()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_hold_no_paths() {
        for name in ["klein-4b", "a", "tiny_2.1"] {
            assert!(check_model(name).is_ok(), "{name}");
        }
        for name in ["", "..", ".a", "a/b", "a b", "käse", "a\n", &"x".repeat(65)] {
            assert!(check_model(name).is_err(), "{name}");
        }
        let hash = blake3::hash(b"");
        assert!(is_job(&id(&hash)) && is_batch(&format!("b-{}", id(&hash))));
        for wrong in ["b-..", "b-", "../b", "B-00000000000000000000000000000000"] {
            assert!(!is_batch(wrong) && !is_job(wrong), "{wrong}");
        }
    }
}
