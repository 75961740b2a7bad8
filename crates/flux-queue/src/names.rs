//! Names of exchanges and queues of the broker, and of objects of the store.
//!
//! ```text
//! models/NAME.json              the model that workers run under this name
//! in/HASH                       an input of jobs: an image or an adapter
//! out/aa/HASH.png               a result; `aa` are the first two digits of the hash
//! out/aa/HASH.error.json        the error of a failed job
//! batches/ID/manifest.jsonl     the jobs of a batch
//! batches/ID/cursor             the number of jobs that were sent to the broker
//! batches/ID/cancelled          exists if the batch is cancelled
//! cancelled/JOB                 exists if the job is cancelled
//! trials/HASH                   attempts of a job that may have killed a worker
//! ```

use std::fmt;

use flux::output::ImageFormat;
use flux::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The exchange for jobs. The routing key is the queue.
pub const JOBS: &str = "flux";
/// The exchange and the queue of dead letters.
pub const DEAD: &str = "flux.dead";
/// The exchange for orders to all workers.
pub const CONTROL: &str = "flux.control";
/// The exchange for events of jobs. The routing key is `JOB.EVENT`.
pub const EVENTS: &str = "flux.events";

/// The max length of a model name.
const MAX_NAME: usize = 64;
/// Hex digits of a BLAKE3 hash.
const HASH_DIGITS: usize = 64;
/// Hex digits of job and batch IDs.
const ID_DIGITS: usize = 32;

/// The priority of a job. Each priority has a queue of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lane {
    /// A client is waiting for the result.
    Online,
    Batch,
}

impl Lane {
    pub const ALL: [Self; 2] = [Self::Online, Self::Batch];

    /// Returns the name of a model's queue.
    pub fn queue(self, model: &str) -> String {
        let lane = match self {
            Self::Online => "online",
            Self::Batch => "batch",
        };
        format!("flux.{model}.{lane}")
    }

    /// Returns the max length of the queue. The broker refuses further jobs.
    pub fn max_jobs(self) -> i64 {
        match self {
            Self::Online => 10_000,
            Self::Batch => 2_000_000,
        }
    }
}

/// Errors if a model name cannot be used in names of queues and objects.
pub fn check_model(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_plain) && !name.starts_with('.') {
        return Ok(());
    }
    Err(Error::usage(format!("`{}` is not a valid model name for a queue", flux::error::shown(name)))
        .hint(format!("use up to {MAX_NAME} letters, digits, `-`, `_` and `.`")))
}

/// Returns `true` if the text is a hash in lower-case hex.
pub fn is_hash(text: &str) -> bool {
    text.len() == HASH_DIGITS && text.bytes().all(is_digit)
}

fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// Returns the ID of a job or a batch: the first digits of a hash.
pub fn id(hash: &blake3::Hash) -> String {
    hash.to_hex()[..ID_DIGITS].to_string()
}

/// Returns `true` if the text is a valid job ID.
pub fn is_job(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(is_digit)
}

/// Returns `true` if the text is a valid batch ID.
pub fn is_batch(text: &str) -> bool {
    text.strip_prefix("b-").is_some_and(is_job)
}

/// Returns the name of a model's object.
pub fn model(name: &str) -> String {
    format!("models/{name}.json")
}

/// Returns the name of an input's object, from its hash.
pub fn input(hash: &str) -> String {
    format!("{INPUTS}{hash}")
}

/// The folder of inputs.
pub const INPUTS: &str = "in/";

/// Returns the names of a batch's objects.
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

/// Returns the name of the object that marks a job as cancelled.
pub fn cancelled_job(job: &str) -> String {
    format!("{CANCELLED_JOBS}/{job}")
}

/// The name of a result: its hash and file type. A message can't name any other object as its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    pub hash: blake3::Hash,
    pub format: ImageFormat,
}

impl Key {
    /// Returns the name of the object that holds the error of a failed job.
    pub fn error(&self) -> String {
        format!("{}.error.json", self.stem())
    }

    /// Returns the name of the object that counts attempts of a job that may have killed a worker.
    pub fn trial(&self) -> String {
        format!("trials/{}", self.hash.to_hex())
    }

    fn stem(&self) -> String {
        let hash = self.hash.to_hex();
        format!("out/{}/{hash}", &hash[..2])
    }

    /// Parses the name of an object below `out/`. Returns its hash, and `true` for a result or `false` for an error.
    pub fn parse_object_name(name: &str) -> Option<(blake3::Hash, bool)> {
        let (hash, ending) = parse_file(name)?;
        match ending {
            "error.json" => Some((hash, false)),
            _ => from_ending(ending).map(|_| (hash, true)),
        }
    }
}

/// Parses the hash and the extension of a file below `out/`.
fn parse_file(name: &str) -> Option<(blake3::Hash, &str)> {
    let (hash, ending) = name.rsplit('/').next()?.split_once('.')?;
    is_hash(hash).then(|| blake3::Hash::from_hex(hash).ok()).flatten().map(|hash| (hash, ending))
}

/// Returns the format of files with this extension, in its usual spelling.
fn from_ending(ending: &str) -> Option<ImageFormat> {
    [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Webp].into_iter().find(|format| format.ending() == ending)
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.stem(), self.format.ending())
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
        let key = parse_file(&text).and_then(|(hash, ending)| Some(Self { hash, format: from_ending(ending)? }));
        // Accept the canonical spelling only.
        key.filter(|key| key.to_string() == text).ok_or_else(|| serde::de::Error::custom("`key` is not a result key"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_place_below_out() {
        let hash = blake3::hash(b"a cat");
        let key = Key { hash, format: ImageFormat::Png };
        let text = key.to_string();
        assert_eq!(text, format!("out/{}/{hash}.png", &hash.to_hex()[..2]));
        let json = serde_json::to_string(&key).unwrap();
        assert_eq!(serde_json::from_str::<Key>(&json).unwrap(), key);
        assert_eq!(Key::parse_object_name(&text), Some((hash, true)));
        assert_eq!(Key::parse_object_name(&key.error()), Some((hash, false)));
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
