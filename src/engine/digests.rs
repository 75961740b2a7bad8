//! Digests of a model's components, computed while it is opened.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::thread;

use crate::files::ModelFiles;
use crate::files::adapter::Adapter;

/// The digests of a model's components by name; empty without files.
#[derive(Debug, Default)]
pub(super) struct ModelDigests {
    files: Option<Arc<ModelFiles>>,
    digests: OnceLock<BTreeMap<String, String>>,
}

impl ModelDigests {
    pub(super) fn new(files: Arc<ModelFiles>) -> Self {
        Self { files: Some(files), digests: OnceLock::new() }
    }

    /// Computes the digests of the model and of `adapters` on another thread, so that they are ready before an image
    /// is written.
    pub(super) fn prepare(self: &Arc<Self>, adapters: Vec<Arc<Adapter>>) {
        let digests = Arc::clone(self);
        // Without a thread, they are computed on first use.
        let _ = thread::Builder::new().name("digests".to_string()).spawn(move || {
            digests.get();
            for adapter in adapters {
                adapter.digest();
            }
        });
    }

    /// Waits for the digests. Unreadable files have no digests; opening the model reports the error.
    pub(super) fn get(&self) -> &BTreeMap<String, String> {
        self.digests.get_or_init(|| {
            let digests = self.files.as_ref().and_then(|files| files.digests().ok()).unwrap_or_default();
            digests.into_iter().map(|(name, digest)| (name.to_string(), digest)).collect()
        })
    }
}
