//! The size and format of results: `--size` with inputs, `--full-size`, `--format` and `--quality`.

use std::fs;
use std::path::Path;

use flux::input::{read, read_bytes};
use flux::metadata::Metadata;
use flux::output::{ImageFormat, Rgb, encode};

use super::folder;
use crate::program::{Run, draw, flux, names};

/// Creates a photo of this size, and a mask whose left half is white.
fn inputs(folder: &Path, [width, height]: [usize; 2]) {
    let level = |x: usize, y: usize| [x as u8 * 2, y as u8 * 3, 90];
    let bytes = (0..height).flat_map(|y| (0..width).flat_map(move |x| level(x, y))).collect();
    let photo = Rgb { width, height, bytes };
    let white = |x: usize| [if x < width / 2 { 255 } else { 0 }; 3];
    let bytes = (0..height).flat_map(|_| (0..width).flat_map(white)).collect();
    for (name, image) in [("in.png", photo), ("mask.png", Rgb { width, height, bytes })] {
        fs::write(folder.join(name), encode(&image, ImageFormat::Png, &Metadata::default()).unwrap()).unwrap();
    }
}

fn edit(folder: &Path, flags: &[&str]) -> Run {
    let common = ["-p", "a red circle", "-S", "7", "-s", "2", "--device", "cpu", "-i", "in.png"];
    Run::new(flux().current_dir(folder).args(common).args(flags))
}

#[test]
fn a_size_resizes_the_input_and_the_recipe_keeps_it() {
    let folder = folder();
    inputs(&folder, [100, 76]);
    let size = |name: &str| read(&folder.join(name)).map(|image| [image.width, image.height]).unwrap();
    for (flags, expected) in [
        (&["--size", "64"][..], [64, 48]),
        (&["--size", "64", "--strength", "0.5"], [64, 48]),
        (&["--size", "48x64", "--strength", "0.5"], [48, 64]),
        (&["-H", "48", "--strength", "0.5"], [64, 48]),
        (&["--size", "80", "--mask", "mask.png"], [80, 61]),
        (&["--size", "50x50", "--mask", "mask.png"], [50, 50]),
        (&["--strength", "0.5"], [96, 64]),
        (&["--strength", "0.5", "--full-size"], [100, 76]),
        (&["--mask", "mask.png"], [100, 76]),
    ] {
        edit(&folder, &[flags, &["-o", "a.png"]].concat()).succeeds();
        assert_eq!(size("a.png"), expected, "{flags:?}");
        let again = ["again", "a.png", "-o", "b.png", "--device", "cpu"];
        Run::new(flux().current_dir(&folder).args(again)).succeeds();
        let bytes = |name: &str| fs::read(folder.join(name)).unwrap();
        assert!(bytes("a.png") == bytes("b.png"), "{flags:?}");
    }
    edit(&folder, &["--full-size", "-o", "a.png"]).fails(2, &["--full-size", "--strength"]);
    edit(&folder, &["--strength", "1", "--size", "20000", "-o", "a.png"]).fails(2, &["16384", "in: --size"]);
}

#[test]
fn a_format_names_the_file_and_contradicts_no_name() {
    let folder = folder();
    let made = |flags: &[&str]| draw(&folder, &[&["-p", "a cat", "-S", "7"], flags].concat());
    made(&["--format", "webp"]).succeeds();
    made(&["--quality", "30"]).succeeds();
    made(&["--format", "jpeg", "-o", "sub/"]).succeeds();
    made(&["--format", "jpg", "-o", "photo"]).succeeds();
    assert_eq!(names(&folder), ["flux-7.jpg", "flux-7.webp", "photo", "sub"]);
    let bytes = |name: &str| fs::read(folder.join(name)).unwrap();
    assert!(bytes("flux-7.webp").starts_with(b"RIFF") && bytes("photo").starts_with(b"\xff\xd8"));
    assert!(bytes("flux-7.jpg").len() < bytes("sub/flux-7.jpg").len(), "of less quality");
    let mut to_stdout = flux();
    to_stdout.args(["-p", "a cat", "-S", "7", "--size", "32", "-s", "1", "--device", "cpu", "-o", "-"]);
    let jpeg = to_stdout.args(["--format", "jpeg", "--quality", "95"]).output().unwrap().stdout;
    assert!(jpeg.starts_with(b"\xff\xd8") && read_bytes(&jpeg).is_ok());
    made(&["--format", "png", "-o", "a.jpg"]).fails(2, &["a.jpg", "PNG", "--format"]);
    made(&["--quality", "80", "-o", "a.webp"]).fails(2, &["WebP", "--quality"]);
    made(&["--quality", "80", "--format", "png"]).fails(2, &["PNG", "--quality"]);
    made(&["--quality", "0", "-o", "a.jpg"]).fails(2, &["--quality", "1 to 100"]);
    made(&["--format", "gif", "-o", "a"]).fails(2, &["--format", "webp"]);
}
