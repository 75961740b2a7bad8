//! OpenAI's Images API: `/v1/images/generations`, `/v1/images/edits` and `/v1/models`. `/v1/images/upscale` has the
//! same form.
//!
//! If a client closes its connection, its job is cancelled.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::Extension;
use axum::extract::{Path, Request, State};
use axum::http::HeaderMap;
use axum::response::Response;
use bytes::Bytes;
use flux::engine::Engine;
use flux::model::{ModelInfo, ReferenceSizes};
use flux::pipeline::MAX_REFERENCES;
use serde_json::{Map, Value, json};

use crate::http::address::Address;
use crate::http::error::{ApiError, Result};
use crate::http::pieces::{Files, Pieces};
use crate::http::sse::{self, Events, Gone, KEEP_ALIVE};
use crate::jobs::models::Models;
use crate::jobs::record::{JobEvent, JobRecord, Made, Snapshot};
use crate::jobs::request::{Answer, MAX_IMAGES, MAX_PROMPT, Route};
use crate::wire::FromClient;
use crate::{App, http::answer, jobs::intake};

/// The header with the timeout of OpenAI's Python client, in seconds.
const CLIENT_TIMEOUT: &str = "x-stainless-read-timeout";
/// Pixels to which a model reduces a reference among others.
const REFERENCE_PIXELS: usize = 1024 * 1024;

pub async fn images(
    FromClient(app, client): FromClient,
    Extension(address): Extension<Address>,
    request: Request,
    route: Route,
) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let permit = app.permit(&client);
    let (fields, uploads) = intake::body(&app, &parts.headers, body, &permit, route).await?;
    let mut asked = intake::read(&app, &client, &permit, fields, uploads, route).await?;
    let patience = client_timeout(&parts.headers);
    asked.deadline = match (asked.deadline, patience) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    let mut answer = std::mem::take(&mut asked.answer);
    answer.as_url |= answer.is_url_expected;
    let job = intake::submit(&app, &client, &permit, asked).await?;
    drop(permit);
    if answer.stream {
        return Ok(sse::answer(move |events| async move {
            // Fails if the client is gone.
            let _ = stream(&app, &job, (&events, &answer, &address), route).await;
        }));
    }
    job.end().await;
    let snapshot = job.snapshot();
    match snapshot.error {
        Some(error) => Err(error),
        None => Ok(answer::pieces(whole(&app, &job, &snapshot, (&answer, &address)))),
    }
}

/// Returns the timeout of the client, which becomes a deadline.
fn client_timeout(headers: &HeaderMap) -> Option<Duration> {
    let seconds: f64 = headers.get(CLIENT_TIMEOUT)?.to_str().ok()?.parse().ok()?;
    (seconds > 0.0 && seconds < 1e6).then(|| Duration::from_secs_f64(seconds))
}

/// Returns the fields that all responses share.
fn common(job: &JobRecord, snapshot: &Snapshot) -> Map<String, Value> {
    let all = [("output_format", job.encoding.format.name().into()), ("size", Value::from(snapshot.size()))];
    let generated =
        [("quality", "high".into()), ("background", if job.is_transparent { "transparent" } else { "opaque" }.into())];
    let generated = generated.into_iter().filter(|_| !job.is_enlarging);
    all.into_iter().chain(generated).map(|(name, value)| (name.to_string(), value)).collect()
}

fn created(job: &JobRecord) -> u64 {
    job.created.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Returns the response to a request without streaming.
fn whole(app: &App, job: &JobRecord, snapshot: &Snapshot, (asked, address): (&Answer, &Address)) -> Pieces {
    let mut files = Files::new();
    let mut image = |made: &Made| {
        made.add_revised_prompt(match asked.as_url {
            true => json!({"url": file_url(app, job, made, address), "seed": made.seed}),
            false => json!({"b64_json": files.base64(&made.file), "seed": made.seed}),
        })
    };
    let mut answer = common(job, snapshot);
    answer.insert("created".to_string(), created(job).into());
    answer.insert("data".to_string(), snapshot.images.iter().flatten().map(&mut image).collect());
    answer.insert("usage".to_string(), snapshot.usage());
    answer.insert("flux".to_string(), details(job, snapshot));
    if let Some(identifier) = &asked.safety_identifier {
        answer.insert("safety_identifier".to_string(), identifier.as_str().into());
    }
    files.json(&answer.into())
}

/// Returns details that OpenAI's format lacks.
pub fn details(job: &JobRecord, snapshot: &Snapshot) -> Value {
    let recipes: Vec<_> = snapshot.images.iter().flatten().map(|made| &made.recipe).collect();
    json!({"id": job.id, "model": job.model, "notes": snapshot.notes, "timings": snapshot.timings(), "recipes": recipes})
}

/// Returns the URL of a file, which is retained for a while.
fn file_url(app: &App, job: &JobRecord, made: &Made, address: &Address) -> String {
    if let Some(url) = &made.url {
        return url.clone();
    }
    let name = app.store.add_file(made.file.clone(), job.encoding.format.name(), job.encoding.format.media_type());
    address.url(&format!("/v1/files/{name}"))
}

/// Streams the images to a client as they are finished.
async fn stream(
    app: &App,
    job: &JobRecord,
    (events, asked, address): (&Events, &Answer, &Address),
    route: Route,
) -> std::result::Result<(), Gone> {
    let prefix = match route {
        Route::Edits => "image_edit",
        Route::Upscale => "image_upscale",
        Route::Generations | Route::Jobs => "image_generation",
    };
    let mut changes = job.watch();
    let mut told = 0;
    loop {
        for event in job.events_from(told) {
            told += 1;
            send_event(app, job, event, (events, asked, address, prefix)).await?;
        }
        if job.status().is_over() && job.events_from(told).is_empty() {
            return Ok(());
        }
        tokio::select! {
            _ = changes.changed() => {}
            () = tokio::time::sleep(KEEP_ALIVE) => events.comment("waiting").await?,
            () = events.gone() => return Err(Gone),
        }
    }
}

async fn send_event(
    app: &App,
    job: &JobRecord,
    event: JobEvent,
    (events, asked, address, prefix): (&Events, &Answer, &Address, &str),
) -> std::result::Result<(), Gone> {
    let snapshot = job.snapshot();
    let send = async |kind: &str, file: &Bytes, rest: Value| {
        let mut files = Files::new();
        let mut data = common(job, &snapshot);
        let kind = format!("{prefix}.{kind}");
        data.insert("type".to_string(), kind.as_str().into());
        data.insert("b64_json".to_string(), files.base64(file));
        data.insert("created_at".to_string(), created(job).into());
        data.extend(rest.as_object().cloned().unwrap_or_default());
        events.send(&kind, None, files.json(&data.into())).await
    };
    match event {
        JobEvent::Step { image, step, steps } => {
            let of = if job.count > 1 { format!(" of image {}", image + 1) } else { String::new() };
            events.comment(&format!("step {step}/{steps}{of}")).await
        }
        JobEvent::Preview { image, index, file, .. } => {
            send(
                "partial_image",
                &file,
                json!({"partial_image_index": index, "image_index": image, "size": snapshot.planned_size()}),
            )
            .await
        }
        JobEvent::Image { image } => {
            let Some(made) = &snapshot.images[image] else { return Ok(()) };
            let mut rest = made.add_revised_prompt(json!({
                "usage": snapshot.usage(), "image_index": image, "seed": made.seed,
                "flux": {"id": job.id, "model": job.model, "notes": snapshot.notes, "recipe": made.recipe},
            }));
            if asked.as_url {
                rest["url"] = file_url(app, job, made, address).into();
            }
            send("completed", &made.file, rest).await
        }
        JobEvent::Failed(error) => events.send("error", None, error.json()).await,
        JobEvent::Cancelled => events.send("error", None, crate::http::error::cancelled().json()).await,
        JobEvent::Queued | JobEvent::Started { .. } | JobEvent::Done => Ok(()),
    }
}

/// Lists the models in OpenAI's format.
pub async fn models(State(app): State<Arc<App>>) -> Response {
    let data: Vec<_> = app.queue.models().names().map(|name| model_json(&app, name)).collect();
    let limits = &app.config.limits;
    let server = json!({
        "queue": app.queue.is_queue(),
        "upsample": app.upsampling.is_some(),
        "wildcards": app.config.wildcards.is_some(),
        "upscalers": app.queue.models().upscalers().all_names(),
        "version": env!("CARGO_PKG_VERSION"),
        "limits": {
            "images": MAX_IMAGES, "pixels": limits.max_pixels, "upscale_pixels": limits.upscale_max_pixels,
            "prompt": MAX_PROMPT,
            "file_bytes": limits.file_bytes, "form_bytes": limits.form_bytes,
        },
    });
    answer::json(&json!({"object": "list", "data": data, "flux": server}))
}

pub async fn model(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Response> {
    let known = app.queue.models().names().any(|known| known == name);
    if known { Ok(answer::json(&model_json(&app, &name))) } else { Err(app.queue.models().unknown(&name)) }
}

/// Returns what is known of a model before it is loaded.
fn details_of(models: &Models, place: usize, engine: Option<&ModelInfo>) -> Option<Value> {
    let known = models.info(place);
    let info = engine.or(known.as_deref())?;
    let (kind, [height, width]) = (info.kind, info.default_image_size);
    let alone = if kind.references == ReferenceSizes::AloneWhole { 4 * REFERENCE_PIXELS } else { REFERENCE_PIXELS };
    let trained = info.trained_sizes;
    Some(json!({
        "kind": kind.files.name,
        "size": format!("{width}x{height}"),
        "steps": info.default_steps,
        "guidance": kind.defaults(info.is_distilled).guidance,
        "is_distilled": info.is_distilled,
        "reads_boxes": kind.reads_boxes,
        "reads_regions": !info.transformer.has_early_blocks(),
        "wants_captions": kind.wants_captions,
        "sides": trained.map(|sizes| sizes.sides),
        "aspect_ratio": trained.map_or(kind.aspect_ratio, |sizes| sizes.aspect_ratio),
        "area_factor": kind.area_factor,
        "text_tokens": info.max_sequence_length,
        "max_references": MAX_REFERENCES,
        "reference_pixels": [alone, REFERENCE_PIXELS],
        "licence": models.licence(place).map(|(name, link)| json!({"name": name, "link": link})),
    }))
}

/// Returns a model. `flux` is known only while the model is loaded.
pub fn model_json(app: &App, name: &str) -> Value {
    let models = &app.queue.models();
    let place = models.find(Some(name)).ok().map(|(place, _)| place);
    let engine = place.and_then(|place| models.resident(place));
    let details = place.and_then(|place| details_of(models, place, engine.as_deref().map(Engine::info)));
    let loaded = engine.map(|engine| {
        let ModelInfo { default_image_size: [height, width], default_steps, is_distilled, .. } = engine.info();
        json!({
            "size": format!("{width}x{height}"), "steps": default_steps, "uses_guidance": !is_distilled,
            "max_pixels": app.config.limits.max_pixels,
        })
    });
    json!({"id": name, "object": "model", "created": app.started_unix, "owned_by": "flux", "details": details, "flux": loaded})
}

/// Returns a result file.
pub async fn file(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Response> {
    let (bytes, kind) =
        app.store.file(&name).ok_or_else(|| ApiError::not_found("the file does not exist or is no longer kept"))?;
    Ok(answer::bytes(bytes, kind))
}
