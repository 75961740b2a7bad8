//! Hostile input of every kind, in runs of the program: each ends in time, with an image or an error that says what,
//! where and how to mend it, holds little memory, and leaves nothing behind.
//!
//! `FLUX_FUZZ_RUNS` is the number of runs, `FLUX_FUZZ_SEED` chooses them, `FLUX_FUZZ_ONLY` is the number of a single
//! run, and `FLUX_FUZZ_PROGRAM` another program than the one that was built.

#![cfg(unix)]

#[path = "fuzz/cases.rs"]
mod cases;
#[path = "fuzz/folder.rs"]
mod folder;
#[path = "support/model_copy.rs"]
mod model_copy;
#[path = "fuzz/mutate.rs"]
mod mutate;
#[path = "fuzz/rng.rs"]
mod rng;
#[path = "fuzz/run.rs"]
mod run;
mod support;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use flux::files::ModelFiles;
use flux::output::{ImageFormat, Rgb, encode};
use flux::pipeline::{CancelFlag, ModelInfo, OpenModel};
use safetensors::tensor::{Dtype, TensorView};
use support::random_model::RandomModel;

use cases::{ATTACH_TO, Kind, Sources, adapter_of};
use rng::Rng;
use run::{Case, Prints, quiet};

/// A number from the environment.
fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}

/// Writes models and images that work.
fn sources(folder: &Path) -> Sources {
    let program = env::var_os("FLUX_FUZZ_PROGRAM").map_or_else(|| env!("CARGO_BIN_EXE_flux").into(), PathBuf::from);
    let models: Vec<PathBuf> = ["tiny", "sharded", "base"].map(|preset| folder.join(preset)).into();
    for model in &models {
        let preset = model.file_name().and_then(|name| name.to_str()).expect("named above");
        RandomModel::preset(preset).expect("a known preset").write(model).expect("a temporary folder is writable");
        attach(model).expect("a model without fault");
        write_adapter(model);
    }
    // As small as a reference image may be.
    let image = Rgb { width: 70, height: 64, bytes: (0..70 * 64 * 3).map(|i| (i * 7 % 251) as u8).collect() };
    let facts = [("prompt", "a red circle".to_string())];
    let images = [(ImageFormat::Png, "png"), (ImageFormat::Jpeg, "jpg"), (ImageFormat::Webp, "webp")];
    let images = images.map(|(format, extension)| {
        let path = folder.join(format!("image.{extension}"));
        fs::write(&path, encode(&image, format, &facts).expect("a small image")).expect("a temporary folder");
        path
    });
    Sources { program, models, images: images.into() }
}

/// An adapter with tensors of every kind.
fn write_adapter(model: &Path) {
    let dir = ModelFiles::open(model).expect("written above");
    let dim = ModelInfo::read(&dir).expect("written above").transformer.dim();
    let block = "transformer_blocks.0.attn";
    let shapes: [(String, Vec<usize>); 13] = [
        (format!("{block}.to_q.lora_A.weight"), vec![2, dim]),
        (format!("{block}.to_q.lora_B.weight"), vec![dim, 2]),
        (format!("{block}.to_q.alpha"), vec![]),
        (format!("{block}.to_q.dora_scale"), vec![dim, 1]),
        (format!("{block}.to_k.lokr_w1"), vec![2, 2]),
        (format!("{block}.to_k.lokr_w2_a"), vec![dim / 2, 1]),
        (format!("{block}.to_k.lokr_w2_b"), vec![1, dim / 2]),
        (format!("{block}.to_v.hada_w1_a"), vec![dim, 1]),
        (format!("{block}.to_v.hada_w1_b"), vec![1, dim]),
        (format!("{block}.to_v.hada_w2_a"), vec![dim, 1]),
        (format!("{block}.to_v.hada_w2_b"), vec![1, dim]),
        (format!("{block}.to_out.0.set_weight"), vec![dim, dim]),
        ("what.lora_A.weight".to_string(), vec![1, 1]),
    ];
    let bytes: Vec<u8> = (0..dim * dim).flat_map(|i| ((i % 251) as f32 / 2510.0).to_le_bytes()).collect();
    let tensors = shapes.into_iter().map(|(name, shape)| {
        let values = &bytes[..4 * shape.iter().product::<usize>()];
        (name, TensorView::new(Dtype::F32, shape, values).expect("as many values as the shape has"))
    });
    let metadata = r#"{"transformer.r": 2, "transformer.lora_alpha": 1}"#.to_string();
    let metadata = [("lora_adapter_metadata".to_string(), metadata)].into();
    safetensors::serialize_to_file(tensors, Some(metadata), &adapter_of(model)).expect("a temporary folder");
    let opened = ModelInfo::read(&dir).and_then(|info| info.adapter(&adapter_of(model)));
    opened.expect("an adapter without fault");
}

fn attach(model: &Path) -> flux::Result<()> {
    let files = ModelFiles::open(model)?;
    let mut open = OpenModel::open(&files)?;
    open.attach_quantised_cache(model, &CancelFlag::default(), &mut |_| {}).map(drop)
}

/// Not a test: what the fuzzer runs in a process of its own.
#[test]
#[ignore = "run by the fuzzer"]
fn a_cache_is_attached() {
    let model = env::var_os(ATTACH_TO).expect("set by the fuzzer");
    if let Err(error) = attach(Path::new(&model)) {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

/// What the runs of one kind came to.
#[derive(Default)]
struct Tally {
    codes: BTreeMap<Option<i32>, u64>,
    seconds: f64,
    slowest: (f64, u64),
    kib: u64,
}

/// Runs the case with this number; returns what was found.
fn one_run(sources: &Sources, seed: u64, number: u64, tallies: &Mutex<BTreeMap<Kind, Tally>>) -> Option<String> {
    let mut rng = Rng::of_run(seed, number);
    let own = tempfile::Builder::new().prefix("flux-fuzz-").tempdir().expect("a temporary folder");
    let kind = Kind::draw(&mut rng);
    let case = sources.case(kind, own.path(), &mut rng);
    let what = case.what.clone();
    let ended = case.run(own.path());
    let mut findings = ended.findings;
    if kind == Kind::Sound && ended.code != Some(0) {
        findings.push(format!("a sound model gave exit code {:?}", ended.code));
    }
    let mut tallies = tallies.lock().expect("no thread panics with it");
    let tally = tallies.entry(kind).or_default();
    *tally.codes.entry(ended.code).or_default() += 1;
    tally.seconds += ended.seconds;
    tally.kib = tally.kib.max(ended.kib);
    if ended.seconds > tally.slowest.0 {
        tally.slowest = (ended.seconds, number);
    }
    (!findings.is_empty()).then(|| format!("run {number}, {kind:?}: {what}\n    {}", findings.join("\n    ")))
}

#[test]
fn hostile_input_ends_in_an_image_or_an_error() {
    let (seed, only) =
        (number("FLUX_FUZZ_SEED", 1), env::var_os("FLUX_FUZZ_ONLY").map(|_| number("FLUX_FUZZ_ONLY", 0)));
    let runs = only.map_or_else(|| 0..number("FLUX_FUZZ_RUNS", 2000), |run| run..run + 1);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (sources, next) = (sources(folder.path()), AtomicU64::new(runs.start));
    let (tallies, findings) = (Mutex::default(), Mutex::new(Vec::new()));
    let threads = thread::available_parallelism().map_or(2, |threads| threads.get());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let run = next.fetch_add(1, Ordering::Relaxed);
                    if run >= runs.end {
                        break;
                    }
                    if let Some(found) = one_run(&sources, seed, run, &tallies) {
                        println!("{found}");
                        findings.lock().expect("no thread panics with it").push(run);
                    }
                }
            });
        }
    });
    for (kind, tally) in tallies.into_inner().expect("no thread panicked") {
        let runs: u64 = tally.codes.values().sum();
        println!(
            "{kind:?}: {runs} runs, exit codes {:?}, {:.3} s on average, the slowest {:.1} s (run {}), most memory {} MiB",
            tally.codes,
            tally.seconds / runs as f64,
            tally.slowest.0,
            tally.slowest.1,
            tally.kib / 1024
        );
    }
    let findings = findings.into_inner().expect("no thread panicked");
    assert!(findings.is_empty(), "FLUX_FUZZ_SEED={seed}: {} findings, above, in runs {findings:?}", findings.len());
}

/// What the fuzzer looks for is found where it happens.
#[test]
fn each_finding_is_found() {
    let found = |script: &str| {
        let own = tempfile::tempdir().expect("a temporary folder");
        let out = own.path().join("out");
        fs::create_dir(&out).expect("a temporary folder is writable");
        let mut command = quiet(Path::new("sh"));
        command.args(["-c", script]);
        let (what, stdin) = (String::new(), Vec::new());
        Case { what, command, stdin, out, prints: Prints::Nothing, of_a_file: true }.run(own.path()).findings.join("; ")
    };
    assert_eq!(found("true"), "");
    assert_eq!(found("printf 'error: bad\\n  in: file\\n  hint: none\\n' >&2; exit 1"), "");
    for (script, expected) in [
        ("exit 101", "exit code Some(101)"),
        ("kill -ABRT $$", "signal Some(6)"),
        ("echo 'thread main panicked at x' >&2; exit 1", "a panic"),
        ("printf 'error: \\033[31m\\n' >&2; exit 1", "on standard error"),
        ("exit 1", "without an error"),
        ("echo 'error: bad' >&2; exit 1", "without a hint"),
        ("echo image", "6 bytes on standard output"),
        ("touch .flux-1.part", ".part\" was left"),
        ("echo no > x.png", "is no image"),
        ("touch x.png; echo 'error: bad' >&2; exit 1", "a run that failed left"),
    ] {
        assert!(found(script).contains(expected), "{script}: {}", found(script));
    }
}
