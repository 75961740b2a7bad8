//! The facts of the build that `flux --version --verbose` prints, as environment variables of the compiler.

use std::env;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Sets the commit, if this is a checkout of the project itself, the target and the compiler. The script runs again if
/// another commit is checked out or made; later changes of files are not recorded.
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let root = Path::new("../..");
    let git = |arguments: &[&str]| printed("git".as_ref(), &[&["-C", "../.."], arguments].concat());
    let top = git(&["rev-parse", "--show-toplevel"]).and_then(|top| Path::new(&top).canonicalize().ok());
    if top.is_some() && top == root.canonicalize().ok() {
        for file in ["HEAD", "logs/HEAD"] {
            let path = git(&["rev-parse", "--git-path", file]).map(|path| root.join(path)).filter(|path| path.exists());
            path.iter().for_each(|path| println!("cargo::rerun-if-changed={}", path.display()));
        }
        let commit = git(&["describe", "--always", "--dirty", "--exclude", "*"]);
        commit.iter().for_each(|commit| println!("cargo::rustc-env=BUILD_COMMIT={commit}"));
    }
    env::var("TARGET").iter().for_each(|target| println!("cargo::rustc-env=BUILD_TARGET={target}"));
    let rustc = env::var_os("RUSTC").and_then(|rustc| printed(&rustc, &["--version"]));
    rustc.iter().for_each(|text| println!("cargo::rustc-env=BUILD_RUSTC={text}"));
}

/// Returns what a command prints, if it succeeds and prints anything.
fn printed(program: &OsStr, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(text.trim().to_string()).filter(|text| !text.is_empty())
}
