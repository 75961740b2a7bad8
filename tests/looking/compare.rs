//! `flux compare`.

use std::fs;
use std::path::Path;

use super::{flat, folder, pixels, run, write};
use crate::process::Folder;
use flux::input::read;

/// The first value that differs.
const MIDDLE: usize = 3 * (8 * 32 + 12);

/// Creates two images of 32 x 16, with 8 pixels in the middle that differ by 10, and the same in two folders.
fn images() -> Folder {
    let folder = folder();
    for name in ["one", "two"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    let mut other = pixels(32, 16);
    other.bytes[MIDDLE..MIDDLE + 24].iter_mut().for_each(|level| *level += 10);
    for (name, image) in [("a.png", &pixels(32, 16)), ("b.png", &other)] {
        write(&folder.join(name), image);
    }
    for (name, image) in [("one/x.png", &pixels(32, 16)), ("two/x.png", &other), ("one/only.png", &other)] {
        write(&folder.join(name), image);
    }
    for name in ["one/same.webp", "two/same.webp"] {
        write(&folder.join(name), &pixels(32, 16));
    }
    fs::write(folder.join("one/notes.txt"), "no image").unwrap();
    folder
}

fn json(folder: &Path, args: &[&str]) -> serde_json::Value {
    let run = run(folder, &[&["compare", "--json"], args].concat()).succeeds();
    serde_json::from_str(&run.stdout).expect("JSON")
}

#[test]
fn a_line_tells_how_far_two_images_are_apart() {
    let folder = images();
    let same = run(&folder, &["compare", "a.png", "a.png"]).succeeds();
    assert_eq!(same.stdout, "max 0 mean 0.0000 psnr inf dB ssim 1.00000 differing 0 of 512\n");
    // By hand: 24 of 1536 values differ by 10, so the mean is 240 / 1536, and 255^2 * 1536 / 2400 are 46.19 dB.
    let line = run(&folder, &["compare", "a.png", "b.png"]).succeeds().stdout;
    assert!(line.starts_with("max 10 mean 0.1562 psnr 46.19 dB ssim 0.9"), "{line}");
    assert!(line.ends_with(" differing 8 of 512\n"), "{line}");
    run(&folder, &["compare", "a.png", "b.png", "--min-psnr", "46"]).succeeds();
    let apart = run(&folder, &["compare", "a.png", "b.png", "--min-psnr", "47"]);
    assert_eq!((apart.code, apart.stdout), (Some(1), line), "the line is printed in any case");
    assert!(apart.stderr.contains("46.19 dB") && apart.stderr.contains("47 dB"), "{}", apart.stderr);
    let found = json(&folder, &["a.png", "b.png"]);
    assert_eq!((found["max"].as_u64(), found["differing_pixels"].as_u64()), (Some(10), Some(8)));
    assert_eq!((found["width"].as_u64(), found["height"].as_u64()), (Some(32), Some(16)));
    assert!(found["ssim"].as_f64().is_some_and(|ssim| (0.9..1.0).contains(&ssim)), "{found}");
    assert!(json(&folder, &["a.png", "a.png"])["psnr_db"].is_null(), "JSON has no infinity");
}

#[test]
fn the_differences_are_shown_so_that_they_can_be_seen() {
    let folder = images();
    let made = run(&folder, &["compare", "a.png", "b.png", "--diff", "diff.png"]).succeeds();
    assert_eq!(made.stderr, "wrote diff.png: the differences, amplified 25 times\n");
    let diff = read(&folder.join("diff.png")).unwrap();
    let expected = |place| if (MIDDLE..MIDDLE + 24).contains(&place) { 250 } else { 0 };
    assert!(diff.bytes.iter().enumerate().all(|(place, level)| *level == expected(place)));
    let found = json(&folder, &["a.png", "b.png", "--diff", "diff.webp"]);
    assert_eq!((&found["diff"]["file"], &found["diff"]["factor"]), (&"diff.webp".into(), &25.into()));
    let before = fs::read(folder.join("b.png")).unwrap();
    run(&folder, &["compare", "a.png", "b.png", "--diff", "./b.png"]).fails(2, &["one of the images", "--diff"]);
    assert_eq!(fs::read(folder.join("b.png")).unwrap(), before);
    run(&folder, &["compare", "a.png", "b.png", "--diff", "diff.gif"]).fails(2, &["--diff", ".png, .jpg"]);
    run(&folder, &["compare", "one", "two", "--diff", "diff.png"]).fails(2, &["--diff", "two images"]);
}

#[test]
fn images_that_cannot_be_compared_are_told() {
    let folder = images();
    write(&folder.join("tall.png"), &flat(16, 32, [0; 3]));
    run(&folder, &["compare", "a.png", "tall.png"]).fails(1, &["32x16 and 16x32", "the same size"]);
    run(&folder, &["compare", "a.png", "one"]).succeeds(); // with the image of its name
    run(&folder, &["compare", "a.png", "none.png"]).fails(1, &["none.png"]);
    let small = run(&folder, &["compare", "tall.png", "tall.png"]).succeeds().stdout;
    assert!(small.contains("ssim 1.00000"), "{small}");
    write(&folder.join("tiny.png"), &flat(10, 10, [0; 3]));
    let tiny = run(&folder, &["compare", "tiny.png", "tiny.png"]).succeeds().stdout;
    assert!(tiny.contains("ssim - "), "a side is shorter than a window: {tiny}");
}

#[test]
fn folders_are_compared_name_by_name_with_a_summary() {
    let folder = images();
    let run_folders = |args: &[&str]| run(&folder, &[&["compare", "one", "two"], args].concat());
    let made = run_folders(&[]).succeeds();
    let lines: Vec<_> = made.stdout.lines().collect();
    let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
    assert_eq!(words(lines[0]), ["image", "max", "mean", "psnr", "ssim", "differing"]);
    assert_eq!(words(lines[1]), ["same.webp", "0", "0.0000", "inf", "1.00000", "0", "of", "512"]);
    assert_eq!(words(lines[2])[..4], ["x.png", "10", "0.1562", "46.19"]);
    assert!(lines[3].starts_with("2 pairs, 1 equal: max 10, mean 0.0781, lowest psnr 46.19 dB, lowest ssim 0.9"));
    assert_eq!(lines.len(), 4);
    assert_eq!(made.stderr, "note: only in `one`: only.png\n");
    run_folders(&["--min-psnr", "46"]).succeeds();
    let apart = run_folders(&["--min-psnr", "47"]);
    assert_eq!(apart.code, Some(1));
    assert!(
        apart.stderr.contains("1 of 2 pairs") && apart.stderr.contains("47 dB") && apart.stderr.contains("`x.png`"),
        "{}",
        apart.stderr
    );
    let found = json(&folder, &["one", "two"]);
    assert_eq!(found["pairs"].as_array().map(Vec::len), Some(2));
    assert_eq!((&found["pairs"][1]["name"], &found["pairs"][1]["max"]), (&"x.png".into(), &10.into()));
    assert_eq!((&found["only_in_a"][0], &found["summary"]["equal"]), (&"only.png".into(), &1.into()));
}

#[test]
fn a_pair_that_cannot_be_compared_does_not_hide_the_others() {
    let folder = images();
    write(&folder.join("two/only.png"), &flat(16, 32, [0; 3]));
    let made = run(&folder, &["compare", "one", "two"]);
    assert_eq!(made.code, Some(1));
    assert!(
        made.stdout.lines().any(|line| line.starts_with("only.png   ") && line.ends_with(": 32x16 and 16x32")),
        "{}",
        made.stdout
    );
    assert!(made.stdout.contains("2 pairs, 1 equal"), "{}", made.stdout);
    assert!(made.stderr.contains("1 of 3 pairs") && made.stderr.contains("only.png"));
    fs::create_dir(folder.join("empty")).unwrap();
    run(&folder, &["compare", "one", "empty"]).fails(2, &["in: empty"]);
    write(&folder.join("empty/other.png"), &flat(16, 16, [0; 3]));
    run(&folder, &["compare", "one", "empty"]).fails(1, &["as one in `empty`", "in: one"]);
}
