//! `--no-recipe`, `flux strip` and `flux verify`.

use std::fs;
use std::path::Path;

use flux::input::read;
use serde_json::Value;

use super::folder;
use crate::program::{Run, SMALL, draw, flux, names, run};

const ENDINGS: [&str; 3] = ["png", "jpg", "webp"];
const PROMPT: &str = "a zebra near the old lighthouse";

/// Returns `true` if a file contains a word, in UTF-8 or in UTF-16.
fn has(folder: &Path, name: &str, word: &str) -> bool {
    let file = fs::read(folder.join(name)).unwrap();
    let utf_16: Vec<u8> = word.encode_utf16().flat_map(u16::to_be_bytes).collect();
    [word.as_bytes(), &utf_16].iter().any(|word| file.windows(word.len()).any(|bytes| bytes == *word))
}

/// Words that a private file must not contain.
const PRIVATE: [&str; 8] =
    ["zebra", "lighthouse", "secret-folder", "tiny", "CPU", "parameters", "flux:Recipe>", "Steps"];

/// The model of the other tests, in a folder with a name of its own.
fn model(folder: &Path) -> String {
    let secret = folder.join("secret-folder");
    fs::create_dir(&secret).unwrap();
    std::os::unix::fs::symlink(crate::program::project("models/tiny"), secret.join("tiny")).unwrap();
    secret.join("tiny").display().to_string()
}

#[test]
fn a_file_without_a_recipe_has_the_pixels_and_the_mark_alone() {
    let folder = &folder();
    let model = model(folder);
    for ending in ENDINGS {
        let [whole, private, quiet] = ["whole", "private", "quiet"].map(|name| format!("{name}.{ending}"));
        let made = |output: &str, flags: &[&str]| {
            let words = ["-p", PROMPT, "-S", "7", "-d", &model, "-o", output];
            draw(folder, &[&words, flags].concat()).succeeds()
        };
        made(&whole, &[]);
        let line = made(&private, &["--no-recipe", "--json"]).stdout;
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["made"]["recipe"]["prompt"], PROMPT, "the command prints the recipe");
        made(&quiet, &["--no-recipe", "--no-provenance"]);
        assert!(PRIVATE[..3].iter().all(|word| has(folder, &whole, word)), "{ending}");
        for name in [&private, &quiet] {
            for word in PRIVATE {
                assert!(!has(folder, name, word), "{name}: {word}");
            }
            assert!(read(&folder.join(name)).unwrap() == read(&folder.join(&whole)).unwrap(), "{name}");
        }
        assert!(has(folder, &private, "trainedAlgorithmicMedia") && has(folder, &private, "AISystemUsed>flux<"));
        assert!(!has(folder, &quiet, "lgorithmicMedia") && !has(folder, &quiet, "flux"), "{ending}");
        let stripped = format!("stripped.{ending}");
        let said = run(folder, &["strip", &whole, "-o", &stripped]).succeeds().stderr;
        assert!(said.contains("removed") && said.contains("XMP except the AI mark"), "{said}");
        let bytes = |name: &str| fs::read(folder.join(name)).unwrap();
        assert!(bytes(&stripped) == bytes(&private), "{ending}");
        run(folder, &["again", &private]).fails(1, &["does not record how it was generated"]);
        assert!(run(folder, &["info", &private]).succeeds().stdout.contains("trainedAlgorithmicMedia"));
    }
}

#[test]
fn inputs_are_not_embedded_without_a_recipe() {
    let folder = folder();
    let words = ["-p", "x", "--no-recipe", "--embed-inputs", "-o", "out.png"];
    draw(&folder, &words).fails(2, &["--no-recipe", "--embed-inputs"]);
    let list = "{\"prompt\": \"x\", \"recipe\": false}\n{\"prompt\": \"y\", \"recipe\": 3}\n";
    fs::write(folder.join("list.jsonl"), list).unwrap();
    let words = [&["batch", "list.jsonl", "out", "--embed-inputs"], &SMALL[..]].concat();
    run(&folder, &words).fails(1, &["without a recipe", "`recipe` is `3`, expected true or false"]);
}

#[test]
fn the_config_makes_all_files_private() {
    let folder = &folder();
    draw(folder, &["-p", PROMPT, "-S", "7", "-o", "whole.png"]).succeeds();
    fs::write(folder.join("flux.toml"), "recipe = false\n").unwrap();
    let set = |words: &[&str]| Run::new(flux().current_dir(folder).args(words).env_remove("FLUX_CONFIG")).succeeds();
    set(&[&["-p", PROMPT, "-S", "7", "-o", "private.png"], &SMALL[..]].concat());
    set(&["again", "whole.png", "--device", "cpu", "-o", "again.png"]);
    set(&["--config-from-metadata", "whole.png", "--device", "cpu", "-o", "from.png"]);
    let bytes = |name: &str| fs::read(folder.join(name)).unwrap();
    assert!(!has(folder, "private.png", "zebra"));
    assert!(bytes("again.png") == bytes("private.png") && bytes("from.png") == bytes("private.png"));
    fs::write(folder.join("flux.toml"), "recipe = true\n").unwrap();
    set(&[&["-p", PROMPT, "-S", "7", "-o", "whole-2.png"], &SMALL[..]].concat());
    assert!(bytes("whole-2.png") == bytes("whole.png"));
    fs::write(folder.join("flux.toml"), "recipe = \"no\"\n").unwrap();
    let wrong = Run::new(flux().current_dir(folder).args(["-p", "x"]).env_remove("FLUX_CONFIG"));
    wrong.fails(2, &["`recipe` must be true or false", "flux.toml, line 1"]);
}

#[test]
fn a_batch_knows_its_images_without_recipes() {
    let folder = &folder();
    fs::write(folder.join("list.jsonl"), "{\"prompt\": \"a zebra\"}\n{\"prompt\": \"a cat\", \"recipe\": true}\n")
        .unwrap();
    let batch = |flags: &[&str]| {
        let words = [&["batch", "list.jsonl", "out", "-S", "7", "--name", "{index}.png"], flags, &SMALL[..]].concat();
        run(folder, &words).succeeds().stderr
    };
    assert!(batch(&["--no-recipe"]).contains("2 generated"));
    assert!(!has(folder, "out/1.png", "zebra") && has(folder, "out/2.png", "a cat"), "a line overrides the flag");
    assert!(batch(&["--no-recipe"]).contains("2 already exist"));
    fs::remove_file(folder.join("out/1.png")).unwrap();
    assert!(batch(&["--no-recipe"]).contains("1 generated"));
    // A file without a key could be that of another program, so it is not replaced unasked.
    let changed = ["batch", "list.jsonl", "out", "-S", "7", "--name", "{index}.png", "-s", "1"];
    run(folder, &changed).fails(1, &["it has no recipe", "--force"]);
    // Without the flag, the images of the list have recipes.
    assert!(batch(&["--force"]).contains("2 generated") && has(folder, "out/1.png", "zebra"));
    assert_eq!(names(&folder.join("out")), ["1.png", "2.png", "manifest.jsonl"]);
}

#[test]
fn strip_replaces_images_and_no_other_files() {
    let folder = &folder();
    draw(folder, &["-p", PROMPT, "-S", "7", "-o", "a.png"]).succeeds();
    draw(folder, &["-p", PROMPT, "-S", "7", "-o", "b.jpg"]).succeeds();
    let before = fs::read(folder.join("a.png")).unwrap();
    fs::write(folder.join("text.png"), "mine").unwrap();
    fs::create_dir(folder.join("folder.png")).unwrap();
    fs::copy(folder.join("b.jpg"), folder.join("jpeg.png")).unwrap();
    for (words, code, said) in [
        (&["a.png", "-o", "text.png"][..], 2, &["text.png", "is not a PNG", "-o"][..]),
        (&["a.png", "-o", "jpeg.png"], 2, &["jpeg.png"]),
        (&["a.png", "-o", "b.jpg"], 2, &["b.jpg", "extension of a JPEG"]),
        (&["a.png", "-o", "folder.png"], 2, &["is a folder"]),
        (&["a.png", "b.jpg", "-o", "c.png"], 2, &["--output"]),
        (&["jpeg.png"], 2, &["the image is a JPEG"]),
        (&["text.png"], 1, &["text.png", "not a PNG, JPEG or WebP"]),
        (&["none.png"], 1, &["none.png"]),
    ] {
        run(folder, &[&["strip"], words].concat()).fails(code, said);
    }
    fs::write(folder.join("cut.png"), &before[..before.len() - 20]).unwrap();
    run(folder, &["strip", "cut.png"]).fails(1, &["cut.png", "cut off or damaged"]);
    assert!(fs::read(folder.join("a.png")).unwrap() == before && fs::read(folder.join("text.png")).unwrap() == b"mine");
    let removed = ["none.png", "a.png: ", "`Description`", "text.png", "b.jpg: removed EXIF"];
    run(folder, &["strip", "none.png", "a.png", "text.png", "b.jpg"]).fails(1, &removed);
    assert!(!has(folder, "a.png", "zebra") && !has(folder, "b.jpg", "zebra"));
    let after = fs::read(folder.join("a.png")).unwrap();
    assert!(run(folder, &["strip", "a.png"]).succeeds().stderr.contains("a.png: removed nothing"));
    assert!(fs::read(folder.join("a.png")).unwrap() == after);
    assert_eq!(run(folder, &["strip", "a.png", "--all", "--quiet"]).succeeds().stderr, "");
    assert!(!has(folder, "a.png", "Media"));
    assert_eq!(run(folder, &["verify", "a.png"]).code, Some(3));
}

/// Returns the exit code and the report of an image.
fn verify(folder: &Path, words: &[&str]) -> (Option<i32>, Value) {
    let ran = run(folder, &[&["verify", "--json"], words].concat());
    let report = serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {} {}", ran.stdout, ran.stderr));
    (ran.code, report)
}

#[test]
fn verify_finds_one_changed_pixel() {
    let folder = &folder();
    for ending in ENDINGS {
        let name = format!("a.{ending}");
        draw(folder, &["-p", PROMPT, "-S", "7", "-o", &name]).succeeds();
        let (code, report) = verify(folder, &[&name]);
        assert_eq!(
            (code, &report["status"], &report["pixels"]),
            (Some(0), &"holds".into(), &"same".into()),
            "{report}"
        );
        assert_eq!((&report["source"], &report["system"]), (&"trainedAlgorithmicMedia".into(), &"flux".into()));
        let text = run(folder, &["verify", &name]).succeeds().stdout;
        assert!(text.starts_with(&format!("{name}: all marks hold\n")) && text.contains("the same"), "{text}");
        // The metadata of the file with another image.
        let file = fs::read(folder.join(&name)).unwrap();
        let said = flux::metadata::said_by(&file).unwrap();
        let mut image = read(&folder.join(&name)).unwrap();
        image.bytes[100] ^= 1;
        if ending == "jpg" {
            image.bytes[100..400].fill(0);
        }
        let (format, changed) = (flux::ImageFormat::from_magic(&file).unwrap(), format!("changed.{ending}"));
        let write = |recipe: Option<String>| {
            let metadata = flux::metadata::Metadata { recipe, ..Default::default() };
            fs::write(folder.join(&changed), flux::output::encode(&image, format, &metadata).unwrap()).unwrap();
        };
        write(said.recipe.clone());
        let (code, report) = verify(folder, &[&changed]);
        assert_eq!((code, &report["status"], &report["pixels"]), (Some(1), &"broken".into(), &"changed".into()));
        // A recipe of an older version has no digest.
        let mut recipe: Value = serde_json::from_str(&said.recipe.unwrap()).unwrap();
        assert!(recipe.as_object_mut().unwrap().remove("pixels").is_some());
        write(Some(recipe.to_string()));
        let (code, report) = verify(folder, &[&changed]);
        assert_eq!((code, &report["pixels"]), (Some(0), &"unknown".into()));
        assert!(report["notes"][0].as_str().unwrap().contains("older"), "{report}");
        // A recipe that cannot be read.
        write(Some("{".to_string()));
        assert_eq!(verify(folder, &[&changed]).0, Some(1));
        write(None);
        let (code, report) = verify(folder, &[&changed]);
        assert_eq!((code, &report["status"]), (Some(3), &"unmarked".into()));
        assert_eq!(run(folder, &["verify", &name, &changed]).code, Some(3));
    }
    run(folder, &["verify", "none.png"]).fails(1, &["none.png"]);
    let file = fs::read(folder.join("a.png")).unwrap();
    fs::write(folder.join("cut.png"), &file[..file.len() - 200]).unwrap();
    run(folder, &["verify", "cut.png"]).fails(1, &["cut.png"]);
    // The others are verified, too.
    let all = run(folder, &["verify", "none.png", "a.png", "cut.png"]);
    assert_eq!(all.code, Some(1), "{}", all.stderr);
    assert!(all.stdout.contains("a.png") && ["none.png", "cut.png"].iter().all(|name| all.stderr.contains(name)));
}

#[test]
fn verify_generates_the_image_again() {
    let folder = &folder();
    draw(folder, &["-p", PROMPT, "-S", "7", "-o", "a.png"]).succeeds();
    draw(folder, &["-p", PROMPT, "-S", "7", "--quality", "80", "-o", "b.jpg"]).succeeds();
    for name in ["a.png", "b.jpg"] {
        let (code, report) = verify(folder, &["--remake", "--device", "cpu", name]);
        assert_eq!((code, &report["remake"]), (Some(0), &"same".into()), "{report}");
    }
    let file = fs::read(folder.join("a.png")).unwrap();
    let text = flux::metadata::said_by(&file).unwrap().recipe.unwrap();
    let image = read(&folder.join("a.png")).unwrap();
    let written = |name: &str, recipe: String| {
        let metadata = flux::metadata::Metadata { recipe: Some(recipe), ..Default::default() };
        let file = flux::output::encode(&image, flux::ImageFormat::Png, &metadata).unwrap();
        fs::write(folder.join(name), file).unwrap();
    };
    written("seed.png", text.replace("\"seed\":7", "\"seed\":8"));
    let (code, report) = verify(folder, &["--remake", "--device", "cpu", "seed.png"]);
    assert_eq!((code, &report["pixels"], &report["remake"]), (Some(1), &"same".into(), &"changed".into()), "{report}");
    written("device.png", text.replace("\"device\":\"", "\"device\":\"another "));
    let (code, report) = verify(folder, &["--remake", "--device", "cpu", "device.png"]);
    assert_eq!((code, &report["remake"]), (Some(1), &"unknown".into()), "{report}");
    assert!(report["notes"][0].as_str().unwrap().contains("another"), "{report}");
    run(folder, &["strip", "a.png", "--quiet"]).succeeds();
    let (code, report) = verify(folder, &["--remake", "--device", "cpu", "a.png"]);
    assert_eq!((code, &report["remake"]), (Some(1), &"unknown".into()), "{report}");
    assert_eq!(names(folder), ["a.png", "b.jpg", "device.png", "seed.png"]);
}

#[test]
fn a_program_without_c2pa_refuses_to_sign_before_it_works() {
    let folder = &folder();
    let signed = ["--sign-cert", "chain.pem", "--sign-key", "key.pem"];
    let draw = |flags: &[&str]| draw(folder, &[&["-p", "x", "-o", "out.png", "--json"], flags].concat());
    draw(&signed).fails(2, &["without C2PA", "--features flux-cli/c2pa"]);
    draw(&signed[..2]).fails(2, &["--sign-key"]);
    fs::write(folder.join("flux.toml"), "sign_cert = \"chain.pem\"\nsign_key = \"key.pem\"\n").unwrap();
    let set = Run::new(flux().current_dir(folder).args(["-p", "x", "-o", "out.png"]).env_remove("FLUX_CONFIG"));
    set.fails(2, &["without C2PA"]);
    assert!(!folder.join("out.png").exists());
    run(folder, &["verify", "out.png", "--trust", "authority.pem"]).fails(2, &["without C2PA"]);
}
