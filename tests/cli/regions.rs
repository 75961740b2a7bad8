//! Regions: texts for parts of the image.

use std::fs;
use std::path::Path;

use flux::input::read;
use flux::metadata::Metadata;
use flux::output::{ImageFormat, encode};
use flux::rgb::Rgb;
use serde_json::Value;

use super::folder;
use crate::program::{Run, flux, names};

const SIZE: [&str; 6] = ["--size", "64", "-s", "2", "--device", "cpu"];
const LEFT: &str = "0,0,1000,500:a red circle: on the left";
const RIGHT: &str = "0,50%,100%,100%:a blue star";

fn draw(folder: &Path, flags: &[&str]) -> Run {
    let seed = if flags.contains(&"-S") { &[][..] } else { &["-S", "3"] };
    Run::new(flux().current_dir(folder).arg("a teal background").args(SIZE).args(seed).args(flags))
}

fn info(folder: &Path, name: &str) -> Value {
    let run = Run::new(flux().current_dir(folder).args(["info", "--json", name])).succeeds();
    serde_json::from_str(&run.stdout).unwrap()
}

/// Writes a mask that is white from column `first` on.
fn mask(folder: &Path, name: &str, [width, height]: [usize; 2], first: usize) {
    let bytes = (0..width * height).flat_map(|n| [if n % width >= first { 255 } else { 0 }; 3]).collect();
    let file = encode(&Rgb { width, height, bytes }, ImageFormat::Png, &Metadata::default()).unwrap();
    fs::write(folder.join(name), file).unwrap();
}

#[test]
fn a_region_is_a_box_or_a_mask_and_is_reproduced() {
    let folder = &folder();
    let pixels = |name: &str| read(&folder.join(name)).unwrap().bytes;
    draw(folder, &["-o", "plain.png"]).succeeds();
    draw(folder, &["--region", LEFT, "--region", RIGHT, "-o", "boxes.png"]).succeeds();
    mask(folder, "right.png", [20, 20], 10);
    let masked = ["--region", LEFT, "--region", "right.png:a blue star", "-o", "mask.png"];
    draw(folder, &masked).succeeds();
    assert!(pixels("boxes.png") == pixels("mask.png") && pixels("boxes.png") != pixels("plain.png"));

    let made = info(folder, "mask.png");
    let expected = serde_json::json!([
        {"box": [0, 0, 1000, 500], "prompt": "a red circle: on the left"},
        {"mask": "right.png", "prompt": "a blue star"}
    ]);
    assert_eq!((&made["recipe"]["regions"], made["digests"]["right.png"].is_string()), (&expected, true));
    let again = |flags: &[&str], to: &str| {
        Run::new(flux().current_dir(folder).args(["again", "mask.png", "-o", to]).args(flags))
    };
    again(&["--exact"], "again.png").succeeds();
    assert!(pixels("again.png") == pixels("mask.png"));
    // Other regions replace those of the recipe.
    again(&["--region", LEFT], "one.png").succeeds();
    assert_eq!(info(folder, "one.png")["recipe"]["regions"].as_array().unwrap().len(), 1);
    // A mask of another content is noticed.
    mask(folder, "right.png", [20, 20], 5);
    let run = again(&[], "changed.png").succeeds();
    assert!(run.stderr.contains("right.png") && pixels("changed.png") != pixels("mask.png"), "{}", run.stderr);

    let line = r#"{"prompt": "a teal background", "seed": 3, "output": "made.png", "regions": [
        {"box": [0, 0, 1000, 500], "prompt": "a red circle: on the left"},
        {"box": [0, 0.5, 1.0, 1], "prompt": "a blue star"}]}"#;
    fs::write(folder.join("list.jsonl"), line.replace('\n', " ")).unwrap();
    let flags = ["batch", "list.jsonl", "out", "--size", "64", "-s", "2", "--device", "cpu"];
    Run::new(flux().current_dir(folder).args(flags)).succeeds();
    assert!(pixels("out/made.png") == pixels("boxes.png"));
}

#[test]
fn regions_edit_and_several_images_have_their_own_seeds() {
    let folder = &folder();
    let pixels = |name: &str| read(&folder.join(name)).unwrap().bytes;
    draw(folder, &["-o", "in.png"]).succeeds();
    let edit = |flags: &[&str], to: &str| {
        draw(folder, &[&["-i", "in.png", "-o", to], flags].concat()).succeeds();
        pixels(to)
    };
    let plain = edit(&[], "plain.png");
    assert!(edit(&["--region", LEFT], "region.png") != plain, "with a reference");
    mask(folder, "m.png", [64, 64], 32);
    let masked = edit(&["--mask", "m.png", "--region", RIGHT], "masked.png");
    let rows = |image: &[u8]| image.chunks_exact(3 * 64).map(|row| row[..3 * 32].to_vec()).collect::<Vec<_>>();
    assert!(rows(&masked) == rows(&pixels("in.png")), "the rest is kept");
    draw(folder, &["--region", LEFT, "-n", "2", "-o", "n.png"]).succeeds();
    draw(folder, &["--region", LEFT, "-S", "4", "-o", "second.png"]).succeeds();
    let second = names(folder).into_iter().filter(|name| name.starts_with("n-")).max().unwrap();
    assert!(pixels(&second) == pixels("second.png"));
}

#[test]
fn what_regions_cannot_do_is_an_error() {
    let folder = &folder();
    mask(folder, "black.png", [8, 8], 8);
    mask(folder, "wide.png", [64, 8], 8);
    let many: Vec<&str> = [["--region", LEFT]; 31].concat();
    for (flags, words) in [
        (&["--region", "0,0,1000,500"][..], &["--region", "TEXT"][..]),
        (&["--region", "0,0,1000,500: "], &["region 1 has no text"]),
        (&["--region", "0,0,1001,500:x"], &["0 to 1000"]),
        (&["--region", "0,0,10,10:x"], &["region 1 covers none", "hint"]),
        (&["--region", "black.png:x"], &["region 1 covers none"]),
        (&["--region", "gone.png:x"], &["gone.png"]),
        (&["--region=-:x"], &["standard input"]),
        (&many, &["31 regions", "30"]),
        (&["--region", LEFT, "--save-embeddings", "e.safetensors"], &["text features", "hint"]),
    ] {
        let run = draw(folder, &[flags, &["-o", "x.png"]].concat());
        assert!(run.code.is_some_and(|code| code != 0), "{flags:?}: {}", run.stderr);
        assert!(words.iter().all(|word| run.stderr.contains(word)), "{flags:?}: {}", run.stderr);
    }
    assert!(!folder.join("x.png").exists());
    draw(folder, &["--region", "wide.png:x", "-o", "wide.png"]).fails(2, &["wide.png"]);
    let run = draw(folder, &["--region", "wide.png:x", "-o", "stretched.png"]).succeeds();
    assert!(run.stderr.contains("64x8,") && run.stderr.contains("64x64"), "{}", run.stderr);
}
