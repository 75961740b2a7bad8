//! What the program and the scripts do, each run in a process of its own.

#[path = "support/contact_sheet.rs"]
mod contact_sheet;
#[path = "support/gguf.rs"]
mod gguf;
#[path = "support/model_copy.rs"]
mod model_copy;
#[path = "support/program.rs"]
mod program;
#[path = "support/reference_mask.rs"]
mod reference_mask;
#[path = "support/server.rs"]
mod server;
mod support;

mod bad_models;
mod cli;
mod convert;
mod editing;
mod limits;
mod options;
mod readme;
mod sampling;
mod scripts;
mod writing;
