//! Several devices: together on one image, or side by side on many.

pub(crate) mod parallel;
pub(crate) mod replicas;
