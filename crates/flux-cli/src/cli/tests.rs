//! Tests of accepted and rejected command lines.

use clap::CommandFactory;
use flux::engine::choice::Gpus;

use super::*;

fn parse(line: &str) -> std::result::Result<Generate, String> {
    Cli::try_parse_from(format!("flux {line}").split_whitespace()).map(|cli| cli.generate).map_err(|e| e.to_string())
}

/// Parses a command line like the program does.
fn read(words: &[&str]) -> std::result::Result<Generate, String> {
    let arguments: Vec<OsString> = ["flux"].iter().chain(words).map(OsString::from).collect();
    Cli::read(&arguments).map(|cli| cli.generate).map_err(|unread| match unread {
        Unread::ByClap(error) => error.to_string(),
        Unread::Explained(error) => format!("error: {error}"),
    })
}

#[test]
fn flags_of_other_programs_are_ours_where_they_mean_the_same() {
    let recipe = |words: &[&str]| read(words).unwrap().recipe(None, &mut std::io::empty()).unwrap();
    let ours = recipe(&["-p", "x", "-S", "7", "--negative", "fog", "-g", "3", "-s", "9", "--size", "64"]);
    for theirs in [
        &[
            "--prompt", "x", "--seed", "7", "--negative_prompt", "fog", "--guidance_scale", "3",
            "--num_inference_steps", "9",
        ][..],
        &["-p", "x", "-S", "7", "--negative-prompt=fog", "--cfg-scale=3", "--steps", "9"],
        &["-p", "x", "--random-seed", "7", "--neg-prompt", "fog", "--cfg_scale", "3", "--sample-steps", "9"],
    ] {
        assert_eq!(recipe(&[theirs, &["--resolution", "64x64"]].concat()), ours, "{theirs:?}");
    }
    let many = read(&["-p", "x", "--batch-count", "3", "-r", "a.png", "--ref_image", "b.png", "--model", "m"]).unwrap();
    assert_eq!(
        (many.count, many.draw.recipe.images.inputs.len(), many.draw.model.dir()),
        (3, 2, Some(PathBuf::from("m")))
    );
    // This program's own flags with underscores.
    let own =
        read(&["-p", "x", "--max_sequence_length", "48", "--save_latents", "l.safetensors", "--no_clobber"]).unwrap();
    assert!(own.output.no_clobber && own.draw.recipe.tensors.save_latents.is_some());
}

#[test]
fn flags_that_mean_something_else_say_what_does_it_here() {
    for (words, hint) in [
        (&["--sampler", "euler"][..], "Euler's method"),
        (&["--scheduler=karras"], "`--schedule flow|linear|power:A"),
        (&["--cfg", "7"], "`--guidance`"),
        (&["-m", "model.gguf"], "a model with `-d`"),
        (&["--output-dir", "out"], "`-o FOLDER/`"),
        (&["--outdir", "out"], "`-o FOLDER/`"),
        (&["--init_img", "a.png"], "`--strength X`"),
        (&["--offload-to-cpu"], "`--gpu-memory GIB`"),
        (&["--VAE-tiling"], "the VAE uses tiles"),
        (&["--lora-model-dir", "x"], "`--lora FILE:STRENGTH`"),
        (&["--prompt-file", "x"], "`flux batch FILE FOLDER`"),
    ] {
        let refused = read(&[&["-p", "x"], words].concat()).err().expect("refused");
        let flag = words[0].split('=').next().unwrap();
        assert!(refused.contains(&format!("unknown flag `{flag}`")) && refused.contains(hint), "{refused}");
    }
    // A prompt that looks like a flag is a prompt.
    let prompt = read(&["-p", "--sampler"]).unwrap().recipe(None, &mut std::io::empty()).unwrap().prompt;
    assert_eq!(prompt, "--sampler");
    let unknown = read(&["-p", "x", "--colour"]).err().expect("refused");
    assert!(unknown.contains("unknown flag `--colour`") && !unknown.contains("did you mean"), "{unknown}");
}

#[test]
fn a_command_that_is_not_there_is_no_prompt() {
    for words in [&["server"][..], &["server", "--port", "80"], &["worker", "list.txt"], &["-q", "submit"]] {
        let refused = read(words).and_then(|args| args.check().map_err(|e| e.to_string())).expect_err("refused");
        let word = words.iter().find(|word| !word.starts_with('-')).unwrap();
        assert!(refused.contains(&format!("unknown command `{word}`")), "{refused}");
        assert!(refused.contains(&format!("`flux -p {word}`")), "{refused}");
    }
    for (word, near) in [
        ("batsh", "batch"),
        ("btach", "batch"),
        ("Batch", "batch"),
        ("serv", "serve"),
        ("lst", "list"),
        ("kye", "key"),
        ("shwo", "show"),
        ("downlaod", "download"),
        ("comapre", "compare"),
        ("inof", "info"),
        ("chta", "chat"),
    ] {
        for words in [&[word][..], &[word, "a.txt", "out"], &[word, "a.txt", "--shard", "1/2"]] {
            let refused = read(words).and_then(|args| args.check().map_err(|e| e.to_string())).expect_err("refused");
            assert!(refused.contains(&format!("`flux {near}`?")), "{words:?}: {refused}");
        }
        assert!(read(&["-p", word]).is_ok_and(|args| args.check().is_ok()), "{word}");
    }
    for words in [&["batch", "a", "b", "--bogus"][..], &["key", "--bogus"], &["info", "--bogus"]] {
        let refused = read(words).err().expect("refused");
        assert!(refused.contains("--bogus") && !refused.contains("unknown command"), "{refused}");
    }
    for word in ["", "  ", "\n"] {
        let refused = read(&[word]).unwrap().check().unwrap_err().to_string();
        assert!(refused.contains("is empty"), "{refused}");
    }
    for words in [&["snow"][..], &["beach"], &["hat"], &["monkey"], &["ram"], &["batsh in a cave"]] {
        assert!(read(words).is_ok_and(|args| args.check().is_ok()), "{words:?}");
    }
    for words in [&["-p", "server"][..], &["a chat"], &["cat"], &["lists"], &["--", "-list"]] {
        assert!(read(words).is_ok_and(|args| args.check().is_ok()), "{words:?}");
    }
}

#[test]
fn what_flux_alone_prints_is_ten_lines_with_three_examples_that_work() {
    assert_eq!(OVERVIEW.lines().count(), 10);
    let examples: Vec<_> = OVERVIEW.lines().filter_map(|line| line.strip_prefix("  flux ")).collect();
    assert_eq!(examples.len(), 3);
    for example in examples {
        let words = shlex::split(example).expect("words of a shell");
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        assert!(read(&words).is_ok_and(|args| args.check().is_ok()), "{example}");
    }
}

#[test]
fn the_flags_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_flag_is_under_a_heading_and_the_prompt_comes_first() {
    let command = Cli::command();
    let flags: Vec<_> = command.get_arguments().collect();
    for flag in &flags {
        assert!(flag.get_help_heading().is_some(), "{}", flag.get_id());
    }
    assert_eq!(flags[0].get_id(), "prompt");
}

#[test]
fn numbers_are_strict() {
    for bad in
        ["-W 12abc", "-H -64", "-s 1.5", "-S abc", "-S -2", "-S 18446744073709551616", "-W 1e3", "-g x", "-g 3,5"]
    {
        assert!(parse(&format!("-p x {bad}")).is_err(), "{bad}");
    }
    for bad in ["0", "-2", "nan"] {
        assert!(parse(&format!("-p x --gpu-memory={bad}")).is_err(), "{bad}");
    }
    let good = parse("-p x -W 17 -H 64 -s 9 -S 18446744073709551615 -g 3.5 --gpu-memory 0.5")
        .unwrap()
        .recipe(None, &mut std::io::empty())
        .unwrap();
    assert_eq!(
        (good.width, good.height, good.steps, good.seed, good.guidance),
        (Some(17), Some(64), Some(9), u64::MAX, Some(3.5))
    );
}

#[test]
fn devices_are_parsed() {
    let device = |text: &str| parse(&format!("-p x --device {text}")).map(|g| g.draw.on.device());
    let gpus = |numbers: &[usize]| Ok(Device::Cuda(Gpus::Numbers(numbers.to_vec())));
    assert_eq!(device("cuda"), gpus(&[0]));
    assert_eq!(device("cuda:3"), gpus(&[3]));
    assert_eq!(device("cuda:1,0"), gpus(&[1, 0]), "in the given order");
    assert_eq!(device("cuda:all"), Ok(Device::Cuda(Gpus::All)));
    for bad in ["gpu", "cuda:", "cuda:-1", "CUDA", "cuda:0,", "cuda:,", "cuda:0,all", "cpu,cuda:0"] {
        assert!(device(bad).unwrap_err().contains("cuda:N"), "{bad}");
    }
    assert!(device("cuda:0,1,0").unwrap_err().contains("GPU 0 "));
}

#[test]
fn gpus_that_make_an_image_together_are_among_those_that_are_named() {
    let check = |flags: &str| parse(&format!("-p x {flags}")).unwrap().check().map_err(|e| e.shown_with(flag));
    for good in ["--parallel 1", "--device cuda:0,1 --parallel 2", "--device cuda:all --parallel 8", "--parallel auto"]
    {
        assert_eq!(check(good), Ok(()), "{good}");
    }
    let few = check("--device cuda:2 --parallel 2").unwrap_err();
    assert!(few.contains("`--parallel 2`") && few.contains("`--device cuda:2`"), "{few}");
    for none in ["--parallel 2", "--device cpu --parallel 4"] {
        let text = check(none).unwrap_err();
        assert!(text.contains("`--device` lists none") && text.contains("cuda:0,1"), "{text}");
    }
}

#[test]
fn timings_take_their_format_after_an_equals_sign_only() {
    assert_eq!(parse("-p x --timings").unwrap().draw.console.timings, Some(TimingsFormat::Text));
    assert_eq!(parse("-p x --timings=json").unwrap().draw.console.timings, Some(TimingsFormat::Json));
    for line in ["-p x --timings json", "--timings json", "--timings json x"] {
        let refused = parse(line).unwrap().check().unwrap_err().to_string();
        assert!(refused.contains("write `--timings=json`"), "{refused}");
    }
    assert!(parse("json").unwrap().check().is_ok());
}

#[test]
fn a_prompt_needs_no_flag() {
    let recipe = |line: &str| parse(line).unwrap().recipe(None, &mut std::io::empty()).unwrap();
    assert_eq!(recipe("cat -S 3"), recipe("-p cat -S 3"));
    let from_stdin = parse("-").unwrap().recipe(None, &mut "a cat\n".as_bytes()).unwrap();
    assert_eq!(from_stdin.prompt, "a cat");
    for several in ["a cat", "-p a cat", "-p -S 42"] {
        let refused = parse(several).unwrap().check().unwrap_err().to_string();
        assert!(refused.contains("several prompts") && refused.contains("quotes"), "{refused}");
    }
}

#[test]
fn the_name_of_a_command_is_the_command_and_after_a_flag_a_prompt() {
    let cli = |line: &str| Cli::try_parse_from(line.split_whitespace()).unwrap();
    assert!(matches!(cli("flux bench").command, Some(Command::Bench(_))));
    assert!(matches!(cli("flux compare a.png b.png").command, Some(Command::Compare { .. })));
    let drawn = cli("flux -p bench");
    assert!(drawn.command.is_none() && drawn.generate.recipe(None, &mut std::io::empty()).unwrap().prompt == "bench");
}

#[test]
fn values_may_begin_with_a_hyphen() {
    let cold = Cli::try_parse_from(["flux", "-p", "-5 degrees"]).unwrap().generate;
    assert_eq!(cold.recipe(None, &mut std::io::empty()).unwrap().prompt, "-5 degrees");
    for flag in ["-W", "-H", "-s", "-n", "-g", "--size", "--gpu-memory"] {
        let refused =
            parse(&format!("-p x {flag} -5")).map(|args| args.recipe(None, &mut std::io::empty()).unwrap().guidance);
        // The model rejects such a guidance.
        assert!(refused == Ok(Some(-5.0)) || refused.is_err_and(|e| e.contains("invalid value '-5'")), "{flag}");
    }
}

#[test]
fn a_size_is_width_times_height_and_excludes_both() {
    let recipe = |line: &str| parse(line).unwrap().recipe(None, &mut std::io::empty()).unwrap();
    assert_eq!(recipe("-p x -S 1 --size 48x32"), recipe("-p x -S 1 -W 48 -H 32"));
    for line in ["-p x --size 48x32 -W 48", "-p x --size 48 -H 48"] {
        assert!(parse(line).is_err_and(|e| e.contains("--size") && e.contains("cannot be used with")), "{line}");
    }
}

#[test]
fn an_empty_prompt_is_a_prompt_and_none_is_not() {
    let empty = Cli::try_parse_from(["flux", "-p", ""]).unwrap().generate;
    assert_eq!(empty.recipe(None, &mut std::io::empty()).unwrap().prompt, "");
    assert!(parse("-S 1").is_err_and(|e| e.contains("--prompt")));
}

#[test]
fn random_seeds_differ() {
    let seed = || parse("-p x").unwrap().recipe(None, &mut std::io::empty()).unwrap().seed;
    let seeds = [seed(), seed(), seed()]; // the chance that all are equal is 2^-64
    assert!(seeds[0] != seeds[1] || seeds[1] != seeds[2]);
}
