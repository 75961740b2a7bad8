//! The choice of cuBLASLt's algorithm for each matrix multiplication, optionally cached across runs.
//!
//! The fastest algorithm is timed once ([`fastest`]). Timing twice may choose differently, and another algorithm
//! accumulates in another order, so choices are kept in a file, and without a file nothing is timed. The file belongs
//! to one GPU, driver and cuBLASLt; a file of another machine, or an unreadable one, is ignored and rewritten.
//!
//! Timing is off by default, because it doesn't pay on an H200: a step of 1024 x 1024 takes 52.3 to 52.7 ms with it and
//! 51.6 with cuBLASLt's first suggestions, one of 512 x 512 15.4 and 15.3. While it generates, the GPU is at its power
//! limit and lowers its clock, and a matrix multiplication timed alone is a poor model of that. With timings of 40 ms
//! runs, at that limit: 52.5 and 15.8.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::key::Key;
use crate::backend::cuda::element::Element;
use crate::files::atomic::{self, AtomicFile};

/// Version of the file's format.
const FORMAT: u32 = 3;
/// Environment variable with the folder of the file.
const VARIABLE: &str = "FLUX_GEMM_CACHE";

/// `cublasLtMatmulAlgo_t`: opaque, and portable between processes with one version of cuBLASLt.
pub type Algorithm = [u64; 8];

/// The place to keep choices of algorithms for matrix multiplications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GemmCache {
    /// None. Nothing is timed: a rule chooses among cuBLASLt's suggestions, the same on all machines of a kind.
    Off,
    /// In a file of this folder, which the first choice creates.
    Folder(PathBuf),
}

impl GemmCache {
    /// Returns the folder that `FLUX_GEMM_CACHE` names; `Off` if unset.
    pub fn from_environment() -> Self {
        Self::from_value(std::env::var_os(VARIABLE))
    }

    fn from_value(value: Option<OsString>) -> Self {
        match value {
            None => Self::Off,
            Some(value) if value.is_empty() || value == "off" => Self::Off,
            Some(folder) => Self::Folder(folder.into()),
        }
    }
}

/// The properties of a machine that choices depend on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    pub gpu: String,
    pub multiprocessors: usize,
    /// The driver version as the driver counts: 13000 is CUDA 13.0.
    pub driver: i32,
    pub cublaslt: usize,
    /// The type of operands that are not e4m3.
    pub element: Element,
}

impl Machine {
    fn file_name(&self) -> String {
        let gpu: String =
            self.gpu.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
        let element = if self.element == Element::F16 { "-fp16" } else { "" };
        format!("gemm-{gpu}-{}-{}{element}.json", self.driver, self.cublaslt)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: u32,
    machine: Machine,
    choices: Vec<Choice>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    product: Key,
    algorithm: Algorithm,
}

/// The choices of one machine.
pub struct Choices {
    machine: Machine,
    /// `None` if nothing is kept.
    file: Option<PathBuf>,
    /// `true` if the file's folder is writable; `None` until the first check.
    writable: Option<bool>,
    known: BTreeMap<Key, Algorithm>,
    /// The choices in `known` that this process made.
    made: BTreeMap<Key, Algorithm>,
    note: Option<String>,
}

impl Choices {
    /// Reads the choices that the cache has for this machine.
    pub fn open(cache: &GemmCache, machine: Machine) -> Self {
        let file = match cache {
            GemmCache::Off => None,
            GemmCache::Folder(folder) => Some(folder.join(machine.file_name())),
        };
        let mut choices =
            Self { machine, file, writable: None, known: BTreeMap::new(), made: BTreeMap::new(), note: None };
        if let Some(file) = &choices.file {
            match read(file, &choices.machine) {
                Ok(known) => choices.known = known,
                Err(why) => choices.note = Some(format!("`{}` is ignored and rewritten: {why}", file.display())),
            }
        }
        choices
    }

    /// Returns the choice for a matrix multiplication.
    pub fn get(&self, key: &Key) -> Option<Algorithm> {
        self.known.get(key).copied()
    }

    /// Returns `true` if a choice made now will be there in the next run.
    pub fn keeps(&mut self) -> bool {
        let Some(file) = self.file.as_deref() else { return false };
        let Some(folder) = file.parent() else { return false };
        if self.writable.is_none() {
            let tried = std::fs::create_dir_all(folder).and_then(|()| AtomicFile::create(file));
            self.writable = Some(tried.is_ok());
            if let Err(error) = tried {
                let what = format!(
                    "matrix multiplications are not timed, because `{}` cannot store the results: {error}",
                    folder.display()
                );
                self.note.get_or_insert(what);
            }
        }
        self.writable == Some(true)
    }

    /// Keeps a choice, in the file too. Choices that other processes added to the file stay.
    pub fn keep(&mut self, key: Key, algorithm: Algorithm) {
        self.known.insert(key, algorithm);
        self.made.insert(key, algorithm);
        let Some(file) = &self.file else { return };
        let mut all = read(file, &self.machine).unwrap_or_default();
        all.extend(&self.made);
        if let Err(error) = write(file, &self.machine, all) {
            let what = format!("`{}` cannot be written: {error}", file.display());
            self.note.get_or_insert(what);
        }
    }

    /// Returns a note for the user, if there is one.
    pub fn note(&self) -> Option<String> {
        self.note.clone()
    }
}

/// Reads the file; empty if there is none. Errors with the reason if it is unusable.
fn read(path: &Path, machine: &Machine) -> Result<BTreeMap<Key, Algorithm>, String> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error.to_string()),
    };
    let file: File = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if file.format != FORMAT {
        return Err(format!("its format is {}, expected {FORMAT}", file.format));
    }
    if file.machine != *machine {
        return Err(format!("it was measured on {:?}, but this machine is {machine:?}", file.machine));
    }
    Ok(file.choices.into_iter().map(|choice| (choice.product, choice.algorithm)).collect())
}

fn write(path: &Path, machine: &Machine, choices: BTreeMap<Key, Algorithm>) -> io::Result<()> {
    let choices = choices.into_iter().map(|(product, algorithm)| Choice { product, algorithm }).collect();
    let text = serde_json::to_vec(&File { format: FORMAT, machine: machine.clone(), choices })?;
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    std::fs::create_dir_all(folder)?;
    atomic::write(path, &text)
}

/// Device time after which no further candidate is started, and the number of candidates that are tried anyway.
const ENOUGH_US: f64 = 30_000.0;
const FEWEST_CANDIDATES: usize = 4;
/// A candidate this many times slower than the fastest is timed no further.
const HOPELESS: f64 = 1.5;
/// The total time of the runs after the first, and their min and max number.
const TIMED_US: f64 = 1000.0;
const RUNS: [f64; 2] = [3.0, 9.0];
/// An earlier candidate wins if it is slower by no more than this factor: cuBLASLt suggests the better ones first.
const TIE: f64 = 1.01;

/// Returns the fastest of `candidates` candidates. `time(candidate, runs)` returns the time of each of that many runs
/// in microseconds, or `None` if the candidate does not run.
pub fn fastest(candidates: usize, mut time: impl FnMut(usize, usize) -> Option<Vec<f64>>) -> usize {
    let (mut tried, mut spent_us) = (Vec::new(), 0.0);
    for candidate in 0..candidates {
        // The first run loads the kernel.
        let Some(&[_, first_us]) = time(candidate, 2).as_deref() else { continue };
        tried.push((candidate, first_us));
        spent_us += 2.0 * first_us;
        if spent_us > ENOUGH_US && tried.len() >= FEWEST_CANDIDATES {
            break;
        }
    }
    let least = |times: &[(usize, f64)]| times.iter().map(|(_, us)| *us).fold(f64::INFINITY, f64::min);
    let best_us = least(&tried);
    let runs = (TIMED_US / best_us).clamp(RUNS[0], RUNS[1]) as usize;
    let promising = tried.into_iter().filter(|(_, us)| *us <= HOPELESS * best_us);
    let medians: Vec<_> =
        promising.filter_map(|(candidate, _)| Some((candidate, median(time(candidate, runs)?)))).collect();
    let best_us = least(&medians);
    medians.into_iter().find(|(_, us)| *us <= TIE * best_us).map_or(0, |(candidate, _)| candidate)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::super::key::small_product;
    use super::*;

    fn machine() -> Machine {
        Machine {
            gpu: "NVIDIA H200".to_string(),
            multiprocessors: 132,
            driver: 13000,
            cublaslt: 130100,
            element: Element::Bf16,
        }
    }

    fn key(rows: usize) -> Key {
        Key::new(&small_product(rows), true)
    }

    fn open(folder: &Path) -> Choices {
        Choices::open(&GemmCache::Folder(folder.to_path_buf()), machine())
    }

    #[test]
    fn a_choice_is_there_in_the_next_run() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("made/when/needed");
        let mut choices = open(&below);
        assert!(!below.exists(), "reading creates nothing");
        assert!(choices.keeps());
        choices.keep(key(4), [1, 2, 3, 4, 5, 6, 7, u64::MAX]);
        choices.keep(key(8), [8; 8]);
        choices.keep(key(8), [9; 8]);
        let again = open(&below);
        assert_eq!(
            (again.get(&key(4)), again.get(&key(8)), again.get(&key(16))),
            (Some([1, 2, 3, 4, 5, 6, 7, u64::MAX]), Some([9; 8]), None)
        );
        assert_eq!((choices.note(), again.note()), (None, None));
        let names: Vec<_> = std::fs::read_dir(&below).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["gemm-nvidia-h200-13000-130100.json"]);
    }

    #[test]
    fn two_processes_keep_the_choices_of_both() {
        let folder = tempfile::tempdir().unwrap();
        let (mut one, mut other) = (open(folder.path()), open(folder.path()));
        one.keep(key(1), [1; 8]);
        other.keep(key(2), [2; 8]);
        let again = open(folder.path());
        assert_eq!((again.get(&key(1)), again.get(&key(2))), (Some([1; 8]), Some([2; 8])));
    }

    #[test]
    fn a_file_of_no_use_is_ignored_with_a_note_and_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(machine().file_name());
        open(folder.path()).keep(key(4), [4; 8]);
        let good = std::fs::read_to_string(&path).unwrap();
        let bad = [
            String::new(),
            "no JSON".to_string(),
            "{}".to_string(),
            good[..good.len() / 2].to_string(),
            good.replace("\"format\":3", "\"format\":2"),
            good.replace("Bf16", "F16"),
            good.replace("NVIDIA H200", "NVIDIA H100"),
            good.replace("\"cublaslt\":130100", "\"cublaslt\":130200"),
            good.replace("\"out_f32\"", "\"out_f64\""),
            good.replace("[4,4,4,4,4,4,4,4]", "[4,4,4]"),
            good.replace("[4,4,4,4,4,4,4,4]", "[4,4,4,4,4,4,4,-4]"),
        ];
        for text in bad {
            assert_ne!(text, good);
            std::fs::write(&path, &text).unwrap();
            let mut choices = open(folder.path());
            assert_eq!(choices.get(&key(4)), None, "{text}");
            assert!(choices.note().is_some_and(|note| note.contains("gemm-nvidia-h200-13000-130100.json`")), "{text}");
            assert!(choices.keeps());
            choices.keep(key(4), [4; 8]);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), good, "{text}");
        }
        std::fs::write(&path, [0xff, 0x00, 0xfe]).unwrap();
        assert!(open(folder.path()).note().is_some());
    }

    #[test]
    fn where_nothing_can_be_kept_nothing_is_to_be_timed() {
        assert!(!Choices::open(&GemmCache::Off, machine()).keeps());
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), "in the way").unwrap();
        let mut choices = open(&folder.path().join("file/below"));
        assert!(!choices.keeps() && !choices.keeps());
        assert!(choices.note().is_some_and(|note| note.contains("file/below")), "{:?}", choices.note());
    }

    #[test]
    fn the_environment_names_the_folder() {
        let of = |value: &str| GemmCache::from_value(Some(value.into()));
        assert_eq!([GemmCache::from_value(None), of(""), of("off")], [GemmCache::Off, GemmCache::Off, GemmCache::Off]);
        assert_eq!(of("here"), GemmCache::Folder("here".into()));
    }

    /// Returns the fastest of candidates with constant times.
    fn fastest_of(times_us: &[Option<f64>]) -> (usize, Vec<usize>) {
        let mut runs = vec![0; times_us.len()];
        let chosen = fastest(times_us.len(), |candidate, count| {
            runs[candidate] += count;
            times_us[candidate].map(|us| vec![us; count])
        });
        (chosen, runs)
    }

    #[test]
    fn the_fastest_is_taken_and_the_earlier_of_equals() {
        let (chosen, runs) = fastest_of(&[Some(300.0), Some(250.0), None, Some(400.0), Some(251.0), Some(249.9)]);
        assert_eq!(
            (chosen, runs),
            (1, vec![2 + 4, 2 + 4, 2, 2, 2 + 4, 2 + 4]),
            "slow and failing candidates are dropped"
        );
        assert_eq!(fastest_of(&[None, Some(20.0)]).0, 1);
        assert_eq!(fastest_of(&[None, None]).0, 0);
        assert_eq!(fastest_of(&[Some(20.0), Some(10.0)]).1, [2, 2 + 9], "short matrix multiplications run more often");
    }

    #[test]
    fn a_slow_product_tries_fewer_candidates() {
        let (chosen, runs) = fastest_of(&[Some(9000.0), Some(8000.0), Some(8500.0), Some(7000.0), Some(1.0)]);
        assert_eq!((chosen, runs), (3, vec![5, 5, 5, 5, 0]));
    }

    #[test]
    fn one_odd_run_does_not_decide() {
        let mut calls = 0;
        let chosen = fastest(2, |candidate, count| {
            calls += 1;
            let mut times = vec![if candidate == 0 { 300.0 } else { 330.0 }; count];
            if calls > 2 {
                times[0] = if candidate == 0 { 900.0 } else { 1.0 };
            }
            Some(times)
        });
        assert_eq!(chosen, 0);
    }
}
