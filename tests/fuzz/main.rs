//! Hostile input of every kind, in runs of the program. Each run must end in time, with an image or an error that has
//! a reason, a place and a hint; it must use little memory, change none of its inputs, and leave nothing behind.
//!
//! `FLUX_FUZZ_RUNS` is the number of runs, `FLUX_FUZZ_SEED` chooses them, `FLUX_FUZZ_FIRST` is the number of the
//! first, `FLUX_FUZZ_ONLY` the number of a single run, whose folder stays, or the name of a kind, and
//! `FLUX_FUZZ_PROGRAM` another program than the built one.

mod cases;
mod expect;
mod folder;
mod formats;
mod gguf;
mod inputs;
#[path = "../support/model_copy.rs"]
mod model_copy;
mod mutate;
mod pictures;
#[path = "../support/gguf.rs"]
mod plain_gguf;
#[path = "../support/process.rs"]
mod process;
#[path = "../support/program.rs"]
mod program;
mod rng;
mod run;
mod sources;
#[path = "../support/mod.rs"]
mod support;
mod tally;
mod tensors;

use std::env;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use cases::{ATTACH_TO, Kind};
use expect::{Content, End, Expected};
use program::takes_long_form;
use rng::Rng;
use run::{Case, quiet};
use sources::{Sources, attach};
use tally::Tallies;

/// Number of runs between progress lines, which have the number to continue from.
const PROGRESS: u64 = 10_000;

/// Returns a number from the environment.
fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}

/// The runs of the fuzzer.
struct Plan {
    seed: u64,
    runs: Range<u64>,
    /// The only kind.
    kind: Option<Kind>,
    /// `true` if the folders of runs stay.
    keeps: bool,
}

impl Plan {
    fn from_environment() -> Self {
        let (seed, first) = (number("FLUX_FUZZ_SEED", 1), number("FLUX_FUZZ_FIRST", 0));
        let runs = first..first + number("FLUX_FUZZ_RUNS", if takes_long_form() { 2000 } else { 1000 });
        match env::var("FLUX_FUZZ_ONLY").ok().filter(|only| !only.is_empty()) {
            None => Self { seed, runs, kind: None, keeps: false },
            Some(only) => match (only.parse(), Kind::from_name(&only)) {
                (Ok(run), _) => Self { seed, runs: run..run + 1, kind: None, keeps: true },
                (Err(_), Some(kind)) => Self { seed, runs, kind: Some(kind), keeps: false },
                (Err(_), None) => panic!("FLUX_FUZZ_ONLY={only}, expected a number or the name of a kind"),
            },
        }
    }
}

/// No test: the fuzzer runs this in a process of its own.
#[test]
#[ignore = "run by the fuzzer"]
fn a_cache_is_attached() {
    let model = env::var_os(ATTACH_TO).expect("set by the fuzzer");
    if let Err(error) = attach(Path::new(&model)) {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

/// Runs the case with this number, and returns its findings.
fn one_run(sources: &Sources, plan: &Plan, number: u64, tallies: &Tallies) -> Option<String> {
    let mut rng = Rng::for_run(plan.seed, number);
    let kind = Kind::draw(&mut rng);
    if plan.kind.is_some_and(|only| only != kind) {
        return None;
    }
    let own = tempfile::Builder::new().prefix("flux-fuzz-").tempdir().expect("a temporary folder");
    let case = sources.case(kind, own.path(), &mut rng);
    let what = case.what.clone();
    let mut ended = case.run(own.path());
    if plan.keeps {
        println!("the folder of run {number} stays: {}", own.keep().display());
    }
    ended.findings.extend(sources.changed().into_iter().map(|path| format!("{path:?}, of all runs, was changed")));
    tallies.add(kind, number, &ended);
    (!ended.findings.is_empty()).then(|| {
        let again = format!("make fuzz FUZZ_SEED={} FUZZ_ONLY={number}", plan.seed);
        format!("run {number}, {kind:?}: {what}\n    {}\n    to repeat: {again}", ended.findings.join("\n    "))
    })
}

#[test]
fn hostile_input_ends_in_an_image_or_an_error() {
    let plan = Plan::from_environment();
    let program = env::var_os("FLUX_FUZZ_PROGRAM").map_or_else(|| env!("CARGO_BIN_EXE_flux").into(), PathBuf::from);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (sources, next) = (Sources::write(folder.path(), program), AtomicU64::new(plan.runs.start));
    let (tallies, findings) = (Tallies::default(), Mutex::new(Vec::new()));
    let threads = thread::available_parallelism().map_or(2, |threads| threads.get());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let run = next.fetch_add(1, Ordering::Relaxed);
                    if run >= plan.runs.end {
                        break;
                    }
                    if run > plan.runs.start && run.is_multiple_of(PROGRESS) {
                        println!("{run} runs are begun, {} findings", findings.lock().expect("no thread panics").len());
                    }
                    if let Some(found) = one_run(&sources, &plan, run, &tallies) {
                        println!("{found}");
                        findings.lock().expect("no thread panics with it").push(run);
                    }
                }
            });
        }
    });
    println!("{}", tallies.table());
    if plan.keeps {
        println!("what it was made from stays: {}", folder.keep().display());
    }
    let mut findings = findings.into_inner().expect("no thread panicked");
    findings.sort_unstable();
    let seed = plan.seed;
    assert!(findings.is_empty(), "FLUX_FUZZ_SEED={seed}: {} findings, above, in runs {findings:?}", findings.len());
}

/// Returns the findings of a script that should end as `expected`, in a folder with a file `input`.
fn found(script: &str, expected: Expected) -> String {
    let own = tempfile::tempdir().expect("a temporary folder");
    let out = own.path().join("out");
    fs::create_dir(&out).expect("a temporary folder is writable");
    fs::write(own.path().join("input"), "input").expect("a temporary folder is writable");
    let mut command = quiet(Path::new("sh"));
    command.args(["-c", script]);
    let expected =
        Expected { writes: expected.writes.into_iter().map(|(path, is)| (out.join(path), is)).collect(), ..expected };
    Case { what: String::new(), command, stdin: Vec::new(), out, expected }.run(own.path()).findings.join("; ")
}

/// Each kind of finding is found.
#[test]
fn each_finding_is_found() {
    let found_in = |script| found(script, Expected::default());
    assert_eq!(found_in("true"), "");
    assert_eq!(found_in("printf 'error: bad\\n  in: file\\n  hint: none\\n' >&2; exit 1"), "");
    for (script, expected) in [
        ("exit 101", "exit code Some(101)"),
        ("kill -ABRT $$", "signal Some(6)"),
        ("echo 'thread main panicked at x' >&2; exit 1", "a panic"),
        ("printf 'error: \\033[31m\\n' >&2; exit 1", "on standard error"),
        ("head -c 20000 /dev/zero | tr '\\0' x >&2", "20000 bytes on standard error"),
        ("exit 1", "without an error"),
        ("echo 'error: bad' >&2; exit 1", "without a hint"),
        ("printf 'error: bad\\n  in: \\n  hint: none\\n' >&2; exit 1", "which says nothing"),
        ("cd ..; printf \"error: bad\\n  in: $PWD\\n  hint: none\\n\" >&2; exit 1", "which says nothing"),
        ("echo image", "6 bytes on standard output"),
        ("touch .flux-1.part", ".part\" was left"),
        ("echo no > x.png", "is no image"),
        ("touch x.png; echo 'error: bad' >&2; exit 1", "a run that failed left"),
        ("echo more >> ../input", "input\", which was there, is changed"),
        ("rm ../input", "input\", which was there, is gone"),
        ("touch ../other", "other\" was written"),
    ] {
        assert!(found_in(script).contains(expected), "{script}: {}", found_in(script));
    }
}

/// The expectations of a case are checked.
#[test]
fn what_a_case_expects_is_looked_for() {
    let error = "printf 'error: bad\\n  in: file\\n  hint: none\\n' >&2; exit 1";
    let ends = |end| Expected { end, ..Expected::default() };
    let blames = |name: &str| Expected { blames: vec![name.to_string()], ..Expected::default() };
    let writes = |names: &[&str]| Expected {
        writes: names.iter().map(|name| (PathBuf::from(name), Content::Tensors)).collect(),
        ..Expected::default()
    };
    for (script, expected, finding) in [
        (error, ends(End::Error), ""),
        (error, ends(End::Success), "it failed"),
        ("true", ends(End::Error), "it succeeded, expected an error"),
        ("true", ends(End::NotSilent), "said nothing"),
        ("echo 'note: some' >&2", ends(End::NotSilent), ""),
        (error, blames("file"), ""),
        (error, blames("other"), "names none of"),
        ("printf GGUF > a", writes(&["a"]), ""),
        ("true", writes(&["a"]), "a\" was not written"),
        ("echo > a", writes(&["a"]), "is not what was to be written"),
        ("printf GGUF > a; ln a b", writes(&["a", "b"]), "are one file"),
    ] {
        let found = found(script, expected);
        assert!(if finding.is_empty() { found.is_empty() } else { found.contains(finding) }, "{script}: {found}");
    }
}
