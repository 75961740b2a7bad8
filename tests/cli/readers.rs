//! Image files in other programs. Programs that are not installed are skipped with a message.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use super::folder;
use crate::program::{Folder, draw};

const PROMPT: &str = "ein Käse 🧀, \"quoted\": <a> & b";
const ENDINGS: [&str; 3] = ["png", "jpg", "webp"];

/// Returns a program's output; `None` if it is not installed.
fn ran(program: &str, words: &[&str], folder: &Path) -> Option<String> {
    match Command::new(program).args(words).current_dir(folder).output() {
        Ok(Output { status, stdout, stderr }) => {
            assert!(status.success(), "{program}: {}", String::from_utf8_lossy(&stderr));
            Some(String::from_utf8_lossy(&stdout).into_owned())
        }
        Err(_) => {
            eprintln!("skipped: no {program}");
            None
        }
    }
}

/// Creates a folder with an image of each format.
fn images() -> Folder {
    let folder = folder();
    for ending in ENDINGS {
        draw(&folder, &["-p", PROMPT, "-S", "7", "-o", &format!("a.{ending}")]).succeeds();
    }
    folder
}

#[test]
fn exiftool_reads_prompt_recipe_and_source() {
    let folder = images();
    for ending in ENDINGS {
        let name = format!("a.{ending}");
        let Some(json) = ran("exiftool", &["-j", "-struct", &name], &folder) else { return };
        let said: Value = serde_json::from_str(&json).expect("JSON");
        let said = &said[0];
        let parameters = said["Parameters"].as_str().or(said["UserComment"].as_str()).expect("parameters");
        assert!(parameters.starts_with(PROMPT) && parameters.contains("Seed: 7"), "{ending}: {parameters}");
        let source = said["DigitalSourceType"].as_str().expect("a source");
        assert!(source.ends_with("trainedAlgorithmicMedia"), "{ending}: {source}");
        let recipe = said["Flux"].as_str().or(said["Recipe"].as_str()).expect("a recipe");
        let recipe: Value = serde_json::from_str(recipe).expect("JSON");
        assert_eq!(recipe["recipe"]["prompt"], PROMPT, "{ending}");
        assert!(said.get("Warning").is_none() && said.get("Error").is_none(), "{ending}: {said}");
    }
}

#[test]
fn pillow_reads_prompt_and_recipe() {
    const SCRIPT: &str = "
import json
try:
    from PIL import Image
except ImportError:
    raise SystemExit('skipped: no Pillow')
for name in ('a.png', 'a.jpg', 'a.webp'):
    with Image.open(name) as image:
        image.load()
        comment = image.getexif().get_ifd(0x8769).get(0x9286)
        if isinstance(comment, bytes):
            assert comment[:8] == b'UNICODE\\0', comment[:8]
            comment = comment[8:].decode('utf-16-be')
        parameters = image.text['parameters'] if name == 'a.png' else comment
        recipe = json.loads(image.text['flux']) if name == 'a.png' else None
        print(json.dumps({'parameters': parameters, 'recipe': recipe, 'size': image.size}))
";
    let folder = images();
    let output = Command::new("python3").args(["-c", SCRIPT]).current_dir(&folder).output();
    let Ok(Output { status, stdout, stderr }) = output else { return eprintln!("skipped: no python3") };
    let told = String::from_utf8_lossy(&stderr);
    if told.starts_with("skipped") {
        return eprintln!("{told}");
    }
    assert!(status.success(), "{told}");
    let lines: Vec<Value> =
        String::from_utf8_lossy(&stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 3);
    for line in &lines {
        assert!(line["parameters"].as_str().is_some_and(|text| text.starts_with(PROMPT)), "{line}");
        assert_eq!(line["size"], serde_json::json!([32, 32]));
    }
    assert_eq!(lines[0]["recipe"]["recipe"]["seed"], 7);
}

#[test]
fn imagemagick_reads_the_pixels_and_the_seed() {
    let folder = images();
    for ending in ENDINGS {
        let name = format!("a.{ending}");
        let Some(said) = ran("identify", &["-verbose", &name], &folder) else { return };
        assert!(said.contains("32x32"), "{ending}: {said}");
        // Version 6 leaves out texts that are not Latin.
        assert!(ending != "png" || said.contains("seed: 7"), "{ending}: {said}");
    }
}
