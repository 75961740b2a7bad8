//! The scripts from outside.
#![cfg(unix)]

#[path = "support/model_copy.rs"]
mod model_copy;
#[path = "support/program.rs"]
mod program;
#[path = "support/server.rs"]
mod server;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use program::{Run, SMALL, names, project};
use server::{Behaviour, Server, sha256};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn script(name: &str) -> Command {
    let mut command = Command::new(project("scripts").join(name));
    command
        .env("FLUX_BIN", env!("CARGO_BIN_EXE_flux"))
        .env_remove("FLUX_MODEL")
        .env_remove("HF_TOKEN")
        .env_remove("FLUX_MIRROR");
    command
}

fn write(path: PathBuf, text: &str) -> PathBuf {
    fs::write(&path, text).expect("a temporary folder is writable");
    path
}

/// A program in place of flux, in shell.
fn program_that(folder: &Path, does: &str) -> PathBuf {
    let path = write(folder.join("program"), &format!("#!/bin/sh\n{does}\n"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("our file");
    path
}

#[test]
fn every_script_explains_itself_and_refuses_what_it_does_not_know() {
    for name in ["download_model.sh", "generate_batch.sh", "compare_cpu_gpu.sh", "gpu_check.sh"] {
        let help = Run::of(script(name).arg("--help")).succeeds();
        assert!(help.stdout.starts_with(&format!("usage: scripts/{name}")), "{}", help.stdout);
    }
    Run::of(&mut script("download_model.sh")).fails(2, &["no model"]);
    Run::of(script("download_model.sh").arg("5b")).fails(2, &["unknown model: 5b"]);
    Run::of(script("download_model.sh").args(["4b", "a", "b"])).fails(2, &["too many"]);
    Run::of(&mut script("generate_batch.sh")).fails(2, &["prompts"]);
    Run::of(script("generate_batch.sh").args(["none.txt", "out"])).fails(2, &["none.txt"]);
    Run::of(script("compare_cpu_gpu.sh").args(["--bound", "high"])).fails(2, &["bound"]);
    Run::of(script("compare_cpu_gpu.sh").args(["-o", "x.png"])).fails(2, &["-o"]);
    Run::of(script("compare_cpu_gpu.sh").args(["-n", "2"])).fails(2, &["one image"]);
    Run::of(script("compare_cpu_gpu.sh").arg("-n2")).fails(2, &["one image"]);
    Run::of(&mut script("gpu_check.sh")).fails(2, &["OUT"]);
    Run::of(script("gpu_check.sh").args(["out", "speed"])).fails(2, &["unknown section: speed"]);
    Run::of(script("gpu_check.sh").arg("out")).fails(2, &["no section"]);
}

/// The name of a test that is gone would leave out nothing, or run nothing.
#[test]
fn every_test_that_the_gpu_check_names_is_there() {
    let script = fs::read_to_string(project("scripts/gpu_check.sh")).expect("the script is there");
    let mut named = 0;
    for file in names(&project("tests/parity")) {
        let text = fs::read_to_string(project("tests/parity").join(&file)).expect("a parity test");
        let path = format!("{}::", file.trim_end_matches(".rs"));
        for (at, _) in script.match_indices(&path) {
            if script[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
                continue; // the end of another file's name
            }
            let rest = &script[at + path.len()..];
            let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            assert!(text.contains(&format!("fn {name}")), "scripts/gpu_check.sh names {path}{name}");
            named += 1;
        }
    }
    assert!(named > 5, "{named}");
}

#[test]
fn shellcheck_is_content() {
    let scripts = names(&project("scripts"))
        .into_iter()
        .filter(|name| name.ends_with(".sh"))
        .map(|name| project("scripts").join(name));
    match Command::new("shellcheck").arg("-x").current_dir(project("")).args(scripts).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
        Err(_) => eprintln!("skipped: no shellcheck"),
    }
}

#[test]
fn a_batch_makes_one_named_image_per_prompt_and_resumes() {
    let folder = folder();
    let prompts = write(
        folder.path().join("prompts.txt"),
        "# a comment\n\na red circle\r\n  \n- minus: \"quotes\" & $HOME\nein Käse\n\u{1f9c0}",
    );
    let out = folder.path().join("out");
    let batch =
        |seed: &str| Run::of(script("generate_batch.sh").arg(&prompts).arg(&out).args(SMALL).args(["-S", seed, "-q"]));
    let expected = ["0001-a-red-circle.png", "0002-minus-quotes-home.png", "0003-ein-k-se.png", "0004-image.png"];

    let run = batch("5").succeeds();
    assert_eq!(names(&out), expected);
    assert!(run.stderr.contains("4 made, 0 already there, 0 failed"), "{}", run.stderr);

    let first = fs::read(out.join(expected[1])).unwrap();
    fs::remove_file(out.join(expected[1])).unwrap();
    let run = batch("5").succeeds();
    assert!(run.stderr.contains("1 made, 3 already there, 0 failed"), "{}", run.stderr);
    assert_eq!(fs::read(out.join(expected[1])).unwrap(), first, "the seed goes with the number of the prompt");

    let alone = folder.path().join("alone.png");
    Run::of(program::flux().args(SMALL).args(["--prompt=- minus: \"quotes\" & $HOME", "-S", "6", "-o"]).arg(&alone))
        .succeeds();
    assert_eq!(fs::read(alone).unwrap(), first, "the second prompt has the second seed, and its text is not touched");
}

#[test]
fn a_batch_goes_on_after_a_failure_and_tells_it_at_the_end() {
    let folder = folder();
    let prompts = write(folder.path().join("prompts.txt"), "one\ntwo\nthree\n");
    let fails_at_two = program_that(folder.path(), "case \"$*\" in *--prompt=two*) exit 1;; *) echo \"$*\" >&2;; esac");
    let out = folder.path().join("out");
    let run = Run::of(
        script("generate_batch.sh").env("FLUX_BIN", fails_at_two).arg(&prompts).arg(&out).args(["--steps", "7"]),
    );
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    for words in ["--prompt=one", "--prompt=three", "--steps 7", "2 made, 0 already there, 1 failed", "failed 2: two"] {
        assert!(run.stderr.contains(words), "{words}: {}", run.stderr);
    }
    Run::of(script("generate_batch.sh").arg(&prompts).arg(&out).args(["-S", "x"])).fails(2, &["seed"]);
    Run::of(script("generate_batch.sh").arg(&prompts).arg(&out).args(["-o", "x.png"])).fails(2, &["-o"]);
    Run::of(script("generate_batch.sh").arg(&prompts).arg(&out).arg("-n2")).fails(2, &["-n2"]);
}

#[test]
fn a_batch_that_a_signal_ends_does_not_go_on_with_the_next_prompt() {
    let folder = folder();
    let prompts = write(folder.path().join("prompts.txt"), "one\ntwo\nthree\n");
    // flux exits with 130 and 143 after the first signal, and is ended by the signal itself before it listens.
    for (ends, code) in [("exit 130", 130), ("exit 143", 143), ("kill -INT $$", 130), ("kill -TERM $$", 143)] {
        let program = program_that(folder.path(), &format!("echo \"$*\" >&2; case \"$*\" in *=two*) {ends};; esac"));
        let out = folder.path().join("out");
        let run = Run::of(script("generate_batch.sh").env("FLUX_BIN", program).arg(&prompts).arg(&out));
        assert_eq!(run.code, Some(code), "{ends}: {}", run.stderr);
        assert!(run.stderr.contains("--prompt=two") && !run.stderr.contains("--prompt=three"), "{}", run.stderr);
        let said = format!("stopped by signal {} at prompt 2", code - 128);
        assert!(run.stderr.contains(&said), "{ends}: {}", run.stderr);
    }
}

#[test]
fn the_comparison_of_devices_prints_numbers_and_holds_to_its_bound() {
    let folder = folder();
    let same = Run::of(
        script("compare_cpu_gpu.sh")
            .args(["--against", "cpu", "--keep"])
            .arg(folder.path())
            .args(["-W", "32", "-H", "32", "-s", "1"]),
    )
    .succeeds();
    assert_eq!(same.stdout, "max 0 mean 0.0000 psnr inf dB\n");
    assert_eq!(names(folder.path()), ["cpu-again.png", "cpu.png"]);

    // In place of a GPU: another seed, so another image.
    let flux = env!("CARGO_BIN_EXE_flux");
    let does = format!(
        "case \"$*\" in *'--device other'*) exec {flux} -q -p x -S 9 -W 32 -H 32 -s 1 --device cpu -o {}/other.png;; *) exec {flux} \"$@\";; esac",
        folder.path().display()
    );
    let program = program_that(folder.path(), &does);
    let compare = |bound: &str| {
        let mut command = script("compare_cpu_gpu.sh");
        command.env("FLUX_BIN", &program).args(["--against", "other", "--bound", bound, "--keep"]).arg(folder.path());
        Run::of(command.args(["-W", "32", "-H", "32", "-s", "1", "-p", "x", "-S", "8"]))
    };
    assert!(compare("1").succeeds().stdout.starts_with("max "));
    let apart = compare("45");
    assert_eq!(apart.code, Some(1));
    assert!(apart.stderr.contains("expected at least 45 dB"), "{}", apart.stderr);
}

/// A program in place of flux in a folder of its own: draws nothing, and benches with these times of a step.
fn program_with_steps_of(folder: &Path, bf16_ms: f32, fp8_ms: f32) -> PathBuf {
    fs::create_dir_all(folder).expect("a temporary folder is writable");
    let does = format!(
        r#"row() {{ echo "{{\"name\":\"stages/$1x$1\",\"size\":$1,\"step_ms\":$2,\"decode_ms\":17.5,\"total_ms\":234.0}}"; }}
        echo "$0" >>"$PROGRAMS_RUN"
        case "$*" in
            *fp8*) row 1024 {fp8_ms} ;;
            bench*) row 512 15; row 1024 {bf16_ms} ;;
            compare*) echo "max 0 mean 0.0000 psnr inf dB" ;;
        esac"#
    );
    let program = program_that(folder, &does);
    let flux = folder.join("flux");
    fs::rename(program, &flux).expect("a temporary folder is writable");
    flux
}

#[test]
fn two_programs_are_compared_in_turn() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let base = program_with_steps_of(&path("base"), 50.0, 40.0);
    let new = program_with_steps_of(&path("new"), 45.0, 30.0);
    for name in ["models/klein-4b", "work", "tools"] {
        fs::create_dir_all(path(name)).expect("a temporary folder is writable");
    }
    write(path("models/klein-4b/model_index.json"), "{}");
    let compare = |capability: &str, base: &Path| {
        for entry in names(&path("work")) {
            fs::remove_file(path("work").join(entry)).expect("our file");
        }
        fs::rename(program_that(&path("tools"), &format!("echo {capability}")), path("tools/nvidia-smi")).unwrap();
        let tools = format!("{}:{}", path("tools").display(), std::env::var("PATH").unwrap_or_default());
        let mut command = script("gpu_check.sh");
        command
            .args(["--section", "compare"])
            .env("PATH", tools)
            .env("PROGRAMS_RUN", path("work/run"))
            .env("BASE", base);
        for (name, value) in [("bin", "new"), ("work", "work"), ("bundle", "bundle"), ("MODEL_DIR", "models")] {
            command.env(name, path(value));
        }
        Run::of(&mut command)
    };
    let table = |run: &Run| -> Vec<String> {
        let rows = run.stdout.lines().skip_while(|line| !line.starts_with("median of 3")).skip(1);
        let rows = rows.take_while(|line| !line.starts_with("result")).filter(|line| !line.starts_with("start to PNG"));
        rows.map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };

    let run = compare("9.0", &base).succeeds();
    let expected = [
        "step 512, bf16, ms 15 15 1.0000",
        "step 1024, bf16, ms 50 45 0.9000",
        "step 1024, fp8, ms 40 30 0.7500",
        "decode 1024, ms 17.5 17.5 1.0000",
        "image 1024, bf16, ms 234 234 1.0000",
        "image 1024, fp8, ms 234 234 1.0000",
    ];
    assert_eq!(table(&run), expected, "{}", run.stdout);
    assert!(run.stdout.contains("result: new / base: ") && run.stdout.ends_with("psnr inf dB\n"), "{}", run.stdout);
    // One image to warm up and, at the end, the comparison; in between three calls each, in turn.
    let ran = fs::read_to_string(path("work/run")).unwrap();
    let mut ran: Vec<&Path> = ran.lines().map(Path::new).collect();
    ran.dedup();
    assert_eq!(ran, [&new, &base, &new, &base, &new, &base, &new]);

    let run = compare("8.0", &base).succeeds();
    assert!(table(&run).iter().all(|row| !row.contains("fp8,")), "{}", run.stdout);
    assert!(run.stdout.contains("no fp8: this is no Hopper GPU"), "{}", run.stdout);
    let run = compare("9.0", &path("none"));
    assert_eq!(run.code, Some(1));
    assert!(run.stdout.contains("make gpu-bundle BASE="), "{}", run.stdout);
}

const ROOT: &str = "black-forest-labs/FLUX.2-klein-4B/resolve/main/";

/// The default model as a hub would hold it: one part in shards, some in one file.
fn hub(behaviour: Behaviour) -> Server {
    let tiny = model_copy::tiny();
    let mut files = HashMap::new();
    let mut add = |name: &str, bytes: Vec<u8>| drop(files.insert(format!("{ROOT}{name}"), bytes));
    for name in [
        "model_index.json",
        "scheduler/scheduler_config.json",
        "text_encoder/config.json",
        "tokenizer/tokenizer.json",
        "tokenizer/vocab.json",
    ] {
        add(name, fs::read(tiny.join(name)).expect("the model has this file"));
    }
    for name in [
        "transformer/config.json",
        "vae/config.json",
        "vae/diffusion_pytorch_model.safetensors",
        "text_encoder/model.safetensors",
    ] {
        add(name, fs::read(tiny.join(name)).expect("the model has this file"));
    }
    let weights =
        fs::read(tiny.join("transformer/diffusion_pytorch_model.safetensors")).expect("the model has this file");
    let end = 8 + u64::from_le_bytes(weights[..8].try_into().expect("eight bytes")) as usize;
    let header: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&weights[8..end]).expect("a header");
    let shard = "diffusion_pytorch_model-00001-of-00001.safetensors";
    let map: HashMap<_, _> =
        header.keys().filter(|name| *name != "__metadata__").map(|name| (name.clone(), shard)).collect();
    let index = serde_json::json!({ "metadata": { "total_size": weights.len() - end }, "weight_map": map });
    add("transformer/diffusion_pytorch_model.safetensors.index.json", index.to_string().into_bytes());
    add(&format!("transformer/{shard}"), weights);
    Server::start(files, behaviour)
}

fn download(server: &Server, folder: &Path, flags: &[&str]) -> Command {
    let mut command = script("download_model.sh");
    command.env("FLUX_MIRROR", server.url()).env("RETRY_SECONDS", "0").arg("4b").arg(folder).args(flags);
    command
}

fn no_part_is_left(folder: &Path) {
    for part in ["text_encoder", "transformer", "vae", "tokenizer", "scheduler"] {
        assert!(names(&folder.join(part)).iter().all(|name| !name.ends_with(".part")), "{part}");
    }
}

#[test]
fn a_download_is_a_model_that_draws_and_is_not_fetched_twice() {
    let server = hub(Behaviour { redirects: true, ..Behaviour::default() });
    let target = folder();
    Run::of(&mut download(&server, target.path(), &[])).succeeds();
    no_part_is_left(target.path());
    assert!(target.path().join("tokenizer/vocab.json").exists(), "what other programs need comes too");
    let out = target.path().join("out.png");
    Run::of(program::flux().args(SMALL).args(["-p", "a cat", "-S", "1", "-d"]).arg(target.path()).arg("-o").arg(&out))
        .succeeds();

    server.take_seen();
    Run::of(&mut download(&server, target.path(), &[])).succeeds();
    assert!(server.take_seen().iter().all(|seen| seen.method == "HEAD"), "nothing is fetched again");

    let damaged = target.path().join("vae/diffusion_pytorch_model.safetensors");
    let right = fs::read(&damaged).unwrap();
    let mut wrong = right.clone();
    wrong[5000] ^= 1;
    fs::write(&damaged, &wrong).unwrap();
    Run::of(&mut download(&server, target.path(), &["--verify"])).succeeds();
    assert_eq!(fs::read(&damaged).unwrap(), right);
}

#[test]
fn a_broken_download_is_continued_where_it_broke() {
    let server = hub(Behaviour { broken_answers: 3, break_after: 100_000, ..Behaviour::default() });
    let target = folder();
    Run::of(&mut download(&server, target.path(), &[])).succeeds();
    no_part_is_left(target.path());
    let ranges: Vec<_> = server.take_seen().into_iter().filter_map(|seen| seen.range).collect();
    assert!(ranges.iter().any(|range| range == "bytes=100000-"), "{ranges:?}");

    // A run that was killed left half a file.
    let whole = target.path().join("vae/diffusion_pytorch_model.safetensors");
    let right = fs::read(&whole).unwrap();
    fs::remove_file(&whole).unwrap();
    fs::write(whole.with_extension("safetensors.part"), &right[..1_234_567]).unwrap();
    Run::of(&mut download(&server, target.path(), &[])).succeeds();
    assert_eq!(fs::read(&whole).unwrap(), right);
    assert!(server.take_seen().iter().any(|seen| seen.range.as_deref() == Some("bytes=1234567-")));
}

#[test]
fn a_server_without_ranges_and_a_busy_one_serve_too() {
    let server = hub(Behaviour {
        broken_answers: 1,
        break_after: 50_000,
        no_ranges: true,
        busy_answers: 2,
        ..Behaviour::default()
    });
    let target = folder();
    Run::of(&mut download(&server, target.path(), &[])).succeeds();
    no_part_is_left(target.path());
}

#[test]
fn a_wrong_checksum_is_fetched_again_and_never_gets_the_name() {
    let server = hub(Behaviour { damaged_answers: 1, ..Behaviour::default() });
    let target = folder();
    let run = Run::of(&mut download(&server, target.path(), &[])).succeeds();
    assert!(run.stderr.contains("wrong checksum"), "{}", run.stderr);

    let server = hub(Behaviour { damaged_answers: usize::MAX, ..Behaviour::default() });
    let target = folder();
    let run = Run::of(&mut download(&server, target.path(), &[]));
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.contains("could not fetch text_encoder/config.json"), "{}", run.stderr);
    assert!(!target.path().join("text_encoder/config.json").exists());
}

#[test]
fn a_manifest_of_the_mirror_counts_more_than_its_etag() {
    let index = b"{}".to_vec();
    let manifest = format!("{}  model_index.json\n", sha256(b"{ }"));
    let files = HashMap::from([
        (format!("{ROOT}model_index.json"), index),
        (format!("{ROOT}SHA256SUMS"), manifest.into_bytes()),
    ]);
    let server = Server::start(files, Behaviour::default());
    let target = folder();
    let run = Run::of(&mut download(&server, target.path(), &[]));
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.contains("model_index.json: wrong checksum"), "{}", run.stderr);
}

#[test]
fn refusals_are_told_apart_and_the_token_stays_secret() {
    let secret = "hf_secret_123";
    let server = hub(Behaviour { token: Some(secret.to_string()), redirects: true, ..Behaviour::default() });
    let target = folder();
    Run::of(&mut download(&server, target.path(), &[])).fails(1, &["(401)", "HF_TOKEN", "licence"]);
    Run::of(download(&server, target.path(), &[]).env("HF_TOKEN", "hf_other")).fails(1, &["(403)"]);
    Run::of(download(&server, target.path(), &[]).env("HF_TOKEN", "a token\nwith lines")).fails(1, &["HF_TOKEN"]);

    server.take_seen();
    let run = Run::of(download(&server, target.path(), &[]).env("HF_TOKEN", secret)).succeeds();
    assert!(!run.stdout.contains(secret) && !run.stderr.contains(secret));
    let (other, own): (Vec<_>, Vec<_>) =
        server.take_seen().into_iter().partition(|seen| seen.path.starts_with("/other-host/"));
    assert!(
        !other.is_empty() && other.iter().all(|seen| seen.authorization.is_none()),
        "the token is for the hub alone"
    );
    assert!(own.iter().all(|seen| seen.authorization.is_some()));

    let empty = Server::start(HashMap::new(), Behaviour::default());
    Run::of(&mut download(&empty, target.path(), &[])).fails(1, &["(404)", "FLUX_MIRROR"]);
    let mut nobody = script("download_model.sh");
    Run::of(nobody.env("FLUX_MIRROR", "http://127.0.0.1:9").arg("4b").arg(target.path()))
        .fails(1, &["cannot reach", "network"]);
}
