//! Downloads from a server on localhost, with its faults.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::{folder, script};
use crate::model_copy;
use crate::program::{self, Run, SMALL, names};
use crate::server::{Behaviour, Server, sha256};

const ROOT: &str = "black-forest-labs/FLUX.2-klein-4B/resolve/main/";

/// The default model as a hub would hold it: one part in shards, some in one file.
fn hub(behaviour: Behaviour) -> Server {
    Server::start(hub_files(ROOT), behaviour)
}

/// Its files, by their paths below `root`.
fn hub_files(root: &str) -> HashMap<String, Vec<u8>> {
    let tiny = model_copy::tiny();
    let mut files = HashMap::new();
    let mut add = |name: &str, bytes: Vec<u8>| drop(files.insert(format!("{root}{name}"), bytes));
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
    files
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
    Run::of(nobody.env("FLUX_MIRROR", "http://127.0.0.1:9").env("RETRY_SECONDS", "0").arg("4b").arg(target.path()))
        .fails(1, &["cannot reach", "network"]);
}

#[test]
fn a_part_that_the_server_cannot_continue_is_fetched_from_the_start() {
    let server = hub(Behaviour { refuses_ranges: true, ..Behaviour::default() });
    let target = folder();
    let whole = target.path().join("vae/diffusion_pytorch_model.safetensors");
    let right = fs::read(model_copy::tiny().join("vae/diffusion_pytorch_model.safetensors")).unwrap();
    let part = whole.with_extension("safetensors.part");
    let fetched_with = |bytes: &[u8]| {
        fs::create_dir_all(whole.parent().expect("a folder")).unwrap();
        fs::write(&part, bytes).unwrap();
        Run::of(&mut download(&server, target.path(), &[])).succeeds();
        assert_eq!(fs::read(&whole).unwrap(), right);
        fs::remove_file(&whole).unwrap();
        let path = format!("/{ROOT}vae/diffusion_pytorch_model.safetensors");
        server.take_seen().iter().filter(|seen| seen.method == "GET" && seen.path == path).count()
    };
    assert_eq!(fetched_with(&right[..1000]), 2, "a range is refused, then the file is fetched");
    assert_eq!(fetched_with(&right), 0, "the part is the file");
    assert_eq!(fetched_with(&[&right[..], b"more"].concat()), 1);
    assert_eq!(fetched_with(&vec![0; right.len()]), 1);
}

#[test]
fn a_server_that_does_not_answer_at_once_is_asked_again() {
    let server = hub(Behaviour { busy_heads: 2, silent_heads: 2, ..Behaviour::default() });
    let target = folder();
    Run::of(&mut download(&server, target.path(), &[])).succeeds();

    // What the server is too busy to tell of is not taken for a file that is not there.
    let server = hub(Behaviour { busy_heads: usize::MAX, ..Behaviour::default() });
    Run::of(&mut download(&server, folder().path(), &[])).fails(1, &["status 503", "try again later"]);
}

#[test]
fn the_second_of_two_downloads_into_a_folder_waits_for_the_first() {
    let server = hub(Behaviour { delay: Duration::from_millis(50), ..Behaviour::default() });
    let target = folder();
    let killed = download(&server, target.path(), &[]).stdout(Stdio::null()).spawn();
    let mut killed = killed.expect("the script starts");
    while server.take_seen().iter().all(|seen| seen.method != "GET") {
        thread::sleep(Duration::from_millis(5));
    }
    killed.kill().expect("our process");
    killed.wait().expect("our process");

    // What the killed run held is free again; both of the others find all that they need.
    let runs = thread::scope(|scope| {
        let run = || scope.spawn(|| Run::of(&mut download(&server, target.path(), &[])).succeeds());
        [run(), run()].map(|run| run.join().expect("a run that succeeds"))
    });
    let waited = "waiting until another download into";
    assert!(runs.iter().any(|run| run.stderr.contains(waited)), "{:?}", runs.map(|run| run.stderr));
    let mut fetched: Vec<_> = server.take_seen().into_iter().filter(|seen| seen.method == "GET").collect();
    fetched.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(fetched.windows(2).all(|pair| pair[0].path != pair[1].path), "{fetched:?}");
    no_part_is_left(target.path());
}

/// The system's limit on the size of a file stands for a full disk.
#[test]
fn a_full_disk_is_called_so() {
    let server = hub(Behaviour::default());
    let target = folder();
    let limited = |kib: usize| {
        let inner = download(&server, target.path(), &[]);
        let mut command = Command::new("bash");
        command.args(["-c", &format!("trap '' XFSZ; ulimit -f {kib}; exec \"$@\""), "bash"]);
        command.arg(inner.get_program()).args(inner.get_args());
        for (name, value) in inner.get_envs() {
            command.env(name, value.unwrap_or_default()); // an empty variable counts as none
        }
        command.output().expect("bash is there")
    };
    for (kib, words) in [(0, ["cannot write", "is the disk full?"]), (500, ["bytes are free", "free some space"])] {
        let output = limited(kib);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
    Run::of(&mut download(&server, target.path(), &[])).succeeds();
}

#[test]
fn an_address_is_taken_as_it_is() {
    let server = Server::start(hub_files(&format!("{{a,b}}[1-2]/{ROOT}")), Behaviour::default());
    let target = folder();
    let mut command = download(&server, target.path(), &[]);
    Run::of(command.env("FLUX_MIRROR", format!("{}/{{a,b}}[1-2]", server.url()))).succeeds();
    assert!(target.path().join("vae/diffusion_pytorch_model.safetensors").exists());
    for (name, value) in [
        ("FLUX_MIRROR", "--upload-file=/etc/passwd"),
        ("FLUX_MIRROR", "file:///etc"),
        ("FLUX_MIRROR", "http://localhost/\x1b[31m"),
        ("RETRY_SECONDS", "soon"),
        ("RETRY_SECONDS", "-1"),
    ] {
        let run = Run::of(download(&server, target.path(), &[]).env(name, value)).fails(2, &[name, "expected"]);
        assert!(!run.stderr.contains('\x1b'), "{}", run.stderr);
    }
}

/// A name from an index becomes a path below the folder, a part of an address, and words on the terminal.
#[test]
fn names_of_shards_are_plain_file_names() {
    let index = format!("{ROOT}transformer/diffusion_pytorch_model.safetensors.index.json");
    for name in [
        "../../above.safetensors",
        "/tmp/elsewhere.safetensors",
        "sub/folder.safetensors",
        "-rf.safetensors",
        "a\u{1b}[31m.safetensors",
        "a\u{202e}b.safetensors",
        "a{b,c}[1-9].safetensors",
        r#"a\".safetensors"#,
        "",
    ] {
        let mut files = hub_files(ROOT);
        let text = format!(
            "{{\"metadata\": {{\"note\": \"x\"}}, \"weight_map\": {{\"one\": \"{name}\", \"two\": \"b.safetensors\"}}}}"
        );
        files.insert(index.clone(), text.into_bytes());
        let server = Server::start(files, Behaviour::default());
        let target = folder();
        let run = Run::of(&mut download(&server, target.path(), &[]));
        assert_eq!(run.code, Some(1), "{name}: {}", run.stderr);
        assert!(run.stderr.contains("no name for a file of weights"), "{name}: {}", run.stderr);
        assert!(!run.stderr.contains(['\u{1b}', '\u{202e}']), "{name}: {}", run.stderr);
        assert!(server.take_seen().iter().all(|seen| !seen.path.contains("b.safetensors")), "{name}");
    }
}

#[test]
fn numbers_and_checksums_of_a_server_are_such() {
    for size in ["08", "0x10", "1e3", "-1", "99999999999999999999", "1 2", "a[$(touch /tmp/x)]"] {
        let server = hub(Behaviour { head_lines: format!("X-Linked-Size: {size}\r\n"), ..Behaviour::default() });
        let target = folder();
        Run::of(&mut download(&server, target.path(), &[]))
            .fails(1, &["does not tell the size of model_index.json", size]);
    }
    for sum in ["0", "\x1b[31m", &"g".repeat(64), &"a".repeat(63)] {
        let mut files = hub_files(ROOT);
        files.insert(format!("{ROOT}SHA256SUMS"), format!("{sum}  model_index.json\n").into_bytes());
        let server = Server::start(files, Behaviour::default());
        let run = Run::of(&mut download(&server, folder().path(), &[])).fails(1, &["SHA256SUMS has no checksum"]);
        assert!(!run.stderr.contains('\x1b'), "{}", run.stderr);
    }
}
