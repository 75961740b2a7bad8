//! What quantised weights are made of, where it stays on the device.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Linear;
use crate::backend::Backend;

/// The weights of quantised layers as their files have them, by key. Layers with adapters share those of their base.
pub(super) struct Originals<B: Backend>(Mutex<BTreeMap<String, Linear<B>>>);

impl<B: Backend> Default for Originals<B> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<B: Backend> Originals<B> {
    /// Those that are there.
    pub(super) fn weights(&self) -> MutexGuard<'_, BTreeMap<String, Linear<B>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
