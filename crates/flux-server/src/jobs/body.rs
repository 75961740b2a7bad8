//! Reading of request bodies, with limits on size and time.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use flux::memory;
use futures_util::stream;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::http::config::Limits;
use crate::http::error::{ApiError, Result, shown};
use crate::jobs::admission::{Estimate, Permit};
use crate::jobs::fields::Fields;
use crate::jobs::names;
use crate::jobs::request::Upload;

/// Max parts of a form, and max bytes of a text part: enough for a prompt of four bytes per character.
const MAX_PARTS: usize = 256;
const MAX_TEXT: usize = 1 << 20;
/// The approximate memory of a JSON value and of an object, and the max for all values of a body, in bytes.
const VALUE: usize = 64;
const OBJECT: usize = 700;
const MAX_VALUES: usize = 64 << 20;
/// The time for which the rest of a refused body is read.
const REST: Duration = Duration::from_secs(5);
/// Bytes of JSON that take about a millisecond to parse. Larger texts are parsed outside the async threads.
pub const SMALL: usize = 256 << 10;

/// Reads the fields and files of a request, from JSON or a multipart form. JSON may have `most` bytes. The memory is
/// counted in `permit`.
///
/// Errors if the body is too long, too slow, of another type, or damaged.
pub async fn read(
    headers: &HeaderMap,
    mut body: Body,
    most: usize,
    limits: &Limits,
    permit: &Permit,
) -> Result<(Fields, Vec<Upload>)> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let read = match &*essence {
        "application/json" | "" => {
            let fields = read_json(body, most, limits, permit, |bytes| Fields::from_json(&bytes)).await?;
            return Ok((fields, Vec::new()));
        }
        "multipart/form-data" => in_time(limits, read_form(kind, &mut body, limits, permit)).await,
        _ => Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            format!("the body is `{}`, expected application/json or multipart/form-data", shown(&essence)),
        )),
    };
    rest_of(&mut body, read).await
}

/// Reads a body of any type, of at most `most` bytes.
///
/// Errors if the body is too long, too slow, or ends early.
pub async fn read_bytes(mut body: Body, most: usize, limits: &Limits, permit: &Permit) -> Result<Bytes> {
    let read = in_time(limits, read_all(&mut body, most, limits.silence, permit)).await;
    rest_of(&mut body, read).await
}

/// Parses the JSON of [`read_bytes`]. The memory of its values is counted in `permit`, too.
pub async fn read_json<T: Send + 'static>(
    body: Body,
    most: usize,
    limits: &Limits,
    permit: &Permit,
    parse: impl FnOnce(Bytes) -> Result<T> + Send + 'static,
) -> Result<T> {
    let bytes = read_bytes(body, most, limits, permit).await?;
    let (len, counted) = (bytes.len(), bytes.clone());
    let values = run_blocking(permit, len, move || Ok(values(&counted))).await?;
    if values > MAX_VALUES {
        let message = format!("the JSON has more values than fit into {} MiB", MAX_VALUES >> 20);
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message));
    }
    permit.keep(values)?;
    let reserved = memory::reserve(len + values)?;
    let parsed = run_blocking(permit, len, move || parse(bytes)).await;
    drop(reserved);
    parsed
}

/// Returns the approximate memory of a JSON text's values, in bytes: `[0,0,..]` takes many times its length.
pub fn values(json: &[u8]) -> usize {
    let (mut memory, mut is_text, mut is_escaped) = (0, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_text,
            b'"' => is_text = !is_text,
            b',' | b'[' if !is_text => memory += VALUE,
            b'{' if !is_text => memory += OBJECT,
            _ => {}
        }
    }
    memory
}

/// Runs work on this number of bytes: at once if it is small, otherwise when its turn comes.
pub async fn run_blocking<T: Send + 'static>(
    permit: &Permit,
    bytes: usize,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if bytes <= SMALL {
        return work();
    }
    permit.answer(Estimate::bytes(bytes), |_| work()).await
}

/// Errors if reading takes longer than the limit.
async fn in_time<T>(limits: &Limits, read: impl Future<Output = Result<T>>) -> Result<T> {
    let too_long = |_| Err(too_slow(format!("the body took longer than {} s", limits.body.as_secs())));
    timeout(limits.body, read).await.unwrap_or_else(too_long)
}

/// Passes on the result of reading a body. After an error, the rest of the body is drained, since a client that is
/// still sending would not see the response. A client that timed out is not drained.
async fn rest_of<T>(body: &mut Body, read: Result<T>) -> Result<T> {
    if read.as_ref().is_err_and(|error| error.status != StatusCode::REQUEST_TIMEOUT) {
        let _ = timeout(REST, async { while let Some(Ok(_)) = body.frame().await {} }).await;
    }
    read
}

/// Reads a body of at most `most` bytes.
///
/// Errors if the body is longer or ends early, or its client sends nothing for `silence`.
async fn read_all(body: &mut Body, most: usize, silence: Duration, permit: &Permit) -> Result<Bytes> {
    if body.size_hint().lower() > most as u64 {
        return Err(too_large(most));
    }
    let mut bytes = Vec::new();
    while let Some(part) = next(body, silence, permit).await? {
        if bytes.len() + part.len() > most {
            return Err(too_large(most));
        }
        append(&mut bytes, &part)?;
    }
    Ok(bytes.into())
}

/// Errors if there is no memory for the part.
fn append(bytes: &mut Vec<u8>, part: &[u8]) -> Result<()> {
    memory::fallibly(|| bytes.try_reserve(part.len()))
        .map_err(|_| ApiError::no_memory("not enough memory for the body"))?;
    bytes.extend_from_slice(part);
    Ok(())
}

/// Returns the next part of a body.
async fn next(body: &mut Body, silence: Duration, permit: &Permit) -> Result<Option<Bytes>> {
    loop {
        match timeout(silence, body.frame()).await {
            Err(_) => {
                return Err(too_slow(format!("no data arrived for {} s", silence.as_secs())));
            }
            Ok(None) => return Ok(None),
            Ok(Some(Err(error))) => return Err(ApiError::bad("invalid_body", format!("truncated body: {error}"))),
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    permit.keep(data.len())?;
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

async fn read_form(kind: &str, body: &mut Body, limits: &Limits, permit: &Permit) -> Result<(Fields, Vec<Upload>)> {
    let wrong = |message: String| ApiError::bad("invalid_form", message);
    let boundary = multer::parse_boundary(kind).map_err(|_| wrong("the form has no boundary".to_string()))?;
    let (most, silence) = (limits.form_bytes, limits.silence);
    if body.size_hint().lower() > most as u64 {
        return Err(too_large(most));
    }
    // Keeps the error of the body, since the form parser only reports that the body broke off.
    let failed = Arc::new(Mutex::new(None));
    let parts = stream::unfold((body, 0, false), {
        let failed = Arc::clone(&failed);
        move |(body, read, is_over): (&mut Body, usize, bool)| {
            let failed = Arc::clone(&failed);
            async move {
                if is_over {
                    return None;
                }
                let error = match next(body, silence, permit).await {
                    Ok(None) => return None,
                    Ok(Some(part)) if read + part.len() <= most => {
                        let read = read + part.len();
                        return Some((Ok(part), (body, read, false)));
                    }
                    Ok(Some(_)) => too_large(most),
                    Err(error) => error,
                };
                *failed.lock() = Some(error);
                Some((Err(std::io::Error::other("broken")), (body, read, true)))
            }
        }
    });
    let mut form = multer::Multipart::new(parts, boundary);
    let read = read_parts(&mut form, limits).await;
    if let Some(error) = failed.lock().take() {
        return Err(error);
    }
    let (texts, uploads) = read?;
    Ok((Fields::from_form(texts)?, uploads))
}

type Parts = (Vec<(String, String)>, Vec<Upload>);

async fn read_parts(form: &mut multer::Multipart<'_>, limits: &Limits) -> Result<Parts> {
    let wrong = |e: multer::Error| ApiError::bad("invalid_form", format!("the form is malformed: {e}"));
    let (mut texts, mut uploads) = (Vec::new(), Vec::new());
    while let Some(mut part) = form.next_field().await.map_err(wrong)? {
        if texts.len() + uploads.len() >= MAX_PARTS {
            return Err(ApiError::bad("invalid_form", format!("the form has more than {MAX_PARTS} parts")));
        }
        let name = part.name().unwrap_or_default().to_string();
        let file_name = part.file_name().map(str::to_string);
        // Some clients send text parts with a content type, and some send files without a name.
        let is_file = file_name.is_some() || name == "file" || names::file_field(&name).0.is_some();
        let most = if is_file { limits.file_bytes } else { MAX_TEXT };
        let mut bytes = Vec::new();
        while let Some(chunk) = part.chunk().await.map_err(wrong)? {
            if bytes.len() + chunk.len() > most {
                let message = format!("`{}` has more than {most} bytes", shown(&name));
                return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message).with_param(name));
            }
            append(&mut bytes, &chunk)?;
        }
        if is_file {
            uploads.push(Upload { part: name, file_name, bytes: bytes.into() });
        } else {
            let text = String::from_utf8(bytes)
                .map_err(|_| ApiError::value(name.clone(), format!("`{}` is not UTF-8", shown(&name))))?;
            texts.push((name, text));
        }
    }
    Ok((texts, uploads))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::admission::Admission;

    #[tokio::test]
    async fn the_values_of_json_count() {
        let read = async |room: usize, text: &str| {
            let held = Admission::new(room, room).permit("k");
            let len = |bytes: Bytes| Ok(bytes.len());
            let read = read_json(Body::from(text.to_string()), 1 << 20, &Limits::default(), &held, len).await;
            read.map_err(|error| error.code)
        };
        let dense = format!("[{}0]", "0,".repeat(1000));
        assert_eq!(read(10_000, &dense).await, Err("queue_full"));
        assert_eq!(read(100_000, &dense).await, Ok(dense.len()));
        let text = format!("{{\"image\": \"{}\"}}", "A,[{\\\"".repeat(400));
        assert_eq!(read(10_000, &text).await, Ok(text.len()), "a string is a single value");
        let objects = format!("[{}0]", "{\"\":0},".repeat(100_000));
        assert_eq!(read(1 << 30, &objects).await, Err("payload_too_large"), "objects need more memory than their text");
    }

    #[tokio::test]
    async fn large_json_is_parsed_on_another_thread() {
        let held = Admission::new(1 << 20, 1 << 20).permit("k");
        for (len, is_here) in [(SMALL, true), (SMALL + 1, false)] {
            let here = std::thread::current().id();
            let parse = move |_| Ok(std::thread::current().id() == here);
            let read = read_json(Body::from(vec![b' '; len]), len, &Limits::default(), &held, parse).await;
            assert_eq!(read.map_err(|error| error.code), Ok(is_here), "{len}");
        }
    }

    #[tokio::test]
    async fn a_body_that_is_too_long_is_refused() {
        let held = Admission::new(1 << 20, 1 << 20).permit("k");
        let read = read_bytes(Body::from(vec![0; 100]), 99, &Limits::default(), &held).await;
        assert_eq!(read.err().map(|error| error.code), Some("payload_too_large"));
    }
}
