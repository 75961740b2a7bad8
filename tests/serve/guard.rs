//! Requests that are not let in.

use std::fs;
use std::io::Write;

use serde_json::json;

use super::*;
use crate::program::{Run, flux};
use crate::serving::{read_reply, request};

#[test]
fn hosts_and_origins_of_others_are_refused() {
    let serving = Serving::start(&["--allow-host", "flux.example", "--cors", "https://friend.example"]);
    let get = |head: &[&str]| serving.ask("GET", "/v1/models", head, b"");
    assert_eq!(get(&["Host: evil.example"]).error().1, "unknown_host");
    assert_eq!(get(&["Host: flux.example"]).status, 200);
    assert_eq!(get(&["Origin: https://evil.example"]).error().1, "forbidden_origin");
    let friend = get(&["Origin: https://friend.example"]);
    assert_eq!(friend.header("access-control-allow-origin"), Some("https://friend.example"));
    assert_eq!(serving.get("/v1/models").header("access-control-allow-origin"), None);
    let asked = |head: &[&str]| serving.ask("OPTIONS", "/v1/jobs", head, b"");
    assert_eq!(asked(&["Origin: https://friend.example"]).status, 204);
    assert_eq!(asked(&["Origin: https://evil.example"]).status, 403);
    let cross =
        serving.ask("POST", "/v1/jobs", &["Sec-Fetch-Site: cross-site", "Content-Type: application/json"], b"{}");
    assert_eq!(cross.error().1, "forbidden_origin");
}

#[test]
fn a_key_is_needed_where_there_are_keys_and_owns_its_jobs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let new = |name: &str| {
        let run = Run::new(flux().args(["key", name])).succeeds();
        let key = run.stderr.split('`').nth(1).expect("the key").to_string();
        (key, run.stdout)
    };
    let ((alice, first), (bob, second)) = (new("alice"), new("bob"));
    let write = |text: &str| {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    };
    write(&first);
    let mut serving = Serving::start(&["--api-keys", path.to_str().unwrap()]);
    let head = |key: &str| [format!("Authorization: Bearer {key}"), "Content-Type: application/json".to_string()];
    let ask = |serving: &Serving, key: &str, method: &str, path: &str, body: &str| {
        let head = head(key);
        serving.ask(method, path, &[&head[0], &head[1]], body.as_bytes())
    };
    assert_eq!(serving.get("/v1/models").error().1, "invalid_api_key");
    assert_eq!(serving.get("/v1/models").header("www-authenticate"), Some("Bearer"));
    assert_eq!(ask(&serving, "flux-wrong", "GET", "/v1/models", "").status, 401);
    assert_eq!(ask(&serving, &alice, "GET", "/v1/models", "").status, 200);
    assert_eq!([serving.get("/healthz").status, serving.get("/readyz").status], [200, 200]);
    assert_eq!(serving.get("/metrics").status, 401);

    assert_eq!(ask(&serving, &bob, "GET", "/v1/models", "").status, 401, "not yet");
    write(&format!("{first}{}:2\n", second.trim()));
    serving.signal("HUP");
    serving.hears("reloaded the keys");
    let job = ask(&serving, &bob, "POST", "/v1/jobs", &small("x").to_string());
    assert_eq!(job.status, 202, "{}", job.json());
    let own = job.json()["urls"]["self"].as_str().unwrap().to_string();
    assert_eq!(ask(&serving, &bob, "GET", &own, "").status, 200);
    assert_eq!(ask(&serving, &alice, "GET", &own, "").status, 404, "it is not hers");
    assert_eq!(ask(&serving, &alice, "DELETE", &own, "").status, 404);
    assert_eq!(ask(&serving, &alice, "GET", "/v1/jobs", "").json()["data"], json!([]));

    let limited = ask(&serving, &bob, "POST", "/v1/jobs", &with(small("x"), json!({"n": 2})).to_string());
    assert_eq!(limited.error().1, "rate_limited");
    assert!(limited.header("retry-after").is_some_and(|seconds| (1..=60).contains(&seconds.parse::<u64>().unwrap())));
    assert!(!serving.said().contains(&bob), "keys are in no log");
}

#[test]
fn bodies_that_are_none_are_told() {
    let serving = Serving::start(&[]);
    let post = |kind: &str, body: &[u8]| {
        serving.ask("POST", "/v1/images/generations", &[&format!("Content-Type: {kind}")], body).error()
    };
    assert_eq!((post("application/json", b"{").0, post("application/json", b"{").1.as_str()), (400, "invalid_json"));
    assert_eq!(post("application/json", b"[]").1, "invalid_json");
    assert_eq!(post("text/plain", b"x").0, 415);
    assert_eq!(post("multipart/form-data", b"x").1, "invalid_form");
    assert_eq!(post("multipart/form-data; boundary=XXX", b"--XXX\r\nbroken").1, "invalid_form");
    assert_eq!(post("application/json", &vec![b' '; (8 << 20) + 1]).0, 413);
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    assert_eq!(post("application/json", &deep).1, "invalid_json");
    let not_utf8 = serving.form("/v1/jobs", &[("prompt", None, b"\xff\xfe")]);
    assert_eq!(not_utf8.error(), (400, "invalid_value".to_string(), "prompt".to_string()));
    let many: Vec<_> = (0..300).map(|_| ("prompt", None, &b"x"[..])).collect();
    assert_eq!(serving.form("/v1/jobs", &many).error().1, "invalid_form");
    assert_eq!(serving.get("/v1/images/generations").error().0, 405);
    assert_eq!(serving.get("/nothing").error().0, 404);
    assert_eq!(serving.ask("POST", "/v1/images/variations", &[], b"").error().0, 404);
    // A client that disconnects in the middle of its body.
    let mut stream = serving.begin(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
    stream.flush().unwrap();
    drop(stream);
    assert_eq!(serving.get("/healthz").status, 200);
}

#[test]
fn heads_that_are_too_long_are_refused() {
    let serving = Serving::start(&[]);
    let lines: Vec<_> = (0..100).map(|number| format!("x-{number}: 1")).collect();
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    assert_eq!(read_reply(serving.begin(&request("GET", "/healthz", &lines, b""))).status, 431);
    let long = format!("x: {}", "y".repeat(40_000));
    assert_eq!(read_reply(serving.begin(&request("GET", "/healthz", &[&long], b""))).status, 431);
    let reply = serving.get("/healthz");
    assert_eq!(
        (reply.header("x-content-type-options"), reply.header("referrer-policy")),
        (Some("nosniff"), Some("no-referrer"))
    );
    assert_eq!(reply.header("x-request-id").map(str::len), Some(32));
    assert_eq!(reply.header("cross-origin-resource-policy"), Some("same-origin"));
    assert_eq!(serving.get("/v1/files/x.png").header("cross-origin-resource-policy"), None);
}

#[test]
fn images_that_are_too_large_are_not_decoded() {
    let serving = Serving::start(&[]);
    let mut bomb = png(64, 64, [0; 3]);
    // The header has another size.
    bomb[16..24].copy_from_slice(&[0, 0, 0x75, 0x30, 0, 0, 0x75, 0x30]);
    let reply = serving.form("/v1/jobs", &[("prompt", None, b"x"), ("image", Some("a.png"), &bomb)]);
    assert_eq!(reply.error(), (400, "invalid_image".to_string(), "image".to_string()));
    let images: Vec<_> = (0..17).map(|_| png(16, 16, [9; 3])).collect();
    let mut parts: Vec<crate::serving::Part<'_>> =
        images.iter().map(|image| ("image[]", Some("a.png"), &image[..])).collect();
    parts.push(("prompt", None, b"x"));
    assert_eq!(serving.form("/v1/jobs", &parts).error().2, "image");
}

#[test]
fn paths_may_have_more_slashes_than_they_need() {
    let serving = Serving::start(&["--base-path", "/flux"]);
    for path in
        ["/health", "/healthz/", "//readyz", "/v1/models/", "//v1//models", "/flux/v1/models", "/flux//v1/models/?a=b"]
    {
        assert_eq!(serving.get(path).status, 200, "{path}");
    }
    assert_eq!(serving.post("/flux/v1/images/generations/", &small("x")).status, 200);
    assert_eq!(serving.get("/fluxx/v1/models").status, 404);
    // Browsers resolve the page's files relative to it.
    for (path, place) in [("/flux", "flux/"), ("/flux/live/", "../live"), ("/batches/", "../batches")] {
        let reply = serving.get(path);
        assert_eq!((reply.status, reply.header("location")), (308, Some(place)), "{path}");
    }
    for path in ["/flux/", "/flux/live", "/flux/flux.js", "/flux/page/api.js", "/flux.js"] {
        assert_eq!(serving.get(path).status, 200, "{path}");
    }
}

#[test]
fn a_name_that_is_refused_is_in_the_log_with_a_remedy() {
    let mut serving = Serving::start(&[]);
    let reply = serving.ask("GET", "/v1/models", &["Host: draw.example"], b"");
    assert_eq!(reply.error().1, "unknown_host");
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("--public-url"));
    let line = serving.hears("draw.example");
    assert!(line.contains("--public-url") && line.contains("proxy_set_header"), "{line}");
    for flags in [["--public-url", "draw.example"], ["--base-path", "flux"], ["--trust-proxy", "proxy"]] {
        Run::new(flux().args(["serve", "--listen", "127.0.0.1:0"]).args(flags)).fails(2, &[flags[0]]);
    }
}

#[test]
fn a_line_of_a_failed_request_says_what_was_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let made = Run::new(flux().args(["key", "alice"])).succeeds();
    let key = made.stderr.split('`').nth(1).expect("the key").to_string();
    fs::write(&path, made.stdout).unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut serving = Serving::start(&["-v", "--api-keys", path.to_str().unwrap()]);
    let authorization = format!("Authorization: Bearer {key}");
    let head = ["Content-Type: application/json", &authorization];
    let route = "/v1/images/generations";
    let wrong = json!({"prompt": "private", "model": "some model", "width": 64, "height": "96", "n": 0, "what": 1});
    assert_eq!(serving.ask("POST", route, &head, wrong.to_string().as_bytes()).status, 400);
    let line = serving.hears(route);
    for word in [" 400 ", " s ", "code=invalid_value", "field=n,what", "key=alice", "model=some_model", "size=64x96"] {
        assert!(line.contains(word), "{word}: {line}");
    }
    serving.get("/v1/models");
    assert!(serving.hears("/v1/models").contains("401"));
    serving.ask("GET", "/v1/files/00112233445566778899aabbccddeeff.png", &head, b"");
    assert!(serving.hears("/v1/files/").contains("code=not_found"));
    drop(serving.begin(&request("POST", route, &head, endless().to_string().as_bytes())));
    assert!(serving.hears(" 499 ").contains("code=client_left"));
    let said = serving.said();
    assert!(["private", &key, "00112233"].iter().all(|secret| !said.contains(secret)), "{said}");
}

#[test]
fn other_machines_need_keys() {
    let run = Run::new(flux().env_remove("FLUX_API_KEYS").args(["serve", "--listen", "0.0.0.0:0"]));
    run.fails(2, &["--listen", "no keys", "--api-keys"]);
    // The name is too long for DNS, so no server is contacted.
    let long = "x".repeat(300);
    for (flags, words) in [
        (&["--host", "0.0.0.0", "--port", "0"][..], &["--host", "no keys"][..]),
        (&["--host", &long], &["--host", "--allow-host"]),
        (&["--host", "127.0.0.1", "--listen", "127.0.0.1:0"], &["--listen"]),
        (&["--port", "70000"], &["70000"]),
    ] {
        Run::new(flux().env_remove("FLUX_API_KEYS").args(["serve"]).args(flags)).fails(2, words);
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    Run::new(flux().args(["serve", "--listen", &address])).fails(1, &["cannot listen", &address]);
    Run::new(flux().args(["serve", "-d", "none", "--listen", "127.0.0.1:0"])).fails(1, &["none"]);
    Run::new(flux().args(["serve", "--lora", "none.safetensors", "--listen", "127.0.0.1:0"])).fails(2, &["--lora"]);
    Run::new(flux().args(["serve", "--model", "none", "--listen", "127.0.0.1:0"])).fails(2, &["NAME=PATH"]);
}
