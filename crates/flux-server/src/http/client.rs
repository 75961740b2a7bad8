//! The client of a request.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use flux::engine::Priority;

use crate::http::error::{ApiError, Result};
use crate::http::keys::Key;
use crate::http::log::About;
use crate::http::sockets::network;

/// The client of a request.
#[derive(Clone)]
pub struct Client {
    /// The name of the key. Without keys, the address or the local user's ID.
    pub name: String,
    /// The name under which work is counted. For an address, its network.
    pub share: String,
    pub key: Option<Arc<Key>>,
    /// `true` for a local user other than the server's owner, who must not take precedence over the owner.
    pub is_guest: bool,
    /// The details of the request, for the log.
    pub about: Arc<About>,
}

impl Client {
    pub fn from_key(key: Arc<Key>) -> Self {
        Self { name: key.name.clone(), share: key.name.clone(), key: Some(key), is_guest: false, about: Arc::default() }
    }

    /// Returns a client without a key.
    pub fn named(name: impl ToString) -> Self {
        Self { name: name.to_string(), share: name.to_string(), key: None, is_guest: false, about: Arc::default() }
    }

    /// Returns a client without a key at an address.
    pub fn at(address: IpAddr) -> Self {
        Self { share: network(address).to_string(), ..Self::named(address) }
    }

    /// Returns the highest priority that the client may request.
    pub fn max_priority(&self) -> Priority {
        let without = if self.is_guest { Priority::Normal } else { Priority::High };
        self.key.as_ref().map_or(without, |key| key.priority)
    }

    /// Errors if the client has requested too many images recently.
    pub fn take(&self, images: usize) -> Result<()> {
        let Some(key) = &self.key else { return Ok(()) };
        key.rate.take(images as f64, Instant::now()).map_err(|wait| {
            ApiError::too_many("rate_limited", "the key has reached its limit of images per minute", wait)
        })
    }
}
