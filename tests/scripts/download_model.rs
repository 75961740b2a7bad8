//! The script that downloads a model into a folder, from a mirror on localhost without a list of files.
//! `tests/download` tests `flux download` with servers of all kinds.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::{folder, script};
use crate::hub::{Content, Hub, Reply, Seen, first, sha256};
use crate::model_copy;
use crate::program::{self, Run, SMALL, names};

/// The default model as on a mirror: one part in shards, the others in single files.
fn mirror() -> Content {
    Content::mirror(mirror_files())
}

/// Leaves responses unchanged.
fn fine(_: &Seen, _: usize, _: &mut Reply) {}

fn mirror_files() -> BTreeMap<String, Vec<u8>> {
    let tiny = model_copy::tiny();
    let mut files = BTreeMap::new();
    let mut add = |name: &str, bytes: Vec<u8>| drop(files.insert(name.to_string(), bytes));
    for name in [
        "model_index.json",
        "scheduler/scheduler_config.json",
        "text_encoder/config.json",
        "tokenizer/tokenizer.json",
        "tokenizer/vocab.json",
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
    files
}

fn download(server: &Hub, folder: &Path, flags: &[&str]) -> Command {
    let mut command = script("download_model.sh");
    command.env("FLUX_MIRROR", server.url()).env("RETRY_SECONDS", "0").arg("4b").arg(folder).args(flags);
    command.env("HF_HOME", folder.join("home")).env_remove("HF_HUB_OFFLINE").env_remove("HF_HUB_CACHE");
    command
}

fn no_part_is_left(folder: &Path) {
    for part in ["text_encoder", "transformer", "vae", "tokenizer", "scheduler"] {
        assert!(names(&folder.join(part)).iter().all(|name| !name.ends_with(".part")), "{part}");
    }
}

#[test]
fn a_download_is_a_model_that_draws_and_is_not_fetched_twice() {
    let server = Hub::start(Content { redirects: true, ..mirror() }, fine);
    let target = folder();
    let run = Run::new(&mut download(&server, &target, &[])).succeeds();
    assert!(run.stdout.starts_with(&format!("complete: {}", target.display())), "{}", run.stdout);
    no_part_is_left(&target);
    assert!(target.join("tokenizer/vocab.json").exists(), "what other programs need comes too");
    let out = target.join("out.png");
    Run::new(program::flux().args(SMALL).args(["-p", "a cat", "-S", "1", "-d"]).arg(&target).arg("-o").arg(&out))
        .succeeds();

    server.take_seen();
    Run::new(&mut download(&server, &target, &[])).succeeds();
    let is_content = |path: &str| path.contains("/resolve/") && !path.ends_with(".index.json");
    let seen = server.take_seen();
    assert!(seen.iter().all(|seen| seen.method == "HEAD" || !is_content(&seen.path)), "nothing is fetched again");

    let damaged = target.join("vae/diffusion_pytorch_model.safetensors");
    let right = fs::read(&damaged).unwrap();
    let mut wrong = right.clone();
    wrong[5000] ^= 1;
    fs::write(&damaged, &wrong).unwrap();
    Run::new(&mut download(&server, &target, &["--verify"])).succeeds();
    assert_eq!(fs::read(&damaged).unwrap(), right);
}

#[test]
fn a_broken_download_is_continued_where_it_broke() {
    let breaks = first(3);
    let server = Hub::start(mirror(), move |seen, _, reply| {
        if seen.method == "GET" && reply.body.len() > 100_000 && breaks() {
            reply.cut = Some(100_000);
        }
    });
    let target = folder();
    Run::new(&mut download(&server, &target, &[])).succeeds();
    no_part_is_left(&target);
    let ranges: Vec<_> = server.take_seen().into_iter().filter_map(|seen| seen.range).collect();
    assert!(ranges.iter().any(|range| range == "bytes=100000-"), "{ranges:?}");

    // A partial file of unknown origin is not resumed.
    let whole = target.join("vae/diffusion_pytorch_model.safetensors");
    let right = fs::read(&whole).unwrap();
    fs::remove_file(&whole).unwrap();
    fs::write(whole.with_extension("safetensors.part"), vec![7; 1_234_567]).unwrap();
    Run::new(&mut download(&server, &target, &[])).succeeds();
    assert!(fs::read(&whole).unwrap() == right);
    assert!(server.take_seen().iter().all(|seen| seen.range.as_deref() != Some("bytes=1234567-")));
}

#[test]
fn a_server_without_ranges_and_a_busy_one_serve_too() {
    let [breaks, is_busy, busy_head, silent_head] = [1, 2, 2, 2].map(first);
    let server = Hub::start(Content { has_ranges: false, ..mirror() }, move |seen, _, reply| {
        match (seen.method.as_str(), reply.status) {
            ("HEAD", 200) if silent_head() => reply.silent = true,
            ("HEAD", 200) if busy_head() => *reply = Reply::new(503, &[], ""),
            ("GET", 200) if is_busy() => *reply = Reply::new(503, &[], ""),
            ("GET", 200) if reply.body.len() > 50_000 && breaks() => reply.cut = Some(50_000),
            _ => {}
        }
    });
    let target = folder();
    Run::new(&mut download(&server, &target, &[])).succeeds();
    no_part_is_left(&target);

    // If the server is too busy to answer for a file, the file does not count as missing.
    let server = Hub::start(mirror(), |seen, _, reply| {
        if seen.method == "HEAD" && reply.status == 200 {
            *reply = Reply::new(503, &[], "");
        }
    });
    Run::new(&mut download(&server, &folder(), &[])).fails(1, &["status 503", "try again later"]);
}

#[test]
fn a_manifest_of_the_mirror_counts_more_than_its_etag() {
    let mut files = mirror_files();
    let manifest = format!("{}  model_index.json\n", sha256(b"{ }"));
    files.insert("SHA256SUMS".to_string(), manifest.into_bytes());
    let server = Hub::start(Content::mirror(files), fine);
    let target = folder();
    let run = Run::new(&mut download(&server, &target, &[])).fails(1, &["model_index.json: wrong checksum"]);
    assert!(!target.join("model_index.json").exists(), "{}", run.stderr);
}

#[test]
fn refusals_are_told_apart_and_the_token_stays_secret() {
    let secret = "hf_secret_123";
    let server = Hub::start(Content { token: Some(secret), redirects: true, ..mirror() }, fine);
    let target = folder();
    Run::new(&mut download(&server, &target, &[])).fails(1, &["(401)", "HF_TOKEN", "licence"]);
    Run::new(download(&server, &target, &[]).env("HF_TOKEN", "hf_other")).fails(1, &["(403)"]);
    Run::new(download(&server, &target, &[]).env("HF_TOKEN", "a token\nwith lines")).fails(1, &["HF_TOKEN"]);

    server.take_seen();
    let run = Run::new(download(&server, &target, &[]).env("HF_TOKEN", secret)).succeeds();
    assert!(!run.stdout.contains(secret) && !run.stderr.contains(secret));
    let (other, own): (Vec<_>, Vec<_>) =
        server.take_seen().into_iter().partition(|seen| seen.path.starts_with("/cdn/"));
    assert!(
        !other.is_empty() && other.iter().all(|seen| seen.authorization.is_none()),
        "the token is for the hub alone"
    );
    assert!(own.iter().all(|seen| seen.authorization.is_some()));

    let mut nobody = script("download_model.sh");
    Run::new(nobody.env("FLUX_MIRROR", "http://127.0.0.1:9").env("RETRY_SECONDS", "0").arg("4b").arg(&target))
        .fails(1, &["cannot reach", "network"]);
}

#[test]
fn the_second_of_two_downloads_into_a_folder_waits_for_the_first() {
    let server = Hub::start(mirror(), |seen, _, reply| {
        if seen.method == "GET" {
            reply.delay = Duration::from_millis(200);
        }
    });
    let target = folder();
    let mut killed = download(&server, &target, &[]).stdout(Stdio::null()).spawn().expect("the script starts");
    thread::sleep(Duration::from_millis(500));
    killed.kill().expect("our process");
    killed.wait().expect("our process");
    thread::scope(|scope| {
        let run = || scope.spawn(|| Run::new(&mut download(&server, &target, &[])).succeeds());
        [run(), run()].map(|run| run.join().expect("a run that succeeds"))
    });
    no_part_is_left(&target);
    for (name, bytes) in mirror_files() {
        assert!(fs::read(target.join(&name)).unwrap() == bytes, "{name}");
    }
}

#[test]
fn an_address_is_taken_as_it_is() {
    let server = Hub::start(mirror(), fine);
    let target = folder();
    let mut command = download(&server, &target, &[]);
    Run::new(command.env("FLUX_MIRROR", format!("{}/{{a,b}}[1-2]", server.url()))).succeeds();
    assert!(target.join("vae/diffusion_pytorch_model.safetensors").exists());
    assert!(server.take_seen().iter().all(|seen| seen.path.starts_with("/{a,b}[1-2]/")));
    for (name, value) in [
        ("FLUX_MIRROR", "--upload-file=/etc/passwd"),
        ("FLUX_MIRROR", "file:///etc"),
        ("FLUX_MIRROR", "http://localhost/\x1b[31m"),
        ("RETRY_SECONDS", "soon"),
        ("RETRY_SECONDS", "-1"),
    ] {
        let run = Run::new(download(&server, &target, &[]).env(name, value)).fails(2, &[name, "expected"]);
        assert!(!run.stderr.contains('\x1b'), "{}", run.stderr);
    }
}
