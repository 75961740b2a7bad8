//! The memory of captured work: blocks with fixed addresses as long as any graph exists.

use std::thread::{self, ThreadId};

use crate::error::{Error, Result};

/// A block serves requests of its size down to half of it; a block of at most this size serves all smaller requests.
const SMALL_BYTES: usize = 1 << 20;
/// The driver's allocation alignment.
const ALIGNMENT: usize = 256;

/// Blocks of device memory, for one thread at a time. Each `enter` or `share` must be matched by a `leave`.
#[derive(Default)]
pub struct Arena {
    blocks: Vec<Block>,
    /// The blocks of the last run, in the order of its requests.
    log: Vec<usize>,
    state: State,
    shares: usize,
}

struct Block {
    address: u64,
    bytes: usize,
    free: bool,
}

#[derive(Default, Clone, Copy, PartialEq)]
enum State {
    #[default]
    Closed,
    /// Requests of this thread get blocks, new ones if none is free.
    Running(ThreadId),
    /// No request gets a block, but the log is kept.
    Suspended,
    /// Requests of this thread get the blocks of the log, starting at this index.
    Repeating(ThreadId, usize),
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub enum ArenaPlace {
    /// Memory from elsewhere: the request is outside of the arena.
    Elsewhere,
    /// The block with this index, at this address.
    Block(usize, u64),
    /// A new block of this size must be allocated and passed to [`Arena::add`].
    New(usize),
}

impl Arena {
    /// Errors if a thread has entered it.
    pub fn enter(&mut self) -> Result<()> {
        if self.state != State::Closed {
            return Err(Error::new("other work is being captured"));
        }
        self.log.clear();
        self.state = State::Running(thread::current().id());
        self.shares += 1;
        Ok(())
    }

    pub fn suspend(&mut self) {
        self.state = State::Suspended;
    }

    pub fn repeat(&mut self) {
        self.state = State::Repeating(thread::current().id(), 0);
    }

    /// Ends [`Arena::enter`]; the share stays.
    pub fn exit(&mut self) {
        self.state = State::Closed;
    }

    pub fn share(&mut self) {
        self.shares += 1;
    }

    /// Releases a share. Returns the memory of all blocks, as (address, bytes), if it was the last.
    pub fn leave(&mut self) -> Vec<(u64, usize)> {
        self.shares -= 1;
        self.unused()
    }

    /// Releases a block. Returns the memory of all blocks, as (address, bytes), if there are no shares any more.
    pub fn release(&mut self, index: usize) -> Vec<(u64, usize)> {
        self.blocks[index].free = true;
        self.unused()
    }

    fn unused(&mut self) -> Vec<(u64, usize)> {
        if self.shares > 0 || self.blocks.iter().any(|block| !block.free) {
            return Vec::new();
        }
        self.blocks.drain(..).map(|block| (block.address, block.bytes)).collect()
    }

    /// Returns the place for a request of this thread for `bytes`.
    ///
    /// Errors if a repeated run requests other sizes than the first run.
    pub fn request(&mut self, bytes: usize) -> Result<ArenaPlace> {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        let index = match self.state {
            State::Running(thread) if thread == thread::current().id() => {
                let fits =
                    |block: &Block| block.free && block.bytes >= bytes && block.bytes <= (2 * bytes).max(SMALL_BYTES);
                let free = self.blocks.iter().enumerate().filter(|(_, block)| fits(block));
                let Some((index, _)) = free.min_by_key(|(_, block)| block.bytes) else {
                    return Ok(ArenaPlace::New(bytes));
                };
                self.log.push(index);
                index
            }
            State::Repeating(thread, next) if thread == thread::current().id() => {
                let index = self
                    .log
                    .get(next)
                    .copied()
                    .filter(|&index| self.blocks[index].free && self.blocks[index].bytes >= bytes);
                let index = index.ok_or_else(|| Error::new("the work requests different memory than before"))?;
                self.state = State::Repeating(thread, next + 1);
                index
            }
            _ => return Ok(ArenaPlace::Elsewhere),
        };
        let block = &mut self.blocks[index];
        block.free = false;
        Ok(ArenaPlace::Block(index, block.address))
    }

    /// Adds a block that was allocated for a request of this thread, which then owns it.
    pub fn add(&mut self, address: u64, bytes: usize) -> usize {
        self.blocks.push(Block { address, bytes, free: false });
        self.log.push(self.blocks.len() - 1);
        self.blocks.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(arena: &mut Arena, bytes: usize) -> usize {
        match arena.request(bytes).unwrap() {
            ArenaPlace::Block(index, _) => index,
            ArenaPlace::New(bytes) => {
                let address = 1000 * arena.blocks.len() as u64;
                arena.add(address, bytes)
            }
            ArenaPlace::Elsewhere => panic!("the arena is closed"),
        }
    }

    #[test]
    fn a_repeated_run_gets_the_same_blocks_and_no_new_ones() {
        let mut arena = Arena::default();
        let run = |arena: &mut Arena| {
            let a = get(arena, 8 << 20);
            let b = get(arena, 5 << 20);
            assert!(arena.release(a).is_empty());
            let c = get(arena, 6 << 20);
            let d = get(arena, 8 << 20);
            for index in [b, c, d] {
                assert!(arena.release(index).is_empty());
            }
            [a, b, c, d]
        };
        arena.enter().unwrap();
        let first = run(&mut arena);
        assert_eq!(first[0], first[2], "a free block of nearly the same size is reused");
        arena.suspend();
        assert_eq!(arena.request(1).unwrap(), ArenaPlace::Elsewhere);
        let blocks = arena.blocks.len();
        arena.repeat();
        assert_eq!(run(&mut arena), first);
        assert_eq!(arena.blocks.len(), blocks);
        assert!(arena.request(1).is_err(), "more than in the previous run");
        arena.share();
        arena.exit();
        assert!(arena.leave().is_empty(), "one graph remains");
        assert_eq!(arena.leave().len(), blocks);
    }

    #[test]
    fn only_one_thread_is_in_it() {
        let mut arena = Arena::default();
        assert_eq!(arena.request(5).unwrap(), ArenaPlace::Elsewhere);
        arena.enter().unwrap();
        assert!(arena.enter().is_err());
        let other = thread::scope(|scope| scope.spawn(|| arena.request(5).unwrap()).join().unwrap());
        assert_eq!(other, ArenaPlace::Elsewhere);
    }

    #[test]
    fn blocks_that_outlive_the_last_share_go_with_their_tensors() {
        let mut arena = Arena::default();
        arena.enter().unwrap();
        let (a, b) = (get(&mut arena, 100), get(&mut arena, 100));
        arena.exit();
        assert!(arena.leave().is_empty());
        assert!(arena.release(a).is_empty());
        assert_eq!(arena.release(b).len(), 2);
    }
}
