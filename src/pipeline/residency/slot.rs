//! A slot for a component in device memory.

use std::sync::Arc;

use parking_lot::Mutex;

/// A component, if it is in memory.
pub(crate) struct Slot<T>(Mutex<Option<Arc<T>>>);

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Slot<T> {
    pub(crate) fn get(&self) -> Option<Arc<T>> {
        self.0.lock().clone()
    }

    pub(crate) fn put(&self, component: T) -> Arc<T> {
        let component = Arc::new(component);
        *self.0.lock() = Some(Arc::clone(&component));
        component
    }

    /// Frees the component after the sessions that use it have ended. Returns `true` if there was one. The lock is
    /// released before, because dropping a graph waits for the device.
    pub(crate) fn free(&self) -> bool {
        let freed = self.0.lock().take();
        freed.is_some()
    }
}
