//! Memory in which blocks take turns.

use std::sync::OnceLock;

use super::buffer::Buffer;
use crate::backend::SLABS;
use crate::error::{Error, Result};

/// The memory in which blocks take turns, once it is made; none for a slab in which no block has a turn.
#[derive(Default)]
pub struct Slabs(OnceLock<[Option<Buffer>; SLABS]>);

impl Slabs {
    /// Errors when they are there.
    pub fn set(&self, slabs: [Option<Buffer>; SLABS]) -> Result<()> {
        self.0.set(slabs).map_err(|_| Error::new("memory for streamed blocks was made before"))
    }

    pub fn are_made(&self) -> bool {
        self.0.get().is_some()
    }

    /// Device address of a slab; nothing is at 0.
    pub fn address(&self, slab: usize) -> u64 {
        self.0.get().and_then(|slabs| slabs[slab].as_ref()).map_or(0, Buffer::address)
    }
}
