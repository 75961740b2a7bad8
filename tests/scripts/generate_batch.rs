//! One image for each line of a file.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use super::{folder, program_that, script, write};
use crate::program::{self, Run, SMALL, names};

/// A batch of `prompts` into `out` by a program that draws nothing, prints its arguments and writes an empty file.
fn batch(folder: &Path, prompts: &[u8], flags: &[&str]) -> Run {
    let does = "echo \"$*\" >&2; for flag; do case \"$flag\" in --output=*) : >\"${flag#*=}\";; esac; done";
    let file = folder.join("prompts.txt");
    fs::write(&file, prompts).expect("a temporary folder is writable");
    let mut command = script("generate_batch.sh");
    command.env("FLUX_BIN", program_that(folder, does)).arg(file).arg(folder.join("out")).args(flags);
    Run::of(&mut command)
}

/// Whether `name` is a number, words and a key of sixteen hexadecimal digits.
fn is_image_of(name: &str, number_and_words: &str) -> bool {
    let key = name.strip_prefix(number_and_words).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".png"));
    key.is_some_and(|key| key.len() == 16 && key.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[track_caller]
fn are_images_of(found: &[String], expected: &[&str]) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (name, expected) in found.iter().zip(expected) {
        assert!(is_image_of(name, expected), "{name} is not {expected}-KEY.png");
    }
}

#[test]
fn a_batch_makes_one_named_image_per_prompt_and_resumes() {
    let folder = folder();
    let prompts = write(
        folder.path().join("prompts.txt"),
        "# a comment\n\na red circle\r\n  \n- minus: \"quotes\" & $HOME\nein Käse\n\u{1f9c0}",
    );
    let out = folder.path().join("out");
    let batch = || Run::of(script("generate_batch.sh").arg(&prompts).arg(&out).args(SMALL).args(["-S", "5", "-q"]));

    let run = batch().succeeds();
    let images = names(&out);
    are_images_of(&images, &["0001-a-red-circle", "0002-minus-quotes-home", "0003-ein-k-se", "0004-image"]);
    assert!(run.stderr.contains("4 made, 0 already there, 0 failed"), "{}", run.stderr);

    let first = fs::read(out.join(&images[1])).unwrap();
    fs::remove_file(out.join(&images[1])).unwrap();
    let run = batch().succeeds();
    assert!(run.stderr.contains("1 made, 3 already there, 0 failed"), "{}", run.stderr);
    assert_eq!(fs::read(out.join(&images[1])).unwrap(), first, "the seed goes with the number of the prompt");

    let alone = folder.path().join("alone.png");
    Run::of(program::flux().args(SMALL).args(["--prompt=- minus: \"quotes\" & $HOME", "-S", "6", "-o"]).arg(&alone))
        .succeeds();
    assert_eq!(fs::read(alone).unwrap(), first, "the second prompt has the second seed, and its text is not touched");
}

#[test]
fn another_prompt_flag_or_seed_makes_another_image_and_the_same_none() {
    let folder = folder();
    let made = |prompts: &str, flags: &[&str]| {
        let run = batch(folder.path(), prompts.as_bytes(), flags).succeeds();
        run.stderr.lines().last().unwrap_or_default().to_string()
    };
    assert_eq!(made("a red circle\n", &["-S", "1"]), "1 made, 0 already there, 0 failed");
    assert_eq!(made("a red circle\n", &["--seed=1"]), "0 made, 1 already there, 0 failed");
    assert_eq!(made("a green square\n", &["-S", "random"]), "1 made, 0 already there, 0 failed");
    assert_eq!(made("a green square\n", &["-S", "-1"]), "0 made, 1 already there, 0 failed");
    assert_eq!(made("a green square\n", &[]), "0 made, 1 already there, 0 failed");
    for flags in [&["-S", "1", "-q"][..], &["-qS1"], &["-vqS=1"], &["-qS", "1"], &["--seed", "1", "-v"]] {
        assert_eq!(made("a red circle\n", flags), "0 made, 1 already there, 0 failed", "{flags:?}");
    }
    assert_eq!(made("A red, circle\n", &["-S", "1"]), "1 made, 0 already there, 0 failed", "words are no prompt");
    assert_eq!(made("a red circle\n", &["-S", "2"]), "1 made, 0 already there, 0 failed");
    assert_eq!(made("a red circle\n", &["-S", "1", "--steps", "7"]), "1 made, 0 already there, 0 failed");
    assert_eq!(made("a red circle\n", &["-S", "1", "--steps", "8"]), "1 made, 0 already there, 0 failed");
    for flags in [&["-qS1", "-s8"][..], &["-S1", "--steps=8"], &["-qs", "8", "-S", "1"]] {
        assert_eq!(made("a red circle\n", flags), "0 made, 1 already there, 0 failed", "{flags:?}");
    }
    assert_eq!(names(&folder.path().join("out")).len(), 6);

    // With random seeds the place in the list counts for nothing, and a prompt that comes twice gives two images.
    assert_eq!(made("two\nsame\nsame\n", &[]), "3 made, 0 already there, 0 failed");
    assert_eq!(made("new\ntwo\nsame\nsame\n", &[]), "1 made, 3 already there, 0 failed");
}

#[test]
fn a_file_that_a_flag_names_counts_by_what_it_holds() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (image, mask, adapter) = (path("a=b.png"), path("mask.png"), path("style.safetensors"));
    let made = |flags: &[&str]| {
        let run = batch(folder.path(), b"a red circle\n", &[&["-S", "1"], flags].concat()).succeeds();
        let said = run.stderr.lines().last().unwrap_or_default().to_string();
        (said.contains("1 made, 0 already there"), run.stderr)
    };
    for flags in [
        vec!["-i".to_string(), image.clone()],
        vec![format!("-i{image}")],
        vec![format!("-i={image}")],
        vec!["--input".to_string(), image.clone()],
        vec![format!("--input={image}")],
        vec!["--mask".to_string(), mask.clone()],
        vec![format!("--mask={mask}")],
        vec!["--lora".to_string(), format!("{adapter}:0.5")],
        vec![format!("--lora={adapter}:-1")],
        vec![format!("--lora={adapter}")],
        vec![format!("--noise={mask}")],
        vec!["--latents".to_string(), mask.clone()],
        vec!["--embeddings".to_string(), mask.clone()],
    ] {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        for contents in ["one", "two"] {
            for file in [&image, &mask, &adapter] {
                fs::write(file, format!("{contents}, by {flags:?}")).expect("a temporary folder is writable");
            }
            let (is_new, said) = made(&flags);
            assert!(is_new, "{flags:?}, {contents}: {said}");
            assert!(said.contains(&flags.join(" ")), "the flags reach flux: {said}");
            assert!(!made(&flags).0, "{flags:?}, {contents} again");
        }
    }
    // What is not there flux refuses. Standard input is the prompt's.
    assert!(made(&["-i", "none.png"]).0);
    for flags in [&["-i", "-"][..], &["-i-"], &["--mask=-"]] {
        batch(folder.path(), b"a red circle\n", flags).fails(2, &["standard input is no image"]);
    }
    batch(folder.path(), b"a red circle\n", &["-i"]).fails(2, &["-i needs a value"]);
    batch(folder.path(), b"a red circle\n", &["--save-latents=x"]).fails(2, &["one file for all images"]);
}

#[test]
fn prompts_come_from_standard_input_and_from_files_of_other_systems() {
    let folder = folder();
    let text = b"\xef\xbb\xbfone\r\n-\r\n# no prompt\r\nthree";
    let run = batch(folder.path(), text, &["-S", "1"]).succeeds();
    let images = names(&folder.path().join("out"));
    are_images_of(&images, &["0001-one", "0002-image", "0003-three"]);
    assert!(run.stderr.contains("--prompt=one --output"), "{}", run.stderr);

    let file = fs::File::open(write(folder.path().join("again.txt"), "one\n-\nthree\n")).expect("our file");
    let mut command = script("generate_batch.sh");
    command.env("FLUX_BIN", folder.path().join("program")).arg("-").arg(folder.path().join("out")).args(["-S", "1"]);
    let run = Run::of(command.stdin(Stdio::from(file))).succeeds();
    assert!(run.stderr.contains("0 made, 3 already there"), "the same prompts: {}", run.stderr);
    assert_eq!(names(&folder.path().join("out")), images);
}

/// `-` as a prompt asks flux for its standard input.
#[test]
fn a_prompt_that_is_a_hyphen_is_drawn() {
    let folder = folder();
    let prompts = write(folder.path().join("prompts.txt"), "-\n");
    let out = folder.path().join("out");
    Run::of(script("generate_batch.sh").arg(&prompts).arg(&out).args(SMALL).args(["-S", "5", "-q"])).succeeds();
    let mut command = program::flux();
    command.args(SMALL).args(["-p", "-", "-S", "5", "-o", "alone.png"]).current_dir(folder.path());
    Run::of(command.stdin(Stdio::from(fs::File::open(&prompts).expect("our file")))).succeeds();
    let image = out.join(&names(&out)[0]);
    assert_eq!(fs::read(image).unwrap(), fs::read(folder.path().join("alone.png")).unwrap());
}

#[test]
fn prompts_that_are_no_text_or_too_long_are_named_by_their_line() {
    let folder = folder();
    let refused = |prompts: &[u8], words: &[&str]| {
        batch(folder.path(), prompts, &[]).fails(2, words);
        assert!(!folder.path().join("out").exists(), "nothing is drawn before all prompts are read");
    };
    refused(b"one\ntwo \xff\n", &["line 2", "prompts.txt", "UTF-8"]);
    refused(b"one\n\ntwo \xed\xa0\x80\n", &["line 3", "UTF-8"]); // half of a surrogate pair
    refused(b"one\ntwo\0three\n", &["line 2", "NUL"]);
    let long = |bytes| [b"one\n", "a".repeat(bytes).as_bytes(), b"\r\n"].concat();
    refused(&long(65_537), &["line 2", "longer than 64 KiB"]);
    batch(folder.path(), &long(65_536), &[]).succeeds();
    Run::of(script("generate_batch.sh").arg("/dev/zero").arg(folder.path().join("none")))
        .fails(2, &["/dev/zero is longer than 16 MiB"]);
}

#[test]
fn a_prompt_does_not_steer_the_terminal() {
    let folder = folder();
    let prompts = write(folder.path().join("prompts.txt"), "a\x1b[31m b\u{202e}c\u{9b}d\u{2066} é\n");
    let fails = program_that(folder.path(), "exit 1");
    let run = Run::of(script("generate_batch.sh").env("FLUX_BIN", fails).arg(prompts).arg(folder.path().join("out")));
    assert_eq!(run.code, Some(1));
    assert_eq!(run.stderr.matches(r"1: a\u{1b}[31m b\u{202e}c\u{9b}d\u{2066} é").count(), 2, "{}", run.stderr);
    assert!(!run.stderr.contains(['\x1b', '\u{202e}', '\u{9b}', '\u{2066}']), "{}", run.stderr);
}

#[test]
fn a_wrong_flag_stops_a_batch_at_its_first_prompt() {
    let folder = folder();
    let prompts = write(folder.path().join("prompts.txt"), "one\ntwo\n");
    let out = folder.path().join("out");
    let run = Run::of(script("generate_batch.sh").arg(&prompts).arg(&out).arg("--stepps=7"));
    let run = run.fails(2, &["--stepps", "flux refuses the flags"]);
    assert!(run.stderr.contains("1: one") && !run.stderr.contains("2: two"), "{}", run.stderr);

    // What flux refuses later is in the prompt, so the others are drawn.
    let refuses_two = program_that(folder.path(), "case \"$*\" in *--prompt=two*) exit 2;; esac");
    let run = Run::of(script("generate_batch.sh").env("FLUX_BIN", refuses_two).arg(&prompts).arg(&out));
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.stderr.contains("1 made, 0 already there, 1 failed"), "{}", run.stderr);
}

/// A prompt that flux refuses is one line of the batch, also where nothing else is left to be made.
#[test]
fn a_prompt_that_is_refused_is_a_failed_line() {
    let folder = folder();
    let out = folder.path().join("out");
    let batch = |prompts: &str, flags: &[&str]| {
        let prompts = write(folder.path().join("prompts.txt"), prompts);
        let run =
            Run::of(script("generate_batch.sh").arg(&prompts).arg(&out).args(SMALL).args(["-S", "5"]).args(flags));
        assert!(!run.stderr.contains("refuses the flags"), "{}", run.stderr);
        (run.code, run.stderr.lines().find(|line| line.contains(" made, ")).unwrap_or_default().to_string())
    };
    let line = |text: &str| (Some(1), text.to_string());
    assert_eq!(batch("a\u{1}b\n", &[]), line("0 made, 0 already there, 1 failed"));
    assert_eq!(batch("a\u{1}b\none\n", &["-q"]), line("1 made, 0 already there, 1 failed"));
    assert_eq!(batch("a\u{1}b\none\n", &[]), line("0 made, 1 already there, 1 failed"));
    assert_eq!(batch("a\u{1}b\none\nc\u{2}d\n", &[]), line("0 made, 1 already there, 2 failed"));
    // A flag that is wrong is told at once, whatever the prompt.
    let prompts = write(folder.path().join("prompts.txt"), "a\u{1}b\none\n");
    let run = Run::of(script("generate_batch.sh").arg(&prompts).arg(&out).args(["--stepps=7", "-q"]));
    let run = run.fails(2, &["--stepps", "flux refuses the flags"]);
    assert!(!run.stderr.contains("2: one"), "{}", run.stderr);
}

/// With these two prompts the key of an earlier version is the same.
#[test]
fn prompts_whose_checksum_is_the_same_are_two_images() {
    let folder = folder();
    let run = batch(folder.path(), "偤另赃擅\n瞕说刨葎\n".as_bytes(), &["-S", "random"]).succeeds();
    assert!(run.stderr.contains("2 made, 0 already there"), "{}", run.stderr);
    let images = names(&folder.path().join("out"));
    are_images_of(&images, &["0001-image", "0002-image"]);
    let key = |name: &str| name.rsplit('-').next().unwrap_or_default().to_string();
    assert_ne!(key(&images[0]), key(&images[1]));
}

#[test]
fn images_of_an_earlier_version_are_left_alone_and_told_of() {
    let folder = folder();
    let out = folder.path().join("out");
    fs::create_dir(&out).expect("a temporary folder is writable");
    for name in ["0001-a-red-circle-1a2b3c4d.png", "0002-image-00000000.png"] {
        write(out.join(name), "earlier");
    }
    let run = batch(folder.path(), b"a red circle\n", &["-S", "1"]).succeeds();
    assert!(run.stderr.contains("1 made, 0 already there"), "{}", run.stderr);
    assert!(run.stderr.contains("note: 2 images in ") && run.stderr.contains("earlier version"), "{}", run.stderr);
    assert_eq!(fs::read(out.join("0001-a-red-circle-1a2b3c4d.png")).unwrap(), b"earlier");
    assert_eq!(names(&out).len(), 3);
}

#[test]
fn flags_are_read_as_flux_reads_them() {
    let folder = folder();
    let refused = |flags: &[&str], words: &[&str]| {
        batch(folder.path(), b"a red circle\n", flags).fails(2, words);
        assert!(!folder.path().join("out").exists(), "{flags:?}");
    };
    for flags in [
        &["-n2"][..],
        &["-n", "2"],
        &["-n=2"],
        &["-qn2"],
        &["-qn", "2"],
        &["-qvn=2"],
        &["--count=2"],
        &["--count", "2"],
        &["-qo", "x.png"],
        &["-qox.png"],
        &["-pa cat"],
        &["-qp", "a cat"],
        &["--prompt", "a cat"],
        &["--batch-count", "2"],
        &["--num_images=2"],
        &["--outfile", "x.png"],
    ] {
        refused(flags, &["is set for each image"]);
    }
    refused(&["-qSx"], &["the seed is not a number", "x"]);
    refused(&["-S"], &["-S needs a value"]);
    refused(&["-q", "-qS"], &["-S needs a value"]);
    refused(&["--steps"], &["--steps needs a value"]);
    refused(&["--"], &["is no flag"]);
    refused(&["-qV"], &["is no flag"]);
    let help = batch(folder.path(), b"a red circle\n", &["-qh"]).succeeds();
    assert!(help.stdout.starts_with("usage: scripts/generate_batch.sh"), "{}", help.stdout);

    // A value is no flag, whatever it looks like.
    let run = batch(folder.path(), b"a red circle\n", &["--negative", "-o", "-S", "7", "--dir", "-n2"]).succeeds();
    assert!(run.stderr.contains("--negative -o --dir -n2 --prompt=a red circle"), "{}", run.stderr);
    assert!(run.stderr.contains("--seed=7"), "{}", run.stderr);
}

#[test]
fn an_adapter_that_is_a_folder_or_has_a_config_beside_it_counts_by_what_they_hold() {
    let folder = folder();
    let adapter = folder.path().join("style");
    fs::create_dir(&adapter).expect("a temporary folder is writable");
    let made = |lora: &str| {
        let run = batch(folder.path(), b"a red circle\n", &["-S", "1", "--lora", lora]).succeeds();
        run.stderr.contains("1 made, 0 already there")
    };
    let (whole, file) =
        (adapter.display().to_string(), adapter.join("adapter_model.safetensors").display().to_string());
    for lora in [whole.clone(), format!("{whole}:0.5"), file.clone(), format!("{file}:0.5")] {
        for name in ["adapter_model.safetensors", "adapter_config.json"] {
            for contents in ["one", "two"] {
                write(adapter.join(name), &format!("{contents} of {lora}"));
                assert!(made(&lora), "{lora}, {name}: {contents}");
                assert!(!made(&lora), "{lora}, {name}: {contents} again");
            }
        }
    }
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
