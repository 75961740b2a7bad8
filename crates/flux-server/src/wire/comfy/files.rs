//! Upload and download of images.

use axum::extract::{Path, Request};
use axum::http::StatusCode;
use bytes::Bytes;
use flux::input::{self, Mask};
use flux::metadata::Metadata;
use flux::output::{self, ImageFormat};
use flux::stage::CancelFlag;
use serde_json::{Value, json};

use super::error::ComfyResult;
use super::lists::Asked;
use crate::http::client::Client;
use crate::http::error::{ApiError, Result};
use crate::jobs::admission::Estimate;
use crate::jobs::fields::Fields;
use crate::jobs::request::Upload;
use crate::jobs::uploads::{Folder, Place};
use crate::wire::FromClient;
use crate::{App, http::answer, jobs::body, jobs::masks};

/// The default JPEG quality of previews.
const PREVIEW_QUALITY: u8 = 90;

/// Stores an uploaded image, or an uploaded mask: a copy of its image with the transparency of the mask.
pub async fn upload(FromClient(app, client): FromClient, request: Request, is_mask: bool) -> ComfyResult {
    let (parts, body) = request.into_parts();
    let permit = app.permit(&client);
    let limits = &app.config.limits;
    let (mut fields, uploads) = body::read(&parts.headers, body, limits.json_bytes, limits, &permit).await?;
    let folder = fields.word("type", &[("input", Folder::Input), ("temp", Folder::Temp)])?.unwrap_or(Folder::Input);
    let subfolder = fields.text("subfolder")?.unwrap_or_default();
    let overwrites = fields.text("overwrite")?.is_some_and(|text| matches!(&*text, "true" | "1"));
    let original = original(&app, &client, &mut fields, is_mask)?;
    fields.finish()?;
    let [Upload { part, file_name, bytes }] = <[Upload; 1]>::try_from(uploads).map_err(|_| {
        ApiError::bad("missing_required_parameter", "the form must have exactly one file `image`").with_param("image")
    })?;
    let name = file_name.filter(|_| part == "image").unwrap_or_default();
    let place = Place::new(folder, &subfolder, &name)
        .ok_or_else(|| ApiError::value("image", "the name or the subfolder of the file is invalid"))?;
    masks::check(&bytes, "image")?;
    let bytes = match original {
        None => bytes,
        Some(original) => {
            masks::check(&original, "original_ref")?;
            // Both are decoded, and the result is encoded.
            let decoded = decode(&original) + decode(&bytes);
            let estimate = decoded + Estimate::scale(2 * decode(&original).decoded);
            permit.count(estimate, "image")?;
            permit.answer(estimate, move |cancel| with_alpha(&original, &bytes, cancel)).await?
        }
    };
    let place = if overwrites { place } else { app.store.unused_place(&client.name, place, &bytes) };
    app.store.add_upload(&client.name, place.clone(), bytes, app.config.limits.kept_bytes)?;
    let Place { name, subfolder, .. } = &place;
    Ok(answer::json(&json!({"name": name, "subfolder": subfolder, "type": folder.name()})))
}

/// Returns the image that a mask belongs to.
fn original(app: &App, client: &Client, fields: &mut Fields, is_mask: bool) -> Result<Option<Bytes>> {
    if !is_mask {
        return Ok(None);
    }
    let wrong = || ApiError::value("original_ref", "`original_ref` does not name a stored image");
    let text = fields.needed_text("original_ref")?;
    let of: Value = serde_json::from_str(&text).map_err(|_| wrong())?;
    let get = |key: &str| of[key].as_str().unwrap_or_default();
    let folder = Folder::from_name(of["type"].as_str().unwrap_or("output"));
    let place = folder.and_then(|folder| Place::new(folder, get("subfolder"), get("filename")));
    place.and_then(|place| find(app, client, &place)).map(Some).ok_or_else(wrong)
}

/// Returns the work of decoding a file.
fn decode(file: &[u8]) -> Estimate {
    Estimate::decode(input::file_size(file).unwrap_or_default())
}

/// Returns an image with the alpha channel of another one of the same size.
fn with_alpha(original: &[u8], mask: &[u8], cancel: &CancelFlag) -> Result<Bytes> {
    let wrong = |e: flux::Error| ApiError::bad("invalid_image", e.what()).with_param("image");
    let image = input::read_bytes(original).map_err(wrong)?;
    let size = [image.width, image.height];
    cancel.check()?;
    let alpha = match Mask::read_transparent(mask).map_err(wrong)? {
        Some(mask) if mask.size() == size => mask.grey(size).bytes.iter().map(|value| 255 - value).collect(),
        Some(mask) => {
            let [width, height] = mask.size();
            let message = format!("the mask is {width}x{height}, expected {}x{}", image.width, image.height);
            return Err(ApiError::bad("mask_size", message).with_param("image"));
        }
        None => vec![255; image.width * image.height],
    };
    cancel.check()?;
    output::encode_transparent(&image, &alpha).map(Bytes::from).map_err(wrong)
}

/// Returns an image of a client: uploaded by it, or generated for it.
fn find(app: &App, client: &Client, place: &Place) -> Option<Bytes> {
    app.store.upload(&client.name, place).or_else(|| app.comfy.prompts.file(&client.name, place))
}

fn media_type(bytes: &[u8]) -> &'static str {
    ImageFormat::from_magic(bytes).unwrap_or(ImageFormat::Png).media_type()
}

/// Returns an image, possibly converted for a preview.
pub async fn view(FromClient(app, client): FromClient, asked: Asked) -> ComfyResult {
    let name = asked.get("filename").ok_or_else(|| ApiError::value("filename", "the filename is missing"))?;
    let folder = Folder::from_name(asked.get("type").unwrap_or("output"))
        .ok_or_else(|| ApiError::value("type", "unknown `type`, expected input, temp or output"))?;
    let place = Place::new(folder, asked.get("subfolder").unwrap_or_default(), name)
        .ok_or_else(|| ApiError::value("filename", "the name or the subfolder of the file is invalid"))?;
    let file = find(&app, &client, &place)
        .ok_or_else(|| ApiError::not_found("the file does not exist or is no longer kept"))?;
    let (format, quality) = match asked.get("preview").map(|preview| preview.split_once(';').unwrap_or((preview, ""))) {
        None => match asked.get("channel") {
            None | Some("rgba") => return Ok(answer::bytes(file.clone(), media_type(&file))),
            Some("rgb") => (ImageFormat::Png, None),
            Some(_) => return Err(ApiError::value("channel", "unknown `channel`, expected rgba or rgb").into()),
        },
        Some(("jpeg", quality)) => (ImageFormat::Jpeg, quality.parse().ok()),
        Some(_) => (ImageFormat::Webp, None),
    };
    let estimate = decode(&file) + Estimate::scale(2 * decode(&file).decoded);
    let encode = move |cancel: &CancelFlag| {
        let image = input::read_bytes(&file)?;
        cancel.check()?;
        let encoded = match format {
            ImageFormat::Jpeg => {
                let quality = quality.unwrap_or(PREVIEW_QUALITY).clamp(1, 100);
                output::encode_jpeg(&image, quality, &Metadata::default())
            }
            format => output::encode(&image, format, &Metadata::default()),
        };
        Ok(encoded?)
    };
    let encoded = Bytes::from(app.permit(&client).answer(estimate, encode).await?);
    Ok(answer::bytes(encoded.clone(), media_type(&encoded)))
}

/// Stores an image uploaded by Krita, under an ID that Krita chose.
pub async fn put_krita(FromClient(app, client): FromClient, Path(id): Path<String>, request: Request) -> ComfyResult {
    let permit = app.permit(&client);
    let limits = &app.config.limits;
    let bytes = body::read_bytes(request.into_body(), limits.file_bytes, limits, &permit).await?;
    let place = Place::from_krita_id(&id).ok_or_else(|| ApiError::value("id", "the id is invalid"))?;
    masks::check(&bytes, "image")?;
    app.store.add_upload(&client.name, place, bytes, limits.kept_bytes)?;
    Ok(answer::json_with(StatusCode::CREATED, &json!({"status": "success"})))
}

/// Returns an image that was generated for Krita, or uploaded by it.
pub async fn get_krita(FromClient(app, client): FromClient, Path(id): Path<String>) -> ComfyResult {
    let file = Place::from_krita_id(&id).and_then(|place| find(&app, &client, &place));
    let file = file.ok_or_else(|| ApiError::not_found("the image does not exist or is no longer kept"))?;
    Ok(answer::bytes(file.clone(), media_type(&file)))
}
