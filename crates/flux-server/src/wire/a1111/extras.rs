//! `extra-single-image` and `extra-batch-images`: images that are enlarged.

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::Request;
use flux::engine::{EmbeddedFiles, EnlargedSize, Priority};
use flux::input;
use flux::stage::CancelFlag;
use serde_json::{Map, Value, json};

use super::reading::Reading;
use super::{SdResult, file_of, read_fields};
use crate::http::client::Client;
use crate::http::error::{ApiError, Result, shown};
use crate::http::pieces::Files;
use crate::jobs::admission::{Estimate, Permit};
use crate::jobs::fields::missing;
use crate::jobs::request::{Asked, ENLARGED, Enlargement, MAX_FACTOR};
use crate::wire::FromClient;
use crate::{App, EndsWithClient, http::answer, jobs::intake};

/// Max images of a batch.
const MAX_IMAGES: usize = 64;
/// The largest side of a result.
const MAX_SIDE: u64 = 1 << 20;
/// The name of A1111 for no upscaler.
const NONE: &str = "None";
/// Fields that change nothing without networks for faces.
const HARMLESS: [&str; 4] = ["upscale_first", "codeformer_weight", "show_extras_results", "save_output"];

/// Returns the upscalers for a list: none, the Lanczos filter, and those of the server.
pub fn upscalers(app: &App) -> Value {
    let all = [NONE.to_string()].into_iter().chain(app.queue.models().upscalers().all_names());
    let one = |name: String| json!({"name": name, "model_name": null, "model_path": null, "model_url": null, "scale": if name == NONE { 1 } else { 4 }});
    all.map(one).collect()
}

pub async fn single(FromClient(app, client): FromClient, request: Request) -> SdResult {
    let permit = app.permit(&client);
    let mut fields = read_fields(&app, request.into_body(), &permit).await?;
    let image = fields.remove("image");
    let extras = Extras::read(&app, fields)?;
    let file = extras.enlarge(&app, &client, &permit, image, "image").await?;
    let mut files = Files::new();
    let image = files.base64(&file);
    Ok(answer::pieces(files.json(&json!({"html_info": extras.info(), "image": image}))))
}

pub async fn batch(FromClient(app, client): FromClient, request: Request) -> SdResult {
    let permit = app.permit(&client);
    let mut fields = read_fields(&app, request.into_body(), &permit).await?;
    let list = match fields.remove("imageList") {
        Some(Value::Array(list)) if list.len() <= MAX_IMAGES => list,
        Some(Value::Array(list)) => {
            let message = format!("`imageList` has {} images, expected at most {MAX_IMAGES}", list.len());
            return Err(ApiError::value("imageList", message).into());
        }
        _ => return Err(missing("imageList").into()),
    };
    let extras = Extras::read(&app, fields)?;
    let mut files = Files::new();
    let mut images = Vec::new();
    for image in list {
        let data = match image {
            Value::Object(mut image) => image.remove("data"),
            other => Some(other),
        };
        images.push(files.base64(&extras.enlarge(&app, &client, &permit, data, "imageList").await?));
    }
    Ok(answer::pieces(files.json(&json!({"html_info": extras.info(), "images": images}))))
}

struct Extras {
    /// `None` leaves the images as they are.
    enlargement: Option<Enlargement>,
    /// The sides that the images reach without being cropped.
    sides: Option<[u64; 2]>,
    /// Fields without effect.
    lost: Vec<String>,
}

impl Extras {
    /// Parses the fields.
    ///
    /// Errors if one is invalid, or asks for something that is not supported.
    fn read(app: &Arc<App>, fields: Map<String, Value>) -> Result<Self> {
        let mut reading = Reading::new(app, fields);
        for (field, what) in [
            ("gfpgan_visibility", "GFPGAN"),
            ("codeformer_visibility", "CodeFormer"),
            ("extras_upscaler_2_visibility", "a second upscaler"),
        ] {
            if reading.number(field, 0.0..=1.0)?.unwrap_or(0.0) > 0.0 {
                return Err(ApiError::bad("unsupported_value", format!("{what} is not supported: set `{field}` to 0"))
                    .with_param(field));
            }
        }
        reading.fields.remove("upscaler_2");
        let upscaler = reading.text("upscaler_1")?.filter(|name| !matches!(&**name, "" | NONE));
        let is_to_size = reading.whole("resize_mode", 0..=1)? == Some(1);
        let by = reading.number("upscaling_resize", 0.0..=MAX_FACTOR)?;
        let sides =
            [reading.whole("upscaling_resize_w", 0..=MAX_SIDE)?, reading.whole("upscaling_resize_h", 0..=MAX_SIDE)?];
        let is_cut = reading.whole("upscaling_crop", 0..=1)? != Some(0);
        let size = match (is_to_size, sides) {
            (false, _) => Some(EnlargedSize::By(by.filter(|by| *by > 0.0).unwrap_or(2.0))),
            (true, [Some(width @ 1..), Some(height @ 1..)]) => {
                is_cut.then_some(EnlargedSize::Cover([width as usize, height as usize]))
            }
            (true, _) => {
                let message = "resize_mode 1 needs `upscaling_resize_w` and `upscaling_resize_h`";
                return Err(ApiError::bad("missing_required_parameter", message).with_param("upscaling_resize_w"));
            }
        };
        let sides = size.is_none().then(|| sides.map(Option::unwrap_or_default));
        let enlargement = upscaler.map(|name| Enlargement {
            upscaler: Some(name).filter(|name| !crate::upscalers::Upscalers::is_filter(name)),
            size: size.unwrap_or(EnlargedSize::Own),
        });
        let named = |name: &String| !HARMLESS.contains(&&**name);
        let lost = reading.fields.keys().filter(|name| named(name)).take(MAX_IMAGES).map(|name| shown(name)).collect();
        Ok(Self { enlargement, sides, lost })
    }

    /// Enlarges an image in base64.
    ///
    /// Errors if it is not an image, or cannot be enlarged.
    async fn enlarge(
        &self,
        app: &Arc<App>,
        client: &Client,
        permit: &Arc<Permit>,
        image: Option<Value>,
        field: &'static str,
    ) -> Result<bytes::Bytes> {
        let Some(Value::String(text)) = image else { return Err(missing(field)) };
        let estimate = Estimate::bytes(text.len());
        let (enlargement, sides) = (self.enlargement.clone(), self.sides);
        let read = move |_: &CancelFlag| {
            let file = file_of(&text, field)?;
            crate::jobs::masks::check(&file, field)?;
            let Some(mut enlargement) = enlargement else { return Ok(Err(file)) };
            if let Some(sides) = sides {
                let own = input::upright_size(&file).map_err(|e| ApiError::image(&e, field))?;
                let by = |place: usize| sides[place] as f64 / own[place].max(1) as f64;
                enlargement.size = EnlargedSize::By(by(0).max(by(1)));
            }
            Ok(Ok(Asked::enlarging(enlargement, EmbeddedFiles::from([(PathBuf::from(ENLARGED), file)]))))
        };
        let mut asked = match permit.answer(estimate, read).await? {
            Ok(asked) => asked,
            Err(file) => return Ok(file.into()),
        };
        asked.priority = Priority::Normal.min(client.max_priority());
        let job = EndsWithClient::new(app, intake::begin(app, client, permit, asked)?);
        // Registered early, so that it can be interrupted while its image is read.
        app.sdapi.add(&client.name, Arc::clone(&job.job));
        job.taken().await?;
        job.end().await;
        let snapshot = job.snapshot();
        match (snapshot.error, snapshot.images.into_iter().next().flatten()) {
            (None, Some(made)) => Ok(made.file),
            (error, _) => Err(error.unwrap_or_else(crate::http::error::cancelled)),
        }
    }

    /// Returns the fields without effect, for the response.
    fn info(&self) -> String {
        if self.lost.is_empty() { String::new() } else { format!("without effect: {}", self.lost.join(", ")) }
    }
}
