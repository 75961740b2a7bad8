//! The origin of values that a request passes in.

use std::path::{Path, PathBuf};

/// The file that values were read from, if any. It does not affect the values, so all origins are equal.
#[derive(Debug, Clone, Default)]
pub(crate) struct ValueOrigin(Option<PathBuf>);

impl From<&Path> for ValueOrigin {
    fn from(path: &Path) -> Self {
        Self(Some(path.to_path_buf()))
    }
}

impl PartialEq for ValueOrigin {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl ValueOrigin {
    pub(crate) fn path(&self) -> Option<&Path> {
        self.0.as_deref()
    }
}
