//! FLUX.2-klein: words and images to images.
//!
//! ```text
//! prompt -> TextEncoder    -> txt [512, 3 * hidden]
//! images -> input, Encoder -> references [tokens, channels]
//! seed   -> noise          -> latents [tokens, channels]
//!           denoise: Transformer (double, then single blocks) -> velocity; latents += dt * velocity
//!           Decoder        -> [height * width, 3] -> RGB
//! ```
//!
//! In reading order: an [`engine`] makes the images of jobs on devices; [`pipeline`] puts the models together, and
//! shows how an image is made and how one is changed; [`model`] says what a model is, before anything of it is loaded;
//! [`text_encoder`], [`transformer`], [`vae`] and [`sampler`] are the models, written once for every backend in terms
//! of [`tensor::Tensor`] and its [`ops`]; [`backend`] is where ops run: [`backend::cpu`], the reference, and
//! [`backend::cuda`]. [`token_layout`] says which tokens lie where in their tensors, and [`token_split`] which of them
//! each of several devices has. [`files`] maps the files of a model and names its tensors, which models load through
//! [`nn`]. [`input`] reads image files and masks and lays results over what was changed, [`output`] writes them; in
//! between they are [`rgb::Rgb`]. [`compare`] says how far two are apart, and a [`sheet`] shows many, with
//! [`lettering`] under them. [`selftest`] tests the machine.
//! [`hub`] says what names of models mean, and finds them in the cache of Hugging Face.

mod active_tokens;
pub mod backend;
pub mod compare;
pub mod default_model;
pub mod engine;
pub mod error;
pub mod files;
mod guard;
pub mod hub;
pub mod input;
pub mod lettering;
pub mod metadata;
pub mod model;
pub mod nn;
pub mod ops;
pub mod output;
pub mod pipeline;
pub mod rgb;
pub mod sampler;
pub mod selftest;
pub mod sheet;
pub mod stage;
pub mod tensor;
pub mod text_encoder;
pub mod token_layout;
pub mod token_split;
pub mod transformer;
pub mod vae;

pub use error::{Error, Result};
pub use tensor::Tensor;

/// The Rust code of docs/library.md, which `cargo test` runs.
#[cfg(doctest)]
#[doc = include_str!("../docs/library.md")]
struct Readme;
