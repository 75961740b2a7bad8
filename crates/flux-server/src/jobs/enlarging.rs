//! Jobs that enlarge an image. A network runs on a device of an engine, in turn with other jobs. The Lanczos filter
//! runs on a thread for the work of requests.

use std::sync::Arc;

#[cfg(feature = "queue")]
use axum::http::StatusCode;
use flux::engine::{Enlarging, Job, Upscaling};
use flux::input;
use flux::output::ImageFormat;
use flux::rgb::Rgb;
use flux::stage::CancelFlag;
use flux::upscaler::Tiles;

use crate::App;
use crate::http::config::Limits;
use crate::http::error::{ApiError, Result};
use crate::jobs::admission::Permit;
use crate::jobs::models::Models;
use crate::jobs::record::{JobEvent, JobRecord, Made, Planned};
use crate::jobs::request::{Asked, Encoding, Enlargement};

/// Reads the image of a request.
///
/// Errors if the server has no such upscaler, the image cannot be read, or it would become too large.
fn enlarging(wanted: &Enlargement, asked: &Asked, models: &Models, limits: &Limits) -> Result<Enlarging> {
    let upscaler = wanted.upscaler.as_deref().map(|name| models.upscalers().open(name)).transpose()?;
    let file = asked.recipe.inputs.first().and_then(|name| asked.files.get(name)).map_or(&[][..], Vec::as_slice);
    let wrong = |e: flux::Error| ApiError::image(&e, "image");
    let scale = upscaler.as_ref().map_or(1, |upscaler| upscaler.scale());
    let to = wanted.size.resolve(input::upright_size(file).map_err(wrong)?, scale).map_err(too_large)?;
    check_pixels(to, limits)?;
    let enlarging = Enlarging::read(file, wanted.size, upscaler).map_err(wrong)?;
    if enlarging.max_pixels() > limits.upscale_max_pixels {
        let [width, height] = enlarging.from();
        let message = format!(
            "the upscaler makes {} pixels of the image of {width}x{height}, expected at most {}: send a smaller \
             image, or choose an upscaler with a smaller factor",
            enlarging.max_pixels(),
            limits.upscale_max_pixels
        );
        return Err(ApiError::value("image", message));
    }
    if enlarging.has_alpha() && asked.encoding.format == ImageFormat::Jpeg {
        let message = "the image is transparent, but a JPEG is not: expected png or webp";
        return Err(ApiError::value("output_format", message));
    }
    Ok(if asked.no_recipe { enlarging.without_recipe() } else { enlarging })
}

/// Returns the network's job for a request, and records its size.
///
/// Errors as [`enlarging`].
pub fn job(
    asked: &mut Asked,
    record: &JobRecord,
    models: &Models,
    limits: &Limits,
    cancel: &CancelFlag,
) -> Result<Job> {
    asked.prepare(cancel)?;
    let enlarging = read(asked, record, models, limits)?;
    Ok(Job {
        priority: asked.priority,
        deadline: record.deadline,
        cancel: record.cancel.clone(),
        ..Job::enlarging(enlarging)
    })
}

/// Enlarges the image of a request with the Lanczos filter, when its turn comes.
///
/// Errors as [`enlarging`], and if cancelled.
pub async fn filter(app: &Arc<App>, permit: &Permit, record: Arc<JobRecord>, asked: Asked) -> Result<()> {
    let (own, cancel, estimate) = (Arc::clone(app), record.cancel.clone(), asked.estimate());
    let work = move |cancel: &CancelFlag| {
        let enlarging = read(&asked, &record, own.queue.models(), &own.config.limits)?;
        record.push_event(JobEvent::Started { image: 0 });
        let (image, to) = (enlarging.image(), enlarging.to());
        let image = Upscaling::lanczos().enlarge(image, to, Tiles::Auto, &mut |_| {}, cancel)?;
        let made = encode(&enlarging, &image, record.encoding)?;
        cancel.check()?;
        record.made(0, made);
        Ok(())
    };
    permit.run(estimate, &cancel, work).await
}

/// Reads the image of a request, and records the size of the result.
fn read(asked: &Asked, record: &JobRecord, models: &Models, limits: &Limits) -> Result<Enlarging> {
    let missing = || ApiError::internal("the request enlarges no image");
    let image = enlarging(asked.enlarging.as_ref().ok_or_else(missing)?, asked, models, limits)?;
    let [width, height] = image.to();
    record.plan(Planned { width, height, ..Planned::default() }, &[]);
    Ok(image)
}

/// Encodes an enlarged image.
///
/// Errors as [`Enlarging::encode`].
pub fn encode(enlarging: &Enlarging, image: &Rgb, encoding: Encoding) -> flux::Result<Made> {
    let recipe = enlarging.recipe();
    Ok(Made {
        file: enlarging.encode(image, encoding.format, encoding.quality)?.into(),
        seed: recipe["recipe"]["recipe"]["seed"].as_u64().unwrap_or_default(),
        width: image.width,
        height: image.height,
        recipe,
        parameters: enlarging.parameters().unwrap_or_default().to_string(),
        url: None,
    })
}

/// Errors with remote workers, which have no upscalers.
#[cfg(feature = "queue")]
pub fn check_queue(asked: &Asked) -> Result<()> {
    match &asked.enlarging {
        Some(Enlargement { upscaler: Some(_), .. }) => Err(ApiError::new(
            StatusCode::NOT_IMPLEMENTED,
            "not_with_a_queue",
            "upscalers require a server with a model, but this server has a queue: use the upscaler Lanczos",
        )
        .for_good()),
        _ => Ok(()),
    }
}

/// Errors if a result has too many pixels.
fn check_pixels([width, height]: [usize; 2], limits: &Limits) -> Result<()> {
    let most = limits.upscale_max_pixels;
    if width.saturating_mul(height) <= most {
        return Ok(());
    }
    Err(ApiError::value("size", format!("the image would be {width}x{height}, expected at most {most} pixels")))
}

fn too_large(error: flux::Error) -> ApiError {
    ApiError::from(error).with_param("size")
}
