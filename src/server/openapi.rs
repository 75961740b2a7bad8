//! What the routes take and answer, as an OpenAPI document.

use axum::response::Response;

use super::answer;

/// The document.
pub async fn document() -> Response {
    answer::of(bytes::Bytes::from_static(DOCUMENT.as_bytes()), "application/json")
}

pub const DOCUMENT: &str = include_str!("openapi.json");
