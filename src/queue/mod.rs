//! Jobs for many machines: a broker hands them to workers, and a store has what comes of them.
//!
//! ```text
//! submit -> broker -> worker -> store
//!    |                            ^
//!    +---- manifest, inputs ------+
//! ```
//!
//! The store has the truth: what was asked for, and what came of it. The broker only knows what is still to be done,
//! and [`submit::submit`] given again makes it anew. A result lies where the hash of its recipe says, so that a job
//! which is delivered twice meets its own result.

pub mod batch;
pub mod broker;
pub mod dead;
pub mod message;
pub mod names;
#[cfg(feature = "server")]
pub mod online;
#[cfg(feature = "server")]
pub mod overview;
pub mod status;
pub mod store;
pub mod submit;
mod wait;
pub mod worker;

use std::future::Future;

use flux::{Error, Result};
use tokio::runtime::Builder;

/// Runs what talks to the broker and to the store.
///
/// Errors when the system starts no thread, or as `work`.
pub fn run<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    choose_cryptography();
    let runtime =
        Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(|e| Error::no_thread(&e))?;
    let done = runtime.block_on(work);
    // What an engine still draws is not waited for.
    runtime.shutdown_background();
    done
}

/// What speaks TLS asks the process whose arithmetic to take.
pub fn choose_cryptography() {
    // A second time it is chosen already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
