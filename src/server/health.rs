//! Whether the server lives, whether it takes requests, and its figures.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use super::running::Patience;
use super::{App, answer, metrics};

/// How long the work may rest, beyond its longest step.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether the work moves. Whoever restarts what does not live asks this.
pub async fn lives(State(app): State<Arc<App>>) -> Response {
    let moves = moves(&app);
    let status = if moves { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    answer::json_with(status, &json!({"status": if moves { "ok" } else { "stuck" }}))
}

/// Whether the work moves. While no step was timed, it has the time of a start.
pub fn moves(app: &App) -> bool {
    app.queue.moves(Patience { beyond: PATIENCE, at_first: app.config.limits.start })
}

/// Whether requests are taken. Whoever divides requests asks this.
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

/// Figures for Prometheus.
pub async fn metrics(State(app): State<Arc<App>>) -> Response {
    let text = app.metrics.text(&app.queue.stats());
    answer::of(text.into(), metrics::MEDIA_TYPE)
}

/// The names of the adapters.
pub async fn loras(State(app): State<Arc<App>>) -> Response {
    let data: Vec<_> = app.queue.models().adapters().map(|name| json!({"id": name, "object": "lora"})).collect();
    answer::json(&json!({"object": "list", "data": data}))
}
