//! Images that clients send and fetch.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use bytes::Bytes;
use flux::input::{self, Mask};
use flux::metadata::Metadata;
use flux::output::{self, ImageFormat};
use serde_json::{Value, json};

use super::error::ComfyResult;
use super::lists::Asked;
use crate::server::error::{ApiError, Result};
use crate::server::fields::Fields;
use crate::server::guard::Client;
use crate::server::request::Upload;
use crate::server::uploads::{Folder, Place};
use crate::server::{App, answer, body, intake, masks};

/// The quality of what is shown smaller.
const PREVIEW_QUALITY: u8 = 90;

/// Takes an image.
pub async fn upload_image(state: State<Arc<App>>, client: Extension<Client>, request: Request) -> ComfyResult {
    upload(state.0, client.0, request, false).await
}

/// Takes the mask of an image that is there: a copy of that, transparent where the mask is.
pub async fn upload_mask(state: State<Arc<App>>, client: Extension<Client>, request: Request) -> ComfyResult {
    upload(state.0, client.0, request, true).await
}

async fn upload(app: Arc<App>, client: Client, request: Request, is_mask: bool) -> ComfyResult {
    let (parts, body) = request.into_parts();
    let held = app.bodies.hold();
    let (mut fields, uploads) = body::read(&parts.headers, body, &app.config.limits, &held).await?;
    let folder = fields.word("type", &[("input", Folder::Input), ("temp", Folder::Temp)])?.unwrap_or(Folder::Input);
    let subfolder = fields.text("subfolder")?.unwrap_or_default();
    let overwrites = fields.text("overwrite")?.is_some_and(|text| matches!(&*text, "true" | "1"));
    let original = original(&app, &client, &mut fields, is_mask)?;
    fields.finish()?;
    let [Upload { part, file_name, bytes }] = <[Upload; 1]>::try_from(uploads)
        .map_err(|_| ApiError::bad("missing_required_parameter", "the form has not one file `image`").of("image"))?;
    let name = file_name.filter(|_| part == "image").unwrap_or_default();
    let place = Place::new(folder, &subfolder, &name)
        .ok_or_else(|| ApiError::value("image", "the name or the subfolder is none that a file here has"))?;
    let read = move || {
        masks::check(&bytes, "image")?;
        original.map_or(Ok(bytes.clone()), |original| with_alpha(&original, &bytes))
    };
    let bytes = intake::blocking(&app, read).await?;
    let place = if overwrites { place } else { unused(&app, &client, place, &bytes) };
    app.store.add_upload(&client.name, place.clone(), bytes, app.config.limits.kept_bytes)?;
    let Place { name, subfolder, .. } = &place;
    Ok(answer::json(&json!({"name": name, "subfolder": subfolder, "type": folder.name()})))
}

/// The image that a mask is of.
fn original(app: &App, client: &Client, fields: &mut Fields, is_mask: bool) -> Result<Option<Bytes>> {
    if !is_mask {
        return Ok(None);
    }
    let wrong = || ApiError::value("original_ref", "`original_ref` names no image that is here");
    let text = fields.needed_text("original_ref")?;
    let of: Value = serde_json::from_str(&text).map_err(|_| wrong())?;
    let get = |key: &str| of[key].as_str().unwrap_or_default();
    let folder = Folder::of(of["type"].as_str().unwrap_or("output"));
    let place = folder.and_then(|folder| Place::new(folder, get("subfolder"), get("filename")));
    place.and_then(|place| find(app, client, &place)).map(Some).ok_or_else(wrong)
}

/// An image with the alpha of another one of its size.
fn with_alpha(original: &[u8], mask: &[u8]) -> Result<Bytes> {
    let wrong = |e: flux::Error| ApiError::bad("invalid_image", e.what()).of("image");
    masks::check(original, "original_ref")?;
    let image = input::read_bytes(original).map_err(wrong)?;
    let size = [image.width, image.height];
    let alpha = match Mask::read_transparent(mask).map_err(wrong)? {
        Some(mask) if mask.size() == size => mask.grey(size).bytes.iter().map(|value| 255 - value).collect(),
        Some(mask) => {
            let [width, height] = mask.size();
            let message = format!("the mask is of {width}x{height}, expected {}x{}", image.width, image.height);
            return Err(ApiError::bad("mask_size", message).of("image"));
        }
        None => vec![255; image.width * image.height],
    };
    output::encode_transparent(&image, &alpha).map(Bytes::from).map_err(wrong)
}

/// The place under a name that no other image has; the same image keeps its name.
fn unused(app: &App, client: &Client, place: Place, bytes: &Bytes) -> Place {
    let (stem, ending) =
        place.name.rsplit_once('.').map_or((&*place.name, ""), |(stem, _)| (stem, &place.name[stem.len()..]));
    let names = (1..).map(|number| Place { name: format!("{stem} ({number}){ending}"), ..place.clone() });
    let is_free = |place: &Place| app.store.upload(&client.name, place).is_none_or(|known| known == bytes);
    std::iter::once(place.clone()).chain(names).find(is_free).unwrap_or(place.clone())
}

/// An image of a client: one that it sent, or one that was drawn for it.
fn find(app: &App, client: &Client, place: &Place) -> Option<Bytes> {
    app.store.upload(&client.name, place).or_else(|| app.comfy.prompts.file(&client.name, place))
}

fn media_type(bytes: &[u8]) -> &'static str {
    match bytes {
        [0xff, 0xd8, ..] => "image/jpeg",
        [b'R', b'I', b'F', b'F', ..] => "image/webp",
        _ => "image/png",
    }
}

/// Gives an image, or as clients show it.
pub async fn view(State(app): State<Arc<App>>, Extension(client): Extension<Client>, asked: Asked) -> ComfyResult {
    let name = asked.get("filename").ok_or_else(|| ApiError::value("filename", "the filename is missing"))?;
    let folder = Folder::of(asked.get("type").unwrap_or("output"))
        .ok_or_else(|| ApiError::value("type", "`type` is none of input, temp, output"))?;
    let place = Place::new(folder, asked.get("subfolder").unwrap_or_default(), name)
        .ok_or_else(|| ApiError::value("filename", "there can be no such file"))?;
    let file =
        find(&app, &client, &place).ok_or_else(|| ApiError::not_found("there is no such file, or not any more"))?;
    let (format, quality) = match asked.get("preview").map(|preview| preview.split_once(';').unwrap_or((preview, ""))) {
        None => match asked.get("channel") {
            None | Some("rgba") => return Ok(answer::of(file.clone(), media_type(&file))),
            Some("rgb") => (ImageFormat::Png, None),
            Some(_) => return Err(ApiError::value("channel", "`channel` is none of rgba, rgb").into()),
        },
        Some(("jpeg", quality)) => (ImageFormat::Jpeg, quality.parse().ok()),
        Some(_) => (ImageFormat::Webp, None),
    };
    let encode = move || {
        let image = input::read_bytes(&file)?;
        let encoded = match format {
            ImageFormat::Jpeg => {
                let quality = quality.unwrap_or(PREVIEW_QUALITY).clamp(1, 100);
                output::encode_jpeg(&image, quality, &Metadata::default())
            }
            format => output::encode(&image, format, &Metadata::default()),
        };
        Ok(encoded?)
    };
    let encoded = Bytes::from(intake::blocking(&app, encode).await?);
    Ok(answer::of(encoded.clone(), media_type(&encoded)))
}

/// Takes an image from Krita, under an id of its own.
pub async fn put_krita(
    State(app): State<Arc<App>>,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
    request: Request,
) -> ComfyResult {
    let held = app.bodies.hold();
    let limits = &app.config.limits;
    let bytes = body::read_bytes(request.into_body(), limits.file_bytes, limits, &held).await?;
    let place = Place::of_krita(&id).ok_or_else(|| ApiError::value("id", "the id is none"))?;
    masks::check(&bytes, "image")?;
    app.store.add_upload(&client.name, place, bytes, limits.kept_bytes)?;
    Ok(answer::json_with(StatusCode::CREATED, &json!({"status": "success"})))
}

/// Gives Krita an image that was drawn for it, or that it sent.
pub async fn get_krita(
    State(app): State<Arc<App>>,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
) -> ComfyResult {
    let file = Place::of_krita(&id).and_then(|place| find(&app, &client, &place));
    let file = file.ok_or_else(|| ApiError::not_found("there is no such image, or not any more"))?;
    Ok(answer::of(file.clone(), media_type(&file)))
}
