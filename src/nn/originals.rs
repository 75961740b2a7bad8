//! Unquantized originals of quantized weights, while they stay on the device.

use std::collections::BTreeMap;

use parking_lot::{Mutex, MutexGuard};

use super::Linear;
use crate::backend::Backend;

/// The weights of quantized layers as their files have them, by key. Layers with adapters share the map of their base.
pub(super) struct Originals<B: Backend>(Mutex<BTreeMap<String, Linear<B>>>);

impl<B: Backend> Default for Originals<B> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<B: Backend> Originals<B> {
    /// Locks and returns the loaded originals.
    pub(super) fn weights(&self) -> MutexGuard<'_, BTreeMap<String, Linear<B>>> {
        self.0.lock()
    }
}
