//! Files as bytes: opening regular files, mapping, atomic writes, and suggestions for missing files.
//!
//! Nothing here knows a tensor. Start with [`regular`] for reads and [`atomic`] for writes.

pub mod atomic;
pub(crate) mod bytes;
pub(crate) mod content;
pub mod near;
pub mod overwrite;
pub(crate) mod page_cache;
pub mod partial;
#[cfg(unix)]
pub(crate) mod partial_paths;
pub(crate) mod regular;
