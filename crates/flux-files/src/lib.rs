//! The files of a model: containers and formats, from bytes to named tensors.
//!
//! Start at [`ModelFiles`], a model as the user names it: a folder, some files, or the built-in model. Each
//! [`Component`] opens its tensors as [`TensorFiles`]: containers ([`Safetensors`], [`Gguf`]) with checked headers,
//! which return [`TensorView`]s under the [`names`] that models use, whichever program wrote the files. A [`Format`]
//! describes how values are encoded in the bytes of a view, [`Scales`] are the scales stored outside these bytes, and
//! [`dequantize_rows`] decodes the values. An [`adapter`] is a file that changes some of the tensors. The
//! [`quantized_cache`] stores quantized copies of some matrices next to the model. Nothing here depends on a backend or
//! a model implementation.

#![warn(missing_docs)]

pub mod adapter;
mod arrays;
mod catalog;
mod containers;
mod formats;
mod io;
mod models;
#[cfg(test)]
mod testing;

pub use arrays::{Array, ArrayFile, ArrayTarget, encode as encode_arrays};
pub use catalog::fetch::fetch_a_model;
pub use catalog::names;
pub use catalog::own_models;
pub use catalog::role::Role;
pub use catalog::variant::Variant;
pub use containers::container::open_pickled_weights;
pub use containers::container::{Container, is_weights};
pub use containers::gguf::Gguf;
pub use containers::quantized_cache;
pub use containers::safetensors::{Safetensors, scales_name};
pub use containers::tensor_files::{TensorFiles, Unread};
pub use containers::writer;
pub use formats::blocks::micro::FirstNibble;
pub use formats::dequantize::{dequantize_inlined, dequantize_rows};
pub use formats::e4m3;
pub use formats::format::{Block, Format};
pub use formats::format::{Encode, Kernel};
pub use formats::int8;
pub use formats::quantize;
pub use formats::scales::{BlockScales, Codebook, FileSlice, Maxima, NestedMaxima, ScaleLayout, Scales, TileScales};
pub use formats::tensor_view::TensorView;
pub use formats::w4a8;
pub use io::atomic;
pub use io::bytes::Bytes;
pub use io::content::{damage, is_pickle};
pub use io::near;
pub use io::overwrite;
pub use io::partial;
pub use io::regular::open as open_regular;
pub use io::regular::{open_unlinked, read_bounded, read_text};
pub use models::component::{Component, ConfigPlace, open_weights};
pub use models::digest;
pub use models::file_config::{CONFIG_KEY, FileConfig, ImpliedValue, Values};
pub use models::folder::{EmbeddedFile, Folder};
pub use models::identity::{FileId, check_replaceable, files_at};
pub use models::model_files::{ModelFiles, TokenizerFile};
pub use models::named_paths::ModelPaths;
pub use models::survey::{Content, Surveyed, survey};
