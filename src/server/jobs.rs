//! Our own jobs: `/v1/jobs`. They go on when their client is gone, and their results are kept for a while.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::Extension;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::{ApiError, Result};
use super::guard::Client;
use super::pieces::{Files, Pieces};
use super::record::{JobEvent, JobRecord, Status};
use super::request::Route;
use super::sse::{self, Events, Gone, KEEP_ALIVE};
use super::{App, answer, body, fields, intake, openai};

/// How often the place of a job that waits is told.
const PLACE_EVERY: Duration = Duration::from_secs(1);
/// The longest key of a client.
const MOST_KEY: usize = 255;

/// Takes a job.
pub async fn submit(
    State(app): State<Arc<App>>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let held = app.bodies.hold();
    let (mut fields, mut uploads) = body::read(&parts.headers, body, &app.config.limits, &held).await?;
    let mut turn = None;
    if let Some(key) = idempotency_key(&parts.headers)? {
        // A form has a boundary of its own each time, so what it says is compared.
        let compared = move || Ok((digest(&fields, &uploads), fields, uploads));
        let digest;
        (digest, fields, uploads) = intake::blocking(&app, compared).await?;
        // Of two requests with one key, the second waits for the first.
        let waited = app.idempotent.take(&client.name, &key).await;
        if let Some(job) = app.store.recall(&client.name, &key, digest)? {
            return Ok(answer::json_with(StatusCode::ACCEPTED, &job_json(&app, &job)));
        }
        turn = Some((waited, key, digest));
    }
    let asked = intake::read(&app, &client, fields, uploads, Route::Jobs).await?;
    if asked.answer.stream || asked.answer.as_url {
        let field = if asked.answer.stream { "stream" } else { "response_format" };
        let message = format!("`{field}` has no meaning for a job: it has `events` and `result`");
        return Err(ApiError::bad("unsupported_value", message).of(field));
    }
    let job = intake::submit(&app, &client, asked).await?;
    app.store.add(Arc::clone(&job));
    if let Some((_, key, digest)) = &turn {
        app.store.remember(&client.name, key, *digest, &job);
    }
    Ok(answer::json_with(StatusCode::ACCEPTED, &job_json(&app, &job)))
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    match key.to_str() {
        Ok(key) if !key.is_empty() && key.len() <= MOST_KEY => Ok(Some(key.to_string())),
        _ => Err(ApiError::bad("invalid_value", format!("the `Idempotency-Key` has not 1 to {MOST_KEY} characters"))),
    }
}

/// What a request says, whatever stands between its parts.
fn digest(fields: &fields::Fields, uploads: &[super::request::Upload]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{fields:?}").as_bytes());
    for upload in uploads {
        hasher.update(format!("{}\0{:?}\0{}\0", upload.part, upload.file_name, upload.bytes.len()).as_bytes());
        hasher.update(&upload.bytes);
    }
    hasher.finalize()
}

/// A job as clients see it.
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
    app.store.job(id, &client.name).ok_or_else(|| ApiError::not_found("there is no such job, or not any more"))
}

/// Which jobs are listed.
#[derive(Debug, Deserialize)]
pub struct Listed {
    #[serde(default = "listed_at_most")]
    limit: usize,
    status: Option<String>,
}

fn listed_at_most() -> usize {
    50
}

/// The jobs of a client, the newest first.
pub async fn list(
    State(app): State<Arc<App>>,
    Extension(client): Extension<Client>,
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

pub async fn get(
    State(app): State<Arc<App>>,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
) -> Result<Response> {
    let job = find(&app, &client, &id)?;
    Ok(answer::json(&job_json(&app, &job)))
}

/// Cancels a job.
pub async fn cancel(
    State(app): State<Arc<App>>,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
) -> Result<Response> {
    let job = find(&app, &client, &id)?;
    app.queue.cancel(&job);
    Ok(answer::json(&job_json(&app, &job)))
}

/// All images of a job that is done.
pub async fn result(
    State(app): State<Arc<App>>,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
) -> Result<Response> {
    let job = find(&app, &client, &id)?;
    let snapshot = job.snapshot();
    if let Some(error) = snapshot.error {
        return Err(error);
    }
    if snapshot.status != Status::Done {
        let message = "the job is not done: `events` tells when it is";
        return Err(ApiError::new(StatusCode::CONFLICT, "not_done", message));
    }
    let mut files = Files::new();
    let images: Vec<_> = snapshot
        .images
        .iter()
        .flatten()
        .map(|made| json!({"b64_json": files.base64(&made.file), "seed": made.seed, "width": made.width, "height": made.height}))
        .collect();
    let details = openai::details(&job, &snapshot);
    let format = job.encoding.name();
    Ok(answer::pieces(files.json(
        &json!({"id": job.id, "output_format": format, "data": images, "usage": snapshot.usage(), "flux": details}),
    )))
}

/// One image of a job, as the file that it is.
pub async fn image(
    State(app): State<Arc<App>>,
    Extension(client): Extension<Client>,
    Path((id, image)): Path<(String, String)>,
) -> Result<Response> {
    let job = find(&app, &client, &id)?;
    let images = job.snapshot().images;
    let made = image.parse().ok().and_then(|image: usize| images.get(image)?.as_ref());
    let made = made.ok_or_else(|| ApiError::not_found("the job has no such image, or not yet"))?;
    Ok(answer::of(made.file.clone(), job.encoding.media_type()))
}

/// What happens to a job, from its beginning or from behind the event that the client saw last.
pub async fn events(
    State(app): State<Arc<App>>,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response> {
    let job = find(&app, &client, &id)?;
    let last: Option<usize> = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let first = last.map_or(0, |last| last.saturating_add(1));
    Ok(sse::answer(move |events| async move {
        // A client that is gone hears nothing of it.
        let _ = tell(&app, &job, &events, first).await;
    }))
}

async fn tell(app: &App, job: &JobRecord, events: &Events, first: usize) -> std::result::Result<(), Gone> {
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

/// The name of an event and what it says.
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
                "output_format": job.encoding.name(), "b64_json": files.base64(file)}),
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
