//! Images that are reproduced from their metadata.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flux::input::read;
use flux::metadata::Metadata;
use flux::output::{ImageFormat, Rgb, encode};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};

use super::{folder, info};
use crate::program::{Folder, Run, draw, flux, names, takes_long_form};

/// Random choices, the same ones each time.
struct Rng(StdRng);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end)
    }

    fn one_in(&mut self, parts: usize) -> bool {
        self.below(parts) == 0
    }

    fn choose<'a>(&mut self, values: &[&'a str]) -> &'a str {
        values[self.below(values.len())]
    }
}

fn again(folder: &Path, words: &[&str]) -> Run {
    Run::new(flux().current_dir(folder).arg("again").args(words).args(["--device", "cpu"]))
}

fn bytes(folder: &Path, name: &str) -> Vec<u8> {
    fs::read(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Writes a LoRA of the built-in model with values up to `scale`.
pub fn write_adapter(path: &Path, scale: f32) {
    let values = |count: usize| {
        (0..count).flat_map(|i| (scale * ((i % 7) as f32 / 3.0 - 1.0)).to_le_bytes()).collect::<Vec<u8>>()
    };
    let weights = crate::program::project("models/tiny/transformer/diffusion_pytorch_model.safetensors");
    let weights = fs::read(weights).unwrap();
    let model = safetensors::SafeTensors::deserialize(&weights).unwrap();
    let layer = "single_transformer_blocks.0.attn.to_out";
    let shape = model.tensor(&format!("{layer}.weight")).unwrap().shape().to_vec();
    let (down, up) = (values(2 * shape[1]), values(2 * shape[0]));
    let tensors = HashMap::from([
        (format!("transformer.{layer}.lora_A.weight"), TensorView::new(Dtype::F32, vec![2, shape[1]], &down).unwrap()),
        (format!("transformer.{layer}.lora_B.weight"), TensorView::new(Dtype::F32, vec![shape[0], 2], &up).unwrap()),
    ]);
    serialize_to_file(&tensors, None, path).unwrap();
}

/// Creates a folder with every file that a recipe may name.
fn files() -> Folder {
    let folder = folder();
    for (seed, size, name) in [("1", "80x64", "in.png"), ("2", "64", "other.webp"), ("3", "80x64", "mask.png")] {
        let words = ["-p", "a white circle on a black background", "-S", seed, "-s", "1", "--size", size, "-o", name];
        Run::new(flux().current_dir(&folder).args(words).args(["--device", "cpu", "-q"])).succeeds();
    }
    let tensors = ["-W", "48", "-H", "32", "-s", "1", "-S", "5", "--device", "cpu", "-q", "-o", "x.png"];
    let save = ["-p", "a cat", "--save-latents", "latents.safetensors", "--save-embeddings", "words.safetensors"];
    Run::new(flux().current_dir(&folder).args(tensors).args(save)).succeeds();
    write_adapter(&folder.join("style.safetensors"), 0.3);
    folder
}

/// Returns the flags of a random recipe.
fn recipe(rng: &mut Rng) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut add = |flags: &[&str]| words.extend(flags.iter().map(|flag| flag.to_string()));
    let has_words = rng.one_in(8);
    if has_words {
        add(&["--embeddings", "words.safetensors"]);
    } else {
        add(&[
            "-p",
            rng.choose(&["a cat", "-x", "ein Käse 🧀", "two\nlines", "it's \"here\" <&> $HOME", "", "a, b: c\\"]),
        ]);
    }
    add(&["-S", &rng.below(1 << 30).to_string(), "-s", rng.choose(&["1", "2"])]);
    let begins = rng.below(12);
    let begins_with_file = begins < 2;
    match begins {
        0 => add(&["--noise", "latents.safetensors"]),
        1 => add(&["--latents", "latents.safetensors"]),
        _ => add(&["--size", rng.choose(&["32x48", "64", "48x33"])]),
    }
    let inputs = if begins_with_file { 0 } else { rng.below(3) };
    ["in.png", "other.webp"].iter().take(inputs).for_each(|input| add(&["-i", input]));
    if inputs > 0 {
        match rng.below(5) {
            0 => add(&["--strength", rng.choose(&["0.5", "0.75", "1"])]),
            1 => add(&["--mask", "mask.png", "--feather", rng.choose(&["0", "3"])]),
            2 => add(&["--mask", "mask.png", "--mask-padding", "8", "--strength", "0.9"]),
            3 => add(&["--extend", "16,0,0,8", "--no-composite"]),
            _ => {}
        }
    }
    let changes = words.iter().any(|word| ["--strength", "--mask", "--extend"].contains(&word.as_str()));
    let mut add = |flags: &[&str]| words.extend(flags.iter().map(|flag| flag.to_string()));
    if changes {
        // The image sets the size.
        if rng.one_in(3) {
            add(&["--no-self-reference"]);
        }
    }
    for (parts, flags) in [
        (4, &["--schedule", "linear"][..]),
        (4, &["--rng", "portable"]),
        (5, &["--lora", "style.safetensors:0.5"]),
        (6, &["--quantize", "q8_0"]),
        (6, &["--precision", "f32"]),
        (6, &["--embed-inputs"]),
        (6, &["--no-provenance"]),
    ] {
        if rng.one_in(parts) {
            add(flags);
        }
    }
    if !has_words && rng.one_in(5) {
        add(&["--max-sequence-length", "32"]);
    }
    if changes {
        let at = words.iter().position(|word| word == "--size").expect("a size");
        words.drain(at..at + 2);
    }
    words
}

#[test]
fn random_recipes_are_made_again_from_every_format() {
    let folder = &files();
    let recipes = if takes_long_form() { 200 } else { 9 };
    let mut rng = Rng(StdRng::seed_from_u64(1));
    for number in 0..recipes {
        let ending = ["png", "webp", "jpg"][number % 3];
        let first = format!("first.{ending}");
        let words = recipe(&mut rng);
        let drawn = Run::new(flux().current_dir(folder).args(&words).args(["--device", "cpu", "-q", "-o", &first]));
        assert_eq!(drawn.code, Some(0), "{number}: {words:?}: {}", drawn.stderr);
        let made = again(folder, &[&first]);
        assert_eq!(made.code, Some(0), "{number}: {words:?}: {}", made.stderr);
        assert!(!made.stderr.contains("may differ"), "{number}: {words:?}: {}", made.stderr);
        // Flags about metadata are no part of the recipe: --no-provenance and --embed-inputs are repeated.
        let [one, two] = [&first, &format!("first-again.{ending}")].map(|name| read(&folder.join(name)).unwrap());
        assert!(one == two, "{number}: {words:?}: other pixels");
        if !words.iter().any(|word| ["--embed-inputs", "--no-provenance"].contains(&word.as_str())) {
            let same = bytes(folder, &first) == bytes(folder, &format!("first-again.{ending}"));
            assert!(same, "{number}: {words:?}: other bytes");
        }
    }
}

#[test]
fn flags_change_what_an_image_says() {
    let folder = &folder();
    draw(folder, &["-p", "a cat", "-S", "7", "-o", "cat.png"]).succeeds();
    draw(folder, &["-p", "a dog", "-S", "7", "-o", "dog.png"]).succeeds();
    draw(folder, &["-p", "a cat", "-S", "9", "-o", "nine.png"]).succeeds();
    again(folder, &["cat.png", "-p", "a dog", "-o", "other.png"]).succeeds();
    assert!(bytes(folder, "other.png") == bytes(folder, "dog.png"));
    again(folder, &["cat.png", "-S", "8", "-n", "2"]).succeeds();
    assert!(bytes(folder, "cat-again-9.png") == bytes(folder, "nine.png"));
    let random = again(folder, &["cat.png", "-S", "random", "-q", "-o", "random.png"]).succeeds();
    assert!(random.stderr.starts_with("seed "), "{}", random.stderr);
    again(folder, &["cat.png", "dog.png", "--size", "48", "-s", "2", "-o", "many/"]).succeeds();
    assert_eq!(names(&folder.join("many")), ["cat-again.png", "dog-again.png"]);
    assert_eq!(read(&folder.join("many/cat-again.png")).unwrap().width, 48);
    // No input is overwritten.
    again(folder, &["cat.png", "-o", "cat.png"]).fails(2, &["`cat.png`", "--force"]);
}

#[test]
fn a_file_of_json_and_an_image_are_recipes_of_the_program_too() {
    let folder = &folder();
    draw(folder, &["-p", "a cat", "-S", "7", "-o", "cat.png"]).succeeds();
    let json = info(folder, &["--json", "cat.png"]).succeeds().stdout;
    fs::write(folder.join("made.json"), &json).unwrap();
    let made: serde_json::Value = serde_json::from_str(&json).unwrap();
    fs::write(folder.join("recipe.json"), made["recipe"].to_string()).unwrap();
    let cpu = |words: &[&str]| Run::new(flux().current_dir(folder).args(words).args(["--device", "cpu", "-q"]));
    for (flags, name) in [
        (["--recipe", "made.json"], "a.png"),
        (["--recipe", "recipe.json"], "b.png"),
        (["--config-from-metadata", "cat.png"], "c.png"),
    ] {
        cpu(&[&flags[..], &["-o", name]].concat()).succeeds();
        assert!(bytes(folder, name) == bytes(folder, "cat.png"), "{flags:?}");
    }
    draw(folder, &["-p", "a dog", "-S", "8", "-o", "dog.png"]).succeeds();
    cpu(&["a dog", "--recipe", "made.json", "-S", "8", "-o", "d.png"]).succeeds();
    assert!(bytes(folder, "d.png") == bytes(folder, "dog.png"));
    for (text, words) in [
        ("{", &["not valid JSON"][..]),
        (r#"{"promt": "a"}"#, &["promt"]),
        (r#"{"recipe": {"prompt": "a"}}"#, &["recipe cannot be read"]),
    ] {
        fs::write(folder.join("bad.json"), text).unwrap();
        let run = cpu(&["--recipe", "bad.json"]);
        assert!(run.code == Some(1) || run.code == Some(2), "{}", run.stderr);
        for word in words.iter().chain(&["bad.json", "hint: "]) {
            assert!(run.stderr.contains(word), "{text}: {}", run.stderr);
        }
    }
    cpu(&["--recipe", "none.json"]).fails(1, &["none.json"]);
    fs::write(folder.join("plain.png"), bytes(&crate::program::project("docs"), "gallery.png")).unwrap();
    again(folder, &["plain.png"]).fails(1, &["does not record how it was generated", "plain.png"]);
}

#[test]
fn what_is_not_as_it_was_is_named_before_the_work() {
    let folder = &files();
    let edit = ["-p", "x", "-S", "1", "-s", "1", "--device", "cpu", "-q", "-i", "in.png"];
    let draw = |words: &[&str]| Run::new(flux().current_dir(folder).args(edit).args(words)).succeeds();
    draw(&["-o", "a.png"]);
    draw(&["--embed-inputs", "-o", "carries.png"]);
    draw(&["--lora", "style.safetensors", "-o", "styled.png"]);
    fs::create_dir(folder.join("below")).unwrap();
    fs::copy(folder.join("a.png"), folder.join("below/a.png")).unwrap();
    fs::rename(folder.join("in.png"), folder.join("below/in.png")).unwrap();

    let found = again(folder, &["below/a.png", "-o", "found.png"]).succeeds();
    assert!(found.stderr.contains("`in.png`") && found.stderr.contains("`below/in.png`"), "{}", found.stderr);
    assert!(read(&folder.join("found.png")).unwrap() == read(&folder.join("a.png")).unwrap());
    again(folder, &["a.png"]).fails(1, &["in.png"]);
    let carried = again(folder, &["carries.png"]).succeeds();
    assert!(!carried.stderr.contains("may differ"), "{}", carried.stderr);
    assert!(read(&folder.join("carries-again.png")).unwrap() == read(&folder.join("a.png")).unwrap());

    fs::copy(folder.join("other.webp"), folder.join("in.png")).unwrap();
    let other = again(folder, &["a.png", "-o", "b.png"]).succeeds();
    assert!(other.stderr.contains("note: `in.png` "), "{}", other.stderr);
    again(folder, &["a.png", "--exact", "-o", "c.png"]).fails(1, &["`in.png`", "--exact"]);
    let kept = again(folder, &["carries.png", "-o", "d.png"]).succeeds();
    assert!(kept.stderr.contains("the one embedded in the image is used"), "{}", kept.stderr);
    assert!(read(&folder.join("d.png")).unwrap() == read(&folder.join("a.png")).unwrap());

    fs::rename(folder.join("below/in.png"), folder.join("in.png")).unwrap();
    let mut style = bytes(folder, "style.safetensors");
    *style.last_mut().unwrap() ^= 1;
    fs::write(folder.join("style.safetensors"), style).unwrap();
    let styled = again(folder, &["styled.png"]).succeeds();
    assert!(styled.stderr.contains("note: `style.safetensors` "), "{}", styled.stderr);
    // A requested model is no silent change.
    let model = crate::program::project("models/tiny");
    let asked = again(folder, &["a.png", "-d", model.to_str().unwrap(), "-o", "e.png"]).succeeds();
    assert!(!asked.stderr.contains("may differ"), "{}", asked.stderr);
}

#[test]
fn numbers_are_read_as_they_are_written() {
    let folder = &files();
    let words = ["-p", "x", "-S", "1", "-s", "4", "-i", "in.png", "--device", "cpu", "-q", "-o", "a.png"];
    // Fast parsers read some decimals of 17 digits wrongly.
    Run::new(flux().current_dir(folder).args(words).args(["--strength", "0.40159101448507484"])).succeeds();
    again(folder, &["a.png", "--exact"]).succeeds();
    assert!(bytes(folder, "a.png") == bytes(folder, "a-again.png"));
}

#[test]
fn each_of_several_images_has_a_file_of_its_own_or_none_is_made() {
    let folder = &folder();
    for (name, prompt) in [("a", "a cat"), ("b", "a dog")] {
        fs::create_dir(folder.join(name)).unwrap();
        draw(folder, &["-p", prompt, "-S", "7", "-o", &format!("{name}/x.png")]).succeeds();
    }
    again(folder, &["a/x.png", "b/x.png"]).fails(2, &["x-again.png", "same file"]);
    again(folder, &["a/x.png", "b/x.png", "-o", "y.png"]).fails(2, &["y.png", "same file"]);
    fs::copy(folder.join("a/x.png"), folder.join("q%d{.png")).unwrap();
    fs::copy(folder.join("b/x.png"), folder.join("q%d{-again.png")).unwrap();
    again(folder, &["q%d{.png", "q%d{-again.png"]).fails(2, &["one of the images to reproduce"]);
    assert!(bytes(folder, "q%d{-again.png") == bytes(folder, "b/x.png"));
    again(folder, &["q%d{.png", "q%d{-again.png", "--force"]).succeeds();
    assert!(bytes(folder, "q%d{-again.png") == bytes(folder, "a/x.png"));
    assert!(bytes(folder, "q%d{-again-again.png") == bytes(folder, "b/x.png"));
}

#[test]
fn a_recipe_that_was_damaged_is_refused() {
    let folder = &folder();
    let made = |more: &str| {
        let recipe = r#"{"prompt": "a cat", "width": 32, "height": 32, "steps": 1, "seed": 1}"#;
        let text = format!(
            r#"{{"flux": "0.1.0", "numerics": 1, "recipe": {recipe}, "model": {{"name": "tiny"}}, "device": "x"{more}}}"#
        );
        fs::write(folder.join("made.json"), format!("\u{feff}{text}")).unwrap();
        let flags = ["--recipe", "made.json", "--device", "cpu", "-q", "-o", "x.png"];
        Run::new(flux().current_dir(folder).args(flags))
    };
    for (more, words) in [
        (r#", "batch": {"place": 5, "count": 2}"#, "index 5 "),
        (r#", "batch": {"place": 0, "count": 9}"#, "image index 0 does not fit 9 images, of at most 8"),
        (r#", "batch": {"place": 0, "count": 100000}"#, "100000 images"),
        (r#", "of": {"place": 18446744073709551615, "count": 1}"#, "index 18446744073709551615"),
    ] {
        made(more).fails(1, &[words, "made.json"]);
    }
    made("").succeeds();
    fs::write(folder.join("made.json"), "[\"a cat\", null, 64, 64, 1, 5]").unwrap();
    let flags = ["--recipe", "made.json", "--device", "cpu", "-o", "x.png"];
    Run::new(flux().current_dir(folder).args(flags)).fails(2, &["not a JSON object", "made.json"]);
}

#[test]
fn a_model_that_has_changed_is_named() {
    let folder = folder();
    let model = crate::model_copy::ModelCopy::new();
    let path = model.path().to_str().unwrap();
    draw(&folder, &["-p", "a cat", "-d", path, "-o", "cat.png"]).succeeds();
    again(&folder, &["cat.png", "--exact", "-o", "same.png"]).succeeds();
    assert!(bytes(&folder, "same.png") == bytes(&folder, "cat.png"));
    model.change("vae/diffusion_pytorch_model.safetensors", |bytes| {
        let last = bytes.len() - 2;
        bytes[last] ^= 1;
    });
    let run = again(&folder, &["cat.png"]).succeeds();
    assert!(run.stderr.contains("note: the vae "), "{}", run.stderr);
    // Under any name, it is not the model that made the image.
    let other = format!("{path}/.");
    again(&folder, &["cat.png", "-d", &other, "--exact"]).fails(1, &["the vae of the model", "--exact"]);
    again(&folder, &["cat.png", "--precision", "bf16", "--exact"]).fails(1, &["--exact"]);
}

#[test]
fn an_input_from_standard_input_is_gone_unless_the_image_carries_it() {
    let folder = &files();
    for (name, flags) in [("gone.png", &[][..]), ("kept.png", &["--embed-inputs"])] {
        let file = fs::File::open(folder.join("in.png")).unwrap();
        let words = ["-p", "x", "-S", "1", "-s", "1", "--device", "cpu", "-q", "-i", "-", "-o", name];
        Run::new(flux().current_dir(folder).args(words).args(flags).stdin(file)).succeeds();
    }
    again(folder, &["gone.png"]).fails(2, &["standard input", "--input", "--embed-inputs"]);
    again(folder, &["kept.png"]).succeeds();
    again(folder, &["gone.png", "-i", "in.png"]).succeeds();
    let images = ["gone.png", "kept-again.png", "gone-again.png"].map(|name| read(&folder.join(name)).unwrap());
    assert!(images[0] == images[1] && images[0] == images[2]);
    let long = vec![0; 5 << 20];
    fs::write(folder.join("long.png"), [bytes(folder, "in.png"), long].concat()).unwrap();
    let words = ["-p", "x", "-i", "long.png", "--embed-inputs", "--device", "cpu"];
    Run::new(flux().current_dir(folder).args(words)).fails(2, &["--embed-inputs", "an image can embed at most"]);
}

#[test]
fn one_object_of_json_is_printed_for_each_image_and_for_an_error() {
    let folder = folder();
    let run = draw(&folder, &["-p", "a cat", "-S", "7", "-n", "2", "--json", "-o", "{n}.png"]).succeeds();
    let lines: Vec<serde_json::Value> = run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<_> = lines.iter().map(|line| (line["output"].as_str().unwrap(), line["seed"].as_u64())).collect();
    assert_eq!(told, [("1.png", Some(7)), ("2.png", Some(8))]);
    assert_eq!(lines[1]["made"]["recipe"]["prompt"], "a cat");
    for (words, kind, what) in [
        (&["-p", "x", "-d", "none", "--json"][..], "failure", "no such"),
        (&["-p", "x", "-s", "0", "--json"], "usage", "steps"),
        (&["-p", "x", "--colour", "--json"], "usage", "--colour"),
        (&["info", "none", "--json"], "failure", "none"),
    ] {
        let run = Run::new(flux().current_dir(&folder).args(words));
        assert!(run.code == Some(1) || run.code == Some(2), "{words:?}: {:?}", run.code);
        let line: serde_json::Value =
            serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{words:?}: {e}: {}", run.stdout));
        let error = &line["error"];
        assert!(error.to_string().contains(what) && error["kind"] == kind, "{words:?}: {error}");
        assert!(run.stderr.contains("error: "), "{}", run.stderr);
    }
}

/// Writes an image file with these parameters of another program.
fn write_foreign(path: &Path, parameters: &str) {
    let metadata = Metadata { parameters: Some(parameters.to_string()), ..Metadata::default() };
    let image = Rgb { width: 64, height: 48, bytes: vec![90; 3 * 64 * 48] };
    fs::write(path, encode(&image, ImageFormat::from_path(path).unwrap(), &metadata).unwrap()).unwrap();
}

#[test]
fn settings_of_other_programs_are_read_from_every_format() {
    let folder = &folder();
    let flags = ["-S", "7", "--size", "64x48", "-s", "2", "--device", "cpu", "-o", "expected.png"];
    Run::new(flux().current_dir(folder).args(["-p", "a cat, \"big\""]).args(flags)).succeeds();
    let expected = read(&folder.join("expected.png")).unwrap();
    let settings = "Steps: 2, Sampler: DPM++ 2M, CFG scale: 1, Seed: 7, Size: 64x48, Model hash: 1f, Hires upscale: 2, \
                    Version: v1.10.1";
    let infotext = format!("a cat, \"big\" <lora:ink:0.5>\nNegative prompt: a dog\n{settings}");
    let mflux =
        r#"{"mflux_version": "0.11", "prompt": "a cat, \"big\"", "seed": 7, "steps": 2, "width": 64, "height": 48}"#;
    let swarm =
        r#"{"sui_image_params": {"prompt": "a cat, \"big\"", "seed": 7, "steps": 2, "width": 64, "height": 48}}"#;
    for (text, ending, program) in [
        (infotext.as_str(), "png", "A1111 v1.10.1"),
        (&infotext, "jpg", "A1111 v1.10.1"),
        (&infotext, "webp", "A1111 v1.10.1"),
        (mflux, "jpg", "mflux 0.11"),
        (swarm, "png", "SwarmUI"),
    ] {
        let name = format!("foreign.{ending}");
        write_foreign(&folder.join(&name), text);
        let told = info(folder, &[&name]).succeeds();
        for part in [program, "64x48, 8-bit RGB", "a cat, \"big\"", "seed: 7", "steps: 2"] {
            assert!(told.stdout.contains(part), "{name}: {part}: {}", told.stdout);
        }
        let json: serde_json::Value =
            serde_json::from_str(&info(folder, &["--json", &name]).succeeds().stdout).unwrap();
        assert_eq!((&json["width"], &json["settings"]["seed"]), (&64.into(), &7.into()), "{json}");
        let made = again(folder, &[&name, "-o", "made.png"]).succeeds();
        assert!(read(&folder.join("made.png")).unwrap() == expected, "{name}");
        assert!(made.stderr.contains(program), "{name}: {}", made.stderr);
        if text == infotext {
            for lost in ["DPM++ 2M", "Hires upscale", "--lora ink.safetensors:0.5"] {
                assert!(made.stderr.contains(lost), "{lost}: {}", made.stderr);
            }
            assert!(!made.stderr.contains("hash"), "{}", made.stderr);
        }
        again(folder, &[&name, "--exact", "-o", "exact.png"]).fails(1, &["another program", "--exact"]);
    }
}

#[test]
fn an_image_without_settings_is_described() {
    let folder = &folder();
    let image = Rgb { width: 64, height: 48, bytes: vec![90; 3 * 64 * 48] };
    fs::write(folder.join("plain.jpg"), encode(&image, ImageFormat::Jpeg, &Metadata::default()).unwrap()).unwrap();
    fs::write(folder.join("x.gif"), b"GIF89a\x10\0\x08\0\0\0\0;").unwrap();
    write_foreign(&folder.join("comment.png"), "a \u{1b}[2J comment");
    for (name, part) in
        [("plain.jpg", "JPEG, 64x48, 8-bit RGB"), ("x.gif", "GIF, 16x8"), ("comment.png", "a \\u{1b}[2J comment")]
    {
        let told = info(folder, &[name]).succeeds();
        assert!(told.stdout.contains(part) && !told.stdout.contains('\u{1b}'), "{}", told.stdout);
    }
    again(folder, &["plain.jpg"]).fails(1, &["does not record how it was generated", "flux info"]);
    again(folder, &["comment.png"]).fails(1, &["does not record how it was generated"]);
}

/// Returns a PNG without some of its texts.
fn without_texts(png: &[u8], keywords: &[&str]) -> Vec<u8> {
    let (mut kept, mut at) = (png[..8].to_vec(), 8);
    while at < png.len() {
        let end = at + 12 + u32::from_be_bytes(png[at..at + 4].try_into().unwrap()) as usize;
        let is_text = [b"tEXt", b"iTXt"].iter().any(|kind| png[at + 4..at + 8] == kind[..]);
        let data = &png[at + 8..end];
        if !(is_text && keywords.iter().any(|keyword| data.starts_with(&[keyword.as_bytes(), b"\0"].concat()))) {
            kept.extend_from_slice(&png[at..end]);
        }
        at = end;
    }
    kept
}

#[test]
fn the_recipe_in_a_png_survives_programs_that_keep_only_xmp() {
    let folder = &folder();
    draw(folder, &["-p", "a <cat> & \"dog\"", "-S", "7", "-o", "a.png"]).succeeds();
    let texts = ["flux", "parameters", "prompt", "seed", "steps", "size", "model"];
    fs::write(folder.join("kept.png"), without_texts(&bytes(folder, "a.png"), &texts)).unwrap();
    let made = again(folder, &["kept.png", "--exact", "-o", "b.png"]).succeeds();
    assert!(bytes(folder, "a.png") == bytes(folder, "b.png"), "{}", made.stderr);
    fs::write(folder.join("kept.png"), without_texts(&bytes(folder, "a.png"), &["flux", "XML:com.adobe.xmp"])).unwrap();
    let made = again(folder, &["kept.png", "-o", "c.png"]).succeeds();
    assert!(read(&folder.join("a.png")).unwrap() == read(&folder.join("c.png")).unwrap(), "{}", made.stderr);
}

#[test]
fn an_input_is_embedded_once() {
    let folder = &files();
    fs::copy(folder.join("mask.png"), folder.join("copy.png")).unwrap();
    let inputs = ["-i", "mask.png", "-i", "copy.png", "-i", "copy.png", "--mask", "copy.png", "--embed-inputs"];
    for name in ["a.png", "a.jpg", "a.webp"] {
        let words = [&["-p", "x", "-S", "1", "-s", "1", "--device", "cpu", "-q", "-o", name], &inputs[..]].concat();
        Run::new(flux().current_dir(folder).args(words)).succeeds();
    }
    let stored = STANDARD.encode(bytes(folder, "copy.png"));
    fs::create_dir(folder.join("away")).unwrap();
    for name in ["mask.png", "copy.png"] {
        fs::rename(folder.join(name), folder.join("away").join(name)).unwrap();
    }
    for name in ["a.png", "a.jpg", "a.webp"] {
        let times = bytes(folder, name).windows(stored.len()).filter(|part| *part == stored.as_bytes()).count();
        assert_eq!(times, 1, "{name}");
        let made = again(folder, &[name, "--exact", "-o", "again.png"]).succeeds();
        assert!(!made.stderr.contains("may differ"), "{}", made.stderr);
        let first = if name == "a.jpg" { "a.png" } else { name };
        assert!(read(&folder.join("again.png")).unwrap() == read(&folder.join(first)).unwrap(), "{name}");
    }
}

/// Writes an image whose metadata has this prompt.
fn says(path: &Path, prompt: &str) {
    use flux::engine::{ImageRecipe, Recipe};
    let rgb = flux::rgb::Rgb { width: 16, height: 16, bytes: vec![7; 16 * 16 * 3] };
    let made = ImageRecipe { recipe: Recipe::new(prompt, 7), ..ImageRecipe::default() };
    let metadata = flux::metadata::Metadata { recipe: Some(made.to_json()), ..Default::default() };
    fs::write(path, flux::output::encode(&rgb, flux::output::ImageFormat::Png, &metadata).unwrap()).unwrap();
}

#[test]
fn the_command_of_an_image_is_read_by_every_shell_and_runs_nothing_else() {
    use std::os::unix::fs::PermissionsExt;
    let folder = &folder();
    let bin = folder.join("bin");
    fs::create_dir(&bin).unwrap();
    // A stand-in for the program that writes down its argument.
    fs::write(bin.join("flux"), "#!/bin/sh\nprintf %s \"$2\" > got\n").unwrap();
    fs::set_permissions(bin.join("flux"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", bin.display());
    for prompt in [
        "a'\\''; touch pwned #\u{7}",
        "two\nlines",
        "'; touch pwned; '",
        "-x",
        "$(touch pwned) `touch pwned` ${HOME} !x \\ \"",
        "\u{1b}]0;x\u{7}\u{1b}[2J\\033",
    ] {
        says(&folder.join("a.png"), prompt);
        let printed = Run::new(flux().current_dir(folder).args(["info", "a.png"])).succeeds().stdout;
        let (_, rest) = printed.split_once('\n').unwrap();
        let (command, _) = rest.split_once("\n{").unwrap();
        assert!(!command.contains("$'"), "{command}");
        for shell in ["sh", "dash", "bash", "zsh"] {
            let mut run = std::process::Command::new(shell);
            if run.current_dir(folder).env("PATH", &path).args(["-c", command]).status().is_err() {
                continue; // the shell is not installed
            }
            assert_eq!(fs::read_to_string(folder.join("got")).unwrap(), prompt, "{shell}: {command}");
            assert!(!folder.join("pwned").exists(), "{shell}: {command}");
            fs::remove_file(folder.join("got")).unwrap();
        }
    }
}
