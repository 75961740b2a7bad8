//! The meaning of response statuses.

use std::time::Duration;

use crate::Repository;
use flux_base::error::{Error, shortened};

use super::client::{Answer, Client, Trouble};

/// Returns `true` if the status means that a server is only busy, or temporarily out of order.
pub fn passes(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504)
}

/// Returns the meaning of a response that is neither 200 nor 206.
pub fn refused(client: &Client, answer: &Answer, of: &Repository, path: &str) -> Trouble {
    let page = format!("{}/{of}", client.endpoint());
    let code = answer.header("x-error-code").unwrap_or_default();
    let is_gated = code == "GatedRepo";
    let token = "create a read token at https://huggingface.co/settings/tokens and set HF_TOKEN to it";
    let error = match answer.status {
        401 | 403 if is_gated && !client.has_token() => {
            Error::new(format!("`{of}` requires accepting its licence ({})", answer.status))
                .hint(format!("accept the licence at {page}, then {token}"))
        }
        403 if is_gated => Error::new(format!("`{of}` requires accepting its licence (403)"))
            .hint(format!("accept the licence at {page} with the account that the token belongs to")),
        401 if code == "RepoNotFound" || code == "RepositoryNotFound" => {
            Error::new(format!("there is no repository `{of}`, or it is private (401)"))
                .hint(format!("check the name; for a private repository, {token}"))
        }
        401 if client.has_token() => Error::new("the server rejected the token (401)")
            .hint(format!("check that HF_TOKEN or the token of `hf auth login` is still valid, or {token}")),
        401 => Error::new("the server requires authentication (401)")
            .hint(format!("accept the licence at {page} if it has one, then {token}")),
        403 => Error::new("the server denies access (403)")
            .hint(format!("use a token of an account that can read {page} and has accepted its licence")),
        404 if code == "RevisionNotFound" => Error::new(format!("`{of}` has no such revision (404)"))
            .hint("check the name of the branch or commit in `--revision`"),
        404 if code == "RepoNotFound" => {
            Error::new(format!("there is no repository `{of}` (404)")).hint("check the name")
        }
        404 => not_there(client, path),
        status if passes(status) => {
            let error = Error::new(format!("the server answers with status {status}: {}", shortened(path, 200)))
                .hint("try again later: run the same command again to resume");
            return Trouble::Passing(error, asked_wait(answer));
        }
        status => Error::new(format!("the server answers with status {status}: {}", shortened(path, 200)))
            .hint(super::remote::wrong_server()),
    };
    Trouble::Lasting(error)
}

/// Returns the error for a path that does not exist on the server.
pub fn not_there(client: &Client, path: &str) -> Error {
    Error::new(format!("the server has no such file (404): {}{}", client.endpoint(), shortened(path, 400)))
        .hint("check the name; if HF_ENDPOINT is a mirror, check that it has this model")
}

/// Returns the wait that a server requests before the next attempt, if it does so in seconds.
fn asked_wait(answer: &Answer) -> Option<Duration> {
    let seconds = answer.header("retry-after").filter(|_| passes(answer.status))?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}
