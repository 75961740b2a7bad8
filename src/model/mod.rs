//! A model's files: what their configs say, opened and checked, converted and quantised. No device is needed here.

mod convert;
pub(crate) mod file_sizes;
mod index;
pub(crate) mod info;
mod left_out;
pub(crate) mod open;
pub(crate) mod quantise;
pub mod registry;

pub use crate::files::Format as WeightFormat;
pub use crate::files::quantise::format_of_name as weight_format;
pub use convert::{Conversion, Converted};
pub use file_sizes::FileSizes;
pub use info::ModelInfo;
pub use open::OpenModel;
pub use quantise::{Quantisation, Quantised};
pub use registry::ModelKind;
