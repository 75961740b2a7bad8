//! Which device memory may be used, and for what: the budget of all of it, and the arena that captured work runs in.
//! Neither knows a device.

mod arena;
mod budget;

pub use arena::{Arena, ArenaPlace};
pub use budget::Budget;
