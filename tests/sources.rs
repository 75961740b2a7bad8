//! What the files of the project are: their layers, their comments, the four places of each op, and what build.rs does.

#[path = "support/program.rs"]
mod program;

mod build_script;
mod comments;
mod layering;
mod ops;
