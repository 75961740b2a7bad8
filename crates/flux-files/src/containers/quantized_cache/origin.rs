//! The origin of a cache file: the weights that its matrices are made from.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Matrix;
use crate::{Container, Safetensors, TensorFiles};
use flux_base::error::{Error, Result};

/// The version of the cache's format; it changes when the same weights would make another file.
pub(super) const FORMAT: u32 = 2;
/// The key of the [`Origin`] in the header's metadata, as JSON.
pub(super) const ORIGIN_KEY: &str = "flux_fp8";
/// Bytes of each matrix that are hashed, to distinguish its file from another one of the same size and time.
const SAMPLE_BYTES: usize = 1024;
pub(super) const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// The weights that a cache file is made from.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Origin {
    format: u32,
    sources: Vec<SourceFile>,
}

/// A file of weights.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceFile {
    /// The path below the model's folder.
    name: String,
    bytes: u64,
    /// The time of the last change, in nanoseconds since 1970.
    modified_ns: i64,
    /// FNV-1a of the first [`SAMPLE_BYTES`] of each matrix.
    sample: u64,
}

impl Origin {
    pub(super) fn new(folder: &Path, files: &TensorFiles, matrices: &[Matrix]) -> Result<Self> {
        let source = |file: &Container| {
            let path = file.path();
            let modified = fs::metadata(path)
                .and_then(|found| found.modified())
                .map_err(|e| Error::new(format!("cannot inspect the file: {e}")).at_path(path))?;
            let views = matrices.iter().map(|matrix| &matrix.view);
            let of_file = views.filter(|view| Arc::ptr_eq(view.file(), file.bytes()));
            Ok(SourceFile {
                name: path.strip_prefix(folder).unwrap_or(path).display().to_string(),
                bytes: file.bytes().as_slice().len() as u64,
                modified_ns: nanoseconds(modified),
                sample: of_file
                    .fold(FNV_BASIS, |hash, view| fnv1a(hash, &view.bytes()[..view.bytes().len().min(SAMPLE_BYTES)])),
            })
        };
        Ok(Self { format: FORMAT, sources: files.files().iter().map(source).collect::<Result<_>>()? })
    }

    /// Returns the reason why a cache file has another origin, if it has.
    pub(super) fn misfit(&self, cache: &Safetensors) -> Option<String> {
        let unknown = || Some("it does not name its source files".to_string());
        let Some(said) = cache.metadata().get(ORIGIN_KEY) else { return unknown() };
        // The format is checked first, because the other fields may differ between formats.
        match serde_json::from_str(said).ok().and_then(|said: Value| said.get("format")?.as_u64()) {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(format) => return Some(format!("its format is {format}, expected {FORMAT}")),
            None => return unknown(),
        }
        let Ok(theirs) = serde_json::from_str::<Self>(said) else { return unknown() };
        let other = self.sources.iter().find(|source| !theirs.sources.contains(source));
        match other {
            Some(source) => Some(format!("it was created from another `{}`", source.name)),
            None if theirs.sources.len() != self.sources.len() => Some("it was created from more files".to_string()),
            None => None,
        }
    }
}

pub(super) fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Returns nanoseconds since 1970, negative before; times out of range are clamped.
fn nanoseconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanos| -nanos),
    }
}
