//! Distributed generation: a broker dispatches jobs to workers, and a store keeps the results.
//!
//! ```text
//! submit -> broker -> worker -> store
//!    |                            ^
//!    +---- manifest, inputs ------+
//! ```
//!
//! The store is the source of truth for requests and results. The broker only knows pending jobs, and calling
//! [`submit::submit`] again restores them. The name of a result is the hash of its recipe, so a job that is delivered
//! twice finds its own result. This folder must not know commands or the HTTP server. Start with [`message`] and
//! [`names`], then [`worker`].

pub mod batch;
pub mod broker;
pub mod dead;
pub mod message;
pub mod names;
pub mod online;
pub mod overview;
pub mod status;
pub mod store;
pub mod submit;
mod wait;
pub mod worker;

use std::future::Future;

use flux::{Error, Result};
use tokio::runtime::Builder;

use flux_runtime::threads::startable;

/// Threads of the async runtime.
const THREADS: usize = 2;

/// Runs `work` on an async runtime for the broker and the store.
///
/// Errors if the system cannot start threads, or as `work`.
pub fn run<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    choose_cryptography();
    // tokio would panic.
    if startable(THREADS + 1) <= THREADS {
        return Err(Error::no_thread(&std::io::Error::other("the limits allow too few")));
    }
    let runtime =
        Builder::new_multi_thread().worker_threads(THREADS).enable_all().build().map_err(|e| Error::no_thread(&e))?;
    let done = runtime.block_on(work);
    // Does not wait for images that an engine is still generating.
    runtime.shutdown_background();
    done
}

/// Installs the process-wide cryptography provider of rustls.
pub fn choose_cryptography() {
    // Fails if a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
