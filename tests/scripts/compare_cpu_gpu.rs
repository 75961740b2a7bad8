//! The same image on two devices.

use std::fs;

use flux::input::read;

use super::{folder, program_that, script, write};
use crate::program::{Run, flux, names};

/// The beginning of the line for two equal images.
const SAME: &str = "max 0 mean 0.0000 psnr inf dB ";

#[test]
fn the_comparison_of_devices_prints_numbers_and_holds_to_its_bound() {
    let folder = folder();
    let same = Run::new(
        script("compare_cpu_gpu.sh")
            .args(["--against", "cpu", "--keep"])
            .arg(&folder)
            .args(["-W", "32", "-H", "32", "-s", "1"]),
    )
    .succeeds();
    assert!(same.stdout.starts_with(SAME), "{}", same.stdout);
    assert_eq!(names(&folder), ["cpu-again.png", "cpu.png"]);

    // A different seed replaces the GPU, so the images differ. With one step the seed would hardly show.
    let flux = env!("CARGO_BIN_EXE_flux");
    let does = format!(
        "case \"$*\" in *'--device other'*) exec {flux} -q -p x -S 9 -W 64 -H 64 -s 2 --device cpu -o {}/other.png;; *) exec {flux} \"$@\";; esac",
        folder.display()
    );
    let program = program_that(&folder, &does);
    let compare = |bound: &str| {
        let mut command = script("compare_cpu_gpu.sh");
        command.env("FLUX_BIN", &program).args(["--against", "other", "--bound", bound, "--keep"]).arg(&folder);
        Run::new(command.args(["-W", "64", "-H", "64", "-s", "2", "-p", "x", "-S", "8"]))
    };
    assert!(compare("1").succeeds().stdout.starts_with("max "));
    let apart = compare("45");
    assert_eq!(apart.code, Some(1));
    assert!(apart.stderr.contains("expected at least 45 dB"), "{}", apart.stderr);
}

#[test]
fn prompts_that_begin_with_a_hyphen_or_come_from_standard_input_are_compared() {
    let folder = folder();
    let compare = |flags: &[&str]| {
        let mut command = script("compare_cpu_gpu.sh");
        command.args(["--against", "cpu", "--keep"]).arg(&folder).args(["-W", "32", "-H", "32", "-s", "1"]);
        command.args(["-S", "3"]).args(flags);
        command
    };
    let drawn = || String::from_utf8_lossy(&fs::read(folder.join("cpu.png")).expect("an image")).into_owned();
    for prompt in ["-n 2 grey squares", "-o", "--bound"] {
        for flags in [["-p", prompt].as_slice(), &["--prompt", prompt], &[&format!("--prompt={prompt}")]] {
            Run::new(&mut compare(flags)).succeeds();
            assert!(drawn().contains(prompt), "the image says of which prompt it is: {flags:?}");
        }
    }
    let input = write(folder.join("prompt.txt"), "a ghost\n");
    let read = Run::new(compare(&["-p", "-"]).stdin(fs::File::open(input).expect("our file"))).succeeds();
    assert!(read.stdout.starts_with(SAME), "both devices read it: {}", read.stdout);
    assert!(drawn().contains("a ghost"));
    Run::new(&mut compare(&["-p"])).fails(2, &["-p needs a value"]);
}

/// The script prints nothing about the images themselves, so `-q` changes nothing; `-v` prints more.
#[test]
fn flags_of_what_is_printed_and_flags_in_one_word_are_taken() {
    let small = ["--against", "cpu", "-W32", "-H=32", "-s", "1"];
    for flags in [&["-q"][..], &["--quiet"], &["-qS5"], &["-qS", "5"], &["-qp", "-o"], &["--bound=40", "-q"]] {
        let run = Run::new(script("compare_cpu_gpu.sh").args(small).args(flags)).succeeds();
        assert!(run.stdout.starts_with(SAME), "{flags:?}: {}", run.stdout);
        assert_eq!(
            run.stderr.lines().filter(|line| !line.starts_with("note: ")).count(),
            0,
            "{flags:?}: {}",
            run.stderr
        );
    }
    let run = Run::new(script("compare_cpu_gpu.sh").args(small).arg("-vS5")).succeeds();
    assert!(run.stdout.starts_with(SAME) && run.stderr.contains("device: "), "{}", run.stderr);
    for flags in [&["-n2"][..], &["-qn2"], &["-qn", "2"], &["--count=2"], &["-qn=2"]] {
        Run::new(script("compare_cpu_gpu.sh").args(flags)).fails(2, &["one image"]);
    }
    for flags in [&["-qo", "x.png"][..], &["-qox.png"], &["--output=x.png"], &["--device", "cpu"]] {
        Run::new(script("compare_cpu_gpu.sh").args(flags)).fails(2, &["is set for each device"]);
    }
    Run::new(script("compare_cpu_gpu.sh").arg("-qV")).fails(2, &["-V is not a flag"]);
    Run::new(script("compare_cpu_gpu.sh").arg("--save-latents=x.safetensors")).fails(2, &["one file for both"]);
}

#[test]
fn both_devices_read_images_also_from_standard_input() {
    let folder = folder();
    Run::new(
        flux()
            .args(["-p", "x", "-S", "1", "-s", "1", "--size", "64", "--device", "cpu", "-o", "input.png"])
            .current_dir(&folder),
    )
    .succeeds();
    let input = folder.join("input.png");
    let compare = |file: &str, keep: &str| {
        let mut command = script("compare_cpu_gpu.sh");
        command.args(["--against", "cpu", "--keep"]).arg(folder.join(keep)).args(["-s", "1", "-i", file]);
        Run::new(command.stdin(fs::File::open(&input).expect("drawn above"))).succeeds()
    };
    for run in [compare(&input.display().to_string(), "named"), compare("-", "piped")] {
        assert!(run.stdout.starts_with(SAME), "{}", run.stdout);
    }
    let pixels = |keep: &str| read(&folder.join(keep).join("cpu.png")).expect("an image");
    assert_eq!(pixels("named"), pixels("piped"));
}

#[test]
fn an_error_of_the_comparison_does_not_steer_the_terminal() {
    let run = Run::new(script("compare_cpu_gpu.sh").args(["--bound", "a\x1b[31m\u{202e}\nb"]));
    let run = run.fails(2, &[r"the bound is not a number: a\u{1b}[31m\u{202e}\u{a}b"]);
    assert!(!run.stderr.contains(['\x1b', '\u{202e}']), "{}", run.stderr);
}
