//! The program from outside: noise and schedules, and the tensors that it reads and writes.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::program::{Run, draw, flux, folder, names, project};
use flux::files::ArrayFile;
use flux::input::read as read_png;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

/// Returns the texts of a PNG, by keyword.
fn texts(path: &Path) -> HashMap<String, String> {
    let file = std::io::BufReader::new(fs::File::open(path).expect("the image is there"));
    let reader = png::Decoder::new(file).read_info().expect("a PNG");
    let chunks = reader.info().utf8_text.iter();
    chunks.map(|chunk| (chunk.keyword.clone(), chunk.get_text().expect("UTF-8"))).collect()
}

fn pixels(folder: &Path, name: &str) -> Vec<u8> {
    read_png(&folder.join(name)).expect("the image is there").bytes
}

/// Writes a file with one tensor of zeros, except for its first value.
fn write(path: &Path, shape: &[usize], first: f32) {
    let mut values = vec![0f32; shape.iter().product()];
    values[0] = first;
    write_values(path, shape, &values);
}

fn write_values(path: &Path, shape: &[usize], values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, shape.to_vec(), &bytes).unwrap();
    safetensors::serialize_to_file([("a", view)], None, path).unwrap();
}

#[test]
fn a_schedule_is_chosen_and_told() {
    let folder = folder();
    let drawn = |flags: &[&str], name: &str| {
        Run::new(
            flux()
                .current_dir(&folder)
                .args(["a cat", "-S", "1", "--size", "32", "--device", "cpu", "-o", name])
                .args(flags),
        )
        .succeeds();
        (pixels(&folder, name), texts(&folder.join(name)))
    };
    let (flow, facts) = drawn(&["-s", "2"], "flow.png");
    assert!(!facts.contains_key("schedule"), "{facts:?}");
    assert!(drawn(&["-s", "2", "--schedule", "flow"], "same.png").0 == flow);
    let (linear, facts) = drawn(&["-s", "2", "--schedule", "linear"], "linear.png");
    assert!(linear != flow && facts["schedule"] == "linear");
    let (levels, facts) = drawn(&["--schedule", "sigmas:1,0.5"], "levels.png");
    assert!(levels == linear, "these are the levels of the linear schedule");
    assert_eq!((facts["schedule"].as_str(), facts["steps"].as_str()), ("sigmas:1,0.5", "2"));
    draw(&folder, &["a cat", "--schedule", "sigmas:1,0.5"]).fails(2, &["2 steps, but 1 were", "hint: "]);
    draw(&folder, &["a cat", "--schedule", "cosine"]).fails(2, &["--schedule", "not a schedule", "power:A"]);
}

#[test]
fn what_does_nothing_or_cannot_be_is_told() {
    let folder = folder();
    let run = draw(&folder, &["a cat", "-S", "1", "--negative", "a dog", "-o", "a.png"]).succeeds();
    assert!(run.stderr.contains("note: the negative prompt has no effect: this model is distilled"), "{}", run.stderr);
    assert!(!texts(&folder.join("a.png")).contains_key("negative"));
    for bad in ["0", "-1", "100000"] {
        draw(&folder, &["a cat", "--max-sequence-length", bad]).fails(2, &["--max-sequence-length"]);
    }
    draw(&folder, &["a cat", "--rng", "dice"]).fails(2, &["--rng", "torch or portable"]);
    draw(&folder, &["a cat", "-S", "1", "--max-sequence-length", "7", "-o", "b.png"]).succeeds();
    assert!(pixels(&folder, "a.png") != pixels(&folder, "b.png"));
    assert_eq!(texts(&folder.join("b.png"))["max_sequence_length"], "7");
}

/// Returns the mean difference of two images in 8 x 8 cells of each.
fn apart(folder: &Path, a: &str, b: &str) -> f64 {
    let cells = |name: &str| {
        let image = read_png(&folder.join(name)).unwrap();
        let image = image::RgbImage::from_raw(image.width as u32, image.height as u32, image.bytes).unwrap();
        image::imageops::thumbnail(&image, 8, 8).into_raw()
    };
    let (a, b) = (cells(a), cells(b));
    a.iter().zip(&b).map(|(a, b)| f64::from(a.abs_diff(*b))).sum::<f64>() / a.len() as f64
}

#[test]
fn a_portable_seed_gives_a_similar_composition_at_another_size() {
    let folder = folder();
    let draw = |seed: &str, size: &str| {
        let flags = ["--rng", "portable", "-S", seed, "--size", size, "-o", &format!("{size}-{seed}.png")];
        Run::new(flux().current_dir(&folder).args(["-p", "", "--device", "cpu"]).args(flags)).succeeds();
    };
    for seed in ["1", "2"] {
        draw(seed, "112");
        draw(seed, "128");
    }
    let of = |a: &str, b: &str| apart(&folder, &format!("112-{a}.png"), &format!("128-{b}.png"));
    let (same, other) = (of("1", "1").max(of("2", "2")), of("1", "2").min(of("2", "1")));
    println!("{same} of one seed, {other} of two");
    assert!(same < 0.6 * other, "{same} of one seed, {other} of two");
    assert_eq!(texts(&folder.join("112-1.png"))["rng"], "portable");
    // All 64 bits of a seed count.
    draw("4294967297", "112");
    assert!(pixels(&folder, "112-1.png") != pixels(&folder, "112-4294967297.png"));
}

#[test]
fn latents_that_were_saved_are_taken_again() {
    let folder = folder();
    let flags = ["a cat", "-S", "7", "-n", "2", "-o", "out.png", "--save-latents", "x.safetensors"];
    draw(&folder, &flags).succeeds();
    assert_eq!(names(&folder), ["out-7.png", "out-8.png", "x-7.safetensors", "x-8.safetensors"]);
    let bytes = fs::read(folder.join("x-8.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let shape = file.tensor("latents").unwrap().shape().to_vec();
    assert_eq!((shape[0], shape[2], shape[3]), (1, 2, 2));
    let metadata = ArrayFile::read(&folder.join("x-8.safetensors")).unwrap().metadata();
    assert_eq!(
        (metadata["prompt"].as_str(), metadata["model"].as_str(), metadata["seed"].as_str()),
        ("a cat", "tiny", "8")
    );
    assert!(metadata["content"].contains("final latents"));

    // From a low noise level on, the image stays near the one that the latents come from.
    let again =
        ["a cat", "--latents", "x-7.safetensors", "--schedule", "sigmas:0.01", "--device", "cpu", "-o", "again.png"];
    Run::new(flux().current_dir(&folder).args(again)).succeeds();
    let (a, b) = (pixels(&folder, "out-7.png"), pixels(&folder, "again.png"));
    let mean = a.iter().zip(&b).map(|(a, b)| f64::from(a.abs_diff(*b))).sum::<f64>() / a.len() as f64;
    assert!(a.len() == b.len() && mean < 8.0, "{mean}: the size is that of the latents");
    assert_eq!(texts(&folder.join("again.png"))["latents"], "x-7.safetensors");
    let kept = draw(&folder, &["a cat", "--save-latents", "x-7.safetensors", "--no-clobber"]);
    kept.fails(1, &["x-7.safetensors", "already exists"]);
    draw(&folder, &["a cat", "--save-latents", "none/x.safetensors"]).fails(1, &["none/x.safetensors", "mkdir"]);
}

#[test]
fn noise_takes_the_place_of_the_seed_and_wrong_files_are_refused() {
    let folder = folder();
    draw(&folder, &["a cat", "-S", "7", "-o", "a.png", "--save-latents", "x.safetensors"]).succeeds();
    let bytes = fs::read(folder.join("x.safetensors")).unwrap();
    let [_, channels, ..] = *SafeTensors::deserialize(&bytes).unwrap().tensor("latents").unwrap().shape() else {
        panic!("four axes")
    };
    let of = |seed: &str, flags: &[&str]| {
        draw(&folder, &[&["a cat", "-S", seed, "-o", "b.png", "--noise", "noise.safetensors"], flags].concat())
    };
    let noise = folder.join("noise.safetensors");
    write(&noise, &[channels, 2, 2], 1.0);
    of("1", &[]).succeeds();
    let first = pixels(&folder, "b.png");
    of("2", &[]).succeeds();
    assert!(pixels(&folder, "b.png") == first, "the seed has nothing to do with it");
    of("1", &["-n", "2"]).fails(2, &["--noise", "contains 1 images, but 2 were requested", "hint: "]);
    of("1", &["--latents", "x.safetensors"]).fails(2, &["--noise", "--latents"]);
    write(&noise, &[2, channels, 2, 2], 1.0);
    of("1", &["-n", "2"]).succeeds();
    assert!(pixels(&folder, "b-1.png") != pixels(&folder, "b-2.png"), "each image has its own noise");
    write(&noise, &[channels, 3, 2], 1.0);
    of("1", &[]).fails(2, &["--noise", &format!("[{channels}, 3, 2], expected [{channels}, 2, 2]"), "hint: "]);
    write(&noise, &[1, 2, 4096], 1.0);
    of("1", &[]).fails(2, &["--noise", "[1, 2, 4096], expected a height and width of at most 512", "hint: "]);
    write(&noise, &[channels + 1, 2, 2], 1.0);
    of("1", &[]).fails(2, &["expected", "another model"]);
    write(&noise, &[4], 1.0);
    of("1", &[]).fails(2, &["[4]", "expected [images, channels, height, width]"]);
    write(&noise, &[channels, 2, 2], 1e38);
    of("1", &[]).fails(1, &["not numbers, from noise of up to 1e38", "in: --noise noise.safetensors", "hint: "]);
    write(&noise, &[channels, 2, 2], 3.4e38);
    of("1", &[]).fails(1, &["value 1 of", "3.4e38, which overflows bfloat16", "noise.safetensors", "hint: "]);
    write(&noise, &[channels, 2, 2], f32::NAN);
    of("1", &[]).fails(1, &["value 1 of", "NaN", "noise.safetensors"]);
    fs::write(&noise, "no tensors").unwrap();
    of("1", &[]).fails(1, &["the file is text", "in: noise.safetensors", "hint: name a valid safetensors file"]);
    fs::copy(project("docs/gallery.png"), &noise).unwrap();
    of("1", &[]).fails(1, &["the file is a PNG image of ", "in: noise.safetensors", "hint: "]);
    fs::write(&noise, b"\x40\0\0\0\0\0\0\0{\"a\": 1}").unwrap();
    of("1", &[]).fails(1, &["not a valid safetensors file", "hint: "]);
}

/// Copies the built-in model without the text encoder's weights and the tokenizer.
fn without_text(to: &Path) {
    for part in ["text_encoder", "transformer", "vae", "scheduler"] {
        let from = project("models/tiny").join(part);
        let Ok(entries) = fs::read_dir(&from) else { continue };
        fs::create_dir_all(to.join(part)).unwrap();
        for entry in entries.map(|entry| entry.unwrap().path()) {
            if part != "text_encoder" || entry.extension().is_some_and(|extension| extension == "json") {
                fs::copy(&entry, to.join(part).join(entry.file_name().unwrap())).unwrap();
            }
        }
    }
    fs::copy(project("models/tiny/model_index.json"), to.join("model_index.json")).unwrap();
}

#[test]
fn text_features_that_were_saved_make_the_same_image_without_a_text_encoder() {
    let folder = folder();
    draw(&folder, &["a cat", "-S", "7", "-o", "a.png", "--save-embeddings", "e.safetensors"]).succeeds();
    let model = folder.join("model");
    without_text(&model);
    let given = ["--embeddings", "e.safetensors", "-S", "7"];
    let flags = [&given[..], &["-d", "model", "-o", "b.png", "--timings=json"]].concat();
    let run = draw(&folder, &flags).succeeds();
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&report["tensors"]["embeddings"], &report["plan"]["rng"]), (&"e.safetensors".into(), &"torch".into()));
    assert_eq!(report["timings"]["prompts_encoded"], 0);
    assert!(pixels(&folder, "a.png") == pixels(&folder, "b.png"));
    let facts = texts(&folder.join("b.png"));
    assert_eq!((facts["Description"].as_str(), facts["embeddings"].as_str()), ("a cat", "e.safetensors"));
    draw(&folder, &["a cat", "-d", "model"]).fails(1, &["no weights", "text_encoder"]);
    draw(&folder, &[&given[..], &["a cat"]].concat()).fails(2, &["--embeddings"]);
    let features = SafeTensors::deserialize(&fs::read(folder.join("e.safetensors")).unwrap())
        .map(|file| file.tensor("prompt_embeds").unwrap().shape()[2])
        .unwrap();
    write_values(&folder.join("e.safetensors"), &[8, features], &vec![1e38; 8 * features]);
    let huge = draw(&folder, &given);
    huge.fails(1, &["not numbers, from text features of up to 1e38", "in: --embeddings e.safetensors", "hint: "]);
    write(&folder.join("e.safetensors"), &[3, 5], 1.0);
    draw(&folder, &given).fails(2, &["--embeddings", "[3, 5], expected [tokens, ", "hint: "]);
}
