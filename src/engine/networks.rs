//! The networks of upscalers on a device.

use std::sync::Arc;

use parking_lot::Mutex;

use super::upscaling::{self, Network};
use crate::backend::Backend;
use crate::error::Result;
use crate::rgb::Rgb;
use crate::stage::{CancelFlag, Progress};
use crate::upscaler::{Tiles, Upscaler, UpscalerFile};

/// Max networks that a device keeps.
const MAX_NETWORKS: usize = 2;

/// The networks on a device, the newest last.
pub(super) struct Networks<B: Backend>(Mutex<Vec<Loaded<B>>>);

/// A file, and its network.
type Loaded<B> = (Arc<UpscalerFile>, Arc<Upscaler<B>>);

impl<B: Backend> Default for Networks<B> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<B: Backend> Networks<B> {
    /// Enlarges an image to a size by the network of a file, in tiles; without a file by the Lanczos filter.
    ///
    /// Errors as [`Upscaler::load`] and [`Upscaling::enlarge`](super::Upscaling::enlarge).
    pub(super) fn enlarge(
        &self,
        backend: &B,
        file: Option<&Arc<UpscalerFile>>,
        image: &Rgb,
        (to, tiles): ([usize; 2], Tiles),
        report: &mut dyn FnMut(Progress),
        cancel: &CancelFlag,
    ) -> Result<Rgb> {
        let network = file.map(|file| self.get(backend, file)).transpose()?;
        let network = network.as_deref().map(|network| network as &dyn Network);
        upscaling::enlarge(network, image, to, tiles, report, cancel)
    }

    /// Returns the network of a file, and loads it if necessary. The network that was used the longest ago makes room.
    fn get(&self, backend: &B, file: &Arc<UpscalerFile>) -> Result<Arc<Upscaler<B>>> {
        let mut all = self.0.lock();
        let known = all.iter().position(|(known, _)| Arc::ptr_eq(known, file));
        let loaded = match known {
            Some(place) => all.remove(place),
            None => {
                let most = all.len().min(MAX_NETWORKS - 1);
                let oldest = all.len() - most;
                all.drain(..oldest);
                (Arc::clone(file), Arc::new(Upscaler::load(backend, file)?))
            }
        };
        let network = Arc::clone(&loaded.1);
        all.push(loaded);
        Ok(network)
    }
}
