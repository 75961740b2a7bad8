//! The OpenAPI document, which describes all routes.

use axum::response::Response;

use crate::http::answer;

/// Returns the document.
pub async fn document() -> Response {
    answer::bytes(bytes::Bytes::from_static(DOCUMENT.as_bytes()), "application/json")
}

pub const DOCUMENT: &str = include_str!("openapi.json");
