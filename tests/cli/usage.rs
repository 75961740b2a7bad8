//! Messages for misleading flags, values and prompts.

use std::fs;

use super::folder;
use crate::program::{Run, draw, flux, names, project};

#[test]
fn a_mistyped_path_gets_what_is_near_it() {
    let folder = folder();
    draw(&folder, &["-p", "a cat", "-S", "1", "-o", "cat.png", "--save-latents", "start.safetensors"]).succeeds();
    fs::create_dir_all(folder.join("models/klein-4b")).unwrap();
    let refused = |flags: &[&str], near: &str| {
        let run = draw(&folder, &[&["-p", "a cat"], flags].concat());
        let run = Run { code: Some(1), ..run };
        run.fails(1, &[&format!("hint: did you mean `{near}`?")]);
    };
    refused(&["-i", "kat.png"], "cat.png");
    refused(&["-i", "cat.png", "--mask", "cat.jpg"], "cat.png");
    refused(&["--noise", "strat.safetensors"], "start.safetensors");
    refused(&["--latents", "start.safetensor"], "start.safetensors");
    refused(&["-d", "models/klein4b"], "models/klein-4b");
    refused(&["-d", "model/klein-4b"], "models/klein-4b");
    for flag in ["--vae", "--text-encoder", "--tokenizer"] {
        refused(&[flag, "models/klein-4"], "models/klein-4b");
    }
    draw(&folder, &["-p", "a cat", "-i", "dog.png"]).fails(1, &["dog.png", "hint: name an existing image"]);
}

#[test]
fn commands_that_are_suggested_are_words_of_a_shell() {
    let folder = folder();
    for (output, hint) in [
        ("my images/out.png", "`mkdir -p 'my images'`"),
        ("a$(b)/out.png", "`mkdir -p 'a$(b)'`"),
        ("it's/out.png", "`mkdir -p 'it'\\''s'`"),
        ("plain/out.png", "`mkdir -p plain`"),
    ] {
        draw(&folder, &["-p", "a cat", "-o", output]).fails(1, &[hint]);
    }
    draw(&folder, &["-p", "a cat", "--save-latents", "my x/l.safetensors"]).fails(1, &["`mkdir -p 'my x'`"]);
    assert!(names(&folder).is_empty());
}

#[test]
fn a_place_is_named_where_it_was_given() {
    let folder = folder();
    let run = |model: Option<&str>, flags: &[&str]| {
        let mut command = flux();
        command.current_dir(&folder).args(flags);
        if let Some(model) = model {
            command.env("FLUX_MODEL", model);
        }
        let run = Run::new(&mut command);
        assert_eq!(run.code, Some(1), "{}", run.stderr);
        run.stderr
    };
    assert!(run(Some("none"), &["-p", "a cat"]).contains("in: FLUX_MODEL"));
    assert!(run(Some("none"), &["-p", "a cat", "-d", "other"]).contains("in: -d"));
    assert!(run(None, &["-p", "a cat", "--vae", "none"]).contains("in: --vae"));
    for flags in [&["info", "none"][..], &["info", "-d", "none"], &["info", "--vae", "none"]] {
        assert!(!run(None, flags).contains("FLUX_MODEL"), "{flags:?}");
    }
}

#[test]
fn a_number_that_is_none_is_told_what_is_expected() {
    let folder = folder();
    let run = |args: &[&str]| Run::new(flux().current_dir(&folder).args(args));
    let numbers = [
        "--width", "--height", "--size", "--steps", "--seed", "--count", "--guidance", "--max-sequence-length",
        "--strength", "--mask-padding", "--feather", "--gpu-memory", "--threads", "--parallel", "--extend",
    ];
    for flag in numbers {
        for value in ["x", "1e999x", "", "0x10", "99999999999999999999999", "1,5"] {
            let run = run(&["-p", "a cat", &format!("{flag}={value}")]);
            let said = &run.stderr;
            assert_eq!(run.code, Some(2), "{flag} {value}: {said}");
            for raw in
                ["invalid digit", "invalid float", "cannot parse", "too large to fit", "not in 1..", "not in 16.."]
            {
                assert!(!said.contains(raw), "{flag} {value}: {said}");
            }
        }
        run(&["-p", "a cat", &format!("{flag}=x")]).fails(2, &["expected"]);
    }
    for args in [
        &["bench", "--size", "x"][..],
        &["bench", "--batch", "9"],
        &["bench", "--runs", "x"],
        &["convert", "a", "b.gguf", "--format", "q8_0", "--threads", "x"],
    ] {
        run(args).fails(2, &["expected a whole number from"]);
    }
    run(&["-p", "a cat", "-n", "blurry"]).fails(2, &["--negative"]);
    run(&["-p", "a cat", "--device", ":0,5"]).fails(2, &["write cuda:0,5"]);
    assert!(names(&folder).is_empty());
}

#[test]
fn prompts_and_numbers_that_mean_something_elsewhere_get_a_note() {
    let folder = folder();
    let said = |flags: &[&str]| draw(&folder, &[&["-o", "out.png", "-S", "1"], flags].concat()).succeeds().stderr;
    let unknown = "note: the built-in model does not know any word of this prompt";
    assert_eq!(said(&["-p", "ein roter Kreis", "-n", "2"]).matches(unknown).count(), 1);
    for prompt in ["a red circle", "", "a rocket on a dark blue background"] {
        assert!(!said(&["-p", prompt]).contains(unknown), "{prompt}");
    }
    let tiny = project("models/tiny");
    assert!(!said(&["-p", "ein roter Kreis", "-d", tiny.to_str().unwrap()]).contains(unknown));
    assert!(said(&["-p", "a cat <lora:style:0.8>"]).contains("`--lora style.safetensors:0.8`"));
    let steps = |flags: &[&str]| {
        let same = ["-p", "a cat", "--size", "32", "--device", "cpu", "-o", "out.png"];
        Run::new(flux().current_dir(&folder).args(same).args(flags)).succeeds().stderr
    };
    assert!(steps(&["-s", "12"]).contains("distilled to 4; the flag for the seed is `-S`"));
    assert!(steps(&["-s", "12", "-S", "1"]).contains("note: 12 steps with a model that was distilled to 4\n"));
    for few in [&["-s", "8", "-S", "1"][..], &["-S", "42"]] {
        assert!(!steps(few).contains("distilled"), "{few:?}");
    }
}

#[test]
fn formats_have_the_names_of_other_programs_too() {
    let folder = folder();
    let drawn = |format: &str, name: &str| {
        let run = draw(&folder, &["-p", "a cat", "-S", "1", "-o", name, "--quantize", format]).succeeds();
        (run.stderr, flux::input::read(&folder.join(name)).unwrap().bytes)
    };
    let (said, expected) = drawn("q4_k", "a.png");
    assert!(!said.contains("is treated as"), "{said}");
    let (said, found) = drawn("transformer=Q4_K_M,text=q4_k", "b.png");
    assert!(said.contains("note: Q4_K_M ") && said.contains("q4_k ") && found == expected, "{said}");
    assert!(drawn("float8_e4m3fn", "c.png").1 == drawn("FP8", "d.png").1);
    draw(&folder, &["-p", "a cat", "--quantize", "IQ4_NL"]).fails(2, &["`IQ4_NL`", "the nearest is q4_k"]);
    let convert = |format: &str, name: &str| {
        let mut command = flux();
        command.current_dir(&folder).arg("convert").arg(project("models/tiny")).args([name, "--type", format]);
        Run::new(&mut command).succeeds().stderr
    };
    assert!(convert("Q5_K_S", "x.gguf").contains("note: Q5_K_S "));
    convert("q5_k", "y.gguf");
    let bytes = |name: &str| fs::read(folder.join(name)).unwrap();
    assert!(bytes("x.gguf") == bytes("y.gguf"));
}
