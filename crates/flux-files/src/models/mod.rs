//! The files of a model: from the path that a user names to the components and their configs.
//!
//! Nothing here knows how a model computes. Start with [`model_files`].

pub(crate) mod component;
pub(crate) mod component_at;
pub mod digest;
pub(crate) mod file_config;
pub(crate) mod folder;
pub(crate) mod hub;
pub(crate) mod identity;
pub(crate) mod model_files;
pub(crate) mod model_paths;
pub(crate) mod named_paths;
pub(crate) mod quantized_config;
pub(crate) mod search;
pub(crate) mod survey;
