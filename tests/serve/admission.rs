//! Work before the queue: it is counted before it is done, delays no other client, and ends with its request.

use std::fs;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::comfy::{graph, upload};
use super::*;
use crate::program::{Run, flux};
use crate::serving::{form, read_reply, request};

const FORM: &str = "Content-Type: multipart/form-data; boundary=XXX";
const JSON: &str = "Content-Type: application/json";

/// Returns a chunk of a PNG.
fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let mut crc = flate2::Crc::new();
    crc.update(kind);
    crc.update(data);
    [&(data.len() as u32).to_be_bytes(), &kind[..], data, &crc.sum().to_be_bytes()].concat()
}

fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Returns a white PNG of a few kilobytes with many pixels, and more chunks. The side is a multiple of 8.
fn large_png(side: u32, more: &[u8]) -> Vec<u8> {
    let header = [&side.to_be_bytes()[..], &side.to_be_bytes(), &[1, 0, 0, 0, 0]].concat();
    let row = [&[0][..], &vec![0xff; side as usize / 8]].concat();
    let pixels = deflated(&row.repeat(side as usize));
    let chunks = [chunk(b"IHDR", &header), more.to_vec(), chunk(b"IDAT", &pixels), chunk(b"IEND", b"")].concat();
    [b"\x89PNG\r\n\x1a\n", &chunks[..]].concat()
}

/// Starts a server with two keys, and returns the header lines that send them.
fn with_two_keys(flags: &[&str]) -> (Serving, [String; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let keys = ["greedy", "other"].map(|name| {
        let run = Run::new(flux().args(["key", name])).succeeds();
        (run.stderr.split('`').nth(1).expect("the key").to_string(), run.stdout)
    });
    fs::write(&path, keys.iter().map(|(_, line)| line.as_str()).collect::<String>()).unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let flags = [&["--api-keys", path.to_str().unwrap()], flags].concat();
    (Serving::start(&flags), keys.map(|(key, _)| format!("Authorization: Bearer {key}")))
}

/// Returns a graph whose references are scaled back and forth.
fn scaling_graph(references: usize, changes: usize, [width, height]: [usize; 2]) -> Value {
    let mut graph = graph("text_to_image_distilled");
    graph["load"] = json!({"class_type": "LoadImage", "inputs": {"image": "large.png"}});
    let mut conditioning = graph["77:63"]["inputs"]["positive"].clone();
    for reference in 0..references {
        let mut last = "load".to_string();
        for change in 0..changes {
            let inputs = json!({"image": [last, 0], "upscale_method": "lanczos", "crop": "disabled",
                "width": width - (change % 2) * 100 + reference, "height": height});
            last = format!("scale-{reference}-{change}");
            graph[&last] = json!({"class_type": "ImageScale", "inputs": inputs});
        }
        let (encode, with) = (format!("encode-{reference}"), format!("with-{reference}"));
        graph[&encode] = json!({"class_type": "VAEEncode", "inputs": {"pixels": [last, 0], "vae": ["77:72", 0]}});
        graph[&with] = json!({"class_type": "ReferenceLatent",
            "inputs": {"conditioning": conditioning, "latent": [encode, 0]}});
        conditioning = json!([with, 0]);
    }
    graph["77:63"]["inputs"]["positive"] = conditioning;
    graph
}

/// Waits until a server has no waiting or running work, and asserts that a signal ends it at once.
fn is_idle_and_ends(mut serving: Serving) {
    until("nothing is left", || work(&serving) == [0, 0]);
    serving.signal("TERM");
    let start = Instant::now();
    assert_eq!(serving.end(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

#[test]
fn graphs_that_ask_for_too_much_work_are_refused_before_any_of_it() {
    let serving = Serving::start(&[]);
    upload(&serving, "large.png", &png(64, 64, [9; 3]));
    let bomb = json!({"prompt": scaling_graph(16, 8, [4100, 4000])});
    let start = Instant::now();
    thread::scope(|scope| {
        let bombs: Vec<_> = (0..4).map(|_| scope.spawn(|| serving.post("/prompt", &bomb))).collect();
        assert_eq!(serving.post("/v1/images/generations", &small("x")).status, 200);
        for reply in bombs.into_iter().map(|bomb| bomb.join().unwrap()) {
            assert_eq!(reply.status, 400, "{}", reply.json());
            assert!(reply.json()["node_errors"]["77:64"]["errors"].is_array(), "{}", reply.json());
        }
    });
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(serving.get("/queue").json(), json!({"queue_running": [], "queue_pending": []}));
    assert_eq!(serving.get("/history").json(), json!({}));
    assert_eq!(serving.get("/v1/jobs").json()["data"], json!([]));
    // As many pixels of files.
    let large = large_png(8000, b"");
    let parts: Vec<_> =
        (0..16).map(|_| ("image", Some("a.png"), &large[..])).chain([("prompt", None, &b"x"[..])]).collect();
    for path in ["/v1/images/edits", "/v1/jobs"] {
        let start = Instant::now();
        let error = serving.form(path, &parts).error();
        assert_eq!(error, (400, "too_much_work".to_string(), "image".to_string()), "{path}");
        assert!(start.elapsed() < Duration::from_secs(2), "{path}");
    }
    is_idle_and_ends(serving);
}

#[test]
fn images_of_one_client_delay_no_other_client_and_no_signal() {
    let (mut serving, [greedy, other]) = with_two_keys(&["--drain", "1"]);
    let large = large_png(7000, b"");
    let parts: Vec<_> =
        (0..6).map(|_| ("image", Some("a.png"), &large[..])).chain([("prompt", None, &b"x"[..])]).collect();
    let edit = request("POST", "/v1/images/edits", &[&greedy, FORM], &form(&parts));
    let held: Vec<_> = (0..8).map(|_| serving.begin(&edit)).collect();
    thread::sleep(Duration::from_millis(100));
    let edit = form(&[("image", Some("a.png"), &png(64, 64, [9; 3])), ("prompt", None, b"x"), ("steps", None, b"1")]);
    for _ in 0..3 {
        let start = Instant::now();
        assert_eq!(serving.ask("POST", "/v1/images/edits", &[&other, FORM], &edit).status, 200);
        assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    }
    serving.signal("TERM");
    let start = Instant::now();
    assert_eq!(serving.end(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    drop(held);
}

#[test]
fn a_client_that_closes_at_any_moment_leaves_no_work_and_no_second_job() {
    let serving = Serving::start(&[]);
    let large = large_png(6000, b"");
    let edit = form(&[("image", Some("a.png"), &large), ("image", Some("b.png"), &large), ("prompt", None, b"x")]);
    for wait in [0, 3, 10, 30, 60, 100, 200, 400] {
        let stream = serving.begin(&request("POST", "/v1/images/edits", &[FORM], &edit));
        thread::sleep(Duration::from_millis(wait));
        drop(stream);
    }
    until("the work has ended with its clients", || work(&serving) == [0, 0]);
    // A mask of another size than its image makes a job that takes long to read and little time to generate.
    let recipe = json!({"prompt": "x", "seed": 1, "steps": 1, "inputs": ["a.png"], "mask": "b.png"}).to_string();
    let (small, mask) = (png(64, 64, [200; 3]), large_png(4000, b""));
    let job =
        form(&[("recipe", None, recipe.as_bytes()), ("file", Some("a.png"), &small), ("file", Some("b.png"), &mask)]);
    let waits = [0, 2, 5, 15, 40, 80, 150, 300];
    let send = |wait: u64| request("POST", "/v1/jobs", &[FORM, &format!("Idempotency-Key: {wait}")], &job);
    for wait in waits {
        let stream = serving.begin(&send(wait));
        thread::sleep(Duration::from_millis(wait));
        drop(stream);
    }
    for wait in waits {
        let replies = thread::scope(|scope| {
            let again = [0, 1].map(|_| scope.spawn(|| serving.send(&send(wait))));
            again.map(|reply| reply.join().unwrap())
        });
        assert_eq!(replies[0].status, 202, "{}", replies[0].json());
        assert_eq!(replies[0].json()["id"], replies[1].json()["id"], "{wait}");
    }
    let jobs = || serving.get("/v1/jobs").json()["data"].as_array().unwrap().clone();
    assert_eq!(jobs().len(), waits.len(), "each is listed, and none twice");
    until("they are done", || jobs().iter().all(|job| job["status"] == "done"));
    let figures = String::from_utf8(serving.get("/metrics").body).unwrap();
    assert!(figures.contains(&format!("flux_images_total {}", waits.len())), "{figures}");
    is_idle_and_ends(serving);
}

#[test]
fn a_job_is_listed_and_cancelled_while_its_images_are_read_and_forgotten_if_they_are_damaged() {
    let serving = Serving::start(&[]);
    let large = large_png(8000, b"");
    let parts: Vec<_> =
        (0..5).map(|_| ("image", Some("a.png"), &large[..])).chain([("prompt", None, &b"x"[..])]).collect();
    let job = request("POST", "/v1/jobs", &[FORM, "Idempotency-Key: a"], &form(&parts));
    let stream = serving.begin(&job);
    let jobs = || serving.get("/v1/jobs").json()["data"].as_array().unwrap().clone();
    until("it is listed", || jobs().len() == 1);
    let cancelled = serving.ask("DELETE", jobs()[0]["urls"]["self"].as_str().unwrap(), &[], b"");
    assert_eq!(cancelled.json()["status"], "cancelled");
    let reply = read_reply(stream);
    assert_eq!((reply.status, &reply.json()["status"]), (202, &json!("cancelled")));

    let damaged = &png(64, 64, [9; 3])[..60];
    let parts = [("image", Some("a.png"), &large[..]), ("image", Some("b.png"), damaged), ("prompt", None, b"x")];
    let job = request("POST", "/v1/jobs", &[FORM, "Idempotency-Key: b"], &form(&parts));
    for _ in 0..2 {
        assert_eq!(serving.send(&job).error(), (400, "invalid_image".to_string(), "image".to_string()));
    }
    assert_eq!(jobs().len(), 1, "it is no job");
    is_idle_and_ends(serving);
}

#[test]
fn what_is_read_can_be_interrupted() {
    let serving = Serving::start(&[]);
    let image = STANDARD.encode(large_png(8000, b""));
    let body = json!({"prompt": "x", "init_images": vec![&image; 4], "steps": 1, "width": 64, "height": 64});
    let reply = thread::scope(|scope| {
        let asked = scope.spawn(|| serving.post("/sdapi/v1/img2img", &body));
        until("it is there", || serving.get("/sdapi/v1/progress").json()["state"]["job_count"] == 1);
        serving.post("/sdapi/v1/interrupt", &json!({}));
        asked.join().unwrap()
    });
    assert_eq!((reply.status, &reply.json()["images"]), (200, &json!([])));

    upload(&serving, "large.png", &large_png(8000, b""));
    for (path, id, what) in [("/interrupt", "one", json!({})), ("/queue", "two", json!({"clear": true}))] {
        let body = json!({"prompt": scaling_graph(3, 1, [4100, 4000]), "prompt_id": id});
        let reply = thread::scope(|scope| {
            let asked = scope.spawn(|| serving.post("/prompt", &body));
            until("it waits", || serving.get("/queue").json()["queue_pending"].as_array().unwrap().len() == 1);
            serving.post(path, &what);
            asked.join().unwrap()
        });
        assert_eq!(reply.status, 200, "{}", reply.json());
        let history = super::comfy::history(&serving, id);
        assert_eq!(history["status"]["status_str"], "error", "{history}");
    }
    is_idle_and_ends(serving);
}

#[test]
fn one_of_the_prompts_with_one_id_sent_at_once_is_taken() {
    let serving = Serving::start(&[]);
    upload(&serving, "large.png", &large_png(2000, b""));
    let body = json!({"prompt": scaling_graph(1, 1, [300, 200]), "prompt_id": "one"}).to_string();
    let replies = thread::scope(|scope| {
        let asked: Vec<_> =
            (0..8).map(|_| scope.spawn(|| serving.ask("POST", "/prompt", &[JSON], body.as_bytes()).status)).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(replies.iter().filter(|status| **status == 200).count(), 1, "{replies:?}");
    assert_eq!(replies.iter().filter(|status| **status == 400).count(), 7, "{replies:?}");
    until("it is done", || serving.get("/history/one").json()["one"]["status"]["completed"] == true);
    assert_eq!(serving.get("/v1/jobs").json()["data"].as_array().unwrap().len(), 1);
}

#[test]
fn a_prompt_whose_client_is_gone_goes_on_and_can_be_cancelled() {
    let serving = Serving::start(&[]);
    upload(&serving, "large.png", &large_png(4000, b""));
    for wait in [1, 20, 100, 300] {
        let body = json!({"prompt": scaling_graph(2, 2, [2100, 2000]), "prompt_id": format!("after-{wait}")});
        let body = body.to_string();
        let stream = serving.begin(&request("POST", "/prompt", &[JSON], body.as_bytes()));
        thread::sleep(Duration::from_millis(wait));
        drop(stream);
    }
    let open = || {
        let queue = serving.get("/queue").json();
        ["queue_running", "queue_pending"].iter().map(|key| queue[key].as_array().unwrap().len()).sum::<usize>()
    };
    until("all are cancelled", || {
        serving.post("/queue", &json!({"clear": true}));
        serving.post("/interrupt", &json!({}));
        open() == 0 && work(&serving) == [0, 0]
    });
    for job in serving.get("/v1/jobs").json()["data"].as_array().unwrap() {
        assert!(job["status"] == "cancelled" || job["status"] == "done", "{job}");
    }
    is_idle_and_ends(serving);
}

#[test]
fn texts_of_a_file_that_inflate_to_gigabytes_are_refused_soon() {
    let serving = Serving::start(&[]);
    let text = deflated(&vec![b' '; 15 << 20]);
    for head in [&b"parameters\0\0"[..], b"foreign\0\0"] {
        let texts = chunk(b"zTXt", &[head, &text[..]].concat()).repeat(500);
        let image = STANDARD.encode(large_png(64, &texts));
        let start = Instant::now();
        let reply = serving.post("/sdapi/v1/png-info", &json!({"image": image}));
        assert_eq!(reply.status, if head.starts_with(b"foreign") { 200 } else { 400 });
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
}

#[test]
fn lists_that_take_much_more_memory_than_their_bytes_are_refused() {
    let serving = Serving::start(&[]);
    let objects = format!("{{\"prompt\": \"x\", \"loras\": [{}0]}}", "{\"a\":0},".repeat(200_000));
    let numbers = format!("{{\"prompt\": \"x\", \"loras\": [{}0]}}", "0,".repeat(2_000_000));
    for body in [objects, numbers] {
        for path in ["/v1/images/generations", "/v1/jobs", "/prompt", "/sdapi/v1/txt2img", "/mcp"] {
            let reply = serving.ask("POST", path, &[JSON], body.as_bytes());
            assert_eq!(reply.status, 413, "{path}");
        }
    }
    assert_eq!(serving.post("/v1/images/generations", &small("x")).status, 200);
}
