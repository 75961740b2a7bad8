//! Every case of the reference's images, with the flags in its index. With a mask the test uses the reference's cells:
//! the program regenerates more of them, because it loses no small details.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use flux::backend::cpu::{Cpu, Precision};
use flux::compare::{Difference, difference};
use flux::files::adapter::AdapterUse;
use flux::input::{Edit, read as read_png, reference};
use flux::output::Rgb;
use flux::pipeline::{Change, Model, Request};
use image::{GrayImage, Luma};

use crate::program::{Run, flux};
use crate::reference_mask;
use crate::support::{preset, root};

/// Both sides compute in float32, so only the order of sums differs: a value between two levels may be rounded to
/// either. The mean is that of one value in 200.
const MAX: u8 = 1;
const MEAN: f64 = 0.005;

/// A row of golden/editing/index.json.
#[derive(serde::Deserialize)]
struct Case {
    name: String,
    preset: String,
    /// Flags of the program, in the folder of the index.
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
    /// Returns the values of a flag, each time that it occurs.
    fn values(&self, flag: &str) -> impl Iterator<Item = &str> {
        let pairs = self.flags.iter().zip(self.flags.iter().skip(1));
        pairs.filter(move |(name, _)| *name == flag).map(|(_, value)| value.as_str())
    }

    fn value<T: FromStr>(&self, flag: &str) -> Option<T> {
        self.values(flag).next().and_then(|value| value.parse().ok())
    }

    /// Returns the input image as the model sees it, and the cells that the reference regenerates under the mask.
    fn masked(&self) -> Option<(Edit, Vec<f32>)> {
        let mask = fs::read(golden().join(self.values("--mask").next()?)).expect("a mask");
        let image = self.values("-i").next().expect("an image");
        let edit = Edit::whole(read_png(&golden().join(image)).expect("an image")).expect("it is wide enough");
        let size = [edit.image().width, edit.image().height];
        let cells = reference_mask::cells(&reference_mask::grey(&mask, size), size[0]);
        Some((edit, cells))
    }

    /// Returns the flags, with a mask of whole cells, which the program and the reference divide alike.
    fn flags_with(&self, edit: &Edit, cells: &[f32], out: &Path) -> Vec<String> {
        let [width, height] = [edit.image().width, edit.image().height].map(|side| side as u32);
        let is_white = |x: u32, y: u32| cells[(y / 16 * (width / 16) + x / 16) as usize] > 0.0;
        let mask = GrayImage::from_fn(width, height, |x, y| Luma([if is_white(x, y) { 255 } else { 0 }]));
        let path = out.join("cells.png");
        mask.save(&path).expect("a temporary folder is writable");
        let given = self.values("--mask").next();
        let of = |flag: &String| if Some(flag.as_str()) == given { path.display().to_string() } else { flag.clone() };
        self.flags.iter().map(of).collect()
    }

    /// Returns the images of the program.
    fn drawn(&self, flags: &[String], out: &Path) -> Result<Vec<Rgb>, String> {
        let model = preset(&self.preset);
        let mut command = flux();
        command
            .current_dir(golden())
            .args(["-d".as_ref(), model.folder().expect("a folder of its own").as_os_str()])
            .args(flags);
        let run =
            Run::new(command.args(["--device", "cpu", "--precision", "f32", "-q", "-o"]).arg(out.join("out.png")));
        if run.code != Some(0) {
            return Err(run.stderr);
        }
        let read = |image: &Image| {
            let drawn = match self.images.len() {
                1 => out.join("out.png"),
                _ => out.join(format!("out-{}.png", image.seed)),
            };
            read_png(&drawn).map_err(|error| error.to_string())
        };
        self.images.iter().map(read).collect()
    }

    /// Returns the image of the pipeline with arbitrary cells: the program regenerates whole cells, the reference also
    /// parts of a cell.
    fn drawn_in_parts(&self, edit: &Edit, cells: &[f32]) -> flux::Result<Vec<Rgb>> {
        let model = Model::load(Cpu::new(Precision::F32), &preset(&self.preset))?;
        let others = self.values("-i").skip(1).map(|file| reference(&read_png(&golden().join(file))?).map(Arc::new));
        let adapter = |file| Ok(AdapterUse::new(model.adapter(&golden().join(file))?, 1.0));
        let change = Change {
            image: Arc::new(edit.image().clone()),
            cells: Some(Arc::from(cells)),
            strength: self.value("--strength").unwrap_or(0.8),
            is_reference: !self.flags.iter().any(|flag| flag == "--no-self-reference"),
        };
        let request = Request {
            steps: self.value("-s"),
            guidance: self.value("-g"),
            references: others.collect::<flux::Result<_>>()?,
            change: Some(change),
            adapters: self.values("--lora").map(adapter).collect::<flux::Result<_>>()?,
            ..Request::new(self.values("-p").next().expect("a prompt"), self.value("-S").expect("a seed"))
        };
        let made = model.generate(&request)?;
        Ok(vec![Rgb { width: made.plan.width, height: made.plan.height, bytes: made.rgb }])
    }

    /// Returns the distance of each image from the reference's, or the program's error.
    fn differences(&self, out: &Path) -> Result<Vec<Difference>, String> {
        let drawn = match self.masked() {
            None => self.drawn(&self.flags, out)?,
            Some((edit, cells)) if cells.iter().all(|cell| cell.fract() == 0.0) => {
                self.drawn(&self.flags_with(&edit, &cells, out), out)?
            }
            Some((edit, cells)) => self.drawn_in_parts(&edit, &cells).map_err(|error| error.to_string())?,
        };
        let compare = |(drawn, image): (Rgb, &Image)| {
            let expected = read_png(&golden().join(&image.png)).map_err(|error| error.to_string())?;
            difference(&drawn, &expected).map_err(|error| error.to_string())
        };
        drawn.into_iter().zip(&self.images).map(compare).collect()
    }
}

/// Runs all cases whose name begins with `prefix`, and reports each before it fails.
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

/// Checks that no case is left out above, no image lacks a case, and all files in `inputs` and `adapters` are used.
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
