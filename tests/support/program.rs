//! Runs the program from outside and returns its output.

// Each test crate uses its own part of this module.
#![allow(dead_code)]

use std::path::Path;
use std::process::Command;

pub use crate::process::*;

/// Returns a command for the built program, on the CPU and without the user's environment.
pub fn flux() -> Command {
    hear_signals();
    let mut command = Command::new(env!("CARGO_BIN_EXE_flux"));
    command.env_remove("FLUX_MODEL").env_remove("FLUX_MODELS").env("FLUX_CONFIG", "");
    command
}

/// Flags of the smallest image: 32x32, one step, on the CPU. A tenth of a second.
pub const SMALL: [&str; 8] = ["-W", "32", "-H", "32", "-s", "1", "--device", "cpu"];

/// Returns `true` if tests with a short and a long form run the long one, as `.ci/run --all` does.
pub fn takes_long_form() -> bool {
    std::env::var_os("FLUX_TEST_ALL").is_some()
}

/// Runs the program in `folder`.
pub fn run(folder: &Path, words: &[&str]) -> Run {
    Run::new(flux().current_dir(folder).args(words))
}

/// Runs for the smallest image in `folder`, with further flags.
pub fn draw(folder: &Path, flags: &[&str]) -> Run {
    Run::new(flux().current_dir(folder).args(SMALL).args(flags))
}
