//! The same image on two devices.


use crate::program::{Run, names};
use crate::{folder, program_that, script};

#[test]
fn the_comparison_of_devices_prints_numbers_and_holds_to_its_bound() {
    let folder = folder();
    let same = Run::of(
        script("compare_cpu_gpu.sh")
            .args(["--against", "cpu", "--keep"])
            .arg(folder.path())
            .args(["-W", "32", "-H", "32", "-s", "1"]),
    )
    .succeeds();
    assert_eq!(same.stdout, "max 0 mean 0.0000 psnr inf dB\n");
    assert_eq!(names(folder.path()), ["cpu-again.png", "cpu.png"]);

    // In place of a GPU: another seed, so another image.
    let flux = env!("CARGO_BIN_EXE_flux");
    let does = format!(
        "case \"$*\" in *'--device other'*) exec {flux} -q -p x -S 9 -W 32 -H 32 -s 1 --device cpu -o {}/other.png;; *) exec {flux} \"$@\";; esac",
        folder.path().display()
    );
    let program = program_that(folder.path(), &does);
    let compare = |bound: &str| {
        let mut command = script("compare_cpu_gpu.sh");
        command.env("FLUX_BIN", &program).args(["--against", "other", "--bound", bound, "--keep"]).arg(folder.path());
        Run::of(command.args(["-W", "32", "-H", "32", "-s", "1", "-p", "x", "-S", "8"]))
    };
    assert!(compare("1").succeeds().stdout.starts_with("max "));
    let apart = compare("45");
    assert_eq!(apart.code, Some(1));
    assert!(apart.stderr.contains("expected at least 45 dB"), "{}", apart.stderr);
}
