//! Helpers for several test crates.

// Each test crate uses its own part of this module.
#![allow(dead_code)]

pub mod random_model;

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};

use flux::backend::cpu::{Cpu, Precision};
use flux::files::ModelFiles;
use flux::pipeline::{Model, Request};
use random_model::RandomModel;
use safetensors::{Dtype, SafeTensors};

/// The project's folder: the build folder, or `FLUX_TEST_ROOT` on another machine.
pub fn root() -> PathBuf {
    let workspace = || {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        package.ancestors().find(|folder| folder.join("Cargo.lock").exists()).expect("a workspace").to_path_buf()
    };
    std::env::var_os("FLUX_TEST_ROOT").map_or_else(workspace, PathBuf::from)
}

/// Copies a folder with all that is below it.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a temporary folder is writable");
    for entry in fs::read_dir(from).expect("a folder that is there") {
        let from = entry.expect("a readable folder").path();
        let to = to.join(from.file_name().expect("an entry has a name"));
        if from.is_dir() {
            copy_folder(&from, &to);
        } else {
            fs::copy(from, to).expect("a temporary folder is writable");
        }
    }
}

/// The variable with a log file of golden data: it gets a line for every golden file that is opened, and for every
/// tensor that is read: `FILE` and `FILE:TENSOR`.
pub const GOLDEN_LOG: &str = "GOLDEN_LOG";

fn log_golden(what: &str) {
    if let Some(log) = std::env::var_os(GOLDEN_LOG) {
        let mut log = OpenOptions::new().append(true).create(true).open(log).expect("the log is writable");
        log.write_all(format!("{what}\n").as_bytes()).expect("the log is writable");
    }
}

/// A file under tests/golden.
pub fn golden(name: &str) -> PathBuf {
    log_golden(name);
    root().join("tests/golden").join(name)
}

/// The model folder of a preset, written once for each test process.
pub fn preset(name: &str) -> ModelFiles {
    static WRITTEN: LazyLock<Mutex<HashMap<String, tempfile::TempDir>>> = LazyLock::new(Mutex::default);
    let mut written = WRITTEN.lock().unwrap();
    let dir = written.entry(name.to_string()).or_insert_with(|| {
        let dir = tempfile::tempdir().unwrap();
        RandomModel::preset(name).expect("a known preset").write(dir.path()).unwrap();
        dir
    });
    ModelFiles::open(dir.path()).unwrap()
}

/// The built-in model.
pub fn built_in() -> ModelFiles {
    ModelFiles::open(&root().join("models/tiny")).unwrap()
}

/// Loads a model, on the CPU.
pub fn load(files: &ModelFiles) -> Arc<Model<Cpu>> {
    Model::load(Cpu::new(Precision::F32), files).unwrap()
}

/// Fails if a byte of an image is more than one level from the expected one.
#[track_caller]
pub fn assert_near(what: &str, got: &[u8], expected: &[u8]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let worst = got.iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).max();
    println!("{what}: {worst:?}");
    assert!(worst <= Some(1), "{what}: {worst:?} levels");
}

/// One image of golden/pipeline.json.
#[derive(serde::Deserialize)]
pub struct Image {
    pub preset: String,
    pub case: usize,
    pub prompt: String,
    pub width: usize,
    pub height: usize,
    pub steps: usize,
    pub seed: u64,
    pub guidance: Option<f32>,
    pub ids: Vec<u32>,
    pub png: String,
    pub bf16: Bf16,
}

/// The distance of the reference in bf16 from itself in float32.
#[derive(serde::Deserialize)]
pub struct Bf16 {
    pub latents_rms: f64,
}

/// Returns the images of all presets.
pub fn images() -> Vec<Image> {
    serde_json::from_slice(&std::fs::read(golden("pipeline.json")).unwrap()).unwrap()
}

impl Image {
    pub fn request(&self) -> Request {
        Request {
            width: Some(self.width),
            height: Some(self.height),
            steps: Some(self.steps),
            guidance: self.guidance,
            ..Request::new(&self.prompt, self.seed)
        }
    }
}

/// The tensors of one golden file.
pub struct Golden {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Golden {
    pub fn open(name: &str) -> Self {
        Self::open_path(&golden(name))
    }

    pub fn open_path(path: &Path) -> Self {
        Self { path: path.to_path_buf(), bytes: std::fs::read(path).unwrap() }
    }

    /// Returns shape and values of a float32 tensor.
    pub fn get(&self, name: &str) -> (Vec<usize>, Vec<f32>) {
        self.read(name, Dtype::F32, f32::from_le_bytes)
    }

    /// Returns shape and values of an int32 tensor.
    pub fn get_ints(&self, name: &str) -> (Vec<usize>, Vec<i32>) {
        self.read(name, Dtype::I32, i32::from_le_bytes)
    }

    fn read<T>(&self, name: &str, dtype: Dtype, value: fn([u8; 4]) -> T) -> (Vec<usize>, Vec<T>) {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let view = tensors.tensor(name).unwrap_or_else(|_| panic!("`{name}` is not in {}", self.path.display()));
        assert_eq!(view.dtype(), dtype);
        let file = self.path.strip_prefix(root().join("tests/golden")).unwrap_or(&self.path);
        log_golden(&format!("{}:{name}", file.display()));
        (view.shape().to_vec(), view.data().chunks_exact(4).map(|b| value(b.try_into().unwrap())).collect())
    }

    pub fn names(&self) -> Vec<String> {
        SafeTensors::deserialize(&self.bytes).unwrap().names().into_iter().map(String::from).collect()
    }
}

/// Fails if a value is further than `bound` times the largest expected magnitude (at least 1) from the expected value.
#[track_caller]
pub fn assert_close(what: &str, got: &[f32], expected: &[f32], bound: f32) {
    assert_eq!(got.len(), expected.len(), "{what}: number of values");
    let scale = expected.iter().fold(1f32, |a, b| a.max(b.abs()));
    let mut worst = 0f32;
    for (index, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let difference = (got - expected).abs() / scale;
        assert!(
            difference <= bound,
            "{what}[{index}] is {got}, expected {expected}: {difference:e} of {scale} apart, the bound is {bound:e}"
        );
        worst = worst.max(difference);
    }
    println!("{what}: {worst:.1e} apart");
}
