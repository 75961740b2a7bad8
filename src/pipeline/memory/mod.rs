//! Memory plans: which parts of a model are in a device's memory, decided from sizes alone.
//!
//! Nothing here loads weights or queries a device. Start reading at [`plan::MemoryPlan`].

pub(crate) mod block_sizes;
pub(crate) mod plan;
