//! Health, readiness and metrics of the server.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use crate::jobs::metrics::Kept;
use crate::{App, http::answer, jobs::metrics};

/// Liveness: 200 unless work is stuck, in which case a supervisor restarts the server.
pub async fn lives(State(app): State<Arc<App>>) -> Response {
    let moves = app.queue.moves();
    let status = if moves { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    answer::json_with(status, &json!({"status": if moves { "ok" } else { "stuck" }}))
}

/// Readiness for load balancers: 200 if the server accepts requests.
pub async fn is_ready(State(app): State<Arc<App>>) -> Response {
    let stats = app.queue.stats();
    let reason = match stats {
        _ if stats.is_closed => Some("draining"),
        _ if !stats.is_ready => Some("loading"),
        _ if stats.away.is_some() => stats.away,
        _ if stats.is_full => Some("queue_full"),
        _ => None,
    };
    let status = if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    answer::json_with(
        status,
        &json!({"status": reason.unwrap_or("ready"), "waiting": stats.waiting, "running": stats.running}),
    )
}

/// Returns metrics for Prometheus.
pub async fn metrics(State(app): State<Arc<App>>) -> Response {
    let models = app.queue.models();
    let models = models.names().enumerate().map(|(place, name)| {
        let engine = models.resident(place);
        (name.to_string(), engine.map(|engine| engine.memory()))
    });
    let kept = Kept { models: models.collect(), stored: app.store.bytes(), limit: app.config.limits.kept_bytes };
    let text = app.metrics.text(&app.queue.stats(), &kept);
    answer::bytes(text.into(), metrics::MEDIA_TYPE)
}

/// Returns the names of the adapters.
pub async fn loras(State(app): State<Arc<App>>) -> Response {
    let data: Vec<_> = app.queue.models().adapters().map(|name| json!({"id": name, "object": "lora"})).collect();
    answer::json(&json!({"object": "list", "data": data}))
}
