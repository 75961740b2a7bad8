//! Every case of the reference's images, with the flags that its index tells.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use flux::compare::{Difference, difference};
use flux::input::read as read_png;

use crate::program::{Run, flux};
use crate::support::{preset, root};

/// Both sides compute in float32, so only the order of sums differs: a value that lies between two levels may be rounded
/// to either. The mean is that of one value in 200.
const MAX: u8 = 1;
const MEAN: f64 = 0.005;

/// A row of golden/editing/index.json.
#[derive(serde::Deserialize)]
struct Case {
    name: String,
    preset: String,
    /// For the program, in the folder of the index.
    flags: Vec<String>,
    images: Vec<Image>,
}

#[derive(serde::Deserialize)]
struct Image {
    seed: u64,
    png: String,
}

fn golden() -> PathBuf {
    root().join("tests/golden/editing")
}

fn cases() -> Vec<Case> {
    serde_json::from_slice(&std::fs::read(golden().join("index.json")).expect("the index")).expect("cases")
}

impl Case {
    /// How far each image of the program is from the reference's, or what the program said when it failed.
    fn differences(&self, out: &Path) -> Result<Vec<Difference>, String> {
        let model = preset(&self.preset);
        let mut command = flux();
        command
            .current_dir(golden())
            .args(["-d".as_ref(), model.folder().expect("a folder of its own").as_os_str()])
            .args(&self.flags);
        let run = Run::of(command.args(["--device", "cpu", "--precision", "f32", "-q", "-o"]).arg(out.join("out.png")));
        if run.code != Some(0) {
            return Err(run.stderr);
        }
        let compare = |image: &Image| {
            let drawn = match self.images.len() {
                1 => out.join("out.png"),
                _ => out.join(format!("out-{}.png", image.seed)),
            };
            let read = |path: &Path| read_png(path).map_err(|error| error.to_string());
            difference(&read(&drawn)?, &read(&golden().join(&image.png))?).map_err(|error| error.to_string())
        };
        self.images.iter().map(compare).collect()
    }
}

/// Runs all cases whose name begins with `prefix`, and tells of each before it fails.
#[track_caller]
fn expect_the_images_of_the_reference(prefix: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cases: Vec<_> = cases().into_iter().filter(|case| case.name.starts_with(prefix)).collect();
    assert!(!cases.is_empty(), "no case is named {prefix}");
    let mut wrong = Vec::new();
    for case in cases {
        match case.differences(folder.path()) {
            Ok(differences) => {
                for (image, apart) in case.images.iter().zip(differences) {
                    println!("{}: max {}, mean {:.5}", image.png, apart.max, apart.mean);
                    if apart.max > MAX || apart.mean > MEAN {
                        wrong.push((apart.mean, format!("{}: max {}, mean {:.5}", image.png, apart.max, apart.mean)));
                    }
                }
            }
            Err(said) => wrong.push((f64::INFINITY, format!("{}: flux {}\n{said}", case.name, case.flags.join(" ")))),
        }
    }
    wrong.sort_by(|a, b| b.0.total_cmp(&a.0));
    let lines: Vec<_> = wrong.iter().map(|(_, line)| line.as_str()).collect();
    assert!(wrong.is_empty(), "{} images are wrong, the worst first:\n{}", wrong.len(), lines.join("\n"));
}

#[test]
fn references() {
    expect_the_images_of_the_reference("edit");
}

#[test]
fn inpainting() {
    expect_the_images_of_the_reference("inpaint");
}

#[test]
fn image_to_image() {
    expect_the_images_of_the_reference("strength");
}

#[test]
fn cached_references() {
    expect_the_images_of_the_reference("kv");
}

#[test]
fn adapters() {
    expect_the_images_of_the_reference("lora");
}

/// No case is left out above, no image is without a case, and nothing lies in `inputs` and `adapters` that none reads.
#[test]
fn every_case_and_every_file_is_used() {
    const PREFIXES: [&str; 5] = ["edit", "inpaint", "strength", "kv", "lora"];
    let cases = cases();
    assert!(cases.iter().all(|case| PREFIXES.iter().any(|prefix| case.name.starts_with(prefix))));
    let names = |folder: &Path, kind: &str| -> BTreeSet<String> {
        let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        let files = entries.filter(|path| path.is_file() && path.to_string_lossy().ends_with(kind));
        files.map(|path| path.file_name().expect("a file").to_string_lossy().into_owned()).collect()
    };
    let images: BTreeSet<_> = cases.iter().flat_map(|case| &case.images).map(|image| image.png.clone()).collect();
    assert_eq!(names(&golden(), ".png"), images);
    for folder in ["inputs", "adapters"] {
        let in_folder = |flag: &String| {
            let file = flag.strip_prefix(folder)?.strip_prefix('/')?;
            Some(file.split(':').next().expect("a first part").to_string())
        };
        let used: BTreeSet<_> = cases.iter().flat_map(|case| &case.flags).filter_map(in_folder).collect();
        assert_eq!(names(&golden().join(folder), ""), used, "{folder}");
    }
}
