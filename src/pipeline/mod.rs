//! Generation of images from prompts and input images: plans a request, loads the components of a model, and runs
//! them.
//!
//! [`Model::load`] opens and checks the model while another thread reads the tokenizer. Weights are loaded to the
//! device when they are first needed, or when [`Model::prefetch`] asks for them. The text encoder is freed before the
//! transformer is loaded, unless there is memory for both: then other threads load the transformer and the decoder
//! while the text encoder runs.
//!
//! A [`Session`] generates one batch of images. It waits for the device in two places: before a step, until the step
//! two before it is done, and for the pixels of an image. So at most two steps are in flight. This always gives the
//! device work, and a [`CancelFlag`](crate::stage::CancelFlag) ends the session within about a step. [`Replicas`]
//! hold the model on several devices, for an [`Engine`](crate::engine::Engine).
//!
//! Nothing here knows command lines, servers or formats of image files. Start reading at [`Model`] and [`Session`].
//!
//! ```no_run
//! use flux::backend::cpu::{Cpu, Precision};
//! use flux::files::ModelFiles;
//! use flux::pipeline::{Model, Request};
//! use flux::stage::CancelFlag;
//!
//! let dir = ModelFiles::open("models/tiny".as_ref())?;
//! let model = Model::load(Cpu::new(Precision::F32), &dir)?;
//! let mut session = model.session(&Request::new("a red circle on a blue background", 42), 1, &CancelFlag::default())?;
//! while let Some(image) = session.decode(&mut |progress| println!("{progress:?}"))? {
//!     assert_eq!(image.rgb.len(), 3 * image.plan.width * image.plan.height);
//! }
//! # Ok::<(), flux::Error>(())
//! ```
//!
//! Several devices generate one image together with a [`Parallel`], which runs the same session on each of them: its
//! backends are a group, in which each device has some of the tokens and some rows of pixels.
//!
//! [`input`](crate::input) reads images and resizes them for the model: [`input::reference`] makes a reference for
//! [`Request::references`], and an [`Edit`] makes the input of a [`Change`]. An edit also composites the result over
//! the original:
//!
//! [`input::reference`]: crate::input::reference
//! [`Edit`]: crate::input::Edit
//!
//! ```
//! use std::sync::Arc;
//!
//! use flux::backend::cpu::{Cpu, Precision};
//! use flux::files::ModelFiles;
//! use flux::input::{Edit, Mask};
//! use flux::pipeline::{Change, Model, Request};
//! use flux::stage::CancelFlag;
//! use flux::rgb::Rgb;
//!
//! let original = Rgb { width: 70, height: 50, bytes: vec![200; 3 * 70 * 50] }; // or `flux::input::read(path)?`
//! // White in its upper right quarter.
//! let edit = Edit::masked(original.clone(), &Mask::read("docs/corner.png".as_ref())?)?;
//! assert_eq!((edit.image().width, edit.image().height), (64, 48));
//! let change = Change {
//!     image: Arc::new(edit.image().clone()),
//!     cells: edit.cells().map(Arc::from),
//!     strength: 1.0,
//!     is_reference: false,
//! };
//! let request = Request { change: Some(change), steps: Some(1), ..Request::new("a red star", 42) };
//!
//! let model = Model::load(Cpu::new(Precision::F32), &ModelFiles::open("models/tiny".as_ref())?)?;
//! let mut session = model.session(&request, 1, &CancelFlag::default())?;
//! while let Some(image) = session.decode(&mut |_| {})? {
//!     let result = Rgb { width: image.plan.width, height: image.plan.height, bytes: image.rgb };
//!     let feather = 4;
//!     let changed = edit.composite(&result, feather)?;
//!     assert_eq!((changed.width, changed.height), (70, 50));
//!     assert_eq!(changed.bytes[..3 * 30], original.bytes[..3 * 30], "the mask is black there");
//!     assert_ne!(changed, original);
//! }
//! # Ok::<(), flux::Error>(())
//! ```

pub(crate) mod devices;
pub(crate) mod memory;
pub(crate) mod request;
pub(crate) mod residency;
pub(crate) mod session;

pub use devices::parallel::Parallel;
pub use devices::replicas::{Replica, Replicas};
pub use memory::block_sizes::BlockSizes;
pub use memory::plan::{BlockPlan, InBands, MemoryPlan, MemorySizes};
pub use request::embeddings::Embeddings;
pub use request::fields::{MAX_PROMPT_BYTES, PROMPT_TOO_LONG, Request};
pub use request::given_reference::GivenReference;
pub use request::hires::Hires;
pub use request::images::{Change, MAX_REFERENCES};
pub use request::kept::Reuse;
pub use request::latents::Latents;
pub use request::plan::{HiresPlan, Plan};
pub use request::regions::{Area, MAX_REGIONS, RegionPrompt};
pub use request::summary::{ComponentSummary, MemoryLevel, Sizes, Summary};
pub use request::tiles::TilePlan;
pub(crate) use request::tiles::check_tiles;
pub use request::transparency::Transparency;
pub use residency::byte_cache::CacheStats;
pub use residency::placement::Placement;
pub use residency::timings::{Timings, TokenCount};
pub use session::model::Model;
pub use session::{Decoded, Image, Session};

pub use crate::files::adapter::{Adapter, AdapterUse};
