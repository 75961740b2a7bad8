//! One image for each line of a file.

use std::fs;

use crate::program::{self, Run, SMALL, names};
use crate::{folder, program_that, script, write};

#[test]
fn a_batch_makes_one_named_image_per_prompt_and_resumes() {
    let folder = folder();
    let prompts = write(
        folder.path().join("prompts.txt"),
        "# a comment\n\na red circle\r\n  \n- minus: \"quotes\" & $HOME\nein Käse\n\u{1f9c0}",
    );
    let out = folder.path().join("out");
    let batch =
        |seed: &str| Run::of(script("generate_batch.sh").arg(&prompts).arg(&out).args(SMALL).args(["-S", seed, "-q"]));
    let expected = ["0001-a-red-circle.png", "0002-minus-quotes-home.png", "0003-ein-k-se.png", "0004-image.png"];

    let run = batch("5").succeeds();
    assert_eq!(names(&out), expected);
    assert!(run.stderr.contains("4 made, 0 already there, 0 failed"), "{}", run.stderr);

    let first = fs::read(out.join(expected[1])).unwrap();
    fs::remove_file(out.join(expected[1])).unwrap();
    let run = batch("5").succeeds();
    assert!(run.stderr.contains("1 made, 3 already there, 0 failed"), "{}", run.stderr);
    assert_eq!(fs::read(out.join(expected[1])).unwrap(), first, "the seed goes with the number of the prompt");

    let alone = folder.path().join("alone.png");
    Run::of(program::flux().args(SMALL).args(["--prompt=- minus: \"quotes\" & $HOME", "-S", "6", "-o"]).arg(&alone))
        .succeeds();
    assert_eq!(fs::read(alone).unwrap(), first, "the second prompt has the second seed, and its text is not touched");
}

#[test]
fn a_batch_goes_on_after_a_failure_and_tells_it_at_the_end() {
    let folder = folder();
    let prompts = write(folder.path().join("prompts.txt"), "one\ntwo\nthree\n");
    let fails_at_two = program_that(folder.path(), "case \"$*\" in *--prompt=two*) exit 1;; *) echo \"$*\" >&2;; esac");
    let out = folder.path().join("out");
    let run = Run::of(
        script("generate_batch.sh").env("FLUX_BIN", fails_at_two).arg(&prompts).arg(&out).args(["--steps", "7"]),
    );
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    for words in ["--prompt=one", "--prompt=three", "--steps 7", "2 made, 0 already there, 1 failed", "failed 2: two"] {
        assert!(run.stderr.contains(words), "{words}: {}", run.stderr);
    }
    Run::of(script("generate_batch.sh").arg(&prompts).arg(&out).args(["-S", "x"])).fails(2, &["seed"]);
    Run::of(script("generate_batch.sh").arg(&prompts).arg(&out).args(["-o", "x.png"])).fails(2, &["-o"]);
    Run::of(script("generate_batch.sh").arg(&prompts).arg(&out).arg("-n2")).fails(2, &["-n2"]);
}

#[test]
fn a_batch_that_a_signal_ends_does_not_go_on_with_the_next_prompt() {
    let folder = folder();
    let prompts = write(folder.path().join("prompts.txt"), "one\ntwo\nthree\n");
    // flux exits with 130 and 143 after the first signal, and is ended by the signal itself before it listens.
    for (ends, code) in [("exit 130", 130), ("exit 143", 143), ("kill -INT $$", 130), ("kill -TERM $$", 143)] {
        let program = program_that(folder.path(), &format!("echo \"$*\" >&2; case \"$*\" in *=two*) {ends};; esac"));
        let out = folder.path().join("out");
        let run = Run::of(script("generate_batch.sh").env("FLUX_BIN", program).arg(&prompts).arg(&out));
        assert_eq!(run.code, Some(code), "{ends}: {}", run.stderr);
        assert!(run.stderr.contains("--prompt=two") && !run.stderr.contains("--prompt=three"), "{}", run.stderr);
        let said = format!("stopped by signal {} at prompt 2", code - 128);
        assert!(run.stderr.contains(&said), "{ends}: {}", run.stderr);
    }
}

