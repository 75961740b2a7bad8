//! The digests of a model's parts, which are made while it is opened.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::thread;

use crate::files::ModelFiles;
use crate::files::adapter::Adapter;

/// The digests of a model's parts, by their names; none where there are no files.
#[derive(Debug, Default)]
pub(super) struct ModelDigests {
    files: Option<Arc<ModelFiles>>,
    digests: OnceLock<BTreeMap<String, String>>,
}

impl ModelDigests {
    pub(super) fn new(files: Arc<ModelFiles>) -> Self {
        Self { files: Some(files), digests: OnceLock::new() }
    }

    /// Makes them, and those of `adapters`, on a thread of their own: until an image is written they are there.
    pub(super) fn prepare(self: &Arc<Self>, adapters: Vec<Arc<Adapter>>) {
        let digests = Arc::clone(self);
        // Without a thread they are made when they are asked for.
        let _ = thread::Builder::new().name("digests".to_string()).spawn(move || {
            digests.get();
            for adapter in adapters {
                adapter.digest();
            }
        });
    }

    /// Waits for them. Files that cannot be read have none: opening the model tells why.
    pub(super) fn get(&self) -> &BTreeMap<String, String> {
        self.digests.get_or_init(|| {
            let digests = self.files.as_ref().and_then(|files| files.digests().ok()).unwrap_or_default();
            digests.into_iter().map(|(name, digest)| (name.to_string(), digest)).collect()
        })
    }
}
