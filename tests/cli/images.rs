//! Flags for images: wrong usage, hostile files, and results.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use flux::input::{read, read_bytes};
use flux::metadata::Metadata;
use flux::output::{ImageFormat, Rgb, encode};

use super::{folder, texts};
use crate::program::{Folder, Run, draw, flux, names, project};
use crate::pty::watch;

/// Returns colours that differ from pixel to pixel.
fn colours(width: usize, height: usize) -> Rgb {
    Rgb { width, height, bytes: (0..3 * width * height).map(|i| (i * i / 7 % 251) as u8).collect() }
}

/// Returns an image that is white from a column on.
fn white_from(column: usize, width: usize, height: usize) -> Rgb {
    let bytes = (0..3 * width * height).map(|i| if i / 3 % width >= column { 255 } else { 0 }).collect();
    Rgb { width, height, bytes }
}

fn save(folder: &Path, name: &str, image: &Rgb) {
    fs::write(folder.join(name), encode(image, ImageFormat::Png, &Metadata::default()).expect("a small image"))
        .expect("a folder");
}

/// Creates a folder with `a.png`, an image of 70 x 64 pixels, and `mask.png`, white in its right part.
fn images() -> Folder {
    let folder = folder();
    save(&folder, "a.png", &colours(70, 64));
    save(&folder, "mask.png", &white_from(41, 70, 64));
    folder
}

/// Returns the file with this name from a list in tests/input.
fn file_of(list: &str, name: &str) -> Vec<u8> {
    let rows = fs::read(project("tests/input").join(list)).expect("the list is there");
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&rows).expect("rows");
    let row = rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{list} has no {name}"));
    let hex = row["file"].as_str().expect("hexadecimal");
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal")).collect()
}

/// Runs one step on the CPU, in the size of the images.
fn edit(folder: &Path, flags: &[&str]) -> Run {
    Run::new(flux().current_dir(folder).args(["-p", "x", "-S", "1", "-s", "1", "--device", "cpu"]).args(flags))
}

#[test]
fn flags_that_need_another_one_or_contradict_it_are_usage_errors() {
    let folder = images();
    for flags in [
        &["--mask", "mask.png"][..],
        &["--strength", "1"],
        &["--extend", "0,0,16,0"],
        &["--feather", "2"],
        &["--no-composite"],
        &["--no-self-reference"],
    ] {
        let words = format!("`{}` requires `--input`", flags[0]);
        edit(&folder, flags).fails(2, &[&words, "hint: pass `--input` too"]);
    }
    let with_input: [(&[&str], &[&str]); 15] = [
        (&["--mask-padding", "2"], &["`--mask-padding` requires `--mask`", "hint: pass"]),
        (&["--mask", "mask.png", "--mask-padding", "2", "--extend", "0,0,16,0"], &["--mask-padding", "--extend"]),
        (&["--mask", "mask.png", "--no-composite", "--feather", "2"], &["--no-composite", "--feather"]),
        (&["--extend", "1,2,3"], &["--extend", "LEFT,TOP,RIGHT,BOTTOM"]),
        (&["--feather", "-1"], &["--feather"]),
        (&["--mask", "mask.png", "--mask-padding", "x"], &["--mask-padding"]),
        (&["--strength", "half"], &["--strength"]),
        (
            &["--strength", "0.5", "--feather", "2"],
            &["requires `--mask` or `--extend`", "in: --feather", "hint: pass `--mask`"],
        ),
        (&["--no-composite"], &["requires `--mask` or `--extend`", "in: --no-composite", "hint: pass `--mask`"]),
        (&["--no-self-reference"], &["requires `--strength`", "in: --no-self-reference", "hint: pass `--strength`"]),
        (&["--strength", "1.5"], &["1.5, expected 0 to 1", "in: --strength", "hint: "]),
        (&["--strength", "nan"], &["the strength is NaN", "in: --strength", "hint: "]),
        (&["--strength", "-0.5"], &["-0.5", "in: --strength", "hint: "]),
        (&["--strength", "0"], &["runs none of 1 steps", "in: --strength", "hint: use more than 0"]),
        (&["--extend", "0,0,0,0"], &["all sides are 0", "in: --extend", "hint: "]),
    ];
    for (flags, words) in with_input {
        edit(&folder, &[&["-i", "a.png"], flags].concat()).fails(2, words);
    }
    let many = ["-i", "a.png"].repeat(17);
    edit(&folder, &many).fails(2, &["17 input images were passed", "in: -i", "hint: leave some"]);
    assert_eq!(names(&folder), ["a.png", "mask.png"]);
}

#[test]
fn standard_input_is_read_once() {
    let folder = images();
    for flags in [&["-i", "-", "-i", "-"][..], &["-i", "-", "--mask", "-"], &["-i", "a.png", "-i", "-", "--mask=-"]] {
        edit(&folder, flags).fails(2, &["more than once", "in: --input", "hint: "]);
    }
    let prompt = ["-p", "-", "-i", "-", "--device", "cpu"];
    Run::new(flux().args(prompt)).fails(2, &["more than once", "the prompt can come from standard input"]);
}

#[test]
fn an_image_a_mask_or_a_reference_may_come_from_standard_input() {
    let folder = images();
    let piped = |from: &str, flags: &[&str]| {
        let mut command = flux();
        command.current_dir(&folder).args(["-p", "x", "-S", "1", "-s", "1", "--device", "cpu", "-q", "-o", "-"]);
        let file = fs::File::open(folder.join(from)).expect("written above");
        let output = command.args(flags).stdin(Stdio::from(file)).output().expect("the program starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        read_bytes(&output.stdout).expect("an image on standard output")
    };
    for (from, stdin, file) in [
        ("a.png", &["-i", "-"][..], &["-i", "a.png"][..]),
        ("a.png", &["-i", "-", "--mask", "mask.png"], &["-i", "a.png", "--mask", "mask.png"]),
        ("mask.png", &["-i", "a.png", "--mask", "-"], &["-i", "a.png", "--mask", "mask.png"]),
        ("mask.png", &["-i", "a.png", "-i", "-"], &["-i", "a.png", "-i", "mask.png"]),
    ] {
        edit(&folder, &[file, &["-o", "named.png"]].concat()).succeeds();
        assert_eq!(piped(from, stdin), read(&folder.join("named.png")).unwrap(), "{stdin:?}");
    }
}

#[test]
fn a_terminal_is_no_image() {
    let folder = images();
    let played = watch(flux().current_dir(&folder).args(["-p", "x", "-i", "-", "--device", "cpu"]), 80);
    assert_eq!(played.code, Some(2), "{}", played.shown);
    assert!(
        played.shown.contains("standard input is a terminal") && played.shown.contains("hint: "),
        "{}",
        played.shown
    );
}

/// Each is refused as a reference, as an input image and as a mask, before the model is opened.
#[test]
fn hostile_images_are_refused_before_a_model_is_opened() {
    let folder = images();
    let path = &folder;
    let whole = fs::read(path.join("a.png")).unwrap();
    let refused = |name: &str| file_of("refused.json", name);
    let files = [
        ("cut.png", whole[..whole.len() / 2].to_vec(), "cut off"),
        ("cut.jpg", file_of("images.json", "cmyk.jpg")[..300].to_vec(), "cut off"),
        ("header.png", whole[..20].to_vec(), "PNG"),
        ("narrow.png", refused("png of 1x30000"), "1x30000"),
        ("bomb.png", refused("png of 60000x60000"), "60000x60000, expected at most 16384x16384"),
        ("many.png", refused("png of 16384x8193"), "134217728 pixels"),
        ("bomb.jpg", refused("jpeg of 65535x65535"), "65535x65535"),
        ("moves.webp", refused("animated.webp"), "animated"),
        ("image.gif", refused("image.gif"), "not a PNG, JPEG or WebP"),
        ("text.png", b"no image".to_vec(), "not a PNG, JPEG or WebP"),
        ("empty.png", Vec::new(), "is empty"),
    ];
    let start = Instant::now();
    for (name, bytes, words) in files {
        fs::write(path.join(name), bytes).unwrap();
        for flags in [&["-i", name][..], &["-i", name, "--strength", "1"], &["-i", "a.png", "--mask", name]] {
            edit(path, &[flags, &["-d", "no-model"]].concat()).fails(1, &[words, &format!("in: {name}"), "hint: "]);
        }
    }
    let none = |flags: &[&str]| edit(path, &[flags, &["-d", "no-model"]].concat());
    none(&["-i", "none.png"]).fails(1, &["none.png", "hint: "]);
    none(&["-i", "."]).fails(1, &["hint: "]);
    none(&["-i", ""]).fails(2, &["`-i`"]);
    none(&["-i", "a.png", "--mask", "none.png"]).fails(1, &["none.png", "hint: "]);
    none(&["-i", "/dev/zero"]).fails(1, &["/dev/zero", "hint: "]);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn images_that_models_do_not_take_are_refused_with_their_size() {
    let folder = images();
    let path = &folder;
    save(path, "small.png", &colours(63, 80));
    save(path, "long.png", &colours(64, 513));
    save(path, "line.png", &colours(80, 15));
    save(path, "black.png", &white_from(8, 8, 8));
    edit(path, &["-i", "small.png"]).fails(1, &["63x80, expected sides of at least 64", "in: small.png", "hint: "]);
    edit(path, &["-i", "long.png"]).fails(1, &["64x513", "at most 8", "in: long.png", "hint: "]);
    edit(path, &["-i", "line.png", "--strength", "1"]).fails(1, &["80x15, too narrow", "in: line.png", "hint: "]);
    edit(path, &["-i", "a.png", "--mask", "black.png", "--mask-padding", "4"])
        .fails(1, &["is black", "in: black.png", "hint: "]);
    edit(path, &["-i", "a.png", "--extend", "0,0,99999,0"]).fails(2, &["100069x64", "in: --extend", "hint: "]);
}

#[test]
fn a_cmyk_jpeg_is_changed_under_a_mask_and_comes_back_as_it_is_read() {
    let folder = images();
    let path = &folder;
    let jpeg = file_of("images.json", "cmyk.jpg");
    fs::write(path.join("cmyk.jpg"), &jpeg).unwrap();
    save(path, "corner.png", &white_from(16, 32, 24));
    edit(path, &["-i", "cmyk.jpg", "--mask", "corner.png", "-o", "out.png"]).succeeds();
    let (before, after) = (read_bytes(&jpeg).unwrap(), read(&path.join("out.png")).unwrap());
    assert_eq!((after.width, after.height), (32, 24));
    let halves = |image: &Rgb, right: bool| {
        let (pixels, _) = image.bytes.as_chunks::<3>();
        let inside = |at: &usize| (at % 32 >= 16) == right;
        (0..pixels.len()).filter(inside).map(|at| pixels[at]).collect::<Vec<_>>()
    };
    assert_eq!(halves(&after, false), halves(&before, false));
    assert_ne!(halves(&after, true), halves(&before, true));
}

#[test]
fn the_size_is_that_of_the_first_reference_unless_it_is_given() {
    let folder = images();
    let path = &folder;
    save(path, "wide.png", &colours(100, 64));
    let size = |flags: &[&str]| {
        edit(path, &[flags, &["-o", "out.png"]].concat()).succeeds();
        let image = read(&path.join("out.png")).unwrap();
        [image.width, image.height]
    };
    assert_eq!(size(&["-i", "wide.png"]), [96, 64], "in multiples of 16");
    assert_eq!(size(&["-i", "a.png", "-i", "wide.png"]), [64, 64]);
    assert_eq!(size(&["-i", "wide.png", "-H", "32"]), [96, 32], "each side by itself");
    assert_eq!(size(&["-i", "wide.png", "--size", "48"]), [48, 32], "the longer side");
    assert_eq!(size(&["-i", "wide.png", "--strength", "1"]), [96, 64], "drawn anew as a whole");
    assert_eq!(size(&["-i", "a.png", "--mask", "mask.png"]), [70, 64], "of the file");
    assert_eq!(size(&["-i", "a.png", "--mask", "mask.png", "--no-composite"]), [64, 64], "of the model");
    assert_eq!(size(&["-i", "a.png", "--extend", "3,0,20,5"]), [93, 69]);
}

#[test]
fn a_png_says_which_images_it_was_made_from() {
    let folder = images();
    let path = &folder;
    edit(path, &["-i", "a.png", "-i", "mask.png", "--mask", "mask.png", "--strength", "1", "-o", "out.png"]).succeeds();
    let said = texts(&path.join("out.png"));
    for (keyword, text) in [("inputs", "a.png, mask.png"), ("mask", "mask.png"), ("strength", "1")] {
        assert!(said.contains(&(keyword.to_string(), text.to_string())), "{keyword}: {said:?}");
    }
    draw(path, &["-p", "x", "-o", "plain.png"]).succeeds();
    assert!(!texts(&path.join("plain.png")).iter().any(|(keyword, _)| keyword == "inputs"));
}

#[test]
fn a_strength_that_is_rounded_is_told() {
    let folder = images();
    let mut command = flux();
    command.current_dir(&folder).args(["-p", "x", "-S", "1", "-s", "4", "--device", "cpu", "-o", "out.png"]);
    let run = Run::new(command.args(["-i", "a.png", "--strength", "0.6"])).succeeds();
    assert!(
        run.stderr.contains("0.6 ") && run.stderr.contains("3 of 4 steps") && run.stderr.contains("0.75"),
        "{}",
        run.stderr
    );
}
