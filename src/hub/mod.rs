//! Models by name: what names mean, which models are published, and where the cache that other tools share has them.
//! Nothing here uses the network: `flux download` fills the cache.

mod cache;
mod find;
mod licence;
mod name;
mod registry;
mod repository;

pub use cache::{Cache, CachedRepository, Snapshot};
pub use find::{Found, Wanted, find, folders, look_in, resolve};
pub use licence::Licence;
pub use name::{Named, is_plain};
pub use registry::{PUBLISHED, Published};
pub use repository::Repository;
