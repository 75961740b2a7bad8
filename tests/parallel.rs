//! Several devices that make one image: collectives against what they mean, and images against those of one device. The
//! devices are ranks of the CPU backend, each on a thread of its own.

#[path = "support/bands.rs"]
mod bands;
#[path = "support/ranks.rs"]
mod ranks;
mod support;

#[path = "parallel/collectives.rs"]
mod collectives;
#[path = "parallel/images.rs"]
mod images;
