//! The life of a server: load, clients that disconnect, signals.

use std::io::Read;
use std::process::Command;

use flux::input::read_bytes;
use serde_json::json;

use super::*;
use crate::program::{Run, flux, project};
use crate::serving::{read_reply, request};

/// Returns the bytes of a request for images.
fn generation(body: &Value) -> Vec<u8> {
    request("POST", "/v1/images/generations", &["Content-Type: application/json"], body.to_string().as_bytes())
}

#[test]
fn a_client_that_goes_ends_its_work() {
    let serving = Serving::start(&["--batch-max", "1"]);
    for stream in [false, true] {
        let running = serving.begin(&generation(&with(endless(), json!({"stream": stream}))));
        until("it runs", || work(&serving)[0] == 1);
        let waiting: Vec<_> = (0..3).map(|_| serving.begin(&generation(&endless()))).collect();
        until("they wait", || work(&serving) == [1, 3]);
        drop(waiting);
        until("those that waited are gone", || work(&serving) == [1, 0]);
        drop(running);
        until("the engine is free", || work(&serving) == [0, 0]);
    }
    let figures = String::from_utf8(serving.get("/metrics").body).unwrap();
    assert!(figures.contains("flux_disconnects_total 8"), "{figures}");
    assert!(figures.contains("flux_jobs_total{status=\"cancelled\"} 8"), "{figures}");
}

#[test]
fn too_much_work_is_refused_at_once() {
    let serving = Serving::start(&["--queue-max", "2", "--batch-max", "1"]);
    let held: Vec<_> = (0..3)
        .map(|number| {
            // The first leaves the queue at once.
            until("the first runs", || work(&serving)[0] == number.min(1));
            serving.post("/v1/jobs", &endless()).json()["urls"]["self"].clone()
        })
        .collect();
    until("two wait", || work(&serving) == [1, 2]);
    let full = serving.post("/v1/images/generations", &small("x"));
    assert_eq!((full.error().0, full.error().1.as_str()), (429, "queue_full"));
    assert!(full.header("retry-after").is_some());
    assert_eq!(serving.get("/readyz").json()["status"], "queue_full");
    for path in held {
        serving.ask("DELETE", path.as_str().unwrap(), &[], b"");
    }
    until("there is room again", || serving.get("/readyz").status == 200);
    assert_eq!(serving.post("/v1/images/generations", &small("x")).status, 200);
}

#[test]
fn what_would_be_late_is_refused() {
    let serving = Serving::start(&[]);
    assert_eq!(serving.post("/v1/images/generations", &small("x")).status, 200, "now times are known");
    let late = serving.post("/v1/images/generations", &with(endless(), json!({"deadline_s": 0.5})));
    assert_eq!((late.error().0, late.error().1.as_str()), (429, "would_miss_deadline"));
    let job = serving.post("/v1/jobs", &endless()).json();
    assert_eq!(job["status"], "queued");
    let body = small("x").to_string();
    let head = ["Content-Type: application/json", "x-stainless-read-timeout: 0.2"];
    let late = serving.ask("POST", "/v1/images/generations", &head, body.as_bytes());
    assert_eq!(late.error().1, "would_miss_deadline", "the client would be gone");
    serving.ask("DELETE", job["urls"]["self"].as_str().unwrap(), &[], b"");
}

#[test]
fn a_signal_ends_it_when_what_was_taken_is_made() {
    let mut serving = Serving::start(&[]);
    let body = json!({"prompt": "x", "size": "128x128", "steps": 8, "seed": 1});
    let running: Vec<_> = (0..3).map(|_| serving.begin(&generation(&body))).collect();
    until("they are there", || work(&serving).iter().sum::<u64>() == 3);
    serving.signal("TERM");
    for stream in running {
        assert_eq!(images(&read_reply(stream)).len(), 1);
    }
    assert_eq!(serving.end(), Some(0));
    assert!(serving.said().contains("ended"));

    let mut serving = Serving::start(&["--drain", "0"]);
    let endless = serving.begin(&generation(&endless()));
    until("it runs", || work(&serving)[0] == 1);
    serving.signal("INT");
    let reply = read_reply(endless);
    assert!(matches!(reply.status, 503 | 409), "{}", reply.json());
    assert_eq!(serving.end(), Some(0));
}

#[test]
fn whoever_is_silent_stops_nobody() {
    let serving = Serving::start(&[]);
    let silent: Vec<_> = (0..32).map(|_| serving.begin(b"")).collect();
    let half: Vec<_> = (0..16).map(|_| serving.begin(b"GET / HTTP/1.1\r\nHo")).collect();
    assert_eq!(serving.get("/readyz").json()["status"], "ready");
    assert_eq!(serving.post("/v1/images/generations", &small("x")).status, 200);
    drop((silent, half));
}

#[test]
fn keep_alive_and_pipelined_requests_are_answered_in_order() {
    let serving = Serving::start(&[]);
    let one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let last = request("GET", "/nothing", &[], b"");
    let mut stream = serving.begin(&[&one[..], one, &last].concat());
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!((text.matches("HTTP/1.1 200").count(), text.matches("HTTP/1.1 404").count()), (2, 1), "{text}");
}

#[test]
fn users_and_clients_get_what_they_ask_for_under_load() {
    let serving = Serving::start(&[]);
    let expected: Vec<_> = (0..4)
        .map(|seed| images(&serving.post("/v1/images/generations", &with(small("a cat"), json!({"seed": seed})))))
        .collect();
    std::thread::scope(|scope| {
        for client in 0..8 {
            let (serving, expected) = (&serving, &expected);
            scope.spawn(move || {
                for round in 0..6 {
                    let seed = (client + round) % 4;
                    let body = with(small("a cat"), json!({"seed": seed, "user": format!("u{client}")}));
                    assert_eq!(images(&serving.post("/v1/images/generations", &body)), expected[seed as usize]);
                }
            });
        }
    });
    assert_eq!(work(&serving), [0, 0]);
}

#[test]
fn several_models_are_served_by_name_and_closed_when_nobody_uses_them() {
    let tiny = project("models/tiny");
    let tiny = tiny.to_str().unwrap();
    let mut serving = Serving::start(&["-d", tiny, "--model", &format!("other={tiny}"), "--idle-unload", "4"]);
    let models = || serving.get("/v1/models").json()["data"].clone();
    assert_eq!((&models()[0]["id"], &models()[1]["id"]), (&json!("tiny"), &json!("other")));
    assert_eq!(models()[1]["flux"], Value::Null, "it is not open");
    let ask = |model: &str| {
        let reply = serving.post("/v1/images/generations", &with(small("a cat"), json!({"model": model})));
        assert_eq!(reply.json()["flux"]["model"], model);
        let recipe = reply.json()["flux"]["recipes"][0].to_string();
        assert!(!recipe.contains(tiny), "no path: {recipe}");
        read_bytes(&images(&reply)[0]).unwrap().bytes
    };
    let first = ask("tiny");
    assert!(ask("other") == first && ask("tiny") == first && ask("other") == first);
    assert_eq!(
        (&models()[0]["flux"], &models()[1]["flux"]["steps"]),
        (&Value::Null, &json!(4)),
        "one is open at a time"
    );
    let wrong = with(small("x"), json!({"model": "tiny", "size": "8192x8192"}));
    assert_eq!(
        serving.post("/v1/images/generations", &wrong).error(),
        (400, "invalid_value".to_string(), "size".to_string())
    );
    // The last request opened the other model.
    serving.hears("closed tiny");
    let again = serving.post("/v1/images/generations", &with(small("a cat"), json!({"model": "other"})));
    assert_eq!(read_bytes(&images(&again)[0]).unwrap().bytes, first);
}

#[test]
fn https_is_served_with_a_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"])
        .args(["-keyout", &at("key.pem"), "-out", &at("cert.pem")])
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        eprintln!("skipped: no openssl");
        return;
    }
    let serving = Serving::start(&["--tls-cert", &at("cert.pem"), "--tls-key", &at("key.pem")]);
    let port = serving.address.port();
    let url = format!("https://localhost:{port}/readyz");
    let run = Run::new(Command::new("curl").args(["-s", "--fail", "--cacert", &at("cert.pem"), &url])).succeeds();
    assert!(run.stdout.contains("\"ready\""), "{}", run.stdout);
    // A client without TLS gets no response, and blocks no other client.
    let mut plain = serving.begin(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut text = Vec::new();
    let _ = plain.read_to_end(&mut text);
    assert!(!text.starts_with(b"HTTP/1.1 200"));
    Run::new(flux().args(["serve", "--tls-cert", &at("key.pem"), "--tls-key", &at("cert.pem")]))
        .fails(2, &["certificate"]);
}

#[test]
fn a_server_is_measured() {
    let serving = Serving::start(&[]);
    let url = format!("http://{}", serving.address);
    let flags = ["bench", "serve", "--url", &url, "--size", "64", "--steps", "1", "--seconds", "1", "--json"];
    let run = Run::new(flux().args(flags).args(["--clients", "1,3"])).succeeds();
    let rows: Vec<Value> = run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((rows.len(), &rows[1]["clients"]), (2, &json!(3.0)));
    for row in &rows {
        assert!(row["images"].as_u64() > Some(0), "{row}");
        assert!(row["images_per_s"].as_f64() > Some(0.0) && row["p99_s"].as_f64() >= row["p50_s"].as_f64(), "{row}");
        assert_eq!(row["failed"], json!({}));
    }
    let run = Run::new(flux().args(flags).args(["--rate", "4"])).succeeds();
    assert!(run.stdout.contains("\"rate\":4.0"), "{}", run.stdout);
}

#[test]
fn a_request_for_more_memory_than_there_is_ends_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let limited = folder.path().join("limited");
    let script = format!("#!/bin/sh\nulimit -v 450000\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_flux"));
    std::fs::write(&limited, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&limited, mode).unwrap();
    let mut serving =
        Serving::from_command(Command::new(&limited).env("FLUX_CONFIG", "").args(["--device", "cpu"]), &[]);
    serving.hears("ready after");
    let image = png(7900, 7900, [9; 3]);
    let edit = || {
        let parts = [
            ("image", Some("a.png"), &image[..]),
            ("prompt", None, b"x"),
            ("size", None, b"64x64"),
            ("steps", None, b"1"),
        ];
        serving.form("/v1/images/edits", &parts).error()
    };
    std::thread::scope(|scope| {
        let edits: Vec<_> = (0..4).map(|_| scope.spawn(edit)).collect();
        for edit in edits {
            let (status, code, _) = edit.join().unwrap();
            assert!(status == 503 && code == "out_of_memory", "{status} {code}");
        }
    });
    assert_eq!(serving.post("/v1/images/generations", &small("a cat")).status, 200);
    serving.signal("TERM");
    assert_eq!(serving.end(), Some(0), "{}", serving.said());
}

#[test]
fn a_certificate_is_a_small_regular_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    std::fs::File::create(at("huge")).unwrap().set_len(1 << 40).unwrap();
    std::fs::write(at("fine"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    let folder = folder.path().display().to_string();
    for bad in ["/dev/zero", &at("pipe"), &at("huge"), &folder, &at("none")] {
        for (cert, key, what) in [(bad, &*at("fine"), "certificate"), (&*at("fine"), bad, "private key")] {
            let run = Run::new(flux().args(["serve", "--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key]));
            run.fails(2, &["cannot read the", what, "hint: "]);
        }
    }
}
