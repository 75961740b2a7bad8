//! The program ended by signals at random moments, and programs that leave files behind.

use super::{folder, program_that, script};
use crate::program::Run;

#[test]
fn the_program_leaves_a_whole_image_or_nothing_whenever_a_signal_comes() {
    let run = Run::new(script("fuzz_signals.sh").args([env!("CARGO_BIN_EXE_flux"), "20", "1"]));
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    assert!(run.stdout.starts_with("20 runs: ") && run.stdout.contains(" 0 findings; seed 1, "), "{}", run.stdout);
    assert_eq!(run.stderr, "");
}

#[test]
fn what_a_program_leaves_behind_is_found() {
    let folder = folder();
    let flux = env!("CARGO_BIN_EXE_flux");
    // A stand-in for flux: takes a tenth of a second for an image, and runs `at_once` before.
    let findings = |at_once: &str| {
        let does = format!(
            r#"[ "$1" != compare ] || exec {flux} "$@"
            for flag; do case "$flag" in --output=*) image=${{flag#*=}};; esac; done
            {at_once}
            sleep 0.1 & wait
            [ -e "$image" ] || : >"$image""#
        );
        let program = program_that(&folder, &does);
        let run = Run::new(script("fuzz_signals.sh").arg(&program).args(["6", "3"]));
        assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
        let again = format!("to reproduce: scripts/fuzz_signals.sh {} 6 3\n", program.display());
        assert!(run.stdout.contains("6 runs: ") && run.stdout.ends_with(&again), "{}", run.stdout);
        run.stdout
    };
    let found = findings(": >\"${image%/*}/.flux-1.part\"");
    assert!(found.contains("finding in run ") && found.contains(".flux-1.part is left behind"), "{found}");
    assert!(findings("echo half >\"$image\"").contains("image.png is incomplete"));
    let found = findings("trap 'echo thread main panicked >&2; exit 101' INT TERM HUP");
    assert!(found.contains("a panic: thread main panicked"), "{found}");
    assert!(found.contains("exit 101): neither an exit code"), "{found}");
    assert!(findings("trap 'exit 0' INT TERM HUP").contains("exit 0): no image"));
}

#[test]
fn wrong_arguments_of_the_fuzzer_are_named() {
    Run::new(script("fuzz_signals.sh").args(["/nowhere/flux", "1", "1"])).fails(2, &["/nowhere/flux"]);
    Run::new(script("fuzz_signals.sh").args(["sh", "0", "1"])).fails(2, &["count"]);
    Run::new(script("fuzz_signals.sh").args(["sh", "1", "70000"])).fails(2, &["seed"]);
    Run::new(script("fuzz_signals.sh").args(["false", "1", "1"])).fails(1, &["the run without a signal failed"]);
}
