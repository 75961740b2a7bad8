//! Flags of commands that make images, set in flux.toml.

use std::fs;
use std::path::Path;

use flux::input::read;

use crate::program::{Run, flux, folder, names};

/// Runs the program in a folder with a config file.
fn run(folder: &Path, config: &str, words: &[&str]) -> Run {
    fs::write(folder.join("flux.toml"), config).unwrap();
    Run::new(flux().current_dir(folder).env_remove("FLUX_CONFIG").args(words))
}

#[test]
fn flags_in_a_file_hold_where_no_flag_says_otherwise() {
    let folder = &folder();
    let config = "size = \"96x64\"\nsteps = 1\nformat = \"webp\"\ndevice = \"cpu\"\n";
    let size = |name: &str| read(&folder.join(name)).map(|image| (image.width, image.height)).unwrap();
    run(folder, config, &["a red circle", "-S", "7", "-o", "images/"]).succeeds();
    assert_eq!(size("images/flux-7.webp"), (96, 64));
    run(folder, config, &["a red circle", "-W", "64", "-o", "wide.webp"]).succeeds();
    assert_eq!(size("wide.webp").0, 64, "a flag that excludes the file's is over it");
    run(folder, config, &["make it blue", "-i", "wide.webp", "-o", "edited.webp"]).succeeds();
    assert_eq!(size("edited.webp"), size("wide.webp"), "an input has a size");
    run(folder, config, &["-S", "1", "-o", "dash.webp", "--", "-red circle"]).succeeds();
    assert_eq!(size("dash.webp"), (96, 64), "words behind -- are the prompt");
    fs::write(folder.join("list.txt"), "a red circle\n").unwrap();
    run(folder, config, &["batch", "list.txt", "many", "-S", "1"]).succeeds();
    let made = names(&folder.join("many")).into_iter().find(|name| name.ends_with(".png"));
    let made = made.expect("the format of a list is another flag");
    assert_eq!(size(&format!("many/{made}")), (96, 64));
    let set = run(folder, config, &["config", "--json"]).succeeds();
    let set: serde_json::Value = serde_json::from_str(&set.stdout).unwrap();
    assert_eq!(set["size"]["value"], serde_json::json!(["96x64"]));
}

#[test]
fn a_wrong_flag_in_a_file_is_named_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    for (config, words) in [
        ("steps = \"x\"\n", &["--steps x", "line 1"][..]),
        ("\nsize = \"big\"\n", &["--size big", "line 2"]),
        ("size = true\n", &["size", "line 1"]),
        ("lora = \"nowhere\"\n", &["nowhere"]),
        ("sizes = 3\n", &["sizes", "size, steps, format"]),
    ] {
        let run = run(folder.path(), config, &["a red circle", "--device", "cpu"]);
        assert!(run.code != Some(0) && words.iter().all(|word| run.stderr.contains(word)), "{config}: {}", run.stderr);
    }
}
