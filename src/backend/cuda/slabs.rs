//! Memory that streamed blocks use in turn.

use std::sync::OnceLock;

use super::buffer::Buffer;
use crate::backend::SLABS;
use crate::error::{Error, Result};

/// The slabs of streamed blocks, once allocated; `None` for a slab that no block uses.
#[derive(Default)]
pub struct Slabs(OnceLock<[Option<Buffer>; SLABS]>);

impl Slabs {
    /// Errors if they are already set.
    pub fn set(&self, slabs: [Option<Buffer>; SLABS]) -> Result<()> {
        self.0.set(slabs).map_err(|_| Error::new("memory for streamed blocks is already allocated"))
    }

    pub fn are_made(&self) -> bool {
        self.0.get().is_some()
    }

    /// Returns the device address of a slab; 0 if there is none.
    pub fn address(&self, slab: usize) -> u64 {
        self.0.get().and_then(|slabs| slabs[slab].as_ref()).map_or(0, Buffer::address)
    }
}
