//! What opened files hold, told before anything is computed from them.

use super::container::Container;
use super::recognise::FileKind;
use super::safetensors::foreign::unread;
use crate::error::Result;

/// What the files of one component or model are.
pub fn kind(files: &[Container]) -> FileKind {
    let shape = |name: &str| files.iter().find_map(|file| file.shape(name));
    FileKind::of(files.iter().flat_map(Container::names), shape)
}

/// Errors with the method when some layer of the files is in a form that is not read.
pub fn check_forms(files: &[Container]) -> Result<()> {
    for file in files {
        let Container::Safetensors(file) = file else { continue };
        if let Some((layer, method)) = file.foreign_layer() {
            return Err(unread(&format!("{layer}.weight"), method).at_path(file.path()));
        }
    }
    Ok(())
}
