//! Controls, strengths of references, variations and variety.

use std::fs;
use std::path::Path;

use crate::program::{Run, flux};

fn pixels(folder: &Path, name: &str) -> Vec<u8> {
    flux::input::read(&folder.join(name)).unwrap().bytes
}

fn info(folder: &Path, name: &str) -> serde_json::Value {
    let run = Run::new(flux().current_dir(folder).args(["info", "--json", name])).succeeds();
    serde_json::from_str(&run.stdout).unwrap()
}

/// Runs for an image in `folder`, in its model's size unless flags say otherwise.
fn draw(folder: &Path, flags: &[&str]) -> Run {
    Run::new(flux().current_dir(folder).args(["--device", "cpu"]).args(flags))
}

/// Returns the mean difference of two images, of 255.
fn difference(a: &[u8], b: &[u8]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a.abs_diff(*b))).sum::<f64>() / a.len() as f64
}

#[test]
fn a_control_is_a_reference_and_a_line_of_the_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| draw(folder.path(), words);
    run(&["a red heart", "--size", "128", "-S", "1", "-o", "heart.png"]).succeeds();
    let edges = flux::input::edges(&flux::input::read(&folder.path().join("heart.png")).unwrap());
    let map = flux::output::encode(&edges, flux::output::ImageFormat::Png, &Default::default()).unwrap();
    fs::write(folder.path().join("map.png"), map).unwrap();

    let small = ["--size", "128", "-s", "1", "-S", "2"];
    run(&[&["a blue star", "--canny", "heart.png", "-o", "made.png"], &small[..]].concat()).succeeds();
    run(&[&["a blue star", "--control", "canny:map.png", "-o", "control.png"], &small[..]].concat()).succeeds();
    let prompt = "Match the edge map in image 1.\na blue star";
    run(&[&["-p", prompt, "-i", "map.png", "-o", "plain.png"], &small[..]].concat()).succeeds();
    let plain = pixels(folder.path(), "plain.png");
    assert!(pixels(folder.path(), "made.png") == plain && pixels(folder.path(), "control.png") == plain);
    assert_eq!(info(folder.path(), "made.png")["recipe"]["prompt"], prompt);
    assert_eq!(info(folder.path(), "made.png")["recipe"]["controls"][0]["make"], true);

    Run::new(flux().current_dir(folder.path()).args(["again", "made.png", "--exact", "-o", "again.png"])).succeeds();
    assert!(pixels(folder.path(), "again.png") == plain, "the map is made again, and the line is there once");
    run(&["a star", "--canny", "heart.png", "--strength", "0.5", "-o", "x.png"]).fails(2, &["to edit", "--control"]);
    assert!(!folder.path().join("x.png").exists());
}

#[test]
fn a_weight_scales_a_reference_and_0_leaves_it_out() {
    let folder = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| draw(folder.path(), &[words, &["--size", "128", "-S", "3"]].concat());
    run(&["a yellow star, green background", "-o", "star.png"]).succeeds();
    let edit = |flags: &[&str], name: &str| {
        run(&[&["make the star blue", "-o", name], flags].concat()).succeeds();
        pixels(folder.path(), name)
    };
    let plain = edit(&["-i", "star.png"], "plain.png");
    assert!(edit(&["-i", "star.png", "--input-weight", "1"], "one.png") == plain);
    let none = edit(&[], "none.png");
    assert!(edit(&["-i", "star.png", "--input-weight", "0"], "zero.png") == none);
    let two = ["-i", "star.png", "-i", "none.png"];
    assert!(edit(&[&two[..], &["--input-weight", "1", "--input-weight", "0"]].concat(), "first.png") == plain);
    let [weak, strong] = ["0.7", "1.3"].map(|weight| edit(&["-i", "star.png", "--input-weight", weight], "w.png"));
    let star = pixels(folder.path(), "star.png");
    println!("{} {} {}", difference(&weak, &star), difference(&plain, &star), difference(&strong, &star));
    assert!(weak != plain && strong != plain && difference(&strong, &star) < difference(&plain, &star));
    assert_eq!(info(folder.path(), "w.png")["recipe"]["input_weights"][0], 1.3);
    Run::new(flux().current_dir(folder.path()).args(["again", "w.png", "--exact", "-o", "again.png"])).succeeds();
    assert!(pixels(folder.path(), "again.png") == strong);

    run(&["a", "--input-weight", "1", "-o", "x.png"]).fails(2, &["--input-weight", "requires"]);
    run(&["a", "-i", "star.png", "--input-weight", "2.5", "-o", "x.png"]).fails(2, &["0 to 2", "--input-weight"]);
    let more = ["a", "-i", "star.png", "--input-weight", "1", "--input-weight", "1", "-o", "x.png"];
    run(&more).fails(2, &["2 weights", "1 inputs"]);
    assert!(!folder.path().join("x.png").exists());
}

#[test]
fn a_variation_is_between_two_seeds() {
    let folder = tempfile::tempdir().unwrap();
    let vary = |seed: &str, flags: &[&str], name: &str| {
        let words = ["a red heart", "--size", "128", "-s", "2", "-S", seed, "-o", name];
        draw(folder.path(), &[&words, flags].concat()).succeeds();
        pixels(folder.path(), name)
    };
    let (base, own) = (vary("42", &[], "base.png"), vary("7", &[], "own.png"));
    assert!(vary("7", &["--variation", "42:0"], "0.png") == base);
    assert!(vary("7", &["--variation", "42:1"], "1.png") == own);
    let distances: Vec<f64> = ["42:0.1", "42:0.3", "42:0.6"]
        .map(|variation| difference(&vary("7", &["--variation", variation], "v.png"), &base))
        .into();
    println!("{distances:?}");
    assert!(distances.is_sorted() && distances[0] > 0.0, "{distances:?}");
    Run::new(flux().current_dir(folder.path()).args(["again", "v.png", "--exact", "-o", "again.png"])).succeeds();
    assert!(pixels(folder.path(), "again.png") == pixels(folder.path(), "v.png"));
    draw(folder.path(), &["a", "--variation", "42:2", "-o", "x.png"]).fails(2, &["SEED:X", "--variation"]);
    draw(folder.path(), &["a", "--variation", "42:0.5", "--noise", "n", "-o", "x.png"]).fails(2, &["--noise"]);
}

#[test]
fn variety_is_recorded_and_reproduced() {
    let folder = tempfile::tempdir().unwrap();
    let vary = |flags: &[&str], name: &str| {
        let words = ["a red heart", "--size", "128", "-s", "2", "-S", "7", "-o", name];
        draw(folder.path(), &[&words, flags].concat()).succeeds();
        pixels(folder.path(), name)
    };
    let plain = vary(&[], "plain.png");
    assert!(vary(&["--variety", "0"], "none.png") == plain);
    assert!(info(folder.path(), "none.png")["recipe"]["variety"].is_null(), "it had no effect");
    let varied = vary(&["--variety", "0.5:100"], "varied.png");
    assert!(varied != plain && vary(&["--variety", "0.5:100:0.5"], "same.png") == varied);
    assert_eq!(info(folder.path(), "varied.png")["recipe"]["variety"], "0.5:100:0.2");
    Run::new(flux().current_dir(folder.path()).args(["again", "varied.png", "--exact", "-o", "again.png"])).succeeds();
    assert!(pixels(folder.path(), "again.png") == varied);

    let list =
        r#"{"prompt": "a red heart", "size": "128", "steps": 2, "seed": 7, "variety": "0.5:100", "output": "l.png"}"#;
    fs::write(folder.path().join("list.jsonl"), list).unwrap();
    Run::new(flux().current_dir(folder.path()).args(["batch", "list.jsonl", ".", "--device", "cpu"])).succeeds();
    assert!(pixels(folder.path(), "l.png") == varied);

    draw(folder.path(), &["a", "--variety", "3", "-o", "x.png"]).fails(2, &["PERCENT", "--variety"]);
    draw(folder.path(), &["--variety", "0.5", "--embeddings", "e", "-o", "x.png"]).fails(2, &["--embeddings"]);
    let sparse = ["a", "--variety", "0.5", "-i", "plain.png", "--mask", "plain.png", "--sparse", "-o", "x.png"];
    draw(folder.path(), &sparse).fails(2, &["--variety", "--sparse"]);
}
