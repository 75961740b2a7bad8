//! The program `flux`: [`flux_cli::run`] with the allocator of the program.

use std::env;
use std::process::ExitCode;

use flux_runtime::allocator;

#[global_allocator]
static ALLOCATOR: allocator::OrExit = allocator::OrExit;

fn main() -> ExitCode {
    allocator::explain_aborts();
    ExitCode::from(flux_cli::run(env::args_os().collect()))
}
