//! The job API: `/v1/jobs`. Jobs continue if their client disconnects, and results are retained for a while.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::extract::{Path, Query, Request};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use flux::stage::CancelFlag;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::http::client::Client;
use crate::http::error::{ApiError, Result};
use crate::http::pieces::{Files, Pieces};
use crate::http::sse::{self, Events, Gone, KEEP_ALIVE};
use crate::jobs::admission::Estimate;
use crate::jobs::record::{JobEvent, JobRecord, Status};
use crate::jobs::request::Route;
use crate::wire::FromClient;
use crate::{App, http::answer, jobs::fields, jobs::intake, wire::openai};

/// The interval between updates of a waiting job's position.
const PLACE_EVERY: Duration = Duration::from_secs(1);
/// The max length of an idempotency key.
const MAX_KEY: usize = 255;

/// Submits a job.
pub async fn submit(FromClient(app, client): FromClient, request: Request) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let permit = app.permit(&client);
    let (mut fields, mut uploads) = intake::body(&app, &parts.headers, body, &permit, Route::Jobs).await?;
    let mut key = None;
    if let Some(name) = idempotency_key(&parts.headers)? {
        // A form has a new boundary each time, so its contents are compared.
        let bytes = uploads.iter().map(|upload| upload.bytes.len()).sum();
        let compared = move |_: &CancelFlag| Ok((digest(&fields, &uploads), fields, uploads));
        let digest;
        (digest, fields, uploads) = permit.answer(Estimate::bytes(bytes), compared).await?;
        key = Some((name, digest));
    }
    let asked = intake::read(&app, &client, &permit, fields, uploads, Route::Jobs).await?;
    if asked.answer.stream || asked.answer.as_url {
        let field = if asked.answer.stream { "stream" } else { "response_format" };
        let message = format!("`{field}` is not supported for jobs: use `events` and `result`");
        return Err(ApiError::bad("unsupported_value", message).with_param(field));
    }
    let key = key.as_ref().map(|(name, digest)| (name.as_str(), *digest));
    // If two requests have the same key, one starts the job, and both wait until its images are read.
    let job = app.store.begin_once(&client.name, key, || intake::begin(&app, &client, &permit, asked))?;
    drop(permit);
    job.taken().await?;
    Ok(answer::json_with(StatusCode::ACCEPTED, &job_json(&app, &job)))
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    match key.to_str() {
        Ok(key) if !key.is_empty() && key.len() <= MAX_KEY => Ok(Some(key.to_string())),
        _ => Err(ApiError::bad("invalid_value", format!("the `Idempotency-Key` must have 1 to {MAX_KEY} characters"))),
    }
}

/// Returns a hash of a request's contents, independent of form boundaries.
fn digest(fields: &fields::Fields, uploads: &[crate::jobs::request::Upload]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{fields:?}").as_bytes());
    for upload in uploads {
        hasher.update(format!("{}\0{:?}\0{}\0", upload.part, upload.file_name, upload.bytes.len()).as_bytes());
        hasher.update(&upload.bytes);
    }
    hasher.finalize()
}

/// Returns a job as shown to clients.
fn job_json(app: &App, job: &JobRecord) -> Value {
    let snapshot = job.snapshot();
    let ahead = (!snapshot.status.is_over()).then(|| app.queue.ahead(job)).flatten();
    let url = |rest: &str| format!("/v1/jobs/{}{rest}", job.id);
    json!({
        "id": job.id,
        "object": "job",
        "status": snapshot.status,
        "created": job.created.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        "model": job.model,
        "prompt": job.prompt,
        "n": job.count,
        "size": snapshot.size(),
        "steps": snapshot.plan.steps,
        "images_done": snapshot.images.iter().flatten().count(),
        "position": ahead.and_then(|ahead| ahead.images),
        "eta_s": ahead.and_then(|ahead| ahead.eta_s),
        "notes": snapshot.notes,
        "timings": snapshot.timings(),
        "error": snapshot.error.map(|error| error.json()["error"].clone()),
        "urls": {"self": url(""), "events": url("/events"), "result": url("/result"), "images":
            (0..job.count).map(|image| url(&format!("/images/{image}"))).collect::<Vec<_>>()},
    })
}

fn find(app: &App, client: &Client, id: &str) -> Result<Arc<JobRecord>> {
    app.store.job(id, &client.name).ok_or_else(|| ApiError::not_found("the job does not exist or is no longer kept"))
}

/// The query of a list of jobs.
#[derive(Debug, Deserialize)]
pub struct Listed {
    #[serde(default = "listed_at_most")]
    limit: usize,
    status: Option<String>,
}

fn listed_at_most() -> usize {
    50
}

/// Returns the jobs of a client, newest first.
pub async fn list(
    FromClient(app, client): FromClient,
    query: std::result::Result<Query<Listed>, axum::extract::rejection::QueryRejection>,
) -> Result<Response> {
    let Query(Listed { limit, status }) = query.map_err(|e| ApiError::bad("invalid_value", e.body_text()))?;
    let is_listed = |job: &Arc<JobRecord>| {
        status.as_ref().is_none_or(|status| serde_json::to_value(job.status()).is_ok_and(|known| known == **status))
    };
    let jobs = app.store.jobs(&client.name).into_iter().filter(is_listed);
    let jobs: Vec<_> = jobs.take(limit.min(1000)).map(|job| job_json(&app, &job)).collect();
    Ok(answer::json(&json!({"object": "list", "data": jobs})))
}

pub async fn get(FromClient(app, client): FromClient, Path(id): Path<String>) -> Result<Response> {
    let job = find(&app, &client, &id)?;
    Ok(answer::json(&job_json(&app, &job)))
}

/// Cancels a job.
pub async fn cancel(FromClient(app, client): FromClient, Path(id): Path<String>) -> Result<Response> {
    let job = find(&app, &client, &id)?;
    app.queue.cancel(&job);
    Ok(answer::json(&job_json(&app, &job)))
}

/// Returns all images of a finished job.
pub async fn result(FromClient(app, client): FromClient, Path(id): Path<String>) -> Result<Response> {
    let job = find(&app, &client, &id)?;
    let snapshot = job.snapshot();
    if let Some(error) = snapshot.error {
        return Err(error);
    }
    if snapshot.status != Status::Done {
        let message = "the job is not done: wait for its end with `events`";
        return Err(ApiError::new(StatusCode::CONFLICT, "not_done", message));
    }
    let mut files = Files::new();
    let images: Vec<_> = snapshot
        .images
        .iter()
        .flatten()
        .map(|made| {
            let (file, [width, height]) = (files.base64(&made.file), [made.width, made.height]);
            made.add_revised_prompt(json!({"b64_json": file, "seed": made.seed, "width": width, "height": height}))
        })
        .collect();
    let details = openai::details(&job, &snapshot);
    let format = job.encoding.format.name();
    Ok(answer::pieces(files.json(
        &json!({"id": job.id, "output_format": format, "data": images, "usage": snapshot.usage(), "flux": details}),
    )))
}

/// Returns an image of a job as a file.
pub async fn image(FromClient(app, client): FromClient, Path((id, image)): Path<(String, String)>) -> Result<Response> {
    let job = find(&app, &client, &id)?;
    let images = job.snapshot().images;
    let made = image.parse().ok().and_then(|image: usize| images.get(image)?.as_ref());
    let made = made.ok_or_else(|| ApiError::not_found("the image does not exist or is not generated yet"))?;
    Ok(answer::bytes(made.file.clone(), job.encoding.format.media_type()))
}

/// Streams the events of a job, from the start or after the last event that the client saw.
pub async fn events(
    FromClient(app, client): FromClient,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response> {
    let job = find(&app, &client, &id)?;
    let last: Option<usize> = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let first = last.map_or(0, |last| last.saturating_add(1));
    Ok(sse::answer(move |events| async move {
        // Fails if the client is gone.
        let _ = send_events(&app, &job, &events, first).await;
    }))
}

async fn send_events(app: &App, job: &JobRecord, events: &Events, first: usize) -> std::result::Result<(), Gone> {
    let mut changes = job.watch();
    let (mut told, mut place, mut silent) = (first, None, Duration::ZERO);
    loop {
        for event in job.events_from(told) {
            let (kind, data) = event_json(app, job, &event);
            events.send(kind, Some(told), data).await?;
            (told, silent) = (told + 1, Duration::ZERO);
        }
        if job.status().is_over() && job.events_from(told).is_empty() {
            return Ok(());
        }
        tokio::select! {
            _ = changes.changed() => continue,
            () = tokio::time::sleep(PLACE_EVERY) => silent += PLACE_EVERY,
            () = events.gone() => return Err(Gone),
        }
        let ahead = app.queue.ahead(job).filter(|_| job.status() == Status::Queued);
        if let Some(ahead) = ahead
            && place.replace(ahead.images) != Some(ahead.images)
        {
            events.send("queued", None, queued_json(app, job)).await?;
            silent = Duration::ZERO;
        }
        if silent >= KEEP_ALIVE {
            events.comment("waiting").await?;
            silent = Duration::ZERO;
        }
    }
}

fn queued_json(app: &App, job: &JobRecord) -> Value {
    let ahead = app.queue.ahead(job);
    json!({"type": "queued", "position": ahead.and_then(|ahead| ahead.images), "eta_s": ahead.and_then(|ahead| ahead.eta_s)})
}

/// Returns the name and the data of an event.
fn event_json(app: &App, job: &JobRecord, event: &JobEvent) -> (&'static str, Pieces) {
    let mut files = Files::new();
    let (kind, data) = match event {
        JobEvent::Queued => ("queued", queued_json(app, job)),
        JobEvent::Started { image } => ("started", json!({"type": "started", "image": image})),
        JobEvent::Step { image, step, steps } => {
            ("step", json!({"type": "step", "image": image, "step": step, "steps": steps}))
        }
        JobEvent::Preview { image, step, steps, file, .. } => (
            "preview",
            json!({"type": "preview", "image": image, "step": step, "steps": steps,
                "output_format": job.encoding.format.name(), "b64_json": files.base64(file)}),
        ),
        JobEvent::Image { image } => {
            ("image", json!({"type": "image", "image": image, "url": format!("/v1/jobs/{}/images/{image}", job.id)}))
        }
        JobEvent::Done => ("done", json!({"type": "done", "job": job_json(app, job)})),
        JobEvent::Failed(error) => ("failed", json!({"type": "failed", "error": error.json()["error"]})),
        JobEvent::Cancelled => ("cancelled", json!({"type": "cancelled"})),
    };
    (kind, files.json(&data))
}
