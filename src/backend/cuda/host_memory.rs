//! Host memory for large activations: pinned blocks that the GPU copies from and to.
//!
//! A block that is freed serves later work of the compute stream, which runs after the work that used it. Unused blocks
//! are returned to the system before another block is allocated, and all of them after the last one is freed.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

use super::captures::outside_captures;
use super::device::Device;
use super::event::Event;
use super::host_staging_buffer::Pinned;
use crate::error::Result;
use crate::memory;

thread_local! {
    /// Outputs of more bytes are in host memory, in work of this thread.
    static MAX_RESIDENT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Runs `work`, in which outputs of convolutions of more than `bytes` bytes are in host memory.
pub fn with_max_resident<T>(bytes: u64, work: impl FnOnce() -> T) -> T {
    struct Outer(u64);

    impl Drop for Outer {
        fn drop(&mut self) {
            MAX_RESIDENT.set(self.0);
        }
    }

    let _outer = Outer(MAX_RESIDENT.replace(bytes));
    work()
}

/// Returns `true` if an output of `bytes` bytes is in host memory.
pub fn exceeds_resident(bytes: usize) -> bool {
    bytes as u64 > MAX_RESIDENT.get()
}

/// The blocks of a device.
#[derive(Default)]
pub struct HostMemory {
    blocks: Mutex<Vec<Block>>,
}

struct Block {
    memory: Pinned,
    is_free: bool,
}

impl HostMemory {
    /// Returns the address of memory for `bytes` bytes, for work on the compute stream.
    ///
    /// Errors if the host has too little memory, or earlier work failed.
    pub fn request(&self, device: &Arc<Device>, bytes: usize) -> Result<u64> {
        // A panic leaves only complete blocks.
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = blocks.iter_mut().filter(|block| block.is_free && block.memory.bytes() >= bytes);
        if let Some(block) = fitting.min_by_key(|block| block.memory.bytes()) {
            block.is_free = false;
            return Ok(block.memory.address());
        }
        let unused = blocks.extract_if(.., |block| block.is_free).collect();
        free(device, unused)?;
        let _reservation = memory::reserve(bytes)?;
        let memory = Pinned::new(device, bytes)?;
        let address = memory.address();
        blocks.push(Block { memory, is_free: false });
        Ok(address)
    }

    /// Frees the memory at an address that [`HostMemory::request`] returned, behind all work enqueued so far.
    pub fn release(&self, device: &Arc<Device>, address: u64) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.iter_mut().filter(|block| block.memory.address() == address).for_each(|block| block.is_free = true);
        if blocks.iter().all(|block| block.is_free) {
            // A failure repeats one that was reported.
            let _ = free(device, std::mem::take(&mut *blocks));
        }
    }
}

/// Returns blocks to the system, once the work enqueued so far is done.
fn free(device: &Arc<Device>, blocks: Vec<Block>) -> Result<()> {
    if blocks.is_empty() {
        return Ok(());
    }
    let done = Event::new(device, device.stream()).and_then(|event| event.wait());
    match done {
        Ok(()) => {
            let _outside = outside_captures();
            drop(blocks);
        }
        // On a failed device, work may still use them.
        Err(_) => blocks.into_iter().for_each(|block| std::mem::forget(block.memory)),
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_holds_within_the_work_of_a_thread() {
        let is_large = || [10, 11].map(exceeds_resident);
        assert_eq!(is_large(), [false; 2]);
        let inside = with_max_resident(10, || {
            let other = std::thread::spawn(move || [10, 11].map(exceeds_resident)).join().unwrap();
            let inner = with_max_resident(u64::MAX, is_large);
            (is_large(), other, inner)
        });
        assert_eq!(inside, ([false, true], [false; 2], [false; 2]));
        let _ = std::panic::catch_unwind(|| with_max_resident(0, || panic!("in the work")));
        assert_eq!(is_large(), [false; 2], "also after a panic");
    }
}
