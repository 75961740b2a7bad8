//! Lines about requests, on stderr. They hold no keys and no images, and prompts only where that is asked for.

use std::time::Duration;

use axum::http::Method;
use flux::error::{escaped, shortened};

use super::sockets::Peer;
use crate::progress::say;

/// What is written of requests.
#[derive(Debug, Clone, Copy)]
pub struct Log {
    /// Whether each request is a line.
    pub requests: bool,
    pub prompts: bool,
}

impl Log {
    /// A request that was answered.
    pub fn request(&self, id: &str, from: Peer, method: &Method, path: &str, status: u16, took: Duration) {
        if self.requests {
            let path = shortened(&escaped(path), 200).into_owned();
            say(&format!("{id} {from} {method} {path} {status} {:.3} s", took.as_secs_f64()));
        }
    }

    /// A job that was taken.
    pub fn job(&self, id: &str, of: &str, prompt: &str) {
        if self.prompts {
            say(&format!("job {id} of {of}: {}", shortened(&escaped(prompt), 500)));
        }
    }
}
