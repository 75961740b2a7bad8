//! The files of a model: containers and formats, from bytes to named tensors.
//!
//! [`ModelFiles`] are what a user names: a folder, or what the program carries. They open the tensors of a component as
//! [`TensorFiles`], which are containers ([`Safetensors`]) that were checked before any use, and give out
//! [`TensorView`]s. A [`Format`] says how values lie in the bytes of a view, and [`dequantise_rows`] what they are.
//! Nothing here knows a backend or a model.

mod bytes;
pub mod e4m3;
mod format;
mod model_files;
mod safetensors;
mod tensor_files;
mod tensor_view;

pub use bytes::Bytes;
pub use format::{Format, dequantise_rows};
pub use model_files::{EmbeddedFile, ModelFiles};
pub use safetensors::{Safetensors, scales_name};
pub use tensor_files::TensorFiles;
pub use tensor_view::TensorView;
