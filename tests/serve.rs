//! `flux serve` from outside: requests over sockets.

mod admission;
mod batches;
mod book;
mod bounds;
mod comfy;
mod comfy_graphs;
mod comfy_limits;
mod expand;
mod fuzz;
mod guard;
mod hostile_requests;
mod jobs;
mod life;
mod live;
mod mcp;
mod openai;
mod others;
#[cfg(feature = "queue")]
mod queue;
mod remote;
mod sdapi;
mod settings;
mod sockets;
mod upsample;
mod upscale;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flux::output::{ImageFormat, Rgb, encode};
use serde_json::{Value, json};

use crate::serving::{Reply, Serving};

/// Returns a request that takes a tenth of a second.
fn small(prompt: &str) -> Value {
    json!({"prompt": prompt, "size": "64x64", "steps": 1, "seed": 5})
}

/// Returns a request with more fields.
fn with(request: Value, more: Value) -> Value {
    let mut request = request;
    let more = more.as_object().cloned().unwrap_or_default();
    request.as_object_mut().expect("an object").extend(more);
    request
}

/// Returns a request that takes longer than any test.
fn endless() -> Value {
    json!({"prompt": "x", "size": "512x512", "steps": 1000})
}

/// Decodes a file from base64.
fn decoded(value: &Value) -> Vec<u8> {
    STANDARD.decode(value.as_str().expect("a text")).expect("base64")
}

/// Returns the images of a response of OpenAI's API.
fn images(reply: &Reply) -> Vec<Vec<u8>> {
    assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    reply.json()["data"].as_array().expect("a list").iter().map(|image| decoded(&image["b64_json"])).collect()
}

/// Waits until a condition of a server holds.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !is_so() {
        assert!(start.elapsed().as_secs() < 60, "never: {what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Returns the number of running and of waiting images.
fn work(serving: &Serving) -> [u64; 2] {
    let ready = serving.get("/readyz").json();
    ["running", "waiting"].map(|key| ready[key].as_u64().expect("a number"))
}

/// Returns a PNG of one colour.
fn png(width: usize, height: usize, color: [u8; 3]) -> Vec<u8> {
    let rgb = Rgb { width, height, bytes: color.repeat(width * height) };
    encode(&rgb, ImageFormat::Png, &flux::metadata::Metadata::default()).expect("a PNG")
}
