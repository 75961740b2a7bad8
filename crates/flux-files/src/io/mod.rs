//! Files as bytes: opening regular files, mapping, atomic writes, and suggestions for missing files.
//!
//! Nothing here knows a tensor. Start with [`regular`] for reads and [`atomic`] for writes.

use std::path::Path;

pub mod atomic;
pub(crate) mod bytes;
pub(crate) mod content;
pub mod near;
pub mod overwrite;
pub(crate) mod page_cache;
pub mod partial;
pub(crate) mod partial_paths;
pub(crate) mod regular;

/// Returns the last component of a path.
pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
