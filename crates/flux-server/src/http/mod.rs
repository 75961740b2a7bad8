//! HTTP below all APIs: listeners, connections, clients and their keys, responses, events, and the log.
//!
//! Nothing here knows an image. Start with [`connections`].

pub(crate) mod activity;
pub mod address;
pub(crate) mod answer;
pub(crate) mod client;
pub mod config;
pub(crate) mod connections;
pub(crate) mod error;
pub(crate) mod ids;
pub mod keys;
pub(crate) mod log;
pub(crate) mod patient;
pub(crate) mod pieces;
pub(crate) mod rate;
pub(crate) mod silence;
pub(crate) mod sockets;
pub(crate) mod sse;
pub(crate) mod supervisor;
