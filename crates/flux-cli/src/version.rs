//! Version and build facts, for `flux --version --verbose` and for the beginning of reports.

use std::ffi::OsString;

use flux::engine::devices::kernels_built;
use flux_runtime::build::Build;
pub use flux_runtime::build::VERSION;

/// The build of this program, as its build script reports it.
pub const BUILD: Build = Build {
    commit: option_env!("BUILD_COMMIT"),
    target: match option_env!("BUILD_TARGET") {
        Some(target) => target,
        None => "-",
    },
};

/// Returns the long form: `flux VERSION`, and a line for each fact of the build.
pub fn long() -> String {
    let kernels = kernels_built();
    let architectures: Vec<_> = kernels.architectures.iter().map(|name| dotted(name)).collect();
    let ptx = kernels.ptx.map_or(String::new(), |name| format!(", and PTX for {} and later", dotted(name)));
    let facts = [
        ("commit", BUILD.commit.unwrap_or("-").to_string()),
        ("CUDA toolkit", kernels.toolkit.unwrap_or("- (built without nvcc, CPU only)").to_string()),
        ("GPU kernels", if architectures.is_empty() { "-".to_string() } else { architectures.join(", ") + &ptx }),
        ("built-in model", if cfg!(feature = "default-model") { "yes" } else { "no" }.to_string()),
        ("target", BUILD.target.to_string()),
        ("compiler", option_env!("BUILD_RUSTC").unwrap_or("-").to_string()),
    ];
    let lines = facts.iter().map(|(name, fact)| format!("{name}: {fact}"));
    [format!("flux {VERSION}")].into_iter().chain(lines).collect::<Vec<_>>().join("\n")
}

/// Returns an architecture as a compute capability: 9.0a for `90a`.
fn dotted(name: &str) -> String {
    let digits = name.find(|c: char| !c.is_ascii_digit()).unwrap_or(name.len());
    if digits < 2 { name.to_string() } else { format!("{}.{}", &name[..digits - 1], &name[digits - 1..]) }
}

/// Returns `true` if the arguments request the long form of the version, as in `--version --verbose` and `-vV`.
pub fn is_verbose(arguments: &[OsString]) -> bool {
    arguments.iter().skip(1).filter_map(|word| word.to_str()).any(|word| {
        let short = word.strip_prefix('-').filter(|letters| letters.chars().all(|c| matches!(c, 'v' | 'V')));
        word == "--verbose" || short.is_some_and(|letters| letters.contains('v'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_form_tells_all_of_the_build() {
        let text = long();
        for start in ["flux ", "commit: ", "CUDA toolkit: ", "GPU kernels: ", "target: ", "compiler: rustc "] {
            assert!(text.lines().any(|line| line.starts_with(start)), "{start}: {text}");
        }
        assert_eq!(["75", "90a", "120", "x"].map(dotted), ["7.5", "9.0a", "12.0", "x"]);
    }

    #[test]
    fn it_is_asked_for_by_verbose() {
        let of = |words: &[&str]| is_verbose(&["flux"].iter().chain(words).map(OsString::from).collect::<Vec<_>>());
        assert!(of(&["--version", "--verbose"]) && of(&["-vV"]) && of(&["-V", "-v"]));
        assert!(!of(&["--version"]) && !of(&["-V"]) && !of(&[]));
    }
}
