//! What the statuses of answers mean.

use std::time::Duration;

use flux::error::{Error, shortened};
use flux::hub::Repository;

use super::client::{Answer, Client, Trouble};

/// Whether a server with this status is only busy, or out of order for a while.
pub fn passes(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504)
}

/// What an answer means that is neither 200 nor 206.
pub fn refused(client: &Client, answer: &Answer, of: &Repository, path: &str) -> Trouble {
    let page = format!("{}/{of}", client.endpoint());
    let code = answer.header("x-error-code").unwrap_or_default();
    let is_gated = code == "GatedRepo";
    let token = "create a read token at https://huggingface.co/settings/tokens and set HF_TOKEN to it";
    let error = match answer.status {
        401 | 403 if is_gated && !client.has_token() => {
            Error::new(format!("`{of}` asks to accept its licence first ({})", answer.status))
                .hint(format!("accept the licence at {page}, then {token}"))
        }
        403 if is_gated => Error::new(format!("`{of}` is for those who have accepted its licence (403)"))
            .hint(format!("accept the licence at {page} with the account that the token belongs to")),
        401 if code == "RepoNotFound" || code == "RepositoryNotFound" => {
            Error::new(format!("there is no repository `{of}`, or it is private (401)"))
                .hint(format!("look at its name; for a private one, {token}"))
        }
        401 if client.has_token() => Error::new("the server does not know the token (401)")
            .hint(format!("is HF_TOKEN, or the token of `hf auth login`, still valid? {token}")),
        401 => Error::new("the server asks who you are (401)")
            .hint(format!("accept the licence at {page} if it has one, then {token}")),
        403 => Error::new("the server denies access (403)")
            .hint(format!("does the token belong to an account that may read {page}, and accepted its licence?")),
        404 if code == "RevisionNotFound" => Error::new(format!("`{of}` has no such revision (404)"))
            .hint("look at the name of the branch or commit that `--revision` has"),
        404 if code == "RepoNotFound" => {
            Error::new(format!("there is no repository `{of}` (404)")).hint("look at its name")
        }
        404 => not_there(client, path),
        status if passes(status) => {
            let error = Error::new(format!("the server answers with status {status}: {}", shortened(path, 200)))
                .hint("try again later: the same command goes on where this one ended");
            return Trouble::Passing(error, asked_wait(answer));
        }
        status => Error::new(format!("the server answers with status {status}: {}", shortened(path, 200)))
            .hint(super::remote::wrong_server()),
    };
    Trouble::Lasting(error)
}

/// The error of a path at which the server has nothing.
pub fn not_there(client: &Client, path: &str) -> Error {
    Error::new(format!("the server has no such file (404): {}{}", client.endpoint(), shortened(path, 400)))
        .hint("look at the name; if HF_ENDPOINT names a mirror, has it this model?")
}

/// What a server asks to wait before the next attempt, where it says so in seconds.
fn asked_wait(answer: &Answer) -> Option<Duration> {
    let seconds = answer.header("retry-after").filter(|_| passes(answer.status))?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}
