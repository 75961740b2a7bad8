//! Checks of opened files before any computation: the kind of model, and unsupported quantization methods.

use crate::catalog::recognise::FileKind;
use crate::containers::container::Container;
use crate::containers::safetensors::foreign::unread;
use flux_base::error::Result;

/// Returns the kind of the files of one component or model.
pub fn kind(files: &[Container]) -> FileKind {
    let shape = |name: &str| files.iter().find_map(|file| file.shape(name));
    FileKind::from_tensors(files.iter().flat_map(Container::names), shape)
}

/// Errors if a layer is quantized by an unsupported method; the error names the method.
pub fn check_forms(files: &[Container]) -> Result<()> {
    for file in files {
        let Container::Safetensors(file) = file else { continue };
        if let Some((layer, method)) = file.foreign_layer() {
            return Err(unread(&format!("{layer}.weight"), method).at_path(file.path()));
        }
    }
    Ok(())
}
