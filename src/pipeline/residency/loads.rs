//! The components that a device is loading. Other devices wait for them and copy the weights, instead of reading the
//! files too.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// A part of a model that is loaded as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Component {
    TextEncoder,
    Transformer,
    Decoder,
    Encoder,
}

/// The components that a device is loading, or is about to load.
#[derive(Default)]
pub(crate) struct Loads {
    under_way: Mutex<Vec<Component>>,
    changed: Condvar,
}

/// A guard for a component that is being loaded. Dropping it ends the load, successful or not.
pub(crate) struct Loading {
    loads: Arc<Loads>,
    component: Component,
}

impl Loads {
    /// Marks a component as loading: other devices wait from here on.
    pub(crate) fn begin(self: &Arc<Self>, component: Component) -> Loading {
        self.under_way.lock().push(component);
        Loading { loads: Arc::clone(self), component }
    }

    /// Waits until the component is not being loaded.
    pub(crate) fn wait(&self, component: Component) {
        let is_under_way = |under_way: &mut Vec<Component>| under_way.contains(&component);
        self.changed.wait_while(&mut self.under_way.lock(), is_under_way);
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        let mut under_way = self.loads.under_way.lock();
        if let Some(place) = under_way.iter().position(|component| *component == self.component) {
            under_way.swap_remove(place);
        }
        self.loads.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_waits_for_a_component_as_long_as_it_is_being_loaded() {
        let loads = Arc::new(Loads::default());
        loads.wait(Component::Transformer);
        let (first, second) = (loads.begin(Component::Transformer), loads.begin(Component::Transformer));
        loads.wait(Component::Decoder);
        let (sender, waited) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                loads.wait(Component::Transformer);
                sender.send(()).unwrap();
            });
            drop(first);
            assert!(waited.recv_timeout(Duration::from_millis(20)).is_err(), "it is still being loaded");
            drop(second);
            waited.recv().unwrap();
        });
    }
}
