//! A server with remote workers, without a broker: `make test-cluster` tests it with one.

use std::fs;
use std::path::Path;

use super::*;
use crate::program::{Run, flux};

/// A broker that is never contacted.
const BROKER: &str = "amqp://127.0.0.1:1";
const BATCH: &str = "b-0123456789abcdef0123456789abcdef";

/// Creates a store with a registered model.
fn store() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = format!("file://{}", folder.path().display());
    Run::new(flux().args(["worker", "--name", "tiny", "--register", "--store", &store])).succeeds();
    (folder, store)
}

fn serve(store: &str) -> Serving {
    Serving::from_command(&mut flux(), &["--queue", BROKER, "--store", store])
}

/// Writes a batch of three jobs: one is done and one has failed.
fn write_batch(store: &Path) {
    let hash = |job: usize| format!("{job:064x}");
    let mut manifest = "{\"v\": 1, \"model\": \"tiny\", \"format\": {\"type\": \"png\"}, \"jobs\": 3}\n".to_string();
    for job in 1..=3 {
        let key = format!("out/00/{}.png", hash(job));
        let line = json!({"line": job, "n": 1, "key": key, "recipe": {"prompt": "x", "seed": job}});
        manifest.push_str(&format!("{line}\n"));
    }
    let folder = store.join("batches").join(BATCH);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("manifest.jsonl"), manifest).unwrap();
    fs::write(folder.join("cursor"), "3").unwrap();
    fs::create_dir_all(store.join("out/00")).unwrap();
    fs::write(store.join(format!("out/00/{}.png", hash(1))), "x").unwrap();
    fs::write(store.join(format!("out/00/{}.error.json", hash(2))), "{}").unwrap();
}

#[test]
fn without_a_broker_requests_are_refused_and_what_is_wrong_with_them_is_told() {
    let (_folder, store) = store();
    let mut serving = serve(&store);
    let ready = serving.get("/readyz");
    assert_eq!((ready.status, ready.json()["status"].as_str()), (503, Some("broker_away")));
    assert_eq!(serving.get("/healthz").status, 200);
    for path in ["/v1/images/generations", "/v1/jobs"] {
        let reply = serving.post(path, &small("a cat"));
        assert_eq!(reply.error(), (503, "broker_away".to_string(), String::new()), "{path}");
        assert!(reply.header("retry-after").is_some());
    }
    assert_eq!(serving.post("/sdapi/v1/txt2img", &json!({"prompt": "a cat"})).status, 503);
    let wrong = serving.post("/v1/jobs", &with(small("a cat"), json!({"size": "9000x9000"})));
    assert_eq!(wrong.error(), (400, "invalid_value".to_string(), "size".to_string()));
    let unknown = serving.post("/v1/jobs", &with(small("a cat"), json!({"loras": [{"name": "x"}]})));
    assert_eq!(unknown.error().2, "loras");
    let models = serving.get("/v1/models").json();
    assert_eq!((&models["data"][0]["id"], &models["flux"]["queue"]), (&json!("tiny"), &json!(true)));
    let upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eA=="];
    let live = serving.ask("GET", "/v1/live", &upgrade, b"");
    assert_eq!((live.status, live.error().1), (501, "not_with_a_queue".to_string()));
    serving.signal("TERM");
    assert_eq!(serving.end(), Some(0), "{}", serving.said());
}

#[test]
fn batches_of_the_store_are_told() {
    let (folder, store) = store();
    write_batch(folder.path());
    let serving = serve(&store);
    let batches = serving.get("/v1/batches").json();
    assert_eq!(batches["others"], 0);
    let batch = &batches["data"][0];
    assert!(batch["created"].as_u64().is_some_and(|created| created > 1_700_000_000), "{batch}");
    let told = ["id", "model", "jobs", "submitted", "done", "failed", "dead", "waiting", "cancelled"];
    let expected = json!([BATCH, "tiny", 3, 3, 1, 1, null, 1, false]);
    assert_eq!(told.iter().map(|key| batch[key].clone()).collect::<Value>(), expected);
    assert_eq!(serving.get(&format!("/v1/batches/{BATCH}")).json(), *batch);
    assert_eq!(serving.get("/v1/batches/b-0").status, 404);
    assert_eq!(serving.get("/batches").status, 200);
    let without = Serving::start(&[]);
    assert_eq!(without.get("/v1/batches").error().1, "no_queue");
    assert_eq!(without.get("/v1/models").json()["flux"]["queue"], false);
}
