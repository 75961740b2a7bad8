//! Accounting of memory: the budget of the device ([`budget`]), the arena of captured work ([`arena`]), and host
//! memory of large activations ([`host_blocks`]). None calls the driver or knows about devices. Start reading at the
//! budget.

mod arena;
mod budget;
mod host_blocks;

pub use arena::{Arena, ArenaPlace};
pub use budget::Budget;
pub use host_blocks::HostBlocks;
