//! A model's configs and opened files: checks, conversion and quantization, without a device.
//!
//! Nothing here runs ops on a GPU or makes images. Start with [`info`] (the configs) and [`open`] (the checked
//! files); [`registry`] lists the kinds of models.

mod convert;
pub(crate) mod file_sizes;
mod index;
pub(crate) mod info;
mod left_out;
pub(crate) mod open;
pub(crate) mod quantize;
pub mod registry;

pub use crate::files::Format as WeightFormat;
pub use crate::files::quantize::format_of_name as weight_format;
pub use convert::{Conversion, Converted};
pub use file_sizes::FileSizes;
pub use info::ModelInfo;
pub use open::OpenModel;
pub use quantize::{Quantization, Quantized};
pub use registry::{ModelKind, ReferenceSizes};
