//! The commands of the README, the pages and the help generate images that match the text around them.

use std::fs;

use std::path::Path;

use super::{EmptyFolder, checkout, commands, commands_in, commands_of, console_commands_in, image_of, run, text};
use crate::program::{self, Run};
use flux::compare::difference;
use flux::input::read;
use flux::output::Rgb;

/// Returns the lines of a page that need only `flux`, in order.
fn own_lines(document: &str) -> Vec<String> {
    let needs_more = |line: &str| line.starts_with("make ") || line.starts_with("scripts/") || text::is_of_hub(line);
    commands_in(document).into_iter().filter(|line| !needs_more(line)).collect()
}

/// Runs a line with as little computation as possible.
fn run_quickly(line: &str, folder: &Path) -> Run {
    let computes = line.starts_with("flux ")
        && !["flux convert", "flux info", "flux config", "flux strip"].iter().any(|own| line.starts_with(own));
    let steps = if line.contains(" -s ") || line.starts_with("flux verify") { "" } else { " -s 1" };
    let more = if computes { format!(" --device cpu{steps}") } else { String::new() };
    run(&format!("{line}{more}"), folder).succeeds()
}

#[test]
fn the_commands_of_the_readme_run_in_order_in_an_empty_folder() {
    let empty = EmptyFolder::new();
    let lines = own_lines("README.md");
    assert!(lines.len() > 8, "{lines:?}");
    for line in lines {
        run_quickly(&line, &empty.path());
    }
    for file in ["image.png", "blue.png", "lighthouse.png", "quantized.png", "klein-4b-q4_k.gguf", "images"] {
        assert!(empty.path().join(file).exists(), "{file}");
    }
}

/// The commands' results match the text around them.
#[test]
fn the_commands_of_images_from_images_draw() {
    let folder = EmptyFolder::new();
    let folder = &folder.path();
    let (masks, lines): (Vec<_>, Vec<_>) =
        commands_of("docs/editing.md").into_iter().partition(|l| l.starts_with("echo"));
    masks.iter().for_each(|line| drop(run(line, folder).succeeds()));
    let names =
        ["square", "edited", "star", "small-star", "sparse", "near", "wide", "heart", "both", "piped", "cached"];
    assert_eq!(lines.len(), names.len());
    let [square, edited, star, small_star, sparse, near, wide, heart, both, piped, cached] = std::array::from_fn(|i| {
        assert!(lines[i].ends_with(&format!(" {}.png", names[i])), "{}", lines[i]);
        image_of(&lines[i], folder)
    });
    let apart = |image: &Rgb| difference(image, &square).unwrap().mean;
    let share = |image: &Rgb, is: fn(&[u8; 3]) -> bool| {
        let (pixels, _) = image.bytes.as_chunks::<3>();
        pixels.iter().filter(|pixel| is(pixel)).count() as f64 / pixels.len() as f64
    };
    let red = |image: &Rgb| share(image, |[r, g, b]| *r > 150 && *g < 90 && *b < 90);
    let blue = |image: &Rgb| share(image, |[r, _, b]| *b > 150 && *r < 90);
    let yellow = |image: &Rgb| share(image, |[r, g, b]| *r > 200 && *g > 170 && *b < 90);
    assert!(blue(&square) > 0.08 && red(&square) == 0.0, "{} {}", blue(&square), red(&square));
    assert!((red(&edited) - blue(&square)).abs() < 0.01 && blue(&edited) < 0.005, "{}", red(&edited));
    assert!((yellow(&edited) - yellow(&square)).abs() < 0.01, "all else is as it was: {}", yellow(&edited));
    assert!((red(&both) - red(&heart)).abs() < 0.02 && yellow(&both) > 0.6, "{} {}", red(&both), yellow(&both));
    assert!(blue(&piped) < 0.005 && yellow(&piped) > 0.6, "{} {}", blue(&piped), yellow(&piped));
    // A star replaces the square, and nothing else changes: observed are 0.49 of the square's blue, and 11 levels.
    assert!((0.4..0.8).contains(&(blue(&near) / blue(&square))), "{} {}", blue(&near), blue(&square));
    assert!(apart(&near) < 20.0, "{}", apart(&near));
    assert_ne!(edited, cached, "the flag is for models that were trained so");
    assert_eq!((wide.width, wide.height), (256 + 128, 256));
    let mut rows = wide.bytes.chunks_exact(3 * wide.width).zip(square.bytes.chunks_exact(3 * 256));
    let kept = 3 * (256 - 16);
    assert!(rows.all(|(wide, square)| wide[..kept] == square[..kept]), "all but 16 columns is as it was");
    for (image, feather) in [(&star, 0), (&small_star, 8), (&sparse, 0)] {
        let (pixels, _) = image.bytes.as_chunks::<3>();
        let (before, _) = square.bytes.as_chunks::<3>();
        let far = |at: usize| at % 256 + feather < 128 || at / 256 >= 128 + feather;
        assert!((0..pixels.len()).filter(|at| far(*at)).all(|at| pixels[at] == before[at]), "byte for byte");
        assert!(red(image) > 0.008, "a star is there: {}", red(image));
    }
}

#[test]
fn the_commands_of_the_quick_start_draw() {
    let empty = EmptyFolder::new();
    for line in own_lines("docs/quick-start.md") {
        match line.split_once("-o ") {
            Some(_) => drop(image_of(&line, &empty.path())),
            None => drop(run_quickly(&line, &empty.path())),
        }
    }
    for file in ["green.png", "rocket.png", "lighthouse.png", "images"] {
        assert!(empty.path().join(file).exists(), "{file}");
    }
}

#[test]
fn the_commands_of_installing_write_completions() {
    let folder = checkout();
    let lines: Vec<_> = commands_in("docs/installing.md").into_iter().filter(|l| l.starts_with("flux ")).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    for line in lines {
        run(&line, &folder).succeeds();
        let file = line.rsplit(' ').next().expect("the file comes last");
        assert!(fs::read_to_string(folder.join(file)).is_ok_and(|text| text.contains("selftest")), "{line}");
    }
}

#[test]
fn the_commands_of_sampling_and_conditioning_draw() {
    let empty = EmptyFolder::new();
    let lines = commands_of("docs/sampling.md");
    assert_eq!(lines.len(), 7, "{lines:?}");
    for line in lines {
        image_of(&line, &empty.path());
    }
    let folder = checkout();
    for line in console_commands_in("docs/sampling.md") {
        image_of(&line, &folder);
    }
}

#[test]
fn the_commands_of_recipes_and_of_many_images_run() {
    for page in ["docs/config.md", "docs/chat.md", "docs/prompts.md"] {
        let empty = EmptyFolder::new();
        commands_in(page).iter().for_each(|line| drop(run_quickly(line, &empty.path())));
    }
    let folders = ["docs/recipes.md", "docs/batch.md", "docs/privacy.md"].map(|page| {
        let empty = EmptyFolder::new();
        let lines = commands_in(page);
        assert!(lines.len() > 5, "{lines:?}");
        lines.iter().for_each(|line| drop(run_quickly(line, &empty.path())));
        empty
    });
    let find = |name: &str| folders.iter().map(|folder| folder.path().join(name)).find(|path| path.exists());
    let found = |name: &str| find(name).unwrap_or_else(|| panic!("{name} is not made"));
    let bytes = |name: &str| fs::read(found(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(bytes("circle.png") == bytes("same.png") && bytes("circle.png") == bytes("third.png"));
    assert!(bytes("private.png") == bytes("public.png"));
    for name in ["more", "owls", "images/cat.webp", "images/001-5.webp", "many/0001-a-red-circle-2.png", "slower.png"] {
        found(name);
    }
}

#[test]
fn the_commands_to_look_at_images_work() {
    let empty = EmptyFolder::new();
    let folder = &empty.path();
    let lines = commands_of("docs/looking.md");
    assert_eq!(lines.len(), 7, "{lines:?}");
    for line in lines {
        let words: Vec<_> = line.split(' ').collect();
        let more = match words[1] {
            "sheet" | "compare" => "",
            // There is no terminal here.
            "show" => " --protocol blocks",
            _ => " --device cpu -s 1",
        };
        let ran = run(&format!("{line}{more}"), folder).succeeds();
        let writes = words.iter().position(|word| ["-o", "--diff"].contains(word)).filter(|_| more.is_empty());
        if let Some(place) = writes {
            assert!(read(&folder.join(words[place + 1])).is_ok(), "{line}");
        }
        assert!(words[1] != "show" || ran.stdout.contains('▀'), "{line}");
    }
}

#[test]
fn the_commands_to_enlarge_images_work() {
    let empty = EmptyFolder::new();
    let folder = &empty.path();
    let sizes = [[128, 128], [256, 256], [300, 200], [256, 256]];
    let lines = commands_of("docs/upscaling.md");
    assert_eq!(lines.len(), sizes.len(), "{lines:?}");
    for (line, size) in lines.iter().zip(sizes) {
        let more = if line.starts_with("flux upscale") { "" } else { " -s 1" };
        run(&format!("{line} --device cpu{more}"), folder).succeeds();
        let name = line.rsplit(' ').next().expect("an output");
        let image = read(&folder.join(name)).unwrap();
        assert_eq!([image.width, image.height], size, "{line}");
    }
}

#[test]
fn the_command_with_an_adapter_draws_another_image_than_without() {
    let folder = checkout();
    let line = console_commands_in("docs/adapters.md").into_iter().next().expect("the page shows it");
    let adapted = |line: &str| {
        run(&format!("{line} -s 1 --device cpu"), &folder).succeeds();
        read(&folder.join("styled.png")).unwrap().bytes
    };
    let with = adapted(&line);
    assert!(with != adapted(&line.replace("--lora style.safetensors:0.8", "")));
}

#[test]
fn the_examples_of_the_help_draw() {
    let folder = checkout();
    let help = Run::new(program::flux().arg("--help").env_remove("COLUMNS")).succeeds().stdout;
    let examples: Vec<_> = help.lines().skip_while(|line| *line != "Examples:").skip(1).collect();
    assert_eq!(examples.len(), 5, "{help}");
    for line in examples {
        run(&format!("{} -s 1 --device cpu", line.trim()), &folder).succeeds();
    }
}

#[test]
fn the_command_for_two_devices_works() {
    let folder = checkout();
    let line = commands().into_iter().find(|line| line.starts_with("scripts/compare_cpu_gpu.sh"));
    // Without a GPU, the CPU is used instead.
    run(&format!("{} --against cpu", line.expect("the README shows it")), &folder).succeeds();
}
