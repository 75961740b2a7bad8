//! Device memory: buffers under a budget, and the arena that captured work runs in.
//!
//! [`Budget`] counts and [`Arena`] plans, neither of which knows a device; [`Buffer`] is memory of one.

mod arena;
mod budget;
mod buffer;

pub use arena::Arena;
pub use budget::Budget;
pub use buffer::{Buffer, Kind};
