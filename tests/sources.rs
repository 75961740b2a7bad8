//! Checks of the project's files: layers, comments, the files of each op, and build.rs.

#[path = "support/process.rs"]
mod process;

mod build_script;
mod comments;
mod layering;
mod layouts;
mod messages;
mod ops;
