//! Masks in every kind of file: the selected area, the notes, and the errors.

use std::fs;
use std::path::Path;

use flux::input::read;
use flux::metadata::Metadata;
use flux::output::{ImageFormat, Rgb, encode};
use image::{
    DynamicImage, GrayAlphaImage, GrayImage, ImageBuffer, ImageFormat as Format, Luma, Rgb as Pixel, RgbImage,
    RgbaImage,
};

use crate::program::{Run, flux};
use crate::support::preset;

const SIDE: u32 = 64;

/// Returns `true` inside the selected area, which is not aligned to squares of 16 pixels.
fn is_inside(x: u32, y: u32) -> bool {
    (21..38).contains(&x) && (9..30).contains(&y)
}

/// Returns one value inside, another outside.
fn inside_or_outside<T>(inside: T, outside: T) -> impl Fn(u32, u32) -> T
where
    T: Copy,
{
    move |x, y| if is_inside(x, y) { inside } else { outside }
}

fn saved(image: impl Into<DynamicImage>, format: Format) -> Vec<u8> {
    let mut file = std::io::Cursor::new(Vec::new());
    image.into().write_to(&mut file, format).expect("an image of this kind");
    file.into_inner()
}

fn grey(inside: u8, outside: u8) -> Vec<u8> {
    let of = inside_or_outside(inside, outside);
    saved(GrayImage::from_fn(SIDE, SIDE, |x, y| Luma([of(x, y)])), Format::Png)
}

fn deep(inside: u16, outside: u16) -> Vec<u8> {
    let of = inside_or_outside(inside, outside);
    saved(ImageBuffer::<Luma<u16>, _>::from_fn(SIDE, SIDE, |x, y| Luma([of(x, y)])), Format::Png)
}

fn rgba(inside: [u8; 4], outside: [u8; 4]) -> Vec<u8> {
    let of = inside_or_outside(inside, outside);
    saved(RgbaImage::from_fn(SIDE, SIDE, |x, y| image::Rgba(of(x, y))), Format::Png)
}

/// Returns a PNG with a palette: the second of its colours inside, the first outside.
fn palette(colors: &[u8], alphas: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, SIDE, SIDE);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette(colors.to_vec());
    if !alphas.is_empty() {
        encoder.set_trns(alphas.to_vec());
    }
    let of = inside_or_outside(1, 0);
    let indices: Vec<u8> = (0..SIDE * SIDE).map(|at| of(at % SIDE, at / SIDE)).collect();
    encoder.write_header().and_then(|mut writer| writer.write_image_data(&indices)).expect("a PNG");
    file
}

/// Generates an image under a mask, `mask.png` in the flags, with a small random model.
fn masked(mask: &[u8], flags: &[&str]) -> (Run, Rgb, Option<Rgb>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let value = |i: usize| 40 + ((i as u32).wrapping_mul(2_654_435_761) >> 25) as u8;
    let side = SIDE as usize;
    let before = Rgb { width: side, height: side, bytes: (0..3 * side * side).map(value).collect() };
    let png = encode(&before, ImageFormat::Png, &Metadata::default()).expect("an image");
    fs::write(folder.path().join("in.png"), png).expect("a temporary folder is writable");
    fs::write(folder.path().join("mask.png"), mask).expect("a temporary folder is writable");
    let model = preset("tiny");
    let model: &Path = model.folder().expect("a folder of its own");
    let mut command = flux();
    let steps: &[&str] = if flags.contains(&"-s") { &[] } else { &["-s", "1"] };
    command.current_dir(folder.path()).args(["-p", "x", "-S", "1", "--device", "cpu", "-d"]).arg(model);
    command.args(["-i", "in.png", "--mask", "mask.png", "-o", "out.png"]).args(steps).args(flags);
    let run = Run::new(&mut command);
    (run, before, read(&folder.path().join("out.png")).ok())
}

/// The effect of a mask.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Selects {
    Inside,
    Outside,
    Nothing,
    /// Mixed everywhere.
    Everything,
}

#[track_caller]
fn expect_selected(name: &str, mask: &[u8], selects: Selects, words: &[&str]) {
    let (run, before, after) = masked(mask, &[]);
    assert_eq!(run.code, Some(0), "{name}: {}", run.stderr);
    let after = after.expect("the program wrote it");
    let (mut changed, mut wanted) = (0, 0);
    for (at, (old, new)) in before.bytes.chunks_exact(3).zip(after.bytes.chunks_exact(3)).enumerate() {
        let inside = is_inside(at as u32 % SIDE, at as u32 / SIDE);
        let selected = match selects {
            Selects::Inside => inside,
            Selects::Outside => !inside,
            Selects::Nothing => false,
            Selects::Everything => true,
        };
        assert!(selected || old == new, "{name}: the pixel {at} has changed");
        wanted += usize::from(selected);
        changed += usize::from(old != new);
    }
    assert!(10 * changed >= 8 * wanted, "{name}: {changed} of {wanted} pixels have changed");
    let notes: Vec<_> = run.stderr.lines().filter(|line| line.contains("the mask")).collect();
    assert_eq!(notes.len(), words.len(), "{name}: {}", run.stderr);
    for (note, words) in notes.iter().zip(words) {
        assert!(note.starts_with("note: ") && note.contains(words), "{name}: {note}");
    }
}

const LABELS: &str = "0 and 1, like a label image: 1 is read as white";
const ALPHA: &str = "its alpha is used";

#[test]
fn masks_of_brightness_are_used_as_they_are() {
    let white = inside_or_outside(Pixel([255; 3]), Pixel([0; 3]));
    let lossless = saved(RgbImage::from_fn(SIDE, SIDE, white), Format::WebP);
    let cases = [
        ("grey", grey(255, 0), Selects::Inside),
        ("inverted", grey(0, 255), Selects::Outside),
        ("16 bits", deep(65535, 0), Selects::Inside),
        ("palette", palette(&[0, 0, 0, 255, 255, 255], &[]), Selects::Inside),
        ("palette, inverted", palette(&[255, 255, 255, 0, 0, 0], &[]), Selects::Outside),
        ("opaque", rgba([255, 255, 255, 255], [0, 0, 0, 255]), Selects::Inside),
        ("even alpha", rgba([255, 255, 255, 128], [0, 0, 0, 128]), Selects::Inside),
        ("white on nothing", rgba([255; 4], [0; 4]), Selects::Inside),
        ("WebP", lossless, Selects::Inside),
    ];
    for (name, mask, selects) in cases {
        expect_selected(name, &mask, selects, &[]);
    }
}

#[test]
fn alpha_under_one_colour_is_the_mask() {
    let of = inside_or_outside([255, 255], [255, 0]);
    let grey_alpha = GrayAlphaImage::from_fn(SIDE, SIDE, |x, y| image::LumaA(of(x, y)));
    let cases = [
        ("white", rgba([255, 255, 255, 255], [255, 255, 255, 0])),
        ("black", rgba([0, 0, 0, 255], [0, 0, 0, 0])),
        ("red", rgba([255, 0, 0, 255], [255, 0, 0, 0])),
        ("soft", rgba([255, 255, 255, 250], [0, 0, 0, 0])),
        ("grey and alpha", saved(grey_alpha, Format::Png)),
        ("a palette with alpha", palette(&[9, 9, 9, 9, 9, 9], &[0, 255])),
    ];
    for (name, mask) in cases {
        expect_selected(name, &mask, Selects::Inside, &[ALPHA]);
    }
}

#[test]
fn masks_whose_colours_and_alpha_differ_are_refused() {
    let noise = |x: u32, y: u32| (x.wrapping_mul(31) ^ y.wrapping_mul(17)) as u8;
    let hole = |transparent: [u8; 3]| {
        let pixel = |x, y| {
            let [red, green, blue] = transparent;
            if is_inside(x, y) { [red, green, blue, 0] } else { [noise(x, y), noise(y, x), 99, 255] }
        };
        saved(RgbaImage::from_fn(SIDE, SIDE, |x, y| image::Rgba(pixel(x, y))), Format::Png)
    };
    let cases = [
        ("an image with a hole", hole([200, 10, 10])),
        ("an image with a black hole", hole([0; 3])),
        ("black on white that is not seen", rgba([0, 0, 0, 255], [255, 255, 255, 0])),
        ("half white", rgba([255, 255, 255, 128], [0, 0, 0, 255])),
    ];
    for (name, mask) in cases {
        let (run, _, after) = masked(&mask, &[]);
        assert_eq!((run.code, after.is_none()), (Some(1), true), "{name}");
        for words in ["colours and its alpha", "in: mask.png", "-alpha extract"] {
            assert!(run.stderr.contains(words), "{name}: {}", run.stderr);
        }
    }
}

#[test]
fn labels_are_read_as_black_and_white_and_named() {
    let colors = inside_or_outside(Pixel([1, 0, 0]), Pixel([0; 3]));
    let cases = [
        ("grey", grey(1, 0), Selects::Inside, vec![LABELS]),
        ("the other way round", grey(0, 1), Selects::Outside, vec![LABELS]),
        ("in one channel", saved(RgbImage::from_fn(SIDE, SIDE, colors), Format::Png), Selects::Inside, vec![LABELS]),
        ("16 bits", deep(1, 0), Selects::Inside, vec!["no value above 255", LABELS]),
        ("16 bits, 255", deep(255, 0), Selects::Inside, vec!["no value above 255"]),
        ("a grey palette", palette(&[0, 0, 0, 1, 1, 1], &[]), Selects::Inside, vec![LABELS]),
        ("a palette", palette(&[0, 0, 0, 128, 0, 0], &[]), Selects::Inside, vec!["the second is read as white"]),
        ("alpha", rgba([9, 9, 9, 1], [9, 9, 9, 0]), Selects::Inside, vec![ALPHA, LABELS]),
    ];
    for (name, mask, selects, words) in cases {
        expect_selected(name, &mask, selects, &words);
    }
}

#[test]
fn masks_that_select_nothing_or_everything_or_are_dim_are_told() {
    let red = inside_or_outside(Pixel([255, 0, 0]), Pixel([0; 3]));
    let red = saved(RgbImage::from_fn(SIDE, SIDE, red), Format::Png);
    let cases = [
        ("black", grey(0, 0), Selects::Nothing, vec!["selects nothing"]),
        ("white", grey(255, 255), Selects::Everything, vec!["selects the whole image"]),
        ("grey", grey(255, 90), Selects::Everything, vec!["no black pixels"]),
        ("half", grey(127, 0), Selects::Inside, vec!["so the edit is mixed: the brightest pixel is 127"]),
        ("red", red, Selects::Inside, vec!["has colours, so their brightness is used: the brightest pixel is 76 of"]),
    ];
    for (name, mask, selects, words) in cases {
        expect_selected(name, &mask, selects, &words);
    }
    let (run, ..) = masked(&grey(0, 0), &["--mask-padding", "8"]);
    assert!(run.code == Some(1) && run.stderr.contains("the mask is black"), "{}", run.stderr);
}

/// Its noise next to edges is neither regenerated nor mixed.
#[test]
fn a_mask_in_jpeg_selects_what_it_did_before() {
    let of = inside_or_outside(255, 0);
    let mask = GrayImage::from_fn(SIDE, SIDE, |x, y| Luma([of(x, y)]));
    for quality in [75, 90] {
        let mut file = Vec::new();
        let mut encoder = image::codecs::jpeg::JpegEncoder::new_with_quality(&mut file, quality);
        encoder.encode_image(&mask).expect("a JPEG");
        expect_selected(&format!("quality {quality}"), &file, Selects::Inside, &[]);
    }
}

/// The reference's default.
#[test]
fn without_a_number_four_of_five_steps_run_under_a_mask() {
    let drawn = |flags: &[&str]| masked(&grey(255, 0), &[flags, &["-s", "5", "-q"]].concat()).2.expect("an image");
    let default = drawn(&[]);
    assert!(default == drawn(&["--strength", "0.8"]) && default != drawn(&["--strength", "1"]));
}
