//! The wire formats of the APIs: flux's own, OpenAI, A1111, ComfyUI and MCP.
//!
//! Each API reads its requests into the fields of a job and writes what became of the job. None knows another one; what
//! they share is in `jobs`. Start with [`openai`].

pub(crate) mod a1111;
pub(crate) mod batches;
pub(crate) mod comfy;
pub(crate) mod health;
pub(crate) mod live;
pub(crate) mod mcp;
pub(crate) mod openai;
pub(crate) mod openapi;
pub(crate) mod own_jobs;

use std::sync::Arc;

use axum::Extension;
use axum::extract::FromRequestParts;
use axum::extract::rejection::ExtensionRejection;
use axum::http::request::Parts;

use crate::App;
use crate::http::client::Client;

/// The server, and the client of a request to it.
pub(crate) struct FromClient(pub Arc<App>, pub Client);

impl FromRequestParts<Arc<App>> for FromClient {
    type Rejection = ExtensionRejection;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ExtensionRejection> {
        let Extension(client) = Extension::from_request_parts(parts, app).await?;
        Ok(Self(Arc::clone(app), client))
    }
}
