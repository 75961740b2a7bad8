//! The build of the running program, for its log and its metrics.

use std::sync::OnceLock;

/// The version of all crates of the project.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The build of a program.
#[derive(Debug, Clone, Copy)]
pub struct Build {
    /// The commit; `None` outside a checkout.
    pub commit: Option<&'static str>,
    /// The target triple; `-` if unknown.
    pub target: &'static str,
}

static BUILD: OnceLock<Build> = OnceLock::new();

/// Sets the build of this program; only the first call has an effect. The crate of the program calls it, so that a new
/// commit rebuilds no other crate.
pub fn set(build: Build) {
    let _ = BUILD.set(build);
}

/// Returns the build of this program; without facts if it was never set.
pub fn get() -> Build {
    *BUILD.get().unwrap_or(&Build { commit: None, target: "-" })
}
