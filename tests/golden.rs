//! Compares every stage on the CPU with the reference; see golden/README.md.

mod support;

#[path = "golden/editing.rs"]
mod editing;
#[path = "golden/embeddings.rs"]
mod embeddings;
#[path = "golden/encoder.rs"]
mod encoder;
#[path = "golden/first_step.rs"]
mod first_step;
#[path = "golden/modules.rs"]
mod modules;
#[path = "golden/pipeline.rs"]
mod pipeline;
#[path = "support/reference_mask.rs"]
mod reference_mask;
#[path = "golden/sampling.rs"]
mod sampling;
#[path = "golden/tokens.rs"]
mod tokens;
#[path = "golden/unread.rs"]
mod unread;
