//! Jobs that enlarge an image. A network runs on a device of an engine, in turn with other jobs. The Lanczos filter
//! runs on a thread for the work of requests.

use std::sync::Arc;

use axum::http::StatusCode;
use flux::engine::{EnlargedSize, Enlarging, Job, Upscaling};
use flux::input;
use flux::output::ImageFormat;
use flux::rgb::Rgb;
use flux::stage::CancelFlag;

use crate::App;
use crate::http::config::Limits;
use crate::http::error::{ApiError, Result, shown};
use crate::jobs::admission::{Estimate, Permit};
use crate::jobs::models::Models;
use crate::jobs::record::{JobEvent, JobRecord, Made, Planned};
use crate::jobs::request::{Asked, Encoding};
use crate::upscalers::{LANCZOS, Upscalers};

/// The largest factor of width and height.
pub const MAX_FACTOR: f64 = 64.0;
/// The largest side of a result.
const MAX_SIDE: usize = 1 << 20;

/// A request to enlarge an image.
#[derive(Debug, Clone, PartialEq)]
pub struct Enlargement {
    /// The upscaler as the client named it; `None` for the Lanczos filter.
    pub upscaler: Option<String>,
    pub size: EnlargedSize,
}

impl Enlargement {
    /// Creates a request from a name, a factor, and a size such as `3840x2160`.
    ///
    /// Errors if the size is invalid, or missing for the Lanczos filter.
    pub fn new(upscaler: Option<String>, by: Option<f64>, size: Option<&str>) -> Result<Self> {
        let upscaler = upscaler.filter(|name| !Upscalers::is_filter(name));
        let size = match (by, size) {
            (Some(_), Some(_)) => return Err(ApiError::value("size", "pass `by` or `size`, not both")),
            (Some(by), None) if by > 0.0 && by <= MAX_FACTOR => EnlargedSize::By(by),
            (Some(by), None) => {
                return Err(ApiError::value("by", format!("`by` is {by}, expected a factor up to {MAX_FACTOR}")));
            }
            (None, Some(text)) => EnlargedSize::To(size_of(text)?),
            (None, None) if upscaler.is_some() => EnlargedSize::Own,
            (None, None) => {
                let message = "the size is missing: pass `by`, a factor, or `size`, as in 3840x2160";
                return Err(ApiError::bad("missing_required_parameter", message).with_param("by"));
            }
        };
        Ok(Self { upscaler, size })
    }

    /// Returns the name of the upscaler, for clients.
    ///
    /// Errors if the server has no such upscaler.
    pub fn name(&self, upscalers: &Upscalers) -> Result<String> {
        match &self.upscaler {
            Some(name) => upscalers.find(name).map(|path| crate::upscalers::stem(&path).to_string()),
            None => Ok(LANCZOS.to_string()),
        }
    }

    /// Returns the work of the filter on an image, in addition to decoding it.
    pub fn estimate(&self, file: &[u8]) -> Estimate {
        let size = input::file_size(file).ok().filter(|_| self.upscaler.is_none());
        let to = size.and_then(|size| self.size.resolve(size, 1).ok());
        // Two passes of the filter, and encoding.
        to.map_or(Estimate::default(), |[width, height]| Estimate::scale(4 * width as u64 * height as u64))
    }

    /// Reads the image of a request.
    ///
    /// Errors if the server has no such upscaler, the image cannot be read, or it would become too large.
    fn read(&self, asked: &Asked, models: &Models, limits: &Limits) -> Result<Enlarging> {
        let upscaler = self.upscaler.as_deref().map(|name| models.upscalers().open(name)).transpose()?;
        let file = asked.recipe.inputs.first().and_then(|name| asked.files.get(name)).map_or(&[][..], Vec::as_slice);
        let wrong = |e: flux::Error| ApiError::image(&e, "image");
        let scale = upscaler.as_ref().map_or(1, |upscaler| upscaler.scale());
        let to = self.size.resolve(input::upright_size(file).map_err(wrong)?, scale).map_err(too_large)?;
        check_pixels(to, limits)?;
        let enlarging = Enlarging::read(file, self.size, upscaler).map_err(wrong)?;
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
}

/// Returns the network's job for a request, and records its size.
///
/// Errors as [`Enlargement::read`].
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
        ..enlarging.into_job()
    })
}

/// Enlarges the image of a request with the Lanczos filter, when its turn comes.
///
/// Errors as [`Enlargement::read`], and if cancelled.
pub async fn filter(app: &Arc<App>, permit: &Permit, record: Arc<JobRecord>, asked: Asked) -> Result<()> {
    let (own, cancel, estimate) = (Arc::clone(app), record.cancel.clone(), asked.estimate());
    let work = move |cancel: &CancelFlag| {
        let enlarging = read(&asked, &record, own.queue.models(), &own.config.limits)?;
        record.push_event(JobEvent::Started { image: 0 });
        let (image, to, tiles) = (enlarging.image(), enlarging.to(), enlarging.tiles());
        let image = Upscaling::lanczos().enlarge(image, to, tiles, &mut |_| {}, cancel)?;
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
    let enlarging = asked.enlarging.as_ref().ok_or_else(missing)?.read(asked, models, limits)?;
    let [width, height] = enlarging.to();
    record.plan(Planned { width, height, ..Planned::default() }, &[]);
    Ok(enlarging)
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

/// Parses a size such as `3840x2160`.
fn size_of(text: &str) -> Result<[usize; 2]> {
    let side = |text: &str| text.trim().parse().ok().filter(|side| (1..=MAX_SIDE).contains(side));
    let sides = text.split_once(['x', 'X', '×', '*']).and_then(|(width, height)| Some([side(width)?, side(height)?]));
    sides.ok_or_else(|| ApiError::value("size", format!("`size` is `{}`, expected WIDTHxHEIGHT", shown(text))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_factor_or_two_sides() {
        let new = |upscaler: &str, by, size| {
            let upscaler = Some(upscaler.to_string()).filter(|name| !name.is_empty());
            Enlargement::new(upscaler, by, size)
                .map(|one| (one.upscaler, one.size))
                .map_err(|error| error.param.unwrap())
        };
        let named = || Some("x".to_string());
        assert_eq!(new("x", None, None), Ok((named(), EnlargedSize::Own)));
        assert_eq!(new("", Some(1.5), None), Ok((None, EnlargedSize::By(1.5))));
        assert_eq!(new("lanczos", None, Some("30 x 20")), Ok((None, EnlargedSize::To([30, 20]))));
        for (upscaler, by, size, param) in [
            ("", None, None, "by"),
            ("Lanczos", None, None, "by"),
            ("x", Some(0.0), None, "by"),
            ("x", Some(f64::NAN), None, "by"),
            ("x", Some(65.0), None, "by"),
            ("x", Some(2.0), Some("8x8"), "size"),
            ("x", None, Some("8"), "size"),
            ("x", None, Some("0x8"), "size"),
            ("x", None, Some("99999999999x8"), "size"),
        ] {
            assert_eq!(new(upscaler, by, size).unwrap_err(), param, "{by:?} {size:?}");
        }
    }
}
