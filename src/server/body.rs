//! Bodies of requests: whole, within limits, and from clients that do not fall silent.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http_body_util::BodyExt;
use tokio::time::timeout;

use super::config::Limits;
use super::error::{ApiError, Result};
use super::fields::{Fields, shown};
use super::request::Upload;
use super::room::Held;

/// The most parts of a form, and the longest of its texts: a prompt of four bytes a character.
const MOST_PARTS: usize = 256;
const MOST_TEXT: usize = 1 << 20;
/// What a value of JSON takes in memory, about.
const VALUE: usize = 64;
/// How long the rest of a body is taken that nobody wants.
const REST: Duration = Duration::from_secs(5);
/// Bytes of JSON that are parsed in about a millisecond. More are parsed beside the threads that serve all clients.
pub const SMALL: usize = 256 << 10;

/// The fields and files of a request: of JSON, or of a form.
///
/// Errors when the body is too long, too slow, neither of both, or damaged.
///
/// What they take counts in `held`.
pub async fn read(headers: &HeaderMap, mut body: Body, limits: &Limits, held: &Held) -> Result<(Fields, Vec<Upload>)> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let read = match &*essence {
        "application/json" | "" => {
            let fields = read_json(body, limits.json_bytes, limits, held, |bytes| Fields::from_json(&bytes)).await?;
            return Ok((fields, Vec::new()));
        }
        "multipart/form-data" => in_time(limits, read_form(kind, &mut body, limits, held)).await,
        _ => Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            format!("the body is `{}`, expected application/json or multipart/form-data", shown(&essence)),
        )),
    };
    rest_of(&mut body, read).await
}

/// A body of at most `most` bytes, whatever it is.
///
/// Errors when it is too long, too slow, or ends early.
pub async fn read_bytes(mut body: Body, most: usize, limits: &Limits, held: &Held) -> Result<Bytes> {
    let read = in_time(limits, read_all(&mut body, most, limits.silence, held)).await;
    rest_of(&mut body, read).await
}

/// What is made of [`read_bytes`] of JSON, whose values count in `held`, too.
pub async fn read_json<T: Send + 'static>(
    body: Body,
    most: usize,
    limits: &Limits,
    held: &Held,
    parse: impl FnOnce(Bytes) -> Result<T> + Send + 'static,
) -> Result<T> {
    let bytes = read_bytes(body, most, limits, held).await?;
    let (len, counted) = (bytes.len(), bytes.clone());
    held.add(VALUE * beside(len, move || Ok(values(&counted))).await?)?;
    beside(len, move || parse(bytes)).await
}

/// The values of a text of JSON: `[0,0,..]` takes many times its bytes.
fn values(json: &[u8]) -> usize {
    json.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count()
}

/// Does what goes over so many bytes, on a thread that may block where they are many.
async fn beside<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    if bytes <= SMALL {
        return work();
    }
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(ApiError::internal("reading the request panicked").for_good()))
}

/// Errors when a body takes longer than it may.
async fn in_time<T>(limits: &Limits, read: impl Future<Output = Result<T>>) -> Result<T> {
    let too_long = |_| Err(too_slow(format!("the body took longer than {} s", limits.body.as_secs())));
    timeout(limits.body, read).await.unwrap_or_else(too_long)
}

/// What was read of a body. Where that went wrong, the rest is taken: a client that is still sending would not hear
/// why. One that is too slow has had its time.
async fn rest_of<T>(body: &mut Body, read: Result<T>) -> Result<T> {
    if read.as_ref().is_err_and(|error| error.status != StatusCode::REQUEST_TIMEOUT) {
        let _ = timeout(REST, async { while let Some(Ok(_)) = body.frame().await {} }).await;
    }
    read
}

/// A body of at most so many bytes.
///
/// Errors when it is longer, or ends early, or its client falls silent.
async fn read_all(body: &mut Body, most: usize, silence: Duration, held: &Held) -> Result<Bytes> {
    if body.size_hint().lower() > most as u64 {
        return Err(too_large(most));
    }
    let mut bytes = BytesMut::new();
    while let Some(part) = next(body, silence, held).await? {
        if bytes.len() + part.len() > most {
            return Err(too_large(most));
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes.freeze())
}

/// The next part of a body.
async fn next(body: &mut Body, silence: Duration, held: &Held) -> Result<Option<Bytes>> {
    loop {
        match timeout(silence, body.frame()).await {
            Err(_) => {
                return Err(too_slow(format!("nothing came for {} s", silence.as_secs())));
            }
            Ok(None) => return Ok(None),
            Ok(Some(Err(error))) => return Err(ApiError::bad("invalid_body", format!("the body broke off: {error}"))),
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    held.add(data.len())?;
                    return Ok(Some(data));
                }
            }
        }
    }
}

fn too_slow(message: String) -> ApiError {
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message)
}

fn too_large(most: usize) -> ApiError {
    let message = format!("the body has more than {most} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message)
}

async fn read_form(kind: &str, body: &mut Body, limits: &Limits, held: &Held) -> Result<(Fields, Vec<Upload>)> {
    let wrong = |message: String| ApiError::bad("invalid_form", message);
    let boundary = multer::parse_boundary(kind).map_err(|_| wrong("the form names no boundary".to_string()))?;
    let (most, silence) = (limits.form_bytes, limits.silence);
    if body.size_hint().lower() > most as u64 {
        return Err(too_large(most));
    }
    // What went wrong with the body is kept: the form only says that it broke off.
    let failed = Arc::new(Mutex::new(None));
    let parts = stream::unfold((body, 0, false), {
        let failed = Arc::clone(&failed);
        move |(body, read, is_over): (&mut Body, usize, bool)| {
            let failed = Arc::clone(&failed);
            async move {
                if is_over {
                    return None;
                }
                let error = match next(body, silence, held).await {
                    Ok(None) => return None,
                    Ok(Some(part)) if read + part.len() <= most => {
                        let read = read + part.len();
                        return Some((Ok(part), (body, read, false)));
                    }
                    Ok(Some(_)) => too_large(most),
                    Err(error) => error,
                };
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                Some((Err(std::io::Error::other("broken")), (body, read, true)))
            }
        }
    });
    let mut form = multer::Multipart::new(parts, boundary);
    let read = read_parts(&mut form, limits).await;
    if let Some(error) = failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(error);
    }
    let (texts, uploads) = read?;
    Ok((Fields::from_form(texts)?, uploads))
}

type Parts = (Vec<(String, String)>, Vec<Upload>);

async fn read_parts(form: &mut multer::Multipart<'_>, limits: &Limits) -> Result<Parts> {
    let wrong = |e: multer::Error| ApiError::bad("invalid_form", format!("the form is damaged: {e}"));
    let (mut texts, mut uploads) = (Vec::new(), Vec::new());
    while let Some(mut part) = form.next_field().await.map_err(wrong)? {
        if texts.len() + uploads.len() >= MOST_PARTS {
            return Err(ApiError::bad("invalid_form", format!("the form has more than {MOST_PARTS} parts")));
        }
        let name = part.name().unwrap_or_default().to_string();
        let file_name = part.file_name().map(str::to_string);
        // Some clients give texts a type, and some give files no name.
        let is_file = file_name.is_some() || matches!(&*name, "image" | "image[]" | "mask" | "file");
        let most = if is_file { limits.file_bytes } else { MOST_TEXT };
        let mut bytes = BytesMut::new();
        while let Some(chunk) = part.chunk().await.map_err(wrong)? {
            if bytes.len() + chunk.len() > most {
                let message = format!("`{}` has more than {most} bytes", shown(&name));
                return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message).of(name));
            }
            bytes.extend_from_slice(&chunk);
        }
        if is_file {
            uploads.push(Upload { part: name, file_name, bytes: bytes.freeze() });
        } else {
            let text = String::from_utf8(bytes.to_vec())
                .map_err(|_| ApiError::value(name.clone(), format!("`{}` is no UTF-8", shown(&name))))?;
            texts.push((name, text));
        }
    }
    Ok((texts, uploads))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::room::Room;

    #[tokio::test]
    async fn the_values_of_json_count() {
        let read = async |room: usize, text: &str| {
            let held = Room::new(room).hold();
            let len = |bytes: Bytes| Ok(bytes.len());
            let read = read_json(Body::from(text.to_string()), 1 << 20, &Limits::default(), &held, len).await;
            read.map_err(|error| error.code)
        };
        let dense = format!("[{}0]", "0,".repeat(1000));
        assert_eq!(read(10_000, &dense).await, Err("queue_full"));
        assert_eq!(read(100_000, &dense).await, Ok(dense.len()));
        let text = format!("{{\"image\": \"{}\"}}", "A".repeat(2000));
        assert_eq!(read(10_000, &text).await, Ok(text.len()));
    }

    #[tokio::test]
    async fn large_json_is_parsed_on_another_thread() {
        let held = Room::new(1 << 20).hold();
        for (len, is_here) in [(SMALL, true), (SMALL + 1, false)] {
            let here = std::thread::current().id();
            let parse = move |_| Ok(std::thread::current().id() == here);
            let read = read_json(Body::from(vec![b' '; len]), len, &Limits::default(), &held, parse).await;
            assert_eq!(read.map_err(|error| error.code), Ok(is_here), "{len}");
        }
    }

    #[tokio::test]
    async fn a_body_that_is_too_long_is_refused() {
        let held = Room::new(1 << 20).hold();
        let read = read_bytes(Body::from(vec![0; 100]), 99, &Limits::default(), &held).await;
        assert_eq!(read.err().map(|error| error.code), Some("payload_too_large"));
    }
}
