//! `flux sheet`.

use std::fs;
use std::path::Path;

use super::{flat, folder, pixels, run, write, write_made};
use crate::process::Folder;
use flux::input::read;
use flux::metadata::Metadata;
use flux::output::{Rgb, Target};

const RED: [u8; 3] = [200, 0, 0];
const GREEN: [u8; 3] = [0, 200, 0];

fn at(image: &Rgb, x: usize, y: usize) -> [u8; 3] {
    image.bytes.as_chunks::<3>().0[y * image.width + x]
}

/// Returns `true` if a part of an image is not completely white.
fn has_ink(image: &Rgb, x: std::ops::Range<usize>, y: std::ops::Range<usize>) -> bool {
    y.into_iter().any(|y| x.clone().any(|x| at(image, x, y) != [255; 3]))
}

fn sheet(folder: &Path, args: &[&str]) -> Rgb {
    run(folder, &[&["sheet", "-q", "-o", "sheet.png"], args].concat()).succeeds();
    read(&folder.join("sheet.png")).expect("the sheet is there")
}

/// Creates two images of 64 x 64 with different seeds, and a photograph of 32 x 16.
fn images() -> Folder {
    let folder = folder();
    write_made(&folder.join("a.png"), &flat(64, 64, RED), "a cat", 1);
    write_made(&folder.join("b.webp"), &flat(64, 64, GREEN), "a cat", 22);
    write(&folder.join("photo.png"), &flat(32, 16, [0, 0, 200]));
    folder
}

#[test]
fn a_sheet_has_the_images_in_rows_and_what_differs_under_them() {
    let folder = images();
    let made = run(&folder, &["sheet", "a.png", "b.webp", "photo.png", "-o", "sheet.png"]).succeeds();
    assert_eq!((made.stdout.as_str(), made.stderr.as_str()), ("", "wrote sheet.png: 3 images, 152x198\n"));
    let image = read(&folder.join("sheet.png")).unwrap();
    // Two columns of 64 pixels, two rows of 64 with a line of 2 + 21 below, and gaps of 8.
    assert_eq!((image.width, image.height), (152, 198));
    assert_eq!((at(&image, 8, 8), at(&image, 71, 71), at(&image, 80, 8)), (RED, RED, GREEN));
    assert_eq!((at(&image, 7, 8), at(&image, 72, 8)), ([255; 3], [255; 3]));
    // The photograph is not scaled up, and is in the middle of its place.
    assert_eq!((at(&image, 24, 127), at(&image, 55, 142)), ([0, 0, 200], [0, 0, 200]));
    assert_eq!((at(&image, 23, 127), at(&image, 24, 126)), ([255; 3], [255; 3]));
    // The label of the first is `1`, of the second `22`, which is wider, and of the last its name.
    assert!(has_ink(&image, 35..45, 74..95) && !has_ink(&image, 8..35, 74..95));
    assert!(has_ink(&image, 103..112, 74..95) && has_ink(&image, 112..121, 74..95));
    assert!(has_ink(&image, 17..62, 169..190));
    assert_eq!(sheet(&folder, &["a.png", "b.webp", "photo.png"]), image, "each time the same");
}

#[test]
fn size_columns_gap_background_label_and_title_are_as_asked_for() {
    let folder = images();
    let size = |args: &[&str]| {
        let image = sheet(&folder, &[&["a.png", "b.webp", "photo.png"], args].concat());
        (image.width, image.height)
    };
    let plain = ["--label", "none", "--gap", "0"];
    assert_eq!(size(&plain), (128, 128));
    assert_eq!(size(&[&plain[..], &["--columns", "3"]].concat()), (192, 64));
    assert_eq!(size(&[&plain[..], &["--columns", "1", "--cell", "16"]].concat()), (16, 48));
    assert_eq!(size(&[&plain[..], &["--cell", "128"]].concat()), (128, 128), "none is scaled up");
    assert_eq!(size(&[&plain[..], &["--cell", "128", "--enlarge"]].concat()), (256, 256));
    assert_eq!(size(&[&plain[..], &["--title", "cats"]].concat()), (128, 128 + 28));
    assert_eq!(size(&["--label", "{seed}\\n{name}", "--gap", "1"]), (131, 2 * (64 + 2 + 2 * 21) + 3));
    let black = sheet(&folder, &["a.png", "--background", "black", "--label", "name", "--gap", "4"]);
    assert_eq!(at(&black, 0, 0), [0; 3]);
    assert!(black.bytes.as_chunks::<3>().0.contains(&[255; 3]), "text is white on black");
    let colored = sheet(&folder, &["a.png", "--background", "102030", "--label", "none"]);
    assert_eq!(at(&colored, 0, 0), [16, 32, 48]);
}

#[test]
fn it_is_written_as_its_name_ends() {
    let folder = images();
    for name in ["sheet.jpg", "sheet.webp", "SHEET.PNG"] {
        run(&folder, &["sheet", "a.png", "b.webp", "-o", name]).succeeds();
        assert_eq!(read(&folder.join(name)).unwrap().width, 152, "{name}");
    }
}

#[test]
fn what_cannot_be_done_is_found_before_the_work() {
    let folder = images();
    let refused = |args: &[&str], code: i32, words: &[&str]| {
        run(&folder, &[&["sheet"], args].concat()).fails(code, words);
    };
    refused(&["a.png", "-o", "sheet.gif"], 2, &["sheet.gif", ".png, .jpg, .jpeg or .webp"]);
    refused(&["a.png", "-o", "none/sheet.png"], 1, &["no such folder", "mkdir -p none"]);
    refused(&["-o", "sheet.png"], 2, &["FILE"]);
    refused(&["a.png"], 2, &["--output"]);
    refused(&["a.png", "none.png", "-o", "sheet.png"], 1, &["none.png"]);
    refused(&["a.png", "-o", "sheet.png", "--label", "{sed}"], 2, &["--label", "unknown field `sed`"]);
    refused(&["a.png", "-o", "sheet.png", "--background", "pink"], 2, &["--background", "20a0ff"]);
    refused(&["a.png", "-o", "sheet.png", "--cell", "0"], 2, &["--cell"]);
    let many = vec!["a.png"; 300];
    let large = ["-o", "sheet.png", "--cell", "1024"];
    refused(&[&many[..], &large].concat(), 2, &["the sheet would be", "in: --cell", "--columns"]);
    fs::write(folder.join("text.png"), "no image").unwrap();
    refused(&["a.png", "text.png", "-o", "sheet.png"], 1, &["text.png", "not a PNG, JPEG or WebP"]);
    assert!(!folder.join("sheet.png").exists());
}

#[test]
fn no_image_is_written_over_unless_that_is_asked_for() {
    let folder = images();
    let before = fs::read(folder.join("a.png")).unwrap();
    for path in ["a.png", "./a.png"] {
        run(&folder, &["sheet", "a.png", "b.webp", "-o", path])
            .fails(2, &["is one of the images", "in: --output", "--force"]);
    }
    assert_eq!(fs::read(folder.join("a.png")).unwrap(), before);
    run(&folder, &["sheet", "a.png", "b.webp", "-o", "a.png", "--force"]).succeeds();
    assert_eq!(read(&folder.join("a.png")).unwrap().width, 152);
    run(&folder, &["sheet", "b.webp", "-o", "photo.png", "--no-clobber"]).fails(1, &["--no-clobber"]);
}

#[test]
fn a_recipe_that_cannot_be_read_is_noted_and_the_name_is_shown() {
    let folder = folder();
    let metadata = Metadata { recipe: Some("{\"seed\":".to_string()), ..Metadata::default() };
    Target::new(&folder.join("a.png")).unwrap().write(&pixels(64, 64), &metadata).unwrap();
    let made = run(&folder, &["sheet", "a.png", "-o", "sheet.png", "--label", "seed"]).succeeds();
    assert!(made.stderr.contains("note: `a.png` "), "{}", made.stderr);
}
