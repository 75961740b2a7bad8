//! What of a model is in a device's memory: decided from sizes alone.

pub(crate) mod block_sizes;
pub(crate) mod plan;
