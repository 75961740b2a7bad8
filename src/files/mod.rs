//! The files of a model: containers and formats, from bytes to named tensors.
//!
//! [`ModelFiles`] is a model as the user names it: a folder, some files, or the model that the program carries. Each
//! [`Component`] of it opens its tensors as [`TensorFiles`]: containers ([`Safetensors`], [`Gguf`]) whose headers were
//! checked, and which give out [`TensorView`]s, under the [`names`] that models ask for, whoever wrote the files. A
//! [`Format`] says how values lie in the bytes of a view, [`Scales`] are what belongs to it beside them, and
//! [`dequantise_rows`] converts them. An [`adapter`] is a file that changes some of the tensors. The
//! [`quantised_cache`] holds some matrices in fewer bits beside the model. Nothing here knows a backend or a model.

pub mod adapter;
mod arrays;
pub mod atomic;
mod blocks;
mod bytes;
mod component;
mod component_at;
mod container;
mod content;
mod dequantise;
pub mod digest;
pub mod e4m3;
mod families;
mod fetch;
mod file_config;
mod finite;
mod folder;
mod format;
mod gguf;
mod hub;
mod identity;
mod inspect;
pub mod int8;
mod magnitude;
mod model_files;
mod model_paths;
mod named_paths;
pub mod names;
pub mod near;
mod other_models;
pub mod overwrite;
pub mod own_models;
pub mod partial;
#[cfg(unix)]
mod partial_paths;
pub mod quantise;
pub mod quantised_cache;
mod recognise;
pub(crate) mod regular;
mod role;
mod safetensors;
mod scales;
mod search;
mod survey;
mod tensor_files;
mod tensor_view;
mod variant;
pub mod w4a8;
pub mod writer;
mod zeros;

pub use arrays::{Array, ArrayFile, ArrayTarget};
pub(crate) use blocks::micro::FirstNibble;
pub use bytes::Bytes;
pub use component::{Component, ConfigPlace, open_weights};
pub use container::{Container, is_weights};
pub use content::{damage, is_pickle};
pub use dequantise::{dequantise_inlined, dequantise_rows};
pub use families::Family;
pub use fetch::fetch_a_model;
pub use file_config::{CONFIG_KEY, FileConfig, Told, Values};
pub use folder::{EmbeddedFile, Folder};
pub use format::{Block, Format};
pub(crate) use format::{Encode, Kernel};
pub use gguf::Gguf;
pub use identity::{FileId, check_replaceable, files_at};
pub use model_files::{ModelFiles, TokenizerFile};
pub use named_paths::ModelPaths;
pub use regular::open as open_regular;
pub use regular::read_text;
pub use role::Role;
pub use safetensors::{Safetensors, scales_name};
pub use scales::{BlockScales, Codebook, FileSlice, Maxima, NestedMaxima, ScaleLayout, Scales};
pub use survey::{Content, Surveyed, survey};
pub use tensor_files::{TensorFiles, Unread};
pub use tensor_view::TensorView;
pub use variant::Variant;
