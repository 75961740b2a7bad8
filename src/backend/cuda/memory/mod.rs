//! Accounting of device memory: the budget of all of it ([`budget`]), and the arena of captured work ([`arena`]).
//! Neither calls the driver or knows about devices. Start reading at the budget.

mod arena;
mod budget;

pub use arena::{Arena, ArenaPlace};
pub use budget::Budget;
