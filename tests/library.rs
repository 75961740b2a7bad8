//! What the library does, called from this process.

#[path = "support/bands.rs"]
mod bands;
#[path = "support/gguf.rs"]
mod gguf;
#[path = "support/model_copy.rs"]
mod model_copy;
#[path = "support/program.rs"]
mod program;
#[path = "support/ranks.rs"]
mod ranks;
#[path = "support/reference_mask.rs"]
mod reference_mask;
mod support;

mod adapters;
mod default_model;
mod engine;
mod formats;
mod golden;
mod input;
mod meaning;
mod opening;
mod parallel;
mod pipeline;
