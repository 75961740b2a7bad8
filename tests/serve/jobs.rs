//! The jobs API.

use std::io::Read;

use serde_json::json;

use super::*;
use crate::serving::{read_reply, request};

/// Submits a job and returns its path.
fn submit(serving: &Serving, body: &Value) -> String {
    let reply = serving.post("/v1/jobs", body);
    assert_eq!(reply.status, 202, "{}", reply.json());
    reply.json()["urls"]["self"].as_str().expect("a path").to_string()
}

#[test]
fn a_job_goes_on_by_itself_and_tells_what_happens() {
    let serving = Serving::start(&[]);
    let body = json!({"prompt": "a cat", "size": "64x64", "steps": 3, "seed": 5, "n": 2});
    let path = submit(&serving, &body);
    let events = serving.get(&format!("{path}/events")).events();
    let names: Vec<_> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((names[0], names[names.len() - 1]), ("queued", "done"), "{names:?}");
    let count = |name: &str| names.iter().filter(|known| **known == name).count();
    assert_eq!((count("started"), count("preview"), count("image")), (2, 4, 2), "{names:?}");
    assert_eq!(events.last().unwrap().1["job"]["images_done"], 2);
    let job = serving.get(&path).json();
    assert_eq!((&job["status"], &job["size"], &job["steps"]), (&json!("done"), &json!("64x64"), &json!(3)));
    let result = serving.get(&format!("{path}/result")).json();
    let [a, b] = [0, 1].map(|image| serving.get(&format!("{path}/images/{image}")));
    assert_eq!((a.header("content-type"), a.status), (Some("image/png"), 200));
    assert_eq!(
        (decoded(&result["data"][0]["b64_json"]), decoded(&result["data"][1]["b64_json"])),
        (a.body.clone(), b.body)
    );
    assert_eq!(result["data"][1]["seed"], 6);
    let whole = serving.post("/v1/images/generations", &body);
    assert_eq!(images(&whole)[0], a.body, "the same on every route");
    assert_eq!(serving.get(&format!("{path}/images/2")).status, 404);
    // Events are numbered, except later positions in the queue.
    let last = names[1..].iter().filter(|name| **name != "queued").count() - 1;
    let rest = serving.ask("GET", &format!("{path}/events"), &[&format!("Last-Event-ID: {last}")], b"").events();
    assert_eq!(rest.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["done"]);
}

#[test]
fn jobs_wait_in_turn_and_may_be_cancelled() {
    let serving = Serving::start(&["--batch-max", "1"]);
    let running = submit(&serving, &endless());
    until("it runs", || serving.get(&running).json()["status"] == "running");
    let waiting: Vec<_> = (0..4).map(|_| submit(&serving, &endless())).collect();
    until("the first of them is next", || serving.get(&waiting[0]).json()["position"] == 0);
    assert_eq!(serving.get(&waiting[3]).json()["position"], 3);
    assert_eq!(serving.get(&format!("{}/result", waiting[3])).error(), (409, "not_done".to_string(), String::new()));
    let cancelled = serving.ask("DELETE", &waiting[2], &[], b"").json();
    assert_eq!((&cancelled["status"], &cancelled["error"]["code"]), (&json!("cancelled"), &json!("cancelled")));
    until("the others move up", || serving.get(&waiting[3]).json()["position"] == 2);
    let listed = serving.get("/v1/jobs?status=cancelled").json();
    assert_eq!(listed["data"].as_array().map(Vec::len), Some(1));
    assert_eq!(serving.get("/v1/jobs?limit=2").json()["data"].as_array().map(Vec::len), Some(2));
    assert_eq!(serving.get("/v1/jobs?limit=x").status, 400);
    for path in [&running, &waiting[0], &waiting[1], &waiting[3]] {
        assert_eq!(serving.ask("DELETE", path, &[], b"").status, 200);
    }
    until("nothing is left", || work(&serving) == [0, 0]);
    let events = serving.get(&format!("{running}/events")).events();
    assert_eq!(events.last().unwrap().0, "cancelled");
    assert_eq!(serving.post("/v1/images/generations", &small("x")).status, 200, "the engine is free");
}

#[test]
fn a_key_of_the_client_names_one_job() {
    let serving = Serving::start(&[]);
    let send = |key: &str, body: &Value| {
        let head = ["Content-Type: application/json", &format!("Idempotency-Key: {key}")];
        serving.ask("POST", "/v1/jobs", &head, body.to_string().as_bytes())
    };
    let id = |reply: &crate::serving::Reply| reply.json()["id"].as_str().expect("an id").to_string();
    let first = send("a", &small("x"));
    assert_eq!(first.status, 202);
    assert_eq!(id(&send("a", &small("x"))), id(&first));
    assert_ne!(id(&send("b", &small("x"))), id(&first));
    let other = send("a", &small("y"));
    assert_eq!((other.error().0, other.error().1.as_str()), (409, "idempotency_conflict"));
    assert_eq!(other.header("x-should-retry"), Some("false"));
    // A form has another boundary each time.
    let form = |boundary: &str| {
        let body =
            String::from_utf8(crate::serving::form(&[("prompt", None, b"x"), ("size", None, b"64x64")])).unwrap();
        let head =
            [format!("Content-Type: multipart/form-data; boundary={boundary}"), "Idempotency-Key: c".to_string()];
        serving.ask("POST", "/v1/jobs", &[&head[0], &head[1]], body.replace("XXX", boundary).as_bytes())
    };
    assert_eq!(id(&form("YYY")), id(&form("ZZZ")));
    assert_eq!(send(&"k".repeat(256), &small("x")).status, 400);
}

#[test]
fn a_stream_of_events_that_nobody_reads_stops_nothing() {
    let serving = Serving::start(&[]);
    let path = submit(&serving, &json!({"prompt": "x", "size": "64x64", "steps": 8}));
    drop(serving.begin(&request("GET", &format!("{path}/events"), &[], b"")));
    let mut slow = serving.begin(&request("GET", &format!("{path}/events"), &[], b""));
    slow.read_exact(&mut [0; 16]).unwrap();
    until("it is done", || serving.get(&path).json()["status"] == "done");
    let text = String::from_utf8(read_reply(serving.begin(&request("GET", &format!("{path}/events"), &[], b""))).body);
    assert!(text.unwrap().contains("event: done"));
}

#[test]
fn what_has_no_meaning_for_a_job_is_named() {
    let serving = Serving::start(&[]);
    for (more, param) in [(json!({"stream": true}), "stream"), (json!({"response_format": "url"}), "response_format")] {
        let error = serving.post("/v1/jobs", &with(small("x"), more)).error();
        assert_eq!(error, (400, "unsupported_value".to_string(), param.to_string()));
    }
    assert_eq!(serving.get("/v1/jobs/0123456789abcdef").error().0, 404);
}

#[test]
fn boxes_are_an_error_of_models_that_do_not_read_them() {
    let serving = Serving::start(&[]);
    for boxes in
        [json!([{"id": "cat_1", "bbox": [0, 0, 9, 9]}]), json!([{"id": "cat_1", "bbox": [9, 0, 9, 9]}]), json!(3)]
    {
        let body = json!({"prompt": "a cat", "size": "64x64", "boxes": boxes});
        let (status, _, field) = serving.post("/v1/images/generations", &body).error();
        assert_eq!((status, field.as_str()), (400, "boxes"), "{boxes}");
    }
}
