//! What editing means with the default model: with the image that is changed as a reference the prompt is an
//! instruction, and without (`--no-self-reference`) it says what is to be seen.

use std::path::Path;

use flux::compare::difference;
use flux::input::read as read_png;
use flux::rgb::Rgb;
use image::{GrayImage, Luma, RgbImage};

use crate::program::{Run, flux};

const SIDE: usize = 256;
const PROMPT_BEFORE: &str = "a blue square in the bottom left corner, yellow background";

/// Runs the program with the default model, in `folder`.
fn draw(folder: &Path, flags: &[&str]) {
    Run::of(flux().current_dir(folder).args(["--device", "cpu", "--precision", "f32", "-q"]).args(flags)).succeeds();
}

fn image(folder: &Path, name: &str) -> Rgb {
    read_png(&folder.join(name)).expect("the program wrote it")
}

/// A folder with `before.png`, a blue square in a corner, as the model draws it.
fn before() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    draw(folder.path(), &["-p", PROMPT_BEFORE, "-S", "1", "-s", "4", "-o", "before.png"]);
    assert_eq!(image(folder.path(), "before.png").width, SIDE);
    folder
}

/// The top right quarter, where `before.png` shows nothing.
fn is_masked(x: usize, y: usize) -> bool {
    x >= SIDE / 2 && y < SIDE / 2
}

fn write_mask(folder: &Path) {
    let side = SIDE as u32;
    let mask = GrayImage::from_fn(side, side, |x, y| Luma([if is_masked(x as usize, y as usize) { 255 } else { 0 }]));
    mask.save(folder.join("mask.png")).expect("a temporary folder is writable");
}

fn pixels(image: &Rgb) -> impl Iterator<Item = (usize, usize, [u8; 3])> + '_ {
    let (chunks, _) = image.bytes.as_chunks::<3>();
    chunks.iter().enumerate().map(|(i, &pixel)| (i % image.width, i / image.width, pixel))
}

/// The share of the masked pixels that are red.
fn red(image: &Rgb) -> f64 {
    let is_red = |[r, g, b]: [u8; 3]| r > 150 && g < 90 && b < 90;
    let masked: Vec<_> = pixels(image).filter(|&(x, y, _)| is_masked(x, y)).collect();
    masked.iter().filter(|&&(_, _, pixel)| is_red(pixel)).count() as f64 / masked.len() as f64
}

/// The pixels that are not masked.
fn kept(image: &Rgb) -> Vec<[u8; 3]> {
    pixels(image).filter(|&(x, y, _)| !is_masked(x, y)).map(|(_, _, pixel)| pixel).collect()
}

#[test]
fn a_star_is_painted_into_a_masked_corner_and_the_rest_is_kept_to_the_byte() {
    let folder = before();
    write_mask(folder.path());
    let input = image(folder.path(), "before.png");
    assert_eq!(red(&input), 0.0);
    let inpaint = ["-i", "before.png", "--mask", "mask.png", "--strength", "1", "-s", "4"];
    let prompt = ["--no-self-reference", "-p", "a red star in the top right corner, yellow background"];
    let instruction = ["-p", "add a red star in the top right corner"];
    for (seed, prompt) in [("1", &prompt[..]), ("2", &prompt), ("1", &instruction), ("2", &instruction)] {
        draw(folder.path(), &[&inpaint[..], prompt, &["-S", seed, "-o", "after.png"]].concat());
        let output = image(folder.path(), "after.png");
        assert_eq!((output.width, output.height), (SIDE, SIDE));
        println!("seed {seed}: {:.3} of the corner is red", red(&output));
        assert!((0.08..0.4).contains(&red(&output)), "seed {seed}: {:.3} of the corner is red", red(&output));
        assert!(kept(&output) == kept(&input), "seed {seed}: a pixel outside the mask has changed");
    }
    // What the model makes of the rest is near, too, where nothing is put back.
    draw(folder.path(), &[&inpaint[..], &prompt, &["-S", "1", "--no-composite", "-o", "raw.png"]].concat());
    let (raw, kept_of_input) = (kept(&image(folder.path(), "raw.png")), kept(&input));
    let levels = raw.iter().zip(&kept_of_input).flat_map(|(a, b)| a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)));
    let mean = levels.map(f64::from).sum::<f64>() / (3 * raw.len()) as f64;
    println!("without compositing: {mean:.3}");
    assert!(mean > 0.0 && mean < 1.0, "{mean}");
}

/// A white mask leaves nothing to keep, at any size of the mask's own.
#[test]
fn a_white_mask_is_as_no_mask() {
    let folder = before();
    let white = GrayImage::from_pixel(40, 30, Luma([255]));
    white.save(folder.path().join("mask.png")).expect("a temporary folder is writable");
    let prompt = ["-p", "a red star on a green background", "-S", "1", "-s", "4", "-i", "before.png"];
    for flags in [
        &["--mask", "mask.png", "--strength", "0.75", "-o", "masked.png"][..],
        &["--strength", "0.75", "-o", "free.png"],
    ] {
        draw(folder.path(), &[&prompt[..], &["--no-self-reference"], flags].concat());
    }
    let apart = difference(&image(folder.path(), "masked.png"), &image(folder.path(), "free.png")).expect("one size");
    assert_eq!(apart.max, 0, "{apart:?}");
}

#[test]
fn a_lower_strength_stays_nearer_to_the_image() {
    let folder = before();
    let input = image(folder.path(), "before.png");
    let prompt = ["-p", "a red star on a green background", "-s", "4", "-i", "before.png", "--no-self-reference"];
    for seed in ["1", "2"] {
        let [quarter, half, most] = ["0.25", "0.5", "0.75"].map(|strength| {
            draw(folder.path(), &[&prompt[..], &["-S", seed, "--strength", strength, "-o", "after.png"]].concat());
            difference(&image(folder.path(), "after.png"), &input).expect("the image's own size").mean
        });
        println!("seed {seed}: {quarter:.2}, {half:.2}, {most:.2}");
        assert!(quarter < 30.0 && most > 60.0, "seed {seed}: {quarter:.2} and {most:.2}");
        assert!(2.0 * quarter < half, "seed {seed}: {quarter:.2} and {half:.2}");
    }
}

/// From noise, and from the image that is changed, as far as the strength says.
#[test]
fn an_instruction_changes_what_it_names_and_keeps_the_rest() {
    let folder = before();
    let input = image(folder.path(), "before.png");
    let prompt = ["-p", "add a red star in the top right corner", "-S", "1", "-s", "4"];
    for flags in [&["-i", "before.png"][..], &["-i", "before.png", "--strength", "1"]] {
        draw(folder.path(), &[&prompt[..], flags, &["-o", "after.png"]].concat());
        let output = image(folder.path(), "after.png");
        let (kept, before) = (kept(&output), kept(&input));
        let levels = kept.iter().zip(&before).flat_map(|(a, b)| a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)));
        let mean = levels.map(f64::from).sum::<f64>() / (3 * kept.len()) as f64;
        println!("{flags:?}: {:.3} of the corner is red, the rest {mean:.2} levels away", red(&output));
        assert!((0.08..0.4).contains(&red(&output)), "{:.3} of the corner is red", red(&output));
        assert!(mean < 2.0, "{mean:.2} levels away");
    }
    draw(folder.path(), &[&prompt[..], &["-o", "alone.png"]].concat());
    let alone = difference(&image(folder.path(), "alone.png"), &input).expect("one size").mean;
    assert!(alone > 10.0, "without a reference it knows nothing of the image: {alone:.2}");
}

/// Pixels outside the mask are those of the file, also where the model works at another size than the file has.
#[test]
fn an_image_of_an_odd_size_comes_back_in_its_size_with_its_bytes() {
    let folder = before();
    let path = folder.path();
    let source = image::open(path.join("before.png")).expect("a PNG").to_rgb8();
    let odd: RgbImage = image::imageops::crop_imm(&source, 3, 5, 201, 187).to_image();
    odd.save(path.join("odd.png")).expect("a temporary folder is writable");
    let mask = GrayImage::from_fn(201, 187, |x, y| Luma([if x >= 100 && y < 90 { 255 } else { 0 }]));
    mask.save(path.join("mask.png")).expect("a temporary folder is writable");
    let mask_flags = ["-i", "odd.png", "--mask", "mask.png", "--strength", "1", "--no-self-reference"];
    draw(path, &[&["-p", "a red star", "-S", "1", "-s", "2", "-o", "after.png"], &mask_flags[..]].concat());
    let output = image(path, "after.png");
    assert_eq!((output.width, output.height), (201, 187));
    let outside = |x: usize, y: usize| x < 100 || y >= 90;
    for (x, y, pixel) in pixels(&output).filter(|&(x, y, _)| outside(x, y)) {
        assert_eq!(pixel, odd.get_pixel(x as u32, y as u32).0, "at {x}, {y}");
    }
}
