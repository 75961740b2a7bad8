//! Several devices that make one image: collectives against their definitions, and images against those of one device.
//! The devices are ranks of the CPU backend, each on a thread of its own.

mod collectives;
mod images;
