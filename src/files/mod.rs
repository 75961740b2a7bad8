//! The files of a model: containers and formats, from bytes to named tensors.
//!
//! [`ModelFiles`] is a model as the user names it: a folder, or the model that the program carries. It opens the
//! tensors of a component as [`TensorFiles`]: containers ([`Safetensors`], [`Gguf`]) whose headers were checked, and
//! which give out [`TensorView`]s. A [`Format`] says how values lie in the bytes of a view, [`Scales`] are what belongs
//! to it beside them, and [`dequantise_rows`] converts them. An [`adapter`] is a file that changes some of the tensors.
//! The [`quantised_cache`] holds some matrices in fewer bits beside the model. Nothing here knows a backend or a model.

pub mod adapter;
mod arrays;
pub mod atomic;
mod blocks;
mod bytes;
mod container;
mod dequantise;
pub mod e4m3;
mod finite;
mod format;
mod gguf;
mod model_files;
pub mod overwrite;
pub mod partial;
pub mod quantised_cache;
pub(crate) mod regular;
mod safetensors;
mod scales;
mod tensor_files;
mod tensor_view;

pub use arrays::{Array, ArrayFile, ArrayTarget};
pub use bytes::Bytes;
pub use container::Container;
pub use dequantise::{dequantise_inlined, dequantise_rows};
pub use format::{Block, Format};
pub use gguf::Gguf;
pub use model_files::{EmbeddedFile, FETCH_A_MODEL, ModelFiles};
pub use safetensors::{Safetensors, scales_name};
pub use scales::{BlockScales, Codebook, FileSlice, Maxima, NestedMaxima, ScaleLayout, Scales};
pub use tensor_files::TensorFiles;
pub use tensor_view::TensorView;
