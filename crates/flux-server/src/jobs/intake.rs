//! The path from a request to a job, shared by all routes that generate images.
//!
//! A job is registered with its owner before any of its images is decoded. So it can be listed and cancelled from the
//! start, and no untracked work is left if its client disconnects.

use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use axum::http::HeaderMap;
use flux::engine::EmbeddedFiles;
use flux::sampler::random_seed;

use crate::http::client::Client;
use crate::http::error::Result;
use crate::jobs::admission::Permit;
use crate::jobs::embedded::Reader;
use crate::jobs::fields::Fields;
use crate::jobs::record::{JobRecord, Owner};
use crate::jobs::request::{Asked, Defaults, Route, Upload};
use crate::jobs::upsampling::Upsampling;
use crate::{App, EndsWithClient, jobs::body, jobs::enlarging};

/// Files that other jobs make, by their names in a recipe.
pub type LaterFiles = Pin<Box<dyn Future<Output = Result<EmbeddedFiles>> + Send>>;

/// The assumed number of pixels of an image if its model is not loaded.
const PIXELS: usize = 1 << 20;

/// Reads the fields and files of a body. Images among the fields become files.
///
/// Errors if one of them is not an image, and as [`body::read`].
pub async fn body(
    app: &Arc<App>,
    headers: &HeaderMap,
    body: Body,
    permit: &Permit,
    route: Route,
) -> Result<(Fields, Vec<Upload>)> {
    let limits = &app.config.limits;
    // Routes that accept images also accept them in JSON, as base64.
    let images = if route == Route::Generations { 0 } else { limits.file_bytes / 3 * 4 };
    let (fields, uploads) = body::read(headers, body, limits.json_bytes + images, limits, permit).await?;
    if route == Route::Generations {
        return Ok((fields, uploads));
    }
    let mut fields = fields.with_own_names();
    let (bytes, max_bytes, app) = (fields.bytes("image") + fields.bytes("mask"), limits.file_bytes, Arc::clone(app));
    permit.keep(bytes / 4 * 3)?;
    body::run_blocking(permit, bytes, move || {
        let file = |name: &str| app.store.file(name).map(|(bytes, _)| bytes);
        let uploads = Reader { file: &file, max_bytes }.read(&mut fields, uploads)?;
        Ok((fields, uploads))
    })
    .await
}

/// Reads the fields of a request, and only the headers of its images.
///
/// Errors if a field is invalid.
pub async fn read(
    app: &App,
    client: &Client,
    permit: &Permit,
    fields: Fields,
    uploads: Vec<Upload>,
    route: Route,
) -> Result<Asked> {
    let most = client.max_priority();
    client.about.set(fields.said("model"), fields.said("size").or_else(|| sides(&fields)));
    let models = app.queue.models();
    let place = models.find(fields.said("model").as_deref()).map_or(0, |(place, _)| place);
    let pixels = models.resident(place).map_or(PIXELS, |engine| engine.info().default_image_size.iter().product());
    let defaults = Defaults { seed: random_seed(), pixels };
    let read = move || Asked::read(fields, uploads, route, defaults);
    let mut asked = body::run_blocking(permit, permit.kept(), read).await?;
    if let Some(expansion) = &mut asked.expansion {
        expansion.wildcards.clone_from(&app.config.wildcards);
    }
    if asked.priority > most {
        asked.notes.push("the priority is limited to that of the key".to_string());
        asked.priority = most;
    }
    Ok(asked)
}

/// Returns the size of a request that has both width and height.
fn sides(fields: &Fields) -> Option<String> {
    Some(format!("{}x{}", fields.said("width")?, fields.said("height")?))
}

/// Registers a job and starts reading its images. [`JobRecord::taken`] waits for that. The job continues if its client
/// disconnects.
///
/// Errors if the job is invalid, as far as known without its images, or there is too much work.
pub fn begin(app: &Arc<App>, client: &Client, permit: &Arc<Permit>, asked: Asked) -> Result<Arc<JobRecord>> {
    begin_after(app, client, permit, asked, None)
}

/// As [`begin`], for a job that also reads files which other jobs make first.
///
/// Errors as [`begin`].
pub fn begin_after(
    app: &Arc<App>,
    client: &Client,
    permit: &Arc<Permit>,
    asked: Asked,
    later: Option<LaterFiles>,
) -> Result<Arc<JobRecord>> {
    let size = asked.recipe.width.zip(asked.recipe.height).map(|(width, height)| format!("{width}x{height}"));
    client.about.set(asked.model.clone(), size);
    asked.check()?;
    let upsampling = Upsampling::wanted(app.upsampling.as_ref(), &asked)?;
    permit.count(asked.estimate(), "image")?;
    client.take(asked.count)?;
    // Users of a key are identified by hashes of their names.
    let user = asked.user.as_ref().map_or_else(String::new, |user| blake3::hash(user.as_bytes()).to_hex().to_string());
    let owner = Owner { key: client.name.clone(), share: client.share.clone(), user };
    start(app, owner, permit, asked, (later, upsampling))
}

/// The work on a request before its images are read: files of other jobs, and a prompt of a language model.
type Before = (Option<LaterFiles>, Option<Arc<Upsampling>>);

fn start(
    app: &Arc<App>,
    owner: Owner,
    permit: &Arc<Permit>,
    mut asked: Asked,
    before: Before,
) -> Result<Arc<JobRecord>> {
    let record = app.queue.begin(&mut asked, owner).inspect_err(|error| app.metrics.refused(error.code))?;
    tokio::spawn(take(Arc::clone(app), Arc::clone(permit), Arc::clone(&record), asked, before));
    Ok(record)
}

/// Starts a job that continues another one of the same owner. It is cancelled on drop.
///
/// Errors as [`begin`].
pub fn continued(app: &Arc<App>, owner: &Owner, asked: Asked) -> Result<EndsWithClient> {
    let permit = Arc::new(app.admission.permit(&owner.share));
    permit.count(asked.estimate(), "image")?;
    Ok(EndsWithClient::new(app, start(app, owner.clone(), &permit, asked, (None, None))?))
}

/// As [`begin`], but the job is cancelled if its client disconnects. Waits until its images are read.
///
/// Errors as [`begin`], or if an image cannot be read.
pub async fn submit(app: &Arc<App>, client: &Client, permit: &Arc<Permit>, asked: Asked) -> Result<EndsWithClient> {
    let job = EndsWithClient::new(app, begin(app, client, permit, asked)?);
    job.taken().await?;
    Ok(job)
}

/// Reads the images of a job and queues it, unless it is cancelled first. Before, other jobs may make some of its
/// images, and a language model may rewrite its prompt.
async fn take(
    app: Arc<App>,
    permit: Arc<Permit>,
    record: Arc<JobRecord>,
    mut asked: Asked,
    (later, upsampling): Before,
) {
    let queued = async {
        if let Some(files) = later {
            asked.files.extend(files.await?);
        }
        let asked = match upsampling {
            Some(upsampling) => upsampling.rewrite(&permit, &record, asked, app.queue.models()).await?,
            None => asked,
        };
        if asked.enlarging.as_ref().is_some_and(|enlargement| enlargement.upscaler.is_none()) {
            return enlarging::filter(&app, &permit, Arc::clone(&record), asked).await;
        }
        app.queue.take(&permit, Arc::clone(&record), asked).await
    };
    let taken = tokio::select! {
        taken = queued => taken,
        // A refusal may end the job before the queue returns it.
        () = record.end() => record.failure().map_or(Ok(()), Err),
    };
    drop(permit);
    if let Err(error) = taken {
        app.metrics.refused(error.code);
        // Remove a refused job before its client sees the error, since the client may then send it again.
        if !record.is_taken() {
            app.store.forget(&record);
        }
        record.fail(error);
        return;
    }
    record.take();
    app.log.job(&record.id, &record.owner.key, &record.prompt);
    record.end().await;
    app.metrics.ended(&record);
}
