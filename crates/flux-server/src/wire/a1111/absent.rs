//! Routes of A1111 that do nothing here, and routes that are not supported. Both respond in A1111's format.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use serde_json::json;

use super::SdError;
use crate::http::error::ApiError;
use crate::{App, http::answer};

/// Routes that return an empty object. All clients share the models, which are loaded and unloaded as needed.
const DONE: [&str; 5] = [
    "/sdapi/v1/refresh-checkpoints",
    "/sdapi/v1/refresh-loras",
    "/sdapi/v1/refresh-vae",
    "/sdapi/v1/unload-checkpoint",
    "/sdapi/v1/reload-checkpoint",
];
/// Unsupported routes, with the reason.
const ABSENT: [(&str, &str); 10] = [
    ("/sdapi/v1/interrogate", "there is no model that describes images"),
    ("/sdapi/v1/create/embedding", TRAINING),
    ("/sdapi/v1/create/hypernetwork", TRAINING),
    ("/sdapi/v1/train/embedding", TRAINING),
    ("/sdapi/v1/train/hypernetwork", TRAINING),
    ("/sdapi/v1/server-kill", SERVER),
    ("/sdapi/v1/server-restart", SERVER),
    ("/sdapi/v1/server-stop", SERVER),
    ("/controlnet/detect", CONTROLNET),
    ("/tagger/v1/interrogate", "there is no model that describes images"),
];
const TRAINING: &str = "training is not supported";
const SERVER: &str = "clients cannot stop the server";
const CONTROLNET: &str = "ControlNet is not supported";

pub fn routes() -> Router<Arc<App>> {
    let done = || async { answer::json(&json!({})) };
    let router = DONE.iter().fold(Router::new(), |router, path| router.route(path, post(done)));
    let absent = |reason: &'static str| move || async move { refused(reason) };
    ABSENT
        .iter()
        .fold(router, |router, &(path, reason)| router.route(path, post(absent(reason))))
        .route("/internal/ping", get(done))
        .route("/internal/sysinfo", get(sysinfo))
        .route("/internal/pending-tasks", get(|| async { answer::json(&json!({"size": 0, "tasks": []})) }))
        .route("/internal/quicksettings-hint", get(|| async { answer::json(&json!([])) }))
}

/// Returns the error of an unsupported route.
fn refused(reason: &'static str) -> SdError {
    ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", reason).for_good().into()
}

async fn sysinfo() -> Response {
    answer::json(&json!({"Program": "flux", "Version": env!("CARGO_PKG_VERSION"), "Platform": std::env::consts::OS}))
}
