//! The API of AUTOMATIC1111's web UI below `/sdapi/v1`, as far as SillyTavern, Open WebUI, webuiapi and other clients
//! use it.
//!
//! Unknown fields have no effect, and are reported in `info` if they request something. Clients send about 45 fields,
//! most of them about features that this model family lacks. Start with `draw`. This folder must not know the other
//! APIs.

mod absent;
mod draw;
mod effects;
mod extras;
mod hires;
mod images;
mod lists;
mod reading;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::http::client::Client;
use crate::http::error::{ApiError, Result};
use crate::jobs::admission::Permit;
use crate::jobs::record::{JobEvent, JobRecord};
use crate::wire::FromClient;
use crate::{App, http::answer, jobs::body, jobs::embedded};

/// Max clients whose choice of a model is remembered.
const MAX_CHOICES: usize = 4096;

/// The state of this API's clients. Each client sees and stops only its own jobs.
#[derive(Default)]
pub struct Clients(Mutex<HashMap<String, ClientState>>);

#[derive(Default)]
struct ClientState {
    /// The name of the chosen model, and the time of the choice.
    model: Option<(String, Instant)>,
    /// Its unfinished jobs, oldest first.
    jobs: Vec<Arc<JobRecord>>,
}

impl Clients {
    fn add(&self, client: &str, job: Arc<JobRecord>) {
        let mut all = self.0.lock();
        // Removes clients without any state.
        all.retain(|_, state| {
            state.jobs.retain(|job| !job.status().is_over());
            !state.jobs.is_empty() || state.model.is_some()
        });
        all.entry(client.to_string()).or_default().jobs.push(job);
    }

    /// Returns the unfinished jobs of a client.
    fn jobs(&self, client: &str) -> Vec<Arc<JobRecord>> {
        let all = self.0.lock();
        let jobs = all.get(client).map_or(&[][..], |state| &state.jobs);
        jobs.iter().filter(|job| !job.status().is_over()).cloned().collect()
    }

    fn model(&self, client: &str) -> Option<String> {
        self.0.lock().get(client).and_then(|state| state.model.as_ref().map(|(model, _)| model.clone()))
    }

    /// Remembers the choice of a client. If there are too many, the oldest one is dropped.
    fn choose(&self, client: &str, model: String) {
        let mut all = self.0.lock();
        all.entry(client.to_string()).or_default().model = Some((model, Instant::now()));
        let choices = all.iter().filter_map(|(name, state)| Some((state.model.as_ref()?.1, name)));
        if choices.clone().count() > MAX_CHOICES
            && let Some((_, oldest)) = choices.min()
        {
            let oldest = oldest.clone();
            all.entry(oldest).and_modify(|state| state.model = None);
            all.retain(|_, state| !state.jobs.is_empty() || state.model.is_some());
        }
    }
}

pub fn routes() -> Router<Arc<App>> {
    let lists = lists::ROUTES.iter().fold(Router::new(), |router, (path, list)| {
        router.route(path, get(move |State(app): State<Arc<App>>| async move { answer::json(&list(&app)) }))
    });
    lists
        .route("/sdapi/v1/txt2img", post(|from: FromClient, request: Request| draw::draw(from, request, false)))
        .route("/sdapi/v1/img2img", post(|from: FromClient, request: Request| draw::draw(from, request, true)))
        .route("/sdapi/v1/extra-single-image", post(extras::single))
        .route("/sdapi/v1/extra-batch-images", post(extras::batch))
        .route("/sdapi/v1/options", get(lists::options).post(lists::set_options))
        .route("/sdapi/v1/progress", get(progress))
        .route("/sdapi/v1/interrupt", post(interrupt))
        .route("/sdapi/v1/skip", post(interrupt))
        .route("/sdapi/v1/png-info", post(lists::png_info))
        .route("/internal/progress", post(internal_progress))
        .merge(absent::routes())
}

/// An error in this API's format.
#[derive(Debug)]
struct SdError(ApiError);

impl From<ApiError> for SdError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for SdError {
    fn into_response(self) -> Response {
        let Self(error) = self;
        let told = json!({"error": error.code, "detail": error.message, "errors": error.message, "body": ""});
        let mut response = error.into_response();
        *response.body_mut() = serde_json::to_vec(&told).unwrap_or_default().into();
        response.headers_mut().remove(axum::http::header::CONTENT_LENGTH);
        response
    }
}

/// Returns an error in the format of this API.
pub fn refusal(error: ApiError) -> Response {
    SdError(error).into_response()
}

type SdResult = std::result::Result<Response, SdError>;

/// Parses the fields of a request.
async fn read_fields(app: &App, body: axum::body::Body, permit: &Permit) -> Result<Map<String, Value>> {
    let limits = &app.config.limits;
    // The body contains images in base64.
    let most = limits.file_bytes / 3 * 4 + limits.json_bytes;
    let parse = |bytes: Bytes| {
        let fields: Map<String, Value> = serde_json::from_slice(&bytes)
            .map_err(|e| ApiError::bad("invalid_json", format!("the body is not a JSON object: {e}")))?;
        Ok(fields.into_iter().filter(|(_, value)| !value.is_null()).collect())
    };
    body::read_json(body, most, limits, permit, parse).await
}

/// Decodes a file in base64: of either alphabet, with or without padding, line breaks and a data URL prefix.
fn file_of(text: &str, field: &'static str) -> Result<Vec<u8>> {
    let wrong = || ApiError::value(field, format!("`{field}` is not base64"));
    if text.starts_with("http:") || text.starts_with("https:") {
        return Err(ApiError::value(field, format!("`{field}` is an address: send the file itself, in base64")));
    }
    flux::memory::expect(2 * text.len())?;
    embedded::decode(text.trim_start()).ok_or_else(wrong)
}

/// Returns the progress of the client's oldest job. When idle, it is exactly 0.
async fn progress(FromClient(app, client): FromClient, Query(query): Query<HashMap<String, String>>) -> Response {
    let mut progress = client_progress(&app, &client);
    let skips =
        query.get("skip_current_image").is_some_and(|skips| matches!(&*skips.to_lowercase(), "true" | "1" | ""));
    if skips {
        progress["current_image"] = Value::Null;
    }
    answer::json(&progress)
}

/// As [`progress`], in the format of the web UI itself.
async fn internal_progress(FromClient(app, client): FromClient) -> Response {
    let progress = client_progress(&app, &client);
    let is_active = progress["state"]["job_count"] != 0;
    answer::json(&json!({
        "active": is_active, "queued": false, "completed": !is_active, "progress": progress["progress"],
        "eta": progress["eta_relative"], "live_preview": null, "id_live_preview": -1, "textinfo": null,
    }))
}

fn client_progress(app: &App, client: &Client) -> Value {
    let jobs = app.sdapi.jobs(&client.name);
    let Some(job) = jobs.first() else { return progress_of(&[], 0, None) };
    let eta = app.queue.ahead(job).and_then(|ahead| ahead.eta_s);
    progress_of(&job.events_from(0), jobs.len(), eta)
}

fn progress_of(events: &[JobEvent], jobs: usize, eta: Option<f64>) -> Value {
    let mut steps = [0, 0];
    let mut image = None;
    for event in events {
        match event {
            JobEvent::Step { step, steps: of, .. } => steps = [*step, *of],
            JobEvent::Preview { file, .. } => image = Some(file),
            _ => {}
        }
    }
    let [step, of] = steps;
    let progress = if of == 0 { 0.0 } else { step as f64 / of as f64 };
    json!({
        // Clients take 0 as idle, so waiting jobs report more than 0.
        "progress": if jobs > 0 { progress.max(0.001) } else { 0.0 },
        "eta_relative": eta.unwrap_or(0.0),
        "state": {"skipped": false, "interrupted": false, "stopping_generation": false, "job": "", "job_count": jobs,
            "job_timestamp": "0", "job_no": 0, "sampling_step": step, "sampling_steps": of},
        "current_image": image.map(|file| STANDARD.encode(file)),
        "textinfo": null,
    })
}

/// Cancels the jobs of the client only.
async fn interrupt(FromClient(app, client): FromClient) -> Response {
    for job in app.sdapi.jobs(&client.name) {
        app.queue.cancel(&job);
    }
    answer::json(&json!({}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_of_models_are_remembered_within_a_bound() {
        let clients = Clients::default();
        (0..=MAX_CHOICES).for_each(|client| clients.choose(&client.to_string(), "tiny".to_string()));
        clients.choose("1", "other".to_string());
        assert_eq!(clients.0.lock().len(), MAX_CHOICES);
        assert_eq!((clients.model("0"), clients.model("1")), (None, Some("other".to_string())));
    }

    #[test]
    fn base64_is_read_as_clients_write_it() {
        let file = [0xfb, 0xff, 0xfe, 0x80];
        for text in [
            "+//+gA==",
            "+//+gA",
            "-__-gA==",
            "+//+\r\ngA==\n",
            " +// +gA",
            "data:image/png;base64,+//+gA==",
            "\ndata:image/png;base64, +//+\ngA",
        ] {
            assert_eq!(file_of(text, "x").unwrap(), file, "{text:?}");
        }
        for text in ["", "data:", "data:image/png;base64,", "!", "+//+g", "http://localhost/x.png", "+/=/+gA"] {
            assert!(file_of(text, "x").is_err(), "{text:?}");
        }
    }

    #[test]
    fn all_lists_are_described() {
        let document: Value = serde_json::from_str(crate::wire::openapi::DOCUMENT).unwrap();
        for (path, _) in lists::ROUTES.iter() {
            assert!(document["paths"][*path]["get"].is_object(), "{path}");
        }
    }
}
