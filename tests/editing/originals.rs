//! Originals after an edit: their own size, and their own bytes outside the edited area.

use std::fs;
use std::path::Path;

use flux::input::read;
use flux::metadata::Metadata;
use flux::output::{ImageFormat, Rgb, encode};

use crate::program::{Run, flux, takes_long_form};
use crate::support::preset;

/// Noise, which no scaling and no encoder reproduces.
fn noise(width: usize, height: usize) -> Rgb {
    let value = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) >> 24) as u8;
    Rgb { width, height, bytes: (0..3 * width * height).map(value).collect() }
}

/// A mask that is white in `columns` and `rows`.
fn mask(width: usize, height: usize, columns: [usize; 2], rows: [usize; 2]) -> Rgb {
    let is_white = |x, y| (columns[0]..columns[1]).contains(&x) && (rows[0]..rows[1]).contains(&y);
    let pixels = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    let bytes = pixels.flat_map(|(x, y)| [if is_white(x, y) { 255 } else { 0 }; 3]).collect();
    Rgb { width, height, bytes }
}

/// Edits an image under a mask with a small random model, and counts the changed pixels inside the mask and `feather`
/// pixels around it. All other pixels must be unchanged.
#[track_caller]
fn changed_around(size: [usize; 2], columns: [usize; 2], rows: [usize; 2], feather: usize, flags: &[&str]) -> usize {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let save = |name: &str, image: &Rgb| {
        let file = encode(image, ImageFormat::Png, &Metadata::default()).expect("an image");
        fs::write(folder.path().join(name), file).expect("a temporary folder is writable");
    };
    let before = noise(size[0], size[1]);
    save("in.png", &before);
    save("mask.png", &mask(size[0], size[1], columns, rows));
    let model = preset("tiny");
    let model: &Path = model.folder().expect("a folder of its own");
    let mut command = flux();
    command
        .current_dir(folder.path())
        .args(["-p", "x", "-S", "1", "-s", "1", "--device", "cpu", "-q", "-d"])
        .arg(model);
    command.args(["-i", "in.png", "--mask", "mask.png", "--feather", &feather.to_string(), "-o", "out.webp"]);
    Run::new(command.args(flags)).succeeds();

    let after = read(&folder.path().join("out.webp")).expect("the program wrote it");
    assert_eq!([after.width, after.height], size);
    let near = |at: usize, [start, end]: [usize; 2]| at + feather >= start && at < end + feather;
    let pixels = before.bytes.chunks_exact(3).zip(after.bytes.chunks_exact(3)).enumerate();
    let changed = pixels.filter(|(_, (before, after))| before != after).map(|(at, _)| (at % size[0], at / size[0]));
    let changed: Vec<_> = changed.collect();
    let far = changed.iter().find(|&&(x, y)| !(near(x, columns) && near(y, rows)));
    assert_eq!(far, None, "a pixel has changed outside of the mask");
    changed.len()
}

#[test]
fn pixels_outside_of_the_mask_are_those_of_the_file() {
    for flags in [&[][..], &["--mask-padding", "9"], &["--no-self-reference", "--strength", "1"]] {
        let changed = changed_around([101, 67], [33, 60], [20, 41], 0, flags);
        assert!(changed > 27 * 21 * 9 / 10, "{changed} of {} are new", 27 * 21);
    }
    let changed = changed_around([101, 67], [33, 60], [20, 41], 5, &[]);
    assert!(changed > 30 * 24, "the feather mixes the pixels around: {changed}");
}

/// The model works on 1216 x 848 pixels here.
#[test]
fn so_they_are_above_a_megapixel() {
    let all = [&["--no-self-reference", "--mask-padding", "20"][..], &["--no-self-reference"]];
    for flags in &all[..if takes_long_form() { 2 } else { 1 }] {
        let changed = changed_around([1300, 900], [611, 650], [403, 430], 3, flags);
        assert!(changed > 39 * 27 * 9 / 10, "{changed} of {} are new", 39 * 27);
    }
}
