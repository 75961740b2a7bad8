//! The process around the library: console and log, threads, allocator, signals of the system, and the end of a run.
//!
//! The library may be part of another program, so it changes nothing of its process; this crate does. It knows no model
//! and no command. Start with [`progress::Console`], which prints notes and progress.

pub mod address;
pub mod allocator;
pub mod build;
pub mod bus_error;
pub mod certificates;
pub mod hardware_queues;
pub mod panics;
pub mod progress;
pub mod threads;
