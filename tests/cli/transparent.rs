//! Images without their background.

use std::fs;
use std::path::Path;

use flux::input::{pixel_digest, read_alpha};
use flux::rgb::Rgb;

use crate::program::{Run, flux, folder, run};

const SIDE: usize = 128;

/// Runs for a heart of 128 x 128 pixels in `folder`.
fn heart(folder: &Path, flags: &[&str]) -> Run {
    let words = ["a red heart", "--size", "128", "-S", "3", "--device", "cpu"];
    Run::new(flux().current_dir(folder).args(words).args(flags))
}

fn image(folder: &Path, name: &str) -> (Rgb, Vec<u8>) {
    let (rgb, alpha) = read_alpha(&fs::read(folder.join(name)).unwrap()).unwrap();
    (rgb, alpha.expect("alpha that differs between pixels"))
}

/// Returns the mean alpha of a square around a place, from 0 to 1.
fn mean(alpha: &[u8], [x, y]: [usize; 2]) -> f64 {
    let rows = (y - 4..y + 4).flat_map(|y| &alpha[y * SIDE + x - 4..y * SIDE + x + 4]);
    rows.map(|alpha| f64::from(*alpha)).sum::<f64>() / (64.0 * 255.0)
}

#[track_caller]
fn assert_cut_out(folder: &Path, name: &str) {
    let (rgb, alpha) = image(folder, name);
    let middle = mean(&alpha, [SIDE / 2, SIDE / 2]);
    let corners = [[8, 8], [SIDE - 8, 8], [8, SIDE - 8], [SIDE - 8, SIDE - 8]].map(|place| mean(&alpha, place));
    println!("{name}: {middle} {corners:?}");
    assert!(middle > 0.98 && corners.iter().all(|alpha| *alpha < 0.02), "{middle} {corners:?}");
    let at = 3 * (SIDE / 2 * SIDE + SIDE / 2);
    assert!(rgb.bytes[at] > 150 && rgb.bytes[at + 1] < 90, "it is red: {:?}", &rgb.bytes[at..at + 3]);
    let between = alpha.iter().filter(|alpha| (13..=242).contains(*alpha)).count();
    assert!(between > 0 && between < alpha.len() / 10, "an edge is soft and narrow: {between} pixels");
}

#[test]
fn a_heart_is_cut_out_in_both_ways_and_made_again() {
    let folder = &folder();
    for (flag, name, way) in [
        ("--transparent", "two.png", "edit"),
        ("--transparent=key", "key.webp", "key"),
        ("--transparent", "two.webp", "edit"),
    ] {
        heart(folder, &[flag, "-o", name]).succeeds();
        assert_cut_out(folder, name);
        let info = run(folder, &["info", "--json", name]).succeeds();
        let recipe = &serde_json::from_str::<serde_json::Value>(&info.stdout).unwrap()["recipe"];
        assert_eq!(recipe["transparent"], way);
        assert_eq!(recipe["prompt"], "a red heart, plain white background");
        run(folder, &["verify", name]).succeeds();
    }
    let digest = |name: &str| pixel_digest(&fs::read(folder.join(name)).unwrap()).unwrap();
    assert_eq!(digest("two.png"), digest("two.webp"));
    run(folder, &["again", "two.png", "--exact", "-o", "again.png"]).succeeds();
    assert_eq!(digest("again.png"), digest("two.png"));
    run(folder, &["again", "key.webp", "--exact", "-o", "key.png"]).succeeds();
    assert_eq!(digest("key.png"), digest("key.webp"));

    // Programs that read images take those with alpha, too.
    run(folder, &["compare", "two.png", "key.webp"]).succeeds();
    run(folder, &["sheet", "two.png", "key.webp", "-o", "sheet.png"]).succeeds();
    heart(folder, &["-i", "two.png", "-s", "1", "-o", "edited.png"]).succeeds();
}

#[test]
fn images_of_one_command_and_of_a_list_are_each_cut_out() {
    let folder = &folder();
    heart(folder, &["--transparent", "-n", "2", "-o", "heart.png"]).succeeds();
    heart(folder, &["--transparent", "-o", "one.png"]).succeeds();
    let [first, second, one] = ["heart-3.png", "heart-4.png", "one.png"].map(|name| image(folder, name));
    assert!(first.1 != second.1);
    let worst = first.1.iter().zip(&one.1).map(|(a, b)| a.abs_diff(*b)).max();
    assert!(worst <= Some(8), "{worst:?}: batches may round differently");
    let line = |output: &str| {
        format!(r#"{{"prompt": "a red heart", "size": "128", "seed": 3, "transparent": true, "output": "{output}"}}"#)
    };
    fs::write(folder.join("list.jsonl"), format!("{}\n{}\n", line("list.png"), line("list.jpg"))).unwrap();
    let batch = run(folder, &["batch", "list.jsonl", ".", "--device", "cpu"]);
    assert!(batch.stderr.contains("a JPEG has no transparency"), "{}", batch.stderr);
    assert!(image(folder, "list.png") == one && !folder.join("list.jpg").exists());
}

#[test]
fn a_background_that_cannot_be_removed_is_an_error() {
    let folder = &folder();
    heart(folder, &["--transparent", "-o", "a.jpg"]).fails(2, &["JPEG has no transparency", "--transparent", ".webp"]);
    heart(folder, &["--transparent", "--no-recipe", "-o", "a.jpg"]).fails(2, &["JPEG has no transparency"]);
    heart(folder, &["--transparent=alpha", "-o", "a.png"]).fails(2, &["--transparent", "edit or key"]);
    let small = ["a red heart", "--size", "48", "--transparent", "-o", "a.png", "--device", "cpu"];
    run(folder, &small).fails(2, &["48x48, expected sides of at least 64", "in: --transparent", "`key`"]);
    heart(folder, &["-s", "1", "-o", "heart.png"]).succeeds();
    let strength = ["--strength", "0.5", "-i", "heart.png", "-o", "a.png"];
    heart(folder, &[&["--transparent"], &strength[..]].concat()).fails(2, &["--strength", "--transparent", "`key`"]);
    let stripes = (0..3 * SIDE * SIDE).map(|i| [20, 128, 235][i / 3 % 15 / 5]).collect();
    let stripes = Rgb { width: SIDE, height: SIDE, bytes: stripes };
    let file = flux::output::encode(&stripes, flux::ImageFormat::Png, &Default::default()).unwrap();
    fs::write(folder.join("stripes.png"), file).unwrap();
    let middle = |i: usize| [i / 3 % SIDE, i / 3 / SIDE].iter().all(|side| (48..80).contains(side));
    let mask = (0..3 * SIDE * SIDE).map(|i| if middle(i) { 255 } else { 0 }).collect();
    let file = flux::output::encode(&Rgb { bytes: mask, ..stripes }, flux::ImageFormat::Png, &Default::default());
    fs::write(folder.join("mask.png"), file.unwrap()).unwrap();
    let flags = ["--transparent=key", "--mask", "mask.png", "-s", "1", "-i", "stripes.png", "-o", "a.png"];
    heart(folder, &flags).fails(1, &["no plain background", "hint: "]);
    assert!(!folder.join("a.png").exists() && !folder.join("a.jpg").exists());
}
