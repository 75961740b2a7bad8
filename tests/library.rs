//! Tests of the library, called from this process.

#[path = "support/bands.rs"]
mod bands;
#[path = "support/flux3_base.rs"]
mod flux3_base;
#[path = "support/gguf.rs"]
mod gguf;
#[path = "support/model_copy.rs"]
mod model_copy;
#[path = "support/process.rs"]
mod process;
#[path = "support/program.rs"]
mod program;
#[path = "support/ranks.rs"]
mod ranks;
#[path = "support/reference_mask.rs"]
mod reference_mask;
mod support;
#[path = "support/tiny_decoder.rs"]
mod tiny_decoder;

mod adapters;
mod default_model;
mod engine;
mod examples;
mod flux3;
mod formats;
mod golden;
mod input;
mod kept;
mod meaning;
mod opening;
mod parallel;
mod pipeline;
mod tiles;
mod variety;
