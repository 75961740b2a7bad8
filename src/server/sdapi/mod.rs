//! The API of AUTOMATIC1111's web UI below `/sdapi/v1`, as far as its clients use it: SillyTavern, Open WebUI,
//! webuiapi.
//!
//! Fields that are not known here are passed over, and named in `info`: these clients send some 45, of which most are
//! about what this model family has not.

mod draw;
mod lists;
mod prompt;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::error::{ApiError, Result};
use super::record::{JobEvent, JobRecord};
use super::room::Held;
use super::{App, answer, body};

/// Clients whose choice of a model is remembered.
const MOST_CHOICES: usize = 4096;

/// What clients of this API have: each its own, so that none stops or sees another's.
#[derive(Default)]
pub struct Clients(Mutex<HashMap<String, ClientState>>);

#[derive(Default)]
struct ClientState {
    /// The name of the model that it chose, and when.
    model: Option<(String, Instant)>,
    /// Its jobs that are not over, the oldest first.
    jobs: Vec<Arc<JobRecord>>,
}

impl Clients {
    fn all(&self) -> MutexGuard<'_, HashMap<String, ClientState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, client: &str, job: Arc<JobRecord>) {
        let mut all = self.all();
        // Those that have nothing left are forgotten.
        all.retain(|_, state| {
            state.jobs.retain(|job| !job.status().is_over());
            !state.jobs.is_empty() || state.model.is_some()
        });
        all.entry(client.to_string()).or_default().jobs.push(job);
    }

    /// Its jobs that are not over.
    fn jobs(&self, client: &str) -> Vec<Arc<JobRecord>> {
        let all = self.all();
        let jobs = all.get(client).map_or(&[][..], |state| &state.jobs);
        jobs.iter().filter(|job| !job.status().is_over()).cloned().collect()
    }

    fn model(&self, client: &str) -> Option<String> {
        self.all().get(client).and_then(|state| state.model.as_ref().map(|(model, _)| model.clone()))
    }

    /// Remembers what a client chose, in place of the oldest choice where there are too many.
    fn choose(&self, client: &str, model: String) {
        let mut all = self.all();
        all.entry(client.to_string()).or_default().model = Some((model, Instant::now()));
        let choices = all.iter().filter_map(|(name, state)| Some((state.model.as_ref()?.1, name)));
        if choices.clone().count() > MOST_CHOICES
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
        router
            .route(path, get(move |state: axum::extract::State<Arc<App>>| async move { answer::json(&list(&state.0)) }))
    });
    lists
        .route("/sdapi/v1/txt2img", post(draw::txt2img))
        .route("/sdapi/v1/img2img", post(draw::img2img))
        .route("/sdapi/v1/options", get(lists::options).post(lists::set_options))
        .route("/sdapi/v1/progress", get(progress))
        .route("/sdapi/v1/interrupt", post(interrupt))
        .route("/sdapi/v1/skip", post(interrupt))
        .route("/sdapi/v1/png-info", post(lists::png_info))
        .route("/sdapi/v1/refresh-checkpoints", post(nothing))
        .route("/sdapi/v1/refresh-loras", post(nothing))
        .route("/sdapi/v1/refresh-vae", post(nothing))
}

async fn nothing() -> Response {
    answer::json(&json!({}))
}

/// An error as these clients read it.
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

type SdResult = std::result::Result<Response, SdError>;

/// The fields of a request.
async fn read_fields(app: &App, body: axum::body::Body, held: &Held) -> Result<Map<String, Value>> {
    let limits = &app.config.limits;
    // Images are in it, in base64.
    let most = limits.file_bytes / 3 * 4 + limits.json_bytes;
    let parse = |bytes: Bytes| {
        let fields: Map<String, Value> = serde_json::from_slice(&bytes)
            .map_err(|e| ApiError::bad("invalid_json", format!("the body is no JSON object: {e}")))?;
        Ok(fields.into_iter().filter(|(_, value)| !value.is_null()).collect())
    };
    body::read_json(body, most, limits, held, parse).await
}

/// The bytes of a file in base64, perhaps behind what a data URL begins with.
fn file_of(text: &str, field: &'static str) -> Result<Vec<u8>> {
    let wrong = || ApiError::value(field, format!("`{field}` is no base64"));
    if text.starts_with("http:") || text.starts_with("https:") {
        return Err(ApiError::value(field, format!("`{field}` is an address: send the file itself, in base64")));
    }
    let data = if text.starts_with("data:") { text.split_once(',').ok_or_else(wrong)?.1 } else { text };
    STANDARD.decode(data.trim()).map_err(|_| wrong())
}

/// How far the oldest job of the client is. Idle is exactly 0.
async fn progress(state: axum::extract::State<Arc<App>>, client: axum::Extension<super::guard::Client>) -> Response {
    let app = state.0;
    let jobs = app.sdapi.jobs(&client.name);
    let Some(job) = jobs.first() else { return answer::json(&progress_of(&[], 0, None)) };
    let eta = app.queue.ahead(job).and_then(|ahead| ahead.eta_s);
    answer::json(&progress_of(&job.events_from(0), jobs.len(), eta))
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
        // A job that waits has begun, as far as clients that wait for 0 are concerned.
        "progress": if jobs > 0 { progress.max(0.001) } else { 0.0 },
        "eta_relative": eta.unwrap_or(0.0),
        "state": {"skipped": false, "interrupted": false, "stopping_generation": false, "job": "", "job_count": jobs,
            "job_timestamp": "0", "job_no": 0, "sampling_step": step, "sampling_steps": of},
        "current_image": image.map(|file| STANDARD.encode(file)),
        "textinfo": null,
    })
}

/// Ends what the client began, and nothing of others.
async fn interrupt(state: axum::extract::State<Arc<App>>, client: axum::Extension<super::guard::Client>) -> Response {
    for job in state.sdapi.jobs(&client.name) {
        state.queue.cancel(&job);
    }
    answer::json(&json!({}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_of_models_are_remembered_within_a_bound() {
        let clients = Clients::default();
        (0..=MOST_CHOICES).for_each(|client| clients.choose(&client.to_string(), "tiny".to_string()));
        clients.choose("1", "other".to_string());
        assert_eq!(clients.all().len(), MOST_CHOICES);
        assert_eq!((clients.model("0"), clients.model("1")), (None, Some("other".to_string())));
    }

    #[test]
    fn all_lists_are_described() {
        let document: Value = serde_json::from_str(crate::server::openapi::DOCUMENT).unwrap();
        for (path, _) in lists::ROUTES {
            assert!(document["paths"][*path]["get"].is_object(), "{path}");
        }
    }
}
