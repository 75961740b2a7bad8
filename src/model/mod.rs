//! What a model is, before anything of it is loaded: what its configs say, and the sizes of its files.

pub(crate) mod file_sizes;
pub(crate) mod index;
pub(crate) mod info;
pub mod registry;

pub use file_sizes::FileSizes;
pub use info::ModelInfo;
pub use registry::ModelKind;
