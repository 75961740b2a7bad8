//! `flux submit`, `flux worker` and `flux queue` without a broker: `make test-cluster` tests them with one.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::program::{Run, flux, folder};

/// Runs `flux` in a folder, with a store in it and a broker that is never contacted.
fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = flux();
    command.env_remove("FLUX_QUEUE_PASSWORD").env("FLUX_QUEUE", "amqp://nobody.invalid");
    command.env("FLUX_STORE", format!("file://{}", folder.join("store").display()));
    command.current_dir(folder).args(args);
    command
}

fn run(folder: &Path, args: &[&str]) -> Run {
    Run::new(&mut command(folder, args))
}

fn register(folder: &Path, name: &str) {
    run(folder, &["worker", "--name", name, "--register"]).succeeds();
}

fn dry(folder: &Path, args: &[&str]) -> String {
    let run = run(folder, &[&["submit", "--dry-run"], args].concat()).succeeds();
    format!("{}{}", run.stdout, run.stderr)
}

#[test]
fn the_same_list_is_the_same_batch_although_it_names_no_seeds() {
    let folder = folder();
    register(&folder, "tiny");
    fs::write(folder.join("list.txt"), "a cat\na dog\na cat\n").unwrap();
    let first = dry(&folder, &["list.txt"]);
    assert!(first.starts_with("b-") && first.contains("3 jobs: 3 to send, 0 "), "{first}");
    assert_eq!(dry(&folder, &["list.txt", "--model", "tiny"]), first);
    assert_ne!(dry(&folder, &["list.txt", "--size", "64"]), first);
    let line = "{\"prompt\": \"a\", \"seed\": 1, \"output\": \"a.png\"}\n";
    fs::write(folder.join("twice.jsonl"), line.repeat(2)).unwrap();
    let alike = dry(&folder, &["twice.jsonl"]);
    for words in ["1 jobs: 1 to send", "1 lines request the same", "`output` of 2 lines is ignored"] {
        assert!(alike.contains(words), "{words}: {alike}");
    }
    assert!(!folder.join("store/batches").exists(), "nothing is written");
}

#[test]
fn lines_that_are_wrong_are_told_and_the_exit_code_says_so() {
    let folder = folder();
    register(&folder, "tiny");
    let lines = "{\"prompt\": \"a\"}\n{\"promt\": \"b\"}\n{\"prompt\": \"c\", \"latents\": \"l.safetensors\"}\n";
    fs::write(folder.join("list.jsonl"), lines).unwrap();
    let run = run(&folder, &["submit", "list.jsonl", "--dry-run"]);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    for words in ["line 2: ", "promt", "line 3: noise, latents and text features", "1 to send", "2 lines were not"] {
        assert!(run.stderr.contains(words), "{words}: {}", run.stderr);
    }
}

#[test]
fn a_store_knows_its_models_by_name() {
    let folder = folder();
    fs::write(folder.join("list.txt"), "a cat\n").unwrap();
    let submit = |model: &[&str]| run(&folder, &[&["submit", "list.txt", "--dry-run"], model].concat());
    submit(&[]).fails(2, &["the store has no model", "--register"]);
    register(&folder, "tiny");
    submit(&["--model", "other"]).fails(2, &["no model `other`"]);
    submit(&["--model", "../x"]).fails(2, &["not a valid model name"]);
    register(&folder, "other");
    submit(&[]).fails(2, &["several models: ", "other", "tiny"]);
    assert!(submit(&["--model", "other"]).succeeds().stderr.contains("1 to send"));
    fs::write(folder.join("store/models/tiny.json"), "{").unwrap();
    submit(&["--model", "tiny"]).fails(1, &["is damaged", "--register"]);
}

#[test]
fn a_password_is_no_word_of_a_command_line_and_addresses_are_checked() {
    let folder = folder();
    fs::write(folder.join("list.txt"), "a cat\n").unwrap();
    let submit = |flags: &[&str]| run(&folder, &[&["submit", "list.txt"], flags].concat());
    let told = submit(&["--queue", "amqps://flux:secret@broker"]);
    assert!(!told.stderr.contains("secret"), "{}", told.stderr);
    told.fails(2, &["--queue-password-file", "FLUX_QUEUE_PASSWORD"]);
    submit(&["--store", "s3://key:secret@bucket"]).fails(2, &["AWS_SECRET_ACCESS_KEY"]);
    submit(&["--store", "gs://bucket"]).fails(2, &["s3://BUCKET/PREFIX"]);
    submit(&["--queue", "broker"]).fails(2, &["amqps://USER@HOST"]);
    submit(&["--save-latents", "l.safetensors"]).fails(2, &["--save-latents"]);
    submit(&["--quality", "80"]).fails(2, &["--output-format jpeg"]);
    let mut without = command(&folder, &["submit", "list.txt"]);
    Run::new(without.env_remove("FLUX_QUEUE")).fails(2, &["no queue address is set", "FLUX_QUEUE"]);
    let mut without = command(&folder, &["submit", "list.txt"]);
    Run::new(without.env_remove("FLUX_STORE")).fails(2, &["no store is specified", "FLUX_STORE"]);
    run(&folder, &["queue", "dead", "drop"]).fails(2, &["--all"]);
    run(&folder, &["queue", "status", "b-x"]).fails(1, &["nobody.invalid"]);
}

#[test]
fn a_broker_that_is_away_is_waited_for_as_long_as_is_said() {
    let folder = folder();
    register(&folder, "tiny");
    fs::write(folder.join("list.txt"), "a cat\n").unwrap();
    // No process listens at a port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let submit = ["submit", "list.txt", "--wait", "0", "--queue", &format!("amqp://127.0.0.1:{port}")];
    let run = run(&folder, &submit);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.stderr.contains("run the command again"), "{}", run.stderr);
}

#[cfg(feature = "server")]
#[test]
fn a_server_of_a_queue_opens_no_model_and_is_told_where_its_jobs_go() {
    let folder = folder();
    let serve = |flags: &[&str]| run(&folder, &[&["serve", "--listen", "127.0.0.1:0"], flags].concat());
    let store = format!("file://{}", folder.join("store").display());
    serve(&["--store", &store]).fails(2, &["the store has no model", "--register"]);
    register(&folder, "tiny");
    serve(&["--store", &store, "--model", "other"]).fails(2, &["no model `other`"]);
    serve(&["--store", &store, "--model", "tiny=models/tiny"]).fails(2, &["not a valid model name"]);
    serve(&["--store", &store, "--model", "tiny", "--model", "tiny"]).fails(2, &["`tiny` is used twice"]);
    for flags in [&["-d", "4b"][..], &["--batch-max", "2"], &["--device", "cpu"], &["--kv"], &["--quantize", "q8_0"]] {
        serve(&[&["--store", &store], flags].concat()).fails(2, &["cannot be used with", flags[0]]);
        serve(&[&["--queue", "amqp://broker"], flags].concat()).fails(2, &["cannot be used with", flags[0]]);
    }
    serve(&["--queue", "amqp://flux:secret@broker"]).fails(2, &["--queue-password-file"]);
    serve(&["--queue", "broker"]).fails(2, &["amqps://USER@HOST"]);
    serve(&["--store", "gs://bucket"]).fails(2, &["s3://BUCKET/PREFIX"]);
    serve(&["--store", &store, "--presigned-urls"]).fails(2, &["a folder cannot presign URLs"]);
    serve(&["--presigned-urls"]).fails(2, &["--presigned-urls", "--store URL"]);
    serve(&["--queue-ca", "ca.pem"]).fails(2, &["--queue-ca", "--queue URL"]);
    register(&folder, "second");
    serve(&["--store", &store]).fails(2, &["several models: ", "--model"]);
    let mut without = command(&folder, &["serve", "--store", &store, "--model", "tiny"]);
    Run::new(without.env_remove("FLUX_QUEUE")).fails(2, &["no queue address is set", "FLUX_QUEUE"]);
}
