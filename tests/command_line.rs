//! Tests of the program and the scripts, each run in a process of its own.

#[path = "support/chat_server.rs"]
mod chat_server;
#[path = "support/gguf.rs"]
mod gguf;
#[path = "support/hub.rs"]
mod hub;
#[path = "support/model_copy.rs"]
mod model_copy;
#[path = "support/process.rs"]
mod process;
#[path = "support/program.rs"]
mod program;
#[path = "support/pty.rs"]
mod pty;
#[path = "support/reference_mask.rs"]
mod reference_mask;
#[path = "support/requests.rs"]
mod requests;
#[cfg(feature = "server")]
#[path = "support/serving.rs"]
mod serving;
mod support;
#[path = "support/tiny_decoder.rs"]
mod tiny_decoder;
#[cfg(feature = "server")]
#[path = "support/websocket.rs"]
mod websocket;

mod bad_models;
mod cli;
mod convert;
mod download;
mod editing;
mod limits;
mod live;
mod log;
mod looking;
mod machine;
mod options;
mod pages;
#[cfg(feature = "queue")]
mod queue;
mod readme;
mod sampling;
mod scripts;
#[cfg(feature = "server")]
mod serve;
mod upsample;
mod writing;
