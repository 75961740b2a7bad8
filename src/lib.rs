//! Generates and edits images from text prompts with the models FLUX.2-klein and FLUX.3-klein, on NVIDIA GPUs and CPUs.
//!
//! ```no_run
//! use flux::{Device, Engine, Event};
//!
//! fn main() -> flux::Result<()> {
//!     let flux = Engine::builder("models/klein-4b").device(Device::Auto).open()?;
//!     let image = flux.generate("a ghost").size(768, 512).seed(1).run()?;
//!     image.save("ghost.png")?;
//!     for event in flux.edit("make it blue", &image).steps(4).submit()? {
//!         match event? {
//!             Event::Progress(progress) => eprintln!("{progress:?}"),
//!             Event::Image { image, .. } => image.save("blue.png")?,
//!             _ => {}
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! - An [`Engine`] holds an open model on its devices. [`Engine::builder`] opens one, [`Engine::built_in`] the model
//!   that is part of this crate (feature `default-model`).
//! - [`Engine::generate`] and [`Engine::edit`] start a [`Generation`]: set its options, then call
//!   [`run`](Generation::run) or [`submit`](Generation::submit).
//! - An [`Image`] has the pixels and the [`ImageRecipe`] that reproduces them. [`Image::save`] writes both into the
//!   file, as the program `flux` does. [`Image::to_rgb_image`] converts to the crate `image`.
//! - A [`Ticket`] yields the [`Event`]s of a submitted job. Dropping it cancels the job.
//! - An [`Error`] has a [kind](Error::kind), the [field](Error::field) of the recipe to change, and a hint.
//!
//! `docs/library.md` is the guide, and `examples/` has programs. The module [`engine`] has the parts that these calls
//! are made of: jobs, recipes, inputs, choices of devices.
//!
//! # Threads
//!
//! An engine is `Send` and `Sync`: share it by reference or in an [`Arc`](std::sync::Arc). It has one thread for each
//! device, which combines waiting images of all callers into batches. [`Generation::run`] blocks, so async code calls
//! it on a thread for blocking work, such as tokio's `spawn_blocking`. The CPU computes on the global thread pool of
//! rayon, which the program may set up before it opens an engine.
//!
//! # The process around the library
//!
//! The library reads no standard input, prints nothing, installs no signal handler and sets no panic hook. If
//! third-party code panics on a damaged file, the library catches the panic and returns an error. The program's panic
//! hook runs before that, and `flux::guard::is_guarded` is `true` in it.
//!
//! # Other modules
//!
//! The modules that are not shown here (pipeline, models, ops, backends) are public for the other crates of the
//! workspace only, and change with them. `docs/architecture.md` describes them.

#![warn(missing_docs)]

mod active_tokens;
#[doc(hidden)]
pub mod backend;
pub mod engine;
#[doc(hidden)]
pub mod model;
#[doc(hidden)]
pub mod nn;
#[doc(hidden)]
pub mod ops;
#[doc(hidden)]
pub mod pipeline;
#[doc(hidden)]
pub mod sampler;
#[doc(hidden)]
pub mod tensor;
#[doc(hidden)]
pub mod text_encoder;
mod tiles;
#[doc(hidden)]
pub mod token_layout;
#[doc(hidden)]
pub mod token_split;
#[doc(hidden)]
pub mod transformer;
#[doc(hidden)]
pub mod upscaler;
#[doc(hidden)]
pub mod vae;

#[doc(inline)]
pub use engine::choice::Device;
#[doc(inline)]
pub use engine::{Engine, EngineBuilder, Event, Generation, Image, ImageRecipe, InputImage, Observer, Recipe, Ticket};
#[doc(inline)]
pub use flux_base::error::{Error, ErrorKind, Field, Result};
#[doc(inline)]
pub use flux_base::stage::{CancelFlag, Progress, Stage};
#[doc(inline)]
pub use flux_media::output::ImageFormat;
#[doc(inline)]
pub use flux_media::rgb::{Rgb, RgbImage};
#[doc(inline)]
pub use model::ModelInfo;
#[doc(inline)]
pub use pipeline::{Embeddings, Latents};

#[doc(hidden)]
pub use flux_base::{error, guard, memory, stage};
#[doc(hidden)]
pub use flux_default_model as default_model;
#[doc(hidden)]
pub use flux_files as files;
#[doc(hidden)]
pub use flux_media::{alpha, compare, input, lettering, metadata, output, rgb, sheet};
#[doc(hidden)]
pub use tensor::Tensor;

/// The Rust code of docs/library.md, which `cargo test` runs.
#[cfg(doctest)]
#[doc = include_str!("../docs/library.md")]
struct Readme;
