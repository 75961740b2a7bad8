//! Jobs: from the fields of a request to a record, its place in the queue, its images, and its results.
//!
//! Nothing here knows an API's wire format. Start with [`intake`], which admits a request, and [`queue`].

pub(crate) mod admission;
pub(crate) mod body;
pub(crate) mod embedded;
pub(crate) mod enlarging;
pub(crate) mod fields;
pub(crate) mod follow;
pub(crate) mod intake;
pub(crate) mod makers;
pub(crate) mod masks;
pub(crate) mod metrics;
pub mod models;
pub(crate) mod names;
pub(crate) mod queue;
pub(crate) mod record;
pub(crate) mod repeats;
pub(crate) mod request;
pub(crate) mod store;
pub(crate) mod uploads;
pub(crate) mod upsampling;
pub(crate) mod work;
#[cfg(feature = "queue")]
pub(crate) mod workers;
