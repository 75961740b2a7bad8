//! Requests, the plan that a model makes of a request, and the memory that the plan needs.
//!
//! Nothing here computes on a device or loads weights. Start reading at [`fields::Request`] and [`plan::Plan`].

pub(crate) mod adapters;
mod choices;
pub(crate) mod embeddings;
pub(crate) mod fields;
pub(crate) mod frame;
pub(crate) mod given;
pub(crate) mod given_reference;
pub(crate) mod hires;
pub(crate) mod images;
pub(crate) mod kept;
pub(crate) mod latents;
pub(crate) mod needs;
pub(crate) mod plan;
pub(crate) mod regions;
mod second_pass;
pub(crate) mod sharing;
mod source;
pub(crate) mod summary;
mod tiled;
pub(crate) mod tiles;
pub(crate) mod transparency;
mod vae_memory;
