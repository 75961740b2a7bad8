//! `/v1/batches`: progress of the batches in the store, for servers with a queue.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::json;

use crate::http::error::{ApiError, Result};
use crate::{App, http::answer};

/// Returns all batches, newest first.
pub async fn list(State(app): State<Arc<App>>) -> Result<Response> {
    let (shown, others) = app.queue.batches().await?;
    Ok(answer::json(&json!({"object": "list", "data": shown, "others": others})))
}

/// Returns a batch.
pub async fn get(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response> {
    let (shown, _) = app.queue.batches().await?;
    let batch = shown.into_iter().find(|batch| batch["id"] == *id);
    batch.map(|batch| answer::json(&batch)).ok_or_else(|| ApiError::not_found("there is no such batch"))
}
