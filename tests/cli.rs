//! The program from outside: exit codes, messages, files written.

pub mod again;
mod batch;
mod chat;
mod commands;
mod expand;
mod hires;
mod images;
mod levers;
mod marks;
mod progress;
mod prompts;
mod readers;
mod regions;
mod settings;
mod signals;
mod sizes;
mod transparent;
mod unmapped;
mod upscale;
mod usage;

use std::fs;
use std::io::BufReader;
use std::path::Path;
use std::process::Command;

use crate::program::{Run, SMALL, draw, flux, folder, names, project};
use flux::compare::difference;
use flux::input::read;

/// Returns (keyword, text) of a PNG's UTF-8 text chunks.
fn texts(path: &Path) -> Vec<(String, String)> {
    let file = BufReader::new(fs::File::open(path).expect("the image is there"));
    let reader = png::Decoder::new(file).read_info().expect("a PNG");
    reader.info().utf8_text.iter().map(|chunk| (chunk.keyword.clone(), chunk.get_text().expect("UTF-8"))).collect()
}

#[test]
fn one_command_makes_an_image_and_says_its_seed() {
    let folder = folder();
    let run = draw(&folder, &["-p", "a red circle", "-S", "42", "-o", "out.png"]).succeeds();
    assert!(run.stderr.contains("seed 42") && run.stderr.contains("out.png"), "{}", run.stderr);
    assert_eq!(run.stdout, "");
    assert_eq!(names(&folder), ["out.png"]);
    let image = read(&folder.join("out.png")).unwrap();
    assert_eq!((image.width, image.height), (32, 32));
}

#[test]
fn same_seed_gives_the_same_png_and_another_seed_another() {
    let folder = folder();
    for (seed, name) in [("7", "a.png"), ("7", "b.png"), ("8", "c.png")] {
        draw(&folder, &["-p", "a cat", "-S", seed, "-o", name]).succeeds();
    }
    let bytes = |name: &str| fs::read(folder.join(name)).unwrap();
    assert_eq!(bytes("a.png"), bytes("b.png"));
    assert_ne!(bytes("a.png"), bytes("c.png"));
}

#[test]
fn a_seed_that_repeats_a_smaller_one_is_told() {
    let folder = folder();
    let drawn = |seed: &str, flags: &[&str]| {
        draw(&folder, &[&["-p", "a cat", "-o", "out.png", "-S", seed], flags].concat()).succeeds().stderr
    };
    let image = || read(&folder.join("out.png")).unwrap().bytes;
    assert!(!drawn("1", &[]).contains("2^32"));
    let small = image();
    let said = drawn("4294967297", &[]);
    assert!(said.contains("note: seed 4294967297 ") && said.contains("seed 1:"), "{said}");
    assert!(image() == small, "the note is true");
    assert!(!drawn("4294967295", &[]).contains("2^32"));
    let said = drawn("4294967295", &["-n", "2"]);
    assert!(said.contains("note: seed 4294967296 ") && said.contains("seed 0"), "{said}");
}

#[test]
fn a_png_says_how_it_was_made() {
    let folder = folder();
    draw(&folder, &["-p", "ein Käse 🧀", "-S", "5", "-o", "out.png"]).succeeds();
    let version = concat!("flux ", env!("CARGO_PKG_VERSION"));
    let facts = [
        ("Description", "ein Käse 🧀"),
        ("seed", "5"),
        ("steps", "1"),
        ("guidance", "1"),
        ("size", "32x32"),
        ("model", "tiny"),
        ("Software", version),
    ];
    let mut said = texts(&folder.join("out.png"));
    let others = said.split_off(facts.len());
    assert_eq!(said, facts.map(|(keyword, text)| (keyword.to_string(), text.to_string())));
    assert_eq!(
        others.iter().map(|(keyword, _)| keyword.as_str()).collect::<Vec<_>>(),
        ["parameters", "flux", "XML:com.adobe.xmp"]
    );
    let parameters = format!(
        "ein Käse 🧀\nNegative prompt: \nSteps: 1, Sampler: Euler, Schedule type: flow, CFG scale: 1, Seed: 5, Size: 32x32, Model: tiny, Version: {version}"
    );
    assert_eq!(others[0].1, parameters);
}

/// Runs the program on the CPU in `folder`.
fn on_cpu(folder: &Path, words: &[&str]) -> Run {
    Run::new(flux().current_dir(folder).args(words).args(["--device", "cpu", "-q"])).succeeds()
}

fn info(folder: &Path, words: &[&str]) -> Run {
    Run::new(flux().current_dir(folder).arg("info").args(words))
}

#[test]
fn an_image_of_every_format_tells_the_command_that_makes_it_again() {
    let folder = &folder();
    on_cpu(folder, &["-p", "a blue square", "-S", "1", "-s", "1", "--size", "64x64", "-o", "in.png"]);
    for ending in ["png", "jpg", "webp"] {
        let (first, again) = (format!("first.{ending}"), format!("again.{ending}"));
        let prompt = "it's <a> & \"b\",\n🧀";
        on_cpu(
            folder,
            &["-p", prompt, "-i", "in.png", "--strength", "0.7", "-s", "2", "--rng", "portable", "-o", &first],
        );
        let told = info(folder, &[&first]).succeeds().stdout;
        let line = told.lines().skip(1).take_while(|line| *line != "{").collect::<Vec<_>>().join("\n");
        let words = shlex::split(&line).unwrap();
        assert_eq!((words[0].as_str(), words[2].as_str()), ("flux", prompt), "{line}");
        let words: Vec<&str> = words[1..].iter().map(String::as_str).chain(["-o", &again]).collect();
        on_cpu(folder, &words);
        assert!(fs::read(folder.join(&first)).unwrap() == fs::read(folder.join(&again)).unwrap(), "{ending}: {line}");
        let json = info(folder, &["--json", &first]).succeeds().stdout;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((json["recipe"]["prompt"].as_str(), json["recipe"]["strength"].as_f64()), (Some(prompt), Some(0.7)));
    }
}

#[test]
fn files_say_that_a_model_made_them_unless_that_is_not_wanted() {
    let folder = &folder();
    let says = |name: &str, what: &str| {
        let bytes = fs::read(folder.join(name)).unwrap();
        bytes.windows(what.len()).any(|bytes| bytes == what.as_bytes())
    };
    for (name, flags) in [("marked.png", &[][..]), ("in.png", &["--no-provenance"])] {
        on_cpu(folder, &[&["-p", "a cat", "-s", "1", "--size", "64x64", "-o", name], flags].concat());
    }
    for ending in ["png", "jpg", "webp"] {
        let [plain, edited, quiet] = ["plain", "edited", "quiet"].map(|name| format!("{name}.{ending}"));
        let of_model = format!("of_model.{ending}");
        on_cpu(folder, &["-p", "a cat", "-s", "1", "-i", "marked.png", "--mask", "in.png", "-o", &of_model]);
        assert!(says(&of_model, "/trainedAlgorithmicMedia<"), "a model made the kept pixels, too: {ending}");
        draw(folder, &["-p", "a cat", "-o", &plain]).succeeds();
        on_cpu(folder, &["-p", "a cat", "-s", "1", "-i", "in.png", "--mask", "in.png", "-o", &edited]);
        draw(folder, &["-p", "a cat", "--no-provenance", "-o", &quiet]).succeeds();
        assert!(says(&plain, "/trainedAlgorithmicMedia<"), "{ending}");
        assert!(says(&edited, "/compositeWithTrainedAlgorithmicMedia<"), "{ending}");
        assert!(!says(&quiet, "lgorithmicMedia"), "{ending}");
        info(folder, &[&quiet]).succeeds();
    }
}

#[test]
fn a_prompt_that_no_jpeg_has_room_for_is_refused_before_any_work() {
    let folder = folder();
    let long = "many cats ".repeat(4000);
    draw(&folder, &["-p", &long, "-o", "out.jpg"]).fails(1, &["a JPEG", "write a PNG or a WebP"]);
    assert_eq!(names(&folder), [""; 0]);
    for name in ["out.png", "out.webp"] {
        draw(&folder, &["-p", &long, "-o", name]).succeeds();
        info(&folder, &[name]).succeeds();
    }
}

#[test]
fn an_image_without_a_recipe_and_one_whose_recipe_is_damaged_are_told() {
    let folder = folder();
    draw(&folder, &["-p", "a cat", "-o", "out.png"]).succeeds();
    let path = folder.join("out.png");
    let bytes = fs::read(&path).unwrap();
    let mut damaged = bytes.clone();
    let recipes = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"{\"flux\":"));
    recipes.for_each(|at| damaged[at] = b'[');
    assert_ne!(damaged, bytes);
    fs::write(folder.join("damaged.png"), damaged).unwrap();
    let info = |name: &str| info(&folder, &[name]);
    info("damaged.png").fails(1, &["its recipe cannot be read", "in: damaged.png", "hint: "]);
    fs::copy(project("docs/gallery.png"), folder.join("other.png")).unwrap();
    assert!(info("other.png").succeeds().stdout.contains("PNG"));
}

#[test]
fn without_seed_and_output_the_random_seed_names_the_file() {
    let folder = folder();
    let run = draw(&folder, &["-p", "a cat", "--quiet", "--print-path"]).succeeds();
    let seed = run.stderr.trim().strip_prefix("seed ").expect("quiet still tells a random seed").to_string();
    assert_eq!(run.stdout, format!("flux-{seed}.png\n"));
    assert_eq!(names(&folder), [format!("flux-{seed}.png")]);
}

#[test]
fn one_command_makes_many_images_each_of_its_own_seed() {
    let folder = folder();
    let run = draw(&folder, &["-p", "a cat", "-S", "7", "-n", "3", "-o", "out.png", "--print-path"]).succeeds();
    assert_eq!(run.stdout, "out-7.png\nout-8.png\nout-9.png\n");
    assert!(run.stderr.contains("seeds 7 to 9") && run.stderr.contains("3 images"), "{}", run.stderr);
    assert_eq!(names(&folder), ["out-7.png", "out-8.png", "out-9.png"]);
    assert!(texts(&folder.join("out-9.png")).contains(&("seed".to_string(), "9".to_string())));
    for written in ["for the first time", "in place of the first"] {
        let run = draw(&folder, &["-p", "a cat", "-S", "8", "-o", "alone.png", "--print-path"]).succeeds();
        assert_eq!(run.stdout, "alone.png\n", "{written}");
    }
    let apart =
        difference(&read(&folder.join("out-8.png")).unwrap(), &read(&folder.join("alone.png")).unwrap()).unwrap();
    assert!(apart.max <= 1, "{apart:?}");

    let run =
        draw(&folder, &["-p", "a cat", "-S", "1", "-n", "10", "-q", "-o", "many.jpg", "--timings=json"]).succeeds();
    let reports: Vec<serde_json::Value> =
        run.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |field: fn(&serde_json::Value) -> &serde_json::Value| {
        reports.iter().map(|r| field(r).as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(of(|r| &r["plan"]["seed"]), (1..=10).collect::<Vec<_>>());
    assert_eq!(of(|r| &r["timings"]["images"]), [8, 8, 8, 8, 8, 8, 8, 8, 2, 2]);
    assert_eq!(of(|r| &r["timings"]["prompts_encoded"]), [1, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
    draw(&folder, &["-p", "a cat", "-S", "18446744073709551615", "-n", "2"]).fails(2, &["-S", "too large"]);
    draw(&folder, &["-p", "a cat", "-n", "0"]).fails(2, &["-n 0"]);
}

#[test]
fn quiet_prints_nothing_when_the_seed_is_known() {
    let folder = folder();
    let run = draw(&folder, &["-p", "a cat", "-S", "1", "-q", "-o", "out.png"]).succeeds();
    assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("", ""));
}

#[test]
fn the_extension_chooses_the_format() {
    let folder = folder();
    for (name, signature) in
        [("a.PNG", &b"\x89PNG"[..]), ("a.jpg", b"\xff\xd8\xff"), ("a.JPEG", b"\xff\xd8\xff"), ("a.webp", b"RIFF")]
    {
        draw(&folder, &["-p", "a cat", "-o", name]).succeeds();
        assert!(fs::read(folder.join(name)).unwrap().starts_with(signature), "{name}");
    }
}

#[test]
fn timings_as_json_are_one_object_on_stdout() {
    let folder = folder();
    let run = draw(&folder, &["-p", "a cat", "-S", "3", "-o", "out.png", "--timings=json"]).succeeds();
    let report: serde_json::Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(report["output"], "out.png");
    assert_eq!(report["plan"]["seed"], 3);
    assert_eq!(report["timings"]["steps_s"].as_array().map(Vec::len), Some(1));
    for time in ["load_s", "text_s", "decode_s"] {
        assert!(report["timings"][time].as_f64().is_some_and(|s| (0.0..60.0).contains(&s)), "{time}");
    }
    assert!(report["save_s"].as_f64() < report["total_s"].as_f64());
    draw(&folder, &["-p", "a cat", "--timings=json", "--print-path"]).fails(2, &["standard output", "`output`"]);
}

#[test]
fn timings_as_text_name_every_stage_on_stderr() {
    let folder = folder();
    let run = draw(&folder, &["-p", "a cat", "-o", "out.png", "--timings"]).succeeds();
    for stage in ["device", "open", "load", "text", "step 1", "decode", "save", "total", "host peak", "device peak"] {
        assert!(run.stderr.lines().any(|line| line.starts_with(stage)), "{stage} is not in: {}", run.stderr);
    }
    assert!(!run.stderr.contains("images share"), "{}", run.stderr);
    assert_eq!(run.stdout, "");
    let run = draw(&folder, &["-p", "a cat", "-n", "2", "-o", "out.png", "--timings"]).succeeds();
    assert_eq!(run.stderr.matches("2 images share").count(), 2, "{}", run.stderr);
}

#[test]
fn timings_name_the_stages_of_images_from_images() {
    let folder = folder();
    let run = |flags: &[&str]| {
        let same = ["-p", "a cat", "-q", "--size", "64", "-s", "1", "--device", "cpu", "-o", "out.png", "--timings"];
        Run::new(flux().current_dir(&folder).args(same).args(flags)).succeeds()
    };
    let stages = |run: &Run| {
        let stages = ["encode ", "references "].map(|stage| run.stderr.lines().any(|line| line.starts_with(stage)));
        (stages[0], stages[1])
    };
    assert_eq!(stages(&run(&[])), (false, false));
    fs::rename(folder.join("out.png"), folder.join("in.png")).unwrap();
    assert_eq!(stages(&run(&["-i", "in.png"])), (true, false));
    assert_eq!(stages(&run(&["-i", "in.png", "--kv"])), (true, true));
}

#[test]
fn a_size_is_rounded_down_with_a_note() {
    let folder = folder();
    let run = draw(&folder, &["-p", "a cat", "-o", "out.png", "--steps=1"]);
    run.fails(2, &["--steps"]); // twice the same flag
    let args = ["-p", "a cat", "-o", "out.png", "--device", "cpu", "-s", "1", "-W", "47", "-H", "32"];
    let run = Run::new(flux().current_dir(&folder).args(args)).succeeds();
    assert!(run.stderr.contains("note: width 47 ") && run.stderr.contains(" 32"), "{}", run.stderr);
    assert_eq!(read(&folder.join("out.png")).unwrap().width, 32);
}

#[test]
fn impossible_numbers_are_usage_errors_that_name_the_flag() {
    let folder = folder();
    let flags: [&[&str]; 20] = [
        &["--width", "0"],
        &["--width", "8"],
        &["--height", "100000"],
        &["--height", "18446744073709551615"],
        &["--height", "18446744073709551616"],
        &["--width", "12abc"],
        &["--width=-64"],
        &["--width", "64.0"],
        &["--width", ""],
        &["--steps", "0"],
        &["--steps", "1000000000"],
        &["--steps=-1"],
        &["--seed", "abc"],
        &["--seed=-2"],
        &["--guidance", "NaN"],
        &["--guidance=-inf"],
        &["--guidance=-1"],
        &["--gpu-memory", "0"],
        &["--device", "gpu"],
        &["--precision", "f16"],
    ];
    for flags in flags {
        let name = flags[0].split('=').next().unwrap();
        let mut command = flux();
        command.current_dir(&folder).args(["-p", "a cat"]).args(flags);
        if name != "--device" {
            command.args(["--device", "cpu"]);
        }
        Run::new(&mut command).fails(2, &[name]);
    }
    assert!(names(&folder).is_empty());
}

#[test]
fn wrong_usage_ends_with_2() {
    let folder = folder();
    let run = |flags: &[&str]| Run::new(flux().current_dir(&folder).args(flags));
    run(&["-S", "1"]).fails(2, &["--prompt"]);
    run(&["-p", "a cat", "--colour"]).fails(2, &["--colour"]);
    run(&["-p", "a cat", "extra"]).fails(2, &["extra"]);
    run(&["-p", "a cat", "-q", "-v"]).fails(2, &["`-q`", "`-v`"]);
    run(&["-p", "a cat", "--device", "cpu", "--gpu-memory", "4"]).fails(2, &["--gpu-memory"]);
    for precision in ["auto", "f32", "bf16"] {
        run(&["-p", "a cat", "--fp8-cache", "--precision", precision]).fails(2, &["--fp8-cache", "--precision fp8"]);
    }
    run(&["-p", "a cat", "--fp8-cache", "--precision", "fp8"]).fails(2, &["--fp8-cache", "built-in model", "`-d`"]);
    let alone = run(&[]);
    assert_eq!(
        (alone.code, alone.stdout.as_str(), alone.stderr.lines().count()),
        (Some(2), "", 10),
        "{}",
        alone.stderr
    );
    assert!(names(&folder).is_empty());
}

#[test]
fn an_output_that_cannot_be_written_is_refused_before_the_model_is_read() {
    let folder = folder();
    fs::create_dir_all(folder.join("folder-7.png")).unwrap();
    // The model is missing too: the error about the output comes first.
    let refused = |output: &str, code: i32, words: &[&str]| {
        draw(&folder, &["-d", "no-model", "-p", "a cat", "-o", output]).fails(code, words);
    };
    refused("out.gif", 2, &["`out.gif`", ".png, .jpg, .jpeg or .webp", "in: -o"]);
    refused("out", 2, &["`out`"]);
    draw(&folder, &["-d", "no-model", "-p", "a cat", "-S", "7", "-n", "2", "--output", "folder.png"])
        .fails(2, &["`folder-7.png` is a folder", "--output"]);
    refused("none/out.png", 1, &["folder: `none`", "mkdir -p none"]);
    refused(&format!("{}.png", "x".repeat(300)), 1, &["shorter"]);
    refused("/sys/out.png", 1, &["cannot write", "/sys/out.png"]);
    assert_eq!(names(&folder), ["folder-7.png"]);
}

#[test]
fn a_full_disk_is_told_and_leaves_nothing() {
    let folder = folder();
    let disk = folder.join("disk");
    fs::create_dir(&disk).unwrap();
    // A disk of 16 KiB that only this command sees. An image of noise does not fit.
    let script = format!(
        "mount -t tmpfs -o size=16k none {disk} || exit 77; {flux} -p x -W 256 -H 256 -s 1 -S 1 --device cpu -o {disk}/out.png; code=$?; ls -A {disk} >&2; exit $code",
        disk = disk.display(),
        flux = env!("CARGO_BIN_EXE_flux")
    );
    let run = Run::new(Command::new("unshare").args(["--map-root-user", "--mount", "sh", "-c", &script]));
    if run.code == Some(77) || run.stderr.contains("unshare") {
        eprintln!("skipped: no right to mount a disk: {}", run.stderr.trim());
        return;
    }
    let run = run.fails(1, &["cannot write the image", "No space left", "out.png", "free some space"]);
    assert!(!run.stderr.contains(".part"), "{}", run.stderr);
}

#[test]
fn a_stderr_that_is_full_costs_no_image_and_a_full_stdout_is_told() {
    let folder = folder();
    let run = |arguments: &str| {
        let line = format!("{} {arguments}", env!("CARGO_BIN_EXE_flux"));
        Run::new(Command::new("sh").args(["-c", &line]).current_dir(&folder).env_remove("FLUX_MODEL"))
    };
    let image = format!("-p x {} --print-path -o out.png", SMALL.join(" "));
    assert_eq!(run(&format!("{image} 2>/dev/full")).succeeds().stdout, "out.png\n");
    run(&format!("{image} >/dev/full")).fails(1, &["cannot write to standard output"]);
    for page in ["--help", "--version", "help batch"] {
        assert_eq!(run(&format!("{page} >/dev/full")).code, Some(1), "{page}");
    }
    assert_eq!(names(&folder), ["out.png"]);
}

#[test]
fn a_path_is_printed_as_it_is() {
    use std::os::unix::ffi::OsStrExt;
    let folder = folder();
    let name = std::ffi::OsStr::from_bytes(b"k\xe4se.png"); // Latin-1
    let output = flux()
        .current_dir(&folder)
        .args(SMALL)
        .args(["-p", "x", "--print-path", "-o"])
        .arg(name)
        .output()
        .expect("the program starts");
    assert_eq!(output.stdout, b"k\xe4se.png\n");
    assert!(folder.join(name).exists());
}

#[test]
fn a_missing_model_folder_is_named_with_a_remedy() {
    let folder = folder();
    draw(&folder, &["-p", "a cat", "-d", "none"]).fails(
        1,
        &[
            "no such model folder or file: `none`",
            "in: -d",
            "`flux download 4b` to fetch",
            "`black-forest-labs/FLUX.2-klein-4B`",
        ],
    );
    draw(&folder, &["-p", "a cat", "-d", "."]).fails(1, &["not a model folder", "model_index.json"]);
    draw(&folder, &["-p", "a cat", "-d", ""]).fails(2, &["`-d`"]);
    assert!(names(&folder).is_empty());
}

#[test]
fn the_model_folder_comes_from_the_flag_then_from_the_environment() {
    let folder = folder();
    let run = |model: &str, flags: &[&str]| {
        Run::new(
            flux()
                .current_dir(&folder)
                .env("FLUX_MODEL", model)
                .args(SMALL)
                .args(["-p", "a cat", "-S", "1", "-o"])
                .args(flags),
        )
    };
    run("none", &["a.png"]).fails(1, &["file: `none`", "in: FLUX_MODEL"]);
    run("", &["a.png"]).succeeds();
    let tiny = project("models/tiny");
    run("none", &["b.png", "-d", tiny.to_str().unwrap()]).succeeds();
    run(tiny.to_str().unwrap(), &["c.png"]).succeeds();
    // The files record the name of the model.
    let image = |name: &str| read(&folder.join(name)).unwrap();
    assert!(image("a.png") == image("b.png"), "the built-in model is models/tiny");
    assert!(fs::read(folder.join("b.png")).unwrap() == fs::read(folder.join("c.png")).unwrap());
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_and_auto_says_why_it_uses_the_cpu() {
    let folder = folder();
    let run = |flags: &[&str]| {
        Run::new(
            flux()
                .current_dir(&folder)
                .args(["-p", "a cat", "-W", "32", "-H", "32", "-s", "1", "-o", "out.png"])
                .args(flags),
        )
    };
    run(&["--device", "cuda:99"]).fails(1, &["--device cuda:99", "hint: "]);
    run(&["--device", "cuda:0,1,0"]).fails(2, &["--device", "GPU 0 is listed twice"]);
    run(&["--device", "cuda:"]).fails(2, &["--device", "cuda:all"]);
    run(&["--device", "cuda:0,1", "--parallel", "3"]).fails(2, &["`--parallel 3` needs 3 GPUs", "cuda:0,1", "hint: "]);
    run(&["--parallel", "2"]).fails(2, &["`--device` lists none", "cuda:all"]);
    run(&["--parallel", "none"]).fails(2, &["auto or off"]);
    let missing = run(&["--device", "cuda:0,99", "-n", "2"]);
    // Without a driver the number of GPUs is unknown.
    let code = if missing.stderr.contains("no GPU 99: ") { 2 } else { 1 };
    missing.fails(code, &["--device cuda:0,99", "hint: "]);
    run(&["--device", "cuda", "--precision", "f32"]).fails(2, &["--precision", "--device cpu"]);
    run(&["--device", "cpu", "--precision", "fp8"]).fails(2, &["--precision", "not in fp8", "--device cuda"]);
    for cpu in [["--device", "cpu"], ["--precision", "f32"]] {
        run(&[&cpu[..], &["--attention", "fp8"]].concat()).fails(2, &["--attention", "the CPU computes", "leave out"]);
    }
    let auto = run(&[]).succeeds();
    if run(&["--device", "cuda"]).code == Some(0) {
        eprintln!("skipped: this machine has a GPU");
    } else {
        // A machine without a GPU prints no note about it each time.
        assert!(!auto.stderr.contains("using the CPU"), "{}", auto.stderr);
        let told = run(&["-v"]).succeeds();
        assert!(told.stderr.lines().any(|line| line.starts_with("using the CPU: ")), "{}", told.stderr);
        run(&["--device", "cuda:all"]).fails(1, &["--device cuda:all", "hint: "]);
        let fp8 = run(&["--precision", "fp8"]).fails(1, &["--precision fp8", "hint: "]);
        assert!(!fp8.stderr.contains("--device cpu"), "the CPU has no fp8: {}", fp8.stderr);
        for attention in ["bf16", "fp8"] {
            run(&["--attention", attention]).fails(1, &[&format!("--attention {attention}"), "hint: "]);
        }
    }
}

#[test]
fn an_image_larger_than_the_memory_is_refused_before_anything_runs() {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total_kib = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    // 8192 x 8192 pixels of the default model take 40 GiB.
    if total_kib.is_none_or(|kib| kib > 36 << 20) {
        println!("skipped: this machine has the memory");
        return;
    }
    let folder = folder();
    let mut command = flux();
    command.current_dir(&folder).args(["-p", "a cat", "--device", "cpu", "-W", "8192", "-H", "8192", "-o", "out.png"]);
    let run = Run::new(&mut command);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.stderr.contains("8192 x 8192") && run.stderr.contains("MiB"), "{}", run.stderr);
    assert!(!folder.join("out.png").exists());
}

#[test]
fn a_precision_that_the_processor_lacks_is_told() {
    let folder = folder();
    let run = draw(&folder, &["-p", "a cat", "--precision", "bf16", "-o", "out.png"]).succeeds();
    let lacks = flux::backend::cpu::tiles::bf16().is_none();
    assert_eq!(run.stderr.contains("no bfloat16 instructions"), lacks, "{}", run.stderr);
}
