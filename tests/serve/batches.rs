//! Batching and latency: images that are made together, and the time until they start.

use std::time::{Duration, Instant};

use serde_json::json;

use super::*;
use crate::program::{Run, flux};

#[test]
fn a_window_waits_for_others_until_the_group_is_full() {
    let takes = |window: u64, count: usize| {
        let serving = Serving::start(&["--batch-window-ms", &window.to_string(), "--batch-max", "2"]);
        let start = Instant::now();
        let reply = serving.post("/v1/images/generations", &with(small("x"), json!({"n": count})));
        assert_eq!(images(&reply).len(), count);
        start.elapsed()
    };
    assert!(takes(1000, 1) >= Duration::from_secs(1), "nobody else came");
    let full = takes(10_000, 2);
    assert!(full < Duration::from_secs(10), "{full:?}");
}

#[test]
fn exact_images_are_made_alone() {
    let serving = Serving::start(&["--batch-exact"]);
    assert_eq!(images(&serving.post("/v1/images/generations", &with(small("x"), json!({"n": 4})))).len(), 4);
    let figures = String::from_utf8(serving.get("/metrics").body).unwrap();
    assert!(figures.contains("flux_batch_images_bucket{le=\"1.0\"} 4"), "{figures}");
    Run::new(flux().args(["serve", "--batch-exact", "--batch-max", "4"])).fails(2, &["--batch-max"]);
}

#[test]
fn the_time_left_of_a_job_that_runs_is_told_by_its_steps() {
    let serving = Serving::start(&[]);
    let job = serving.post("/v1/jobs", &endless()).json();
    assert_eq!(job["eta_s"], Value::Null, "no step was timed");
    let path = job["urls"]["self"].as_str().unwrap();
    let eta = || serving.get(path).json()["eta_s"].as_f64();
    until("its steps are timed", || eta().is_some());
    let job = serving.get(path).json();
    assert_eq!((&job["status"], &job["position"]), (&json!("running"), &Value::Null));
    assert!(eta().is_some_and(|seconds| seconds > 10.0), "{job}");
    assert_eq!(serving.get("/healthz").status, 200);
}
