//! The models that the project knows: families, variants, components, and the names of their tensors.
//!
//! Tables and what is read from names alone; nothing here opens a file. Start with [`own_models`].

pub(crate) mod architecture;
pub(crate) mod families;
pub(crate) mod fetch;
pub mod names;
pub(crate) mod other_models;
pub mod own_models;
pub(crate) mod recognise;
pub(crate) mod role;
pub(crate) mod variant;
