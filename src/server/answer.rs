//! Answers.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;

use super::pieces::Pieces;

/// An answer of JSON.
pub fn json(value: &impl Serialize) -> Response {
    json_with(StatusCode::OK, value)
}

/// [`json`] with another status.
pub fn json_with(status: StatusCode, value: &impl Serialize) -> Response {
    // Maps have texts as keys here, and numbers are finite.
    let body = serde_json::to_vec(value).unwrap_or_default();
    let mut response = of(body.into(), "application/json");
    *response.status_mut() = status;
    response
}

/// An answer of JSON that may hold files.
pub fn pieces(pieces: Pieces) -> Response {
    with_body(Body::new(pieces), "application/json")
}

/// An answer of bytes. Browsers believe their type, and keep no copy.
pub fn of(body: Bytes, kind: &'static str) -> Response {
    with_body(Body::from(body), kind)
}

/// [`of`] a body that may come piece by piece.
pub fn with_body(body: Body, kind: &'static str) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
