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
