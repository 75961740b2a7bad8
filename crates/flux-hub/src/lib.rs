//! Models by name: the meaning of names, the table of published models, and the cache that is shared with other tools.
//! Nothing here uses the network: `flux download` fills the cache. Start at [`resolve`].

mod cache;
pub mod download;
mod find;
mod licence;
mod name;
mod registry;
mod repository;

pub use cache::{Cache, CachedRepository, Snapshot};
pub use find::{Found, Wanted, find, folders, look_in, resolve};
pub use licence::Licence;
pub use name::{FLUX3_PROMPTS, Named, is_plain};
pub use registry::{PUBLISHED, Published};
pub use repository::Repository;
