//! Compares every stage on the CPU with the reference; see golden/README.md.

mod editing;
mod embeddings;
mod encoder;
mod first_step;
pub mod flux3;
mod modules;
mod pipeline;
mod sampling;
mod tokens;
mod unread;
