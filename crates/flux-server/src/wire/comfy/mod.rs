//! ComfyUI's API, as far as its clients use it with FLUX.2-klein: graphs become jobs, and WebSockets receive events.
//!
//! ```text
//! submit: graph (classes) -> evaluate (nodes, kinds, images, sigmas) -> drawings -> jobs -> run -> hub -> socket
//! ```
//!
//! Every node and input that an output needs either takes effect or is reported: in an error, or in a note if it
//! changes nothing. Unneeded nodes and inputs are ignored as in ComfyUI, with a note. Start with `submit` and `graph`.
//! This folder must not know the other APIs.

#[cfg(test)]
mod chains;
mod classes;
mod drawings;
mod error;
mod evaluate;
mod files;
mod flux3_nodes;
#[cfg(test)]
mod fuzz;
mod graph;
mod hub;
mod image_nodes;
mod images;
mod kinds;
mod lists;
mod nodes;
mod passing;
mod prompts;
mod regions;
mod run;
mod sigmas;
mod socket;
mod submit;
mod surroundings;
mod table;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request};
use axum::response::Response;
use axum::routing::{get, post};
use bytes::Bytes;
use serde_json::{Map, Value, json};

use self::error::ComfyResult;
use self::lists::Asked;
use self::prompts::Phase;
use crate::http::client::Client;
use crate::http::error::{ApiError, Result};
use crate::jobs::admission::Permit;
use crate::jobs::fields::Fields;
use crate::wire::FromClient;
use crate::{App, http::answer, jobs::body};
use flux_runtime::allocator;

/// The interval between checks for the end.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The state of this API's clients.
#[derive(Default)]
pub struct Comfy {
    prompts: prompts::Prompts,
    hub: hub::Hub,
}

impl Comfy {
    /// Waits until all prompts have ended, then closes all WebSockets.
    pub async fn finish(&self) {
        while self.prompts.are_open() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.hub.close_all();
        while self.hub.are_open() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// Returns all routes, each also below `/api`.
pub fn routes() -> Router<Arc<App>> {
    let routes = Router::new()
        .route("/ws", get(socket::connect))
        .route("/prompt", get(exec_info).post(submit::submit))
        .route("/queue", get(queue).post(change_queue))
        .route("/interrupt", post(interrupt))
        .route("/history", get(history).post(change_history))
        .route("/history/{id}", get(history_of))
        .route("/view", get(files::view))
        .route("/upload/image", post(|from: FromClient, request: Request| files::upload(from, request, false)))
        .route("/upload/mask", post(|from: FromClient, request: Request| files::upload(from, request, true)))
        .route("/system_stats", get(lists::system_stats))
        .route("/object_info", get(lists::object_info))
        .route("/object_info/{class}", get(lists::class_info))
        .route("/features", get(lists::get_features))
        .route("/models", get(lists::folders))
        .route("/models/{folder}", get(lists::models))
        .route("/embeddings", get(nothing))
        .route("/extensions", get(nothing))
        .route("/free", post(free));
    let of_krita = Router::new()
        .route("/api/etn/image/{id}", get(files::get_krita).put(files::put_krita))
        .route("/api/etn/model_info/{folder}", get(lists::krita_models))
        .route("/api/etn/languages", get(nothing));
    Router::new().merge(routes.clone()).nest("/api", routes).merge(of_krita)
}

async fn nothing() -> Response {
    answer::json(&json!([]))
}

/// Parses the fields of a request. An empty body has no fields.
async fn read_object(app: &App, body: Body, most: usize, permit: &Permit) -> Result<Map<String, Value>> {
    let parse = |bytes: Bytes| {
        if bytes.is_empty() {
            return Ok(Map::new());
        }
        serde_json::from_slice(&bytes)
            .map_err(|e| ApiError::bad("invalid_json", format!("the body is not a JSON object: {e}")))
    };
    body::read_json(body, most, &app.config.limits, permit, parse).await
}

/// As [`read_object`], for requests without images.
async fn read_fields(app: &App, client: &Client, request: Request) -> Result<Fields> {
    let permit = app.permit(client);
    Ok(Fields::from_object(read_object(app, request.into_body(), app.config.limits.json_bytes, &permit).await?))
}

/// Parses a change to a list of prompts. Returns `true` to clear the list, and the IDs to delete.
async fn read_changes(app: &App, client: &Client, request: Request) -> Result<(bool, Vec<String>)> {
    let mut fields = read_fields(app, client, request).await?;
    let clears = fields.flag("clear")?.unwrap_or(false);
    let ids = fields.value("delete")?.unwrap_or_default();
    Ok((clears, ids))
}

async fn exec_info(FromClient(app, client): FromClient) -> Response {
    answer::json(&run::exec_info(&app, &client.name))
}

/// Returns the client's unfinished prompts.
async fn queue(FromClient(app, client): FromClient) -> Response {
    let open = app.comfy.prompts.open(&client.name);
    let of = |phase: Phase| {
        open.iter().filter(|prompt| prompt.phase() == phase).map(|prompt| prompt.entry()).collect::<Vec<_>>()
    };
    answer::json(&json!({"queue_running": of(Phase::Running), "queue_pending": of(Phase::Waiting)}))
}

/// Cancels waiting prompts of the client: some by ID, or all.
async fn change_queue(FromClient(app, client): FromClient, request: Request) -> ComfyResult {
    let (clears, ids) = read_changes(&app, &client, request).await?;
    cancel(&app, &client, |prompt| prompt.phase() == Phase::Waiting && (clears || ids.contains(&prompt.id)));
    Ok(answer::json(&json!({})))
}

/// Cancels prompts of the client that are running, or whose images are being read: one, or all.
async fn interrupt(FromClient(app, client): FromClient, request: Request) -> ComfyResult {
    let mut fields = read_fields(&app, &client, request).await?;
    let id = fields.text("prompt_id")?.filter(|id| !id.is_empty());
    let is_begun = |prompt: &prompts::Prompt| prompt.phase() == Phase::Running || prompt.is_reading();
    cancel(&app, &client, |prompt| is_begun(prompt) && id.as_ref().is_none_or(|id| prompt.id == *id));
    Ok(answer::json(&json!({})))
}

fn cancel(app: &App, client: &Client, is_meant: impl Fn(&prompts::Prompt) -> bool) {
    let meant = app.comfy.prompts.open(&client.name).into_iter().filter(|prompt| is_meant(prompt));
    for job in meant.flat_map(|prompt| prompt.jobs()) {
        app.queue.cancel(&job);
    }
}

async fn history(FromClient(app, client): FromClient, asked: Asked) -> ComfyResult {
    let most = match asked.get("max_items").map(str::parse) {
        None => usize::MAX,
        Some(Ok(most)) => most,
        Some(Err(_)) => return Err(ApiError::value("max_items", "`max_items` is not a whole number").into()),
    };
    Ok(answer::json(&app.comfy.prompts.history(&client.name, None, most)))
}

async fn history_of(FromClient(app, client): FromClient, Path(id): Path<String>) -> Response {
    answer::json(&app.comfy.prompts.history(&client.name, Some(&id), usize::MAX))
}

/// Hides finished prompts of the client: some by ID, or all.
async fn change_history(FromClient(app, client): FromClient, request: Request) -> ComfyResult {
    let (clears, ids) = read_changes(&app, &client, request).await?;
    if clears {
        app.comfy.prompts.forget(&client.name, None);
    }
    ids.iter().for_each(|id| app.comfy.prompts.forget(&client.name, Some(id)));
    Ok(answer::json(&json!({})))
}

/// Frees memory. Models are unloaded as soon as no request needs them, and loaded again on demand.
async fn free(FromClient(app, client): FromClient, request: Request) -> ComfyResult {
    let mut fields = read_fields(&app, &client, request).await?;
    let (unloads, frees) = (fields.flag("unload_models")?, fields.flag("free_memory")?);
    if unloads == Some(true) {
        app.queue.models().close_when_idle();
    }
    if frees == Some(true) {
        allocator::trim();
    }
    Ok(answer::json(&json!({})))
}
