//! Containers of tensors: safetensors, GGUF and the quantized cache.
//!
//! A container checks its header and returns views of tensors by name; it does not know which model they form. Start
//! with [`container`].

pub(crate) mod container;
mod cursor;
pub(crate) mod gguf;
pub(crate) mod inspect;
pub mod pickle;
pub mod quantized_cache;
pub(crate) mod safetensors;
pub(crate) mod tensor_files;
pub mod writer;
