//! What a user asks for, what the model makes of it, and what that needs.

pub(crate) mod adapters;
pub(crate) mod embeddings;
pub(crate) mod frame;
pub(crate) mod given;
pub(crate) mod given_reference;
pub(crate) mod images;
pub(crate) mod kept;
pub(crate) mod latents;
pub(crate) mod needs;
pub(crate) mod plan;
pub(crate) mod sharing;
mod source;
pub(crate) mod summary;
