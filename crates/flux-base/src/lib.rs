//! Errors, the memory of the host, and the progress of work: what every crate of `flux` uses.
//!
//! This crate knows no file, image or model. Start with [`error`]: every public function of the project returns its
//! [`Error`].

#![warn(missing_docs)]

pub mod error;
pub mod guard;
pub mod memory;
pub mod stage;

pub use error::{Error, Result};
