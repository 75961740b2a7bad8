//! Prompts that a language model rewrites before their jobs are queued. A template is expanded first.
//!
//! The address of the language model comes from the server's configuration only. Owners take turns on a few threads of
//! their own, so that slow answers delay neither other requests nor the reading of images. A job that ends closes its
//! connection to the language model.

use std::sync::Arc;

use axum::http::StatusCode;
use flux::engine::expand::{Expanded, Expander, Words};
use flux::error::{ErrorKind, Field};
use flux::stage::CancelFlag;
use flux_upsample::{Rewritten, Upsampler};
use tokio::time::timeout;

use crate::http::error::{ApiError, Result, too_late};
use crate::jobs::admission::{Admission, Estimate, Permit};
use crate::jobs::models::Models;
use crate::jobs::record::JobRecord;
use crate::jobs::request::{Asked, UPSAMPLE};

/// Max requests to the language model at the same time; an owner may use half of them.
const MAX_AT_ONCE: usize = 8;
/// The work of a request, which bounds the number of waiting ones: 64 of an owner, and 256 in all.
const WORK: Estimate = Estimate::scale(1 << 27);

/// The language model of a server.
pub struct Upsampling {
    upsampler: Upsampler,
    /// `true` if it rewrites the prompts of requests that do not say.
    by_default: bool,
    turns: Arc<Admission>,
}

impl Upsampling {
    pub fn new(upsampler: Upsampler, by_default: bool) -> Arc<Self> {
        let turns = Admission::with_threads(MAX_AT_ONCE, usize::MAX, 0);
        Arc::new(Self { upsampler, by_default, turns })
    }

    /// Returns the language model for a request, if the request or the server asks for it.
    ///
    /// Errors if a request asks for it and the server has none.
    pub fn wanted(own: Option<&Arc<Self>>, asked: &Asked) -> Result<Option<Arc<Self>>> {
        let recipe = &asked.recipe;
        // New words of a template are a new request.
        let is_new = recipe.upsampled.is_none() || asked.expansion.is_some() && recipe.template.is_some();
        let has_request = !recipe.prompt.trim().is_empty() && is_new && recipe.embeddings.is_none();
        match (own, asked.upsample) {
            (None, Some(true)) => {
                let message = "this server has no language model to rewrite prompts";
                Err(ApiError::bad("unsupported_value", message).with_param(UPSAMPLE))
            }
            (Some(own), wanted) if wanted.unwrap_or(own.by_default && has_request) => Ok(Some(Arc::clone(own))),
            _ => Ok(None),
        }
    }

    /// Returns the request with the prompt that the language model writes, within the job's deadline.
    ///
    /// Errors if it writes none, too much work is waiting, or the job has ended.
    pub async fn rewrite(
        self: &Arc<Self>,
        permit: &Permit,
        record: &JobRecord,
        asked: Asked,
        models: &Models,
    ) -> Result<Asked> {
        let rewritten = self.rewrite_in_turn(permit, record, asked, models);
        match record.time_left() {
            Some(left) => timeout(left, rewritten).await.unwrap_or_else(|_| Err(too_late())),
            None => rewritten.await,
        }
    }

    async fn rewrite_in_turn(
        self: &Arc<Self>,
        permit: &Permit,
        record: &JobRecord,
        mut asked: Asked,
        models: &Models,
    ) -> Result<Asked> {
        let (model, _) = models.find(asked.model.as_deref())?;
        let Some(info) = models.info(model) else {
            let message =
                format!("`{UPSAMPLE}` requires the configuration of the model, which this server does not have");
            return Err(ApiError::bad("unsupported_value", message).with_param(UPSAMPLE));
        };
        let (own, estimate) = (Arc::clone(self), asked.estimate());
        let read = move |cancel: &CancelFlag| {
            asked.prepare(cancel)?;
            expand(&mut asked)?;
            let request = own.upsampler.request(&asked.recipe, &asked.files, &info).map_err(|e| ApiError::from(&e))?;
            Ok((asked, request))
        };
        let (mut asked, request) = permit.run(estimate, &record.cancel, read).await?;
        // The client of a job does not wait for the language model, and other clients see progress.
        record.take();
        let own = Arc::clone(self);
        let turn = self.turns.permit(&record.owner.share);
        let ask = move |cancel: &CancelFlag| own.upsampler.ask(request, cancel).map_err(|e| failed(&e));
        let Rewritten { recipe, notes } = turn.run(WORK, &record.cancel, ask).await?;
        record.note(notes);
        asked.recipe = recipe;
        Ok(asked)
    }

    /// Ends all requests, and accepts no more.
    pub fn close(&self) {
        self.turns.close();
    }
}

/// Expands the prompt of a request before a language model reads it.
///
/// Errors if the prompt cannot be expanded, or the images have different words.
fn expand(asked: &mut Asked) -> Result<()> {
    let Some(expansion) = asked.expansion.take() else { return Ok(()) };
    let request = std::mem::take(&mut asked.recipe).before_upsampling();
    let expanded = Expander::new(&expansion).expand(&request, asked.count);
    let Expanded { recipe, words, .. } = expanded.map_err(|e| ApiError::from(&e.for_field(Field::Prompt)))?;
    if !Words::are_plain(&words, &recipe) {
        let message = "`expand` gives the images different words, but `upsample` writes one prompt for all: request \
                       one image at a time, or set `expand_seed`";
        return Err(ApiError::bad("invalid_value", message).with_param(UPSAMPLE));
    }
    asked.recipe = recipe;
    Ok(())
}

/// Returns an error of the language model. The place and the hint of the error are for the operator of the server.
fn failed(error: &flux::Error) -> ApiError {
    match error.kind() {
        ErrorKind::Failure => {
            ApiError::new(StatusCode::BAD_GATEWAY, "upsampling_failed", error.what()).with_param(UPSAMPLE)
        }
        _ => ApiError::from(error),
    }
}
