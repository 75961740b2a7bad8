//! Commands to look at images: contact sheets, differences, images in the terminal.

mod compare;
mod sheet;
mod show;
mod steps;

use std::path::Path;

use crate::program::{Run, flux, folder, names, run};
use flux::engine::{ImageRecipe, ModelRecipe, Recipe};
use flux::input::read;
use flux::metadata::Metadata;
use flux::output::{Rgb, Target};

#[test]
fn images_of_phones_and_of_the_web_are_refused_with_what_converts_them() {
    let folder = folder();
    for (name, brand, converter) in
        [("a.heic", b"heic", "heif-convert IN OUT.png"), ("a.avif", b"avif", "avifdec IN OUT.png")]
    {
        let file = [b"\0\0\0\x18ftyp", &brand[..], b"\0\0\0\0mif1miaf\0\0\0\x08meta"].concat();
        std::fs::write(folder.join(name), file).unwrap();
        let said = [name, "which is not supported", converter, "magick IN"];
        run(&folder, &["sheet", name, "-o", "sheet.png"]).fails(1, &said);
        run(&folder, &["compare", name, name]).fails(1, &said);
        run(&folder, &["make it red", "-i", name, "-o", "out.png", "--device", "cpu"]).fails(1, &said);
    }
}

/// Returns an image with no two equal pixels.
fn pixels(width: usize, height: usize) -> Rgb {
    let bytes = (0..height).flat_map(|y| (0..width).flat_map(move |x| [x as u8, y as u8, 77])).collect();
    Rgb { width, height, bytes }
}

/// Returns an image with one color.
fn flat(width: usize, height: usize, color: [u8; 3]) -> Rgb {
    Rgb { width, height, bytes: color.repeat(width * height) }
}

fn write(path: &Path, image: &Rgb) {
    Target::new(path).expect("a folder of ours").write(image, &Metadata::default()).expect("it is writable");
}

/// Writes an image with a recipe.
fn write_made(path: &Path, image: &Rgb, prompt: &str, seed: u64) {
    let recipe = Recipe { steps: Some(4), width: Some(64), height: Some(64), ..Recipe::new(prompt, seed) };
    let model = ModelRecipe { name: "tiny".to_string(), ..ModelRecipe::default() };
    let (flux, device) = (env!("CARGO_PKG_VERSION").to_string(), "CPU".to_string());
    let made = ImageRecipe { flux, recipe, model, device, ..ImageRecipe::default() };
    let metadata = Metadata { recipe: Some(made.to_json()), ..Metadata::default() };
    Target::new(path).expect("a folder of ours").write(image, &metadata).expect("it is writable");
}

#[test]
fn a_grid_has_an_image_for_each_pair_of_values() {
    let folder = folder();
    let grid = |words: &[&str]| {
        let flags = ["--size", "64", "-s", "1", "--device", "cpu", "-q"];
        Run::new(flux().current_dir(&folder).arg("grid").args(["-p", "a cat"]).args(words).args(flags))
    };
    grid(&["--vary", "seed=1,2", "--vary", "rng=torch,portable", "-o", "grid.png"]).succeeds();
    assert_eq!(names(&folder.join("grid")), ["001.png", "002.png", "003.png", "004.png"]);
    let sheet = read(&folder.join("grid.png")).unwrap();
    assert!(sheet.width >= 2 * 64 && sheet.height >= 2 * 64, "{}x{}", sheet.width, sheet.height);
    let [first, third] = ["001", "003"].map(|name| read(&folder.join(format!("grid/{name}.png"))).unwrap());
    assert_ne!(first.bytes, third.bytes);
    grid(&["--vary", "seed=1", "-o", "grid.png"]).fails(1, &["grid.png", "already"]);
    for (varied, words) in [
        ("step=1,2", &["step"][..]),
        ("steps=one", &["`steps` is `one`"]),
        ("feather=3", &["feather` requires"]),
        ("seed", &["FIELD=VALUES"]),
    ] {
        let run = grid(&["--vary", varied, "-o", "other.png"]);
        assert!(run.code == Some(2) || run.code == Some(1), "{}", run.stderr);
        for word in words {
            assert!(run.stderr.contains(word), "{word}: {}", run.stderr);
        }
    }
    assert!(!folder.join("other").exists() && !folder.join("other.png").exists());
}

/// Runs `flux grid` for small images in a folder.
fn grid(folder: &Path, flags: &[&str]) -> Run {
    let words = ["grid", "-p", "a cat", "--size", "32", "-s", "1", "--device", "cpu", "-q"];
    Run::new(flux().current_dir(folder).args(words).args(flags))
}

#[test]
fn each_random_seed_of_a_grid_is_its_own_and_a_size_may_be_a_side() {
    let folder = &folder();
    grid(folder, &["--vary", "seed=random,-1", "-o", "a.png"]).succeeds();
    let [first, second] = ["a/001.png", "a/002.png"]
        .map(|name| run(folder, &["info", "--json", name]).succeeds().stdout)
        .map(|json| serde_json::from_str::<serde_json::Value>(&json).unwrap()["recipe"]["seed"].as_u64().unwrap());
    assert_ne!(first, second);
    Run::new(
        flux()
            .current_dir(folder)
            .args(["grid", "-p", "x", "-s", "1", "--device", "cpu", "-q"])
            .args(["--vary", "size=32,48x32", "-o", "b.png"]),
    )
    .succeeds();
    let sizes = ["b/001.png", "b/002.png"].map(|name| read(&folder.join(name)).unwrap()).map(|i| (i.width, i.height));
    assert_eq!(sizes, [(32, 32), (48, 32)]);
}

#[test]
fn a_grid_has_any_name() {
    let folder = &folder();
    for name in ["{seed}", "a{b}", "50%", "x%d"] {
        grid(folder, &["--vary", "seed=1", "-o", &format!("{name}.png")]).succeeds();
        assert_eq!(names(&folder.join(name)), ["001.png"]);
    }
}

#[test]
fn a_grid_that_cannot_be_drawn_as_a_whole_draws_nothing() {
    let folder = &folder();
    write(&folder.join("in.png"), &pixels(64, 64));
    for (flags, words) in [
        (&["--vary", "steps=1,2000"][..], &["2000"][..]),
        (&["--vary", "n=1,2"], &["`n` cannot be varied"]),
        (&["--vary", "output=a.png,b.png"], &["`output` cannot be varied"]),
        (&["--vary", "inputs=in.png,gone.png"], &["gone.png"]),
        (&["--vary", "seed=1,2", "--lora", "gone.safetensors"], &["gone.safetensors"]),
    ] {
        let run = grid(folder, &[flags, &["-o", "sheet.png"]].concat());
        assert!(run.code == Some(2) || run.code == Some(1), "{}", run.stderr);
        assert!(words.iter().all(|word| run.stderr.contains(word)), "{}", run.stderr);
        assert_eq!(names(folder), ["in.png"], "{flags:?}");
    }
    std::fs::create_dir(folder.join("sheet")).unwrap();
    std::fs::write(folder.join("sheet/002.png"), "mine").unwrap();
    grid(folder, &["--vary", "seed=1,2", "-o", "sheet.png"]).fails(1, &["002.png", "already", "--force"]);
    assert_eq!(names(&folder.join("sheet")), ["002.png"]);
    write(&folder.join("sheet/001.png"), &pixels(64, 64));
    let before = std::fs::read(folder.join("sheet/001.png")).unwrap();
    let input = ["--vary", "seed=1,2", "-i", "sheet/001.png", "-o", "sheet.png", "--force"];
    grid(folder, &input).fails(2, &["001.png", "`-i`"]);
    assert!(std::fs::read(folder.join("sheet/001.png")).unwrap() == before);
}

#[test]
fn what_an_image_says_of_itself_is_no_command_to_the_terminal() {
    let folder = folder();
    let path = folder.join("a.png");
    let device = "\u{1b}]0;pwn\u{7}".to_string();
    let made = ImageRecipe { device, recipe: Recipe::new("\u{1b}[2J\u{9b}1m", 7), ..ImageRecipe::default() };
    let metadata = Metadata { recipe: Some(made.to_json()), ..Metadata::default() };
    Target::new(&path).unwrap().write(&flat(16, 16, [1, 2, 3]), &metadata).unwrap();
    for flags in [&[][..], &["--json"]] {
        let told = run(&folder, &[&["info", "a.png"], flags].concat()).succeeds().stdout;
        assert!(!told.chars().any(|c| c.is_control() && c != '\n'), "{told:?}");
    }
}
