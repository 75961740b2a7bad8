//! `scripts/generate_batch.sh`: a call of `flux batch`.

use std::fs;
use std::process::Command;

use super::{folder, program_that, script};
use crate::program::{Run, SMALL, names};

#[test]
fn a_list_of_any_name_becomes_a_folder_of_images_and_goes_on() {
    let folder = folder();
    let (prompts, out) = (folder.join("prompts"), folder.join("out"));
    fs::write(&prompts, "a red circle\n# no prompt\n\na Blue, square!\n").unwrap();
    let batch = || Run::new(script("generate_batch.sh").arg(&prompts).arg(&out).args(SMALL).args(["-S", "5"]));
    let first = batch().succeeds();
    assert!(first.stderr.contains("2 generated"), "{}", first.stderr);
    assert_eq!(names(&out), ["0001-a-red-circle.png", "0002-a-blue-square.png", "manifest.jsonl"]);
    assert!(batch().succeeds().stderr.contains("0 generated; 2 already existed"));
}

#[test]
fn the_program_gets_the_flags_and_its_exit_code_is_that_of_the_script() {
    let folder = folder();
    let stand_in = program_that(&folder, "echo \"$@\"; exit 3");
    let run = |words: &[&str]| {
        let mut command: Command = script("generate_batch.sh");
        Run::new(command.env("FLUX_BIN", &stand_in).args(words))
    };
    let run_with = run(&["list.jsonl", "-out", "-S", "7"]);
    assert_eq!((run_with.code, run_with.stdout.trim()), (Some(3), "batch -S 7 -- list.jsonl -out"));
    assert_eq!(run(&["list", "out"]).stdout.trim(), "batch --format txt -- list out");
}
