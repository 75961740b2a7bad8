//! Limits of a server: connections, key files, responses.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Map, json};

use super::*;
use crate::program::{Run, flux};
use crate::serving::request;

/// More connections than the limit of a listener.
const MANY: usize = 1100;

#[test]
fn idle_connections_of_one_address_lock_no_client_out() {
    let limit = getrlimit(Resource::Nofile);
    let files = limit.maximum.map_or(4096, |maximum| maximum.min(4096));
    if files < 2 * MANY as u64 + 100 || setrlimit(Resource::Nofile, Rlimit { current: Some(files), ..limit }).is_err() {
        println!("skipped: too few open files");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flux.sock");
    let serving = Serving::start(&["--listen", &format!("unix:{}", path.display())]);
    let connect = |number: usize| {
        let mut stream = TcpStream::connect(serving.address).expect("it listens");
        let half = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{";
        // A connection that was closed meanwhile accepts no bytes.
        let _ = stream.write_all([b"".as_slice(), b"GET / HT", half][number % 3]);
        stream
    };
    let idle: Vec<_> = (0..MANY).map(connect).collect();
    let start = Instant::now();
    assert_eq!(serving.get("/healthz").status, 200);
    let ask = |mut stream: UnixStream| {
        stream.write_all(&request("GET", "/healthz", &[], b"")).expect("it is taken");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    };
    ask(UnixStream::connect(&path).unwrap());
    let idle_users: Vec<_> = (0..MANY).map(|_| UnixStream::connect(&path).unwrap()).collect();
    ask(UnixStream::connect(&path).unwrap());
    assert_eq!(serving.get("/healthz").status, 200);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    drop((idle, idle_users));
}

#[test]
fn a_file_of_keys_that_becomes_a_pipe_stops_no_signal_and_rates_outlive_a_reload() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let made = Run::new(flux().args(["key", "alice"])).succeeds();
    let key = made.stderr.split('`').nth(1).expect("a key").to_string();
    fs::write(&path, format!("{}:1\n", made.stdout.trim())).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let mut serving = Serving::start(&["--api-keys", path.to_str().unwrap()]);
    let head = [format!("Authorization: Bearer {key}"), "Content-Type: application/json".to_string()];
    let head: Vec<_> = head.iter().map(String::as_str).collect();
    let submit = || serving.ask("POST", "/v1/jobs", &head, small("x").to_string().as_bytes()).status;
    assert_eq!([submit(), submit()], [202, 429]);
    serving.signal("HUP");
    serving.hears("reloaded the keys");
    let submit = || serving.ask("POST", "/v1/jobs", &head, small("x").to_string().as_bytes()).status;
    assert_eq!(submit(), 429, "the rate is the one of before");
    fs::remove_file(&path).unwrap();
    let pipe = Command::new("mkfifo").args(["-m", "600"]).arg(&path).status();
    assert!(pipe.is_ok_and(|pipe| pipe.success()));
    serving.signal("HUP");
    serving.hears("the keys were not reloaded");
    serving.signal("TERM");
    assert_eq!(serving.end(), Some(0));
}

#[test]
fn no_answer_repeats_all_that_was_sent() {
    let serving = Serving::start(&[]);
    let long = "x".repeat(2 << 20);
    let many = || (0..100_000).map(|field| (format!("unknown_{field}"), json!("value"))).collect::<Map<_, _>>();
    let with_many = |value: Value| with(value, Value::from(many()));
    let node = |class: &str, name: &str| json!({"prompt": {"1": {"class_type": class, "inputs": {name: long}}}});
    let requests = [
        ("/v1/images/generations", with(small("x"), json!({&*long: 1}))),
        ("/v1/images/generations", with(small("x"), json!({"size": long, "output_format": long}))),
        ("/v1/images/generations", with(small("x"), json!({"model": long}))),
        ("/v1/images/generations", with(small("x"), json!({"prompt": long}))),
        ("/v1/images/generations", with(small("x"), json!({"loras": [{&*long: long}]}))),
        ("/v1/images/generations", with_many(small("x"))),
        ("/v1/jobs", with_many(small("x"))),
        ("/sdapi/v1/txt2img", with_many(json!({"prompt": "x", "width": 64, "height": 64, "send_images": false}))),
        ("/sdapi/v1/txt2img", json!({"prompt": "x", "width": 64, "height": 64, "send_images": false, &*long: long})),
        ("/sdapi/v1/txt2img", json!({"prompt": "x", "width": long})),
        ("/sdapi/v1/img2img", json!({"prompt": "x", "init_images": [long]})),
        ("/prompt", node(&long, "x")),
        ("/prompt", node("KSampler", &long)),
        ("/prompt", json!({"prompt": {&*long: {"class_type": "KSampler", "inputs": {}}}})),
        ("/prompt", with_many(json!({"prompt": {}}))),
    ];
    for (path, body) in requests {
        let reply = serving.post(path, &body);
        let start: String = body.to_string().chars().take(60).collect();
        assert!(reply.body.len() < 32 << 10, "{path} {start}: {} bytes", reply.body.len());
    }
    let form = serving.form("/v1/images/edits", &[(&long, None, b"1"), ("prompt", None, b"x")]);
    assert!(form.status >= 400 && form.body.len() < 8 << 10, "{}", form.body.len());
    let form = serving.form("/v1/images/edits", &[("image", Some(&long), b"1"), ("prompt", None, b"x")]);
    assert!(form.status >= 400 && form.body.len() < 8 << 10, "{}", form.body.len());
    assert_eq!(serving.get("/healthz").status, 200);
}
