//! FLUX.2-klein: words to images.
//!
//! ```text
//! prompt -> TextEncoder -> txt [512, 3 * hidden]
//! seed   -> noise       -> latents [tokens, channels]
//!           denoise: Transformer (double, then single blocks) -> velocity; latents += dt * velocity
//!           Decoder     -> [height * width, 3] -> RGB
//! ```
//!
//! In reading order: [`pipeline`] puts the models together; [`text_encoder`], [`transformer`], [`vae`] and [`sampler`]
//! are the models, written once for every backend in terms of [`tensor::Tensor`] and its [`ops`]; [`backend`] is where
//! ops run: [`backend::cpu`], the reference, and [`backend::cuda`]. [`files`] maps the files of a model
//! and names its tensors, which models load through [`nn`]. [`input`] reads image files and [`output`] writes them.

pub mod backend;
pub mod compare;
pub mod default_model;
pub mod error;
pub mod files;
pub mod input;
pub mod nn;
pub mod ops;
pub mod output;
pub mod pipeline;
pub mod rgb;
pub mod sampler;
pub mod tensor;
pub mod text_encoder;
pub mod token_layout;
pub mod transformer;
pub mod vae;

pub use error::{Error, Result};
pub use tensor::Tensor;

/// The Rust code of README.md, which `cargo test` runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
