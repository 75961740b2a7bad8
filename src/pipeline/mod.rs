//! Prompt to image: the order in which the components of a model run, and how long each lives.
//!
//! [`Model::load`] opens and checks the model, while another thread reads the tokenizer; weights go to the device when
//! they are first needed, or when [`Model::prefetch`] asks for them. The text encoder leaves it before the transformer
//! comes, unless there is room for both: then the other components are on their way while it runs. A [`Session`] is one
//! batch of images being made. It enqueues work for the device ahead of time, two steps at most, so that the device
//! never waits for the host and a [`CancelFlag`] ends it soon.
//!
//! ```no_run
//! use flux::backend::cpu::{Cpu, Precision};
//! use flux::files::ModelFiles;
//! use flux::pipeline::{CancelFlag, Model, Request};
//!
//! let dir = ModelFiles::open("models/tiny".as_ref())?;
//! let model = Model::load(Cpu::new(Precision::F32), &dir)?;
//! let mut session = model.session(&Request::new("a red circle on a blue background", 42), 1, &CancelFlag::default())?;
//! while let Some(image) = session.decode(&mut |progress| println!("{progress:?}"))? {
//!     assert_eq!(image.rgb.len(), 3 * image.plan.width * image.plan.height);
//! }
//! # Ok::<(), flux::Error>(())
//! ```

mod decode;
mod denoise;
mod info;
mod memory;
mod model;
mod opened;
mod plan;
mod prefetch;
mod progress;
mod prompt_cache;
mod residency;
mod session;
mod timings;

pub use info::ModelInfo;
pub use model::Model;
pub use opened::OpenModel;
pub use plan::{MAX_PROMPT_BYTES, Plan, Request};
pub use progress::{CancelFlag, Progress, Stage};
pub use session::{Decoded, Session};
pub use timings::Timings;

/// An image and how it was made.
#[derive(Debug, Clone)]
pub struct Image {
    /// RGB bytes, row by row: 3 * width * height.
    pub rgb: Vec<u8>,
    /// Size, steps, seed and guidance that were used.
    pub plan: Plan,
    /// Where the time of its batch went.
    pub timings: Timings,
}
