//! `flux upscale`: sizes, files and errors.

use std::fs;
use std::path::Path;

use flux::input::{read, read_alpha};
use flux::output::{ImageFormat, Rgb, encode, encode_transparent};

use super::{folder, texts};
use crate::program::{Run, draw, flux, names, project};

const UPSCALER: &str = "tests/upscaler/compact-3x.pth";

fn image(width: usize, height: usize) -> Rgb {
    Rgb { width, height, bytes: (0..3 * width * height).map(|i| (i * 5 % 256) as u8).collect() }
}

fn write(path: &Path, image: &Rgb) {
    fs::write(path, encode(image, ImageFormat::Png, &Default::default()).unwrap()).unwrap();
}

fn upscale(folder: &Path, arguments: &[&str]) -> Run {
    Run::new(flux().current_dir(folder).args(["upscale", "--device", "cpu"]).args(arguments))
}

fn size(path: &Path) -> [usize; 2] {
    let image = read(path).unwrap();
    [image.width, image.height]
}

#[test]
fn an_upscaler_and_a_filter_give_the_size_that_is_asked_for() {
    let folder = folder();
    write(&folder.join("a.png"), &image(10, 6));
    let upscaler = project(UPSCALER);
    let upscaler = ["--upscaler", upscaler.to_str().unwrap()];
    for (more, expected) in [
        (&upscaler[..], [30, 18]),
        (&[upscaler[0], upscaler[1], "--by", "2"], [20, 12]),
        (&[upscaler[0], upscaler[1], "--to", "100x40"], [100, 40]),
        (&[upscaler[0], upscaler[1], "--tile", "16", "--tile-overlap", "4", "--by", "9"], [90, 54]),
        (&["--by", "1.5"], [15, 9]),
    ] {
        let run = upscale(&folder, &[&["a.png", "-o", "out.png"], more].concat()).succeeds();
        assert_eq!(size(&folder.join("out.png")), expected, "{more:?}");
        assert!(run.stdout.is_empty() && run.stderr.contains("wrote out.png"), "{}", run.stderr);
    }
    let run = upscale(&folder, &["a.png", "--by", "2", "--json"]).succeeds();
    assert!(
        run.stdout.contains(r#""output":"a-upscaled.png""#) && run.stdout.contains(r#""width":20"#),
        "{}",
        run.stdout
    );
}

#[test]
fn images_of_a_folder_go_to_a_folder() {
    let folder = folder();
    fs::create_dir_all(folder.join("in")).unwrap();
    fs::create_dir_all(folder.join("out")).unwrap();
    write(&folder.join("in/1.png"), &image(4, 3));
    write(&folder.join("in/2.png"), &image(5, 2));
    upscale(&folder, &["in", "-o", "out", "--by", "2"]).succeeds();
    assert_eq!((size(&folder.join("out/1.png")), size(&folder.join("out/2.png"))), ([8, 6], [10, 4]));
    for (arguments, words) in [
        (&["in", "-o", "one.png", "--by", "2"][..], "several images"),
        (&["in", "-o", "in", "--by", "2"], "is one of the images"),
        (&["in/1.png", "-o", "out/1.png", "--by", "2", "--no-clobber"], "exists"),
        (&["in/1.png"], "no upscaler and no size"),
        (&["in/1.png", "--by", "0.01"], "expected at least one pixel\n  in: in/1.png\n  hint: choose a larger"),
        (&["in/1.png", "--upscaler", "none.pth"], "none.pth"),
        (&["in/1.png", "--upscaler", "in/1.png"], "a PNG image"),
    ] {
        let run = upscale(&folder, arguments);
        assert!(run.code != Some(0) && run.stderr.contains(words), "{arguments:?}: {}", run.stderr);
    }
    assert_eq!(names(&folder.join("out")), ["1.png", "2.png"]);
}

#[test]
fn transparency_is_enlarged_and_needs_a_format_that_has_it() {
    let folder = folder();
    let alpha: Vec<u8> = (0..24).map(|i| if i % 6 < 3 { 0 } else { 255 }).collect();
    fs::write(folder.join("a.png"), encode_transparent(&image(6, 4), &alpha).unwrap()).unwrap();
    for name in ["b.png", "b.webp"] {
        upscale(&folder, &["a.png", "-o", name, "--by", "2"]).succeeds();
        let (rgb, alpha) = read_alpha(&fs::read(folder.join(name)).unwrap()).unwrap();
        let alpha = alpha.expect("it is transparent");
        assert_eq!(([rgb.width, rgb.height], alpha.len()), ([12, 8], 96));
        assert_eq!((alpha[0], alpha[11]), (0, 255), "{name}");
    }
    let run = upscale(&folder, &["a.png", "-o", "b.jpg", "--by", "2"]);
    assert!(run.code != Some(0) && run.stderr.contains("a JPEG has no transparency"), "{}", run.stderr);
}

#[test]
fn a_generated_image_keeps_its_mark_and_its_settings() {
    let folder = folder();
    draw(&folder, &["-p", "a cat", "-S", "3", "-o", "a.png"]).succeeds();
    upscale(&folder, &["a.png", "-o", "b.png", "--by", "2"]).succeeds();
    let texts = texts(&folder.join("b.png"));
    let of = |keyword: &str| texts.iter().find(|(known, _)| known == keyword).map(|(_, text)| text.as_str());
    assert!(of("parameters").is_some_and(|text| text.contains("a cat")), "{texts:?}");
    assert!(of("flux-upscale").is_some_and(|text| text.contains("\"lanczos\"") && text.contains("a cat")), "{texts:?}");
    assert!(of("flux").is_none() && of("XML:com.adobe.xmp").is_some_and(|xmp| xmp.contains("trainedAlgorithmicMedia")));
}
