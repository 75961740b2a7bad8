//! Constructors of HTTP responses.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;

use crate::http::pieces::Pieces;

/// Returns a JSON response.
pub fn json(value: &impl Serialize) -> Response {
    json_with(StatusCode::OK, value)
}

/// As [`json`], with another status.
pub fn json_with(status: StatusCode, value: &impl Serialize) -> Response {
    // Serializing cannot fail: all map keys are strings.
    let body = serde_json::to_vec(value).unwrap_or_default();
    let mut response = bytes(body.into(), "application/json");
    *response.status_mut() = status;
    response
}

/// Returns a JSON response that may contain files.
pub fn pieces(pieces: Pieces) -> Response {
    with_body(Body::new(pieces), "application/json")
}

/// Returns a response of bytes that browsers must not cache.
pub fn bytes(body: Bytes, kind: &'static str) -> Response {
    with_body(Body::from(body), kind)
}

/// As [`bytes()`], with a body that may be streamed.
pub fn with_body(body: Body, kind: &'static str) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
