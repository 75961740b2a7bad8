//! The images of the README are those of the commands and lists next to them.

use std::fs;
use std::path::Path;

use super::{checkout, commands, run, text_of};
use crate::program::project;
use flux::compare::difference;
use flux::input::{read, resized};
use flux::output::Rgb;

/// Images in a row of the gallery, and pixels on their sides, as in the Makefile.
const COLUMNS: usize = 4;
const SIDE: usize = 192;

#[test]
fn the_gallery_at_the_top_is_what_its_prompts_draw() {
    let list = fs::read_to_string(project("docs/gallery.txt")).expect("the prompts of the gallery are there");
    let prompts: Vec<&str> = list.lines().collect();
    let text = fs::read_to_string(project("README.md")).expect("the README is there");
    let rows = text.lines().filter(|line| line.starts_with("| ")).take(prompts.len().div_ceil(COLUMNS));
    let cells: Vec<&str> = rows.flat_map(cells_of).collect();
    assert_eq!(cells, prompts, "the table under the gallery says what is in docs/gallery.txt");

    // The command below the gallery generates its first image.
    let folder = checkout();
    let line = commands().into_iter().find(|line| line.starts_with("flux ")).expect("a command under the gallery");
    assert!(line.contains(prompts[0]) && line.ends_with("-o image.png"), "{line}");
    run(&format!("{line} --device cpu"), &folder).succeeds();
    let gallery = read(&project("docs/gallery.png")).unwrap();
    assert_eq!((gallery.width, gallery.height), (COLUMNS * SIDE, prompts.len() / COLUMNS * SIDE));
    expect_tile(&gallery, 0, &folder.join("image.png"));

    // `make image` generates the same image.
    let makefile = fs::read_to_string(project("Makefile")).unwrap();
    for (variable, flag) in [("PROMPT", "-p"), ("SEED", "-S"), ("IMAGE", "-o")] {
        let value = makefile.lines().find_map(|l| l.strip_prefix(&format!("{variable} ?= "))).expect("a default");
        assert!(
            line.contains(&format!("{flag} {value}")) || line.contains(&format!("{flag} \"{value}\"")),
            "{variable}"
        );
    }
}

/// Returns the cells of a row of a table.
fn cells_of(row: &str) -> impl Iterator<Item = &str> {
    row.trim_matches('|').split('|').map(str::trim)
}

/// Fails if the first tile in a row of a contact sheet is not the image of a file.
fn expect_tile(sheet: &Rgb, row: usize, path: &Path) {
    let drawn = resized(&read(path).unwrap(), [SIDE, SIDE]);
    let rows = sheet.bytes.chunks_exact(3 * sheet.width).skip(row * SIDE).take(SIDE);
    let tile = Rgb { width: SIDE, height: SIDE, bytes: rows.flat_map(|row| &row[..3 * SIDE]).copied().collect() };
    let apart = difference(&tile, &drawn).unwrap();
    // Observed: equal, on the machine that made the gallery. Processors round differently: below a level in the mean.
    assert!(apart.psnr_db > 50.0, "{}: {apart:?}: draw it anew with `make gallery`", path.display());
}

#[test]
fn the_edits_at_the_top_are_what_their_instructions_make() {
    let list = fs::read_to_string(project("docs/edits.txt")).expect("the edits of the gallery are there");
    let edits: Vec<(&str, &str)> = list.lines().map(|line| line.split_once(" | ").expect("two parts")).collect();
    let text = text_of("README.md");
    let row = text.split("(docs/edits.png)").nth(1).and_then(|rest| rest.lines().find(|line| line.starts_with("| ")));
    let cells: Vec<&str> = row.into_iter().flat_map(cells_of).collect();
    assert_eq!(cells, edits.iter().map(|edit| edit.0).collect::<Vec<_>>(), "the table says what is in docs/edits.txt");

    // The second and the third command generate the first of them.
    let (instruction, prompt) = edits[0];
    let lines: Vec<_> = commands().into_iter().filter(|line| line.starts_with("flux ")).skip(1).take(2).collect();
    assert_eq!(lines[0], format!("flux -p \"{prompt}\" -S 1 -o star.png"));
    assert_eq!(lines[1], format!("flux -p \"{instruction}\" -i star.png -S 1 -o blue.png"));
    let folder = checkout();
    let sheet = read(&project("docs/edits.png")).unwrap();
    assert_eq!((sheet.width, sheet.height), (COLUMNS * SIDE, 2 * SIDE));
    for (row, (line, image)) in (0..).zip(lines.iter().zip(["star.png", "blue.png"])) {
        run(&format!("{line} --device cpu"), &folder).succeeds();
        expect_tile(&sheet, row, &folder.join(image));
    }
}
