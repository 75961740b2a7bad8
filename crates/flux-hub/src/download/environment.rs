//! Settings from the environment: the server, the token and timeouts.

use std::env;
use std::time::Duration;

use crate::Cache;
use flux_base::Result;
use flux_base::error::{Error, shortened};
use flux_files::read_text;
use ureq::http::Uri;

const HUB: &str = "https://huggingface.co";
/// The max bytes of a token file.
const TOKEN_BYTES: usize = 4096;
/// The default time that a read may wait for the next bytes, and the max seconds that can be set.
const READ: Duration = Duration::from_secs(30);
const LONGEST_READ: u64 = 3600;
/// The bytes per second below which a transfer counts as broken: a server that sends a byte now and then would never
/// end.
const MIN_SPEED: u64 = 1024;

/// Returns the value of a variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    env::var_os(name).filter(|value| !value.is_empty()).map(|value| value.to_string_lossy().into_owned())
}

/// Returns `true` if the variable means yes, as other tools read it.
fn is_set(name: &str) -> bool {
    variable(name).is_some_and(|value| matches!(value.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE"))
}

/// Returns `true` if the network must not be used.
pub fn is_offline() -> bool {
    is_set("HF_HUB_OFFLINE")
}

/// Returns the address of the server, without a slash at its end.
///
/// Errors if the variable is not an address.
pub fn endpoint() -> Result<String> {
    let named = variable("HF_ENDPOINT").unwrap_or_else(|| HUB.to_string());
    let address = named.trim_end_matches('/');
    let uri = address.parse::<Uri>().ok().filter(|uri| {
        uri.host().is_some_and(|host| !host.is_empty())
            && matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.query().is_none()
            && !uri.authority().is_some_and(|authority| authority.as_str().contains('@'))
    });
    match uri {
        Some(_) if address.is_ascii() => Ok(address.to_string()),
        _ => Err(Error::usage(format!(
            "HF_ENDPOINT is `{}`, expected http:// or https:// and a server name",
            shortened(&named, 200)
        ))
        .hint(format!("unset it to use {HUB}"))),
    }
}

/// Returns the user's token, from the environment or the token file.
///
/// Errors if it has characters that no token has.
pub fn token() -> Result<Option<String>> {
    let (place, text) = match variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN")) {
        Some(text) => ("HF_TOKEN".to_string(), text),
        None => {
            let Some(path) = Cache::token_file().filter(|path| path.exists()) else { return Ok(None) };
            (path.display().to_string(), read_text(&path, TOKEN_BYTES)?)
        }
    };
    let token = text.trim();
    if token.is_empty() {
        return Ok(None);
    }
    let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if token.len() > TOKEN_BYTES || !token.chars().all(is_letter) {
        return Err(Error::new("the token contains invalid characters").at(place).hint(
            "check it for spaces and line breaks, or copy it again from the access tokens page of your account",
        ));
    }
    Ok(Some(token.to_string()))
}

/// Returns the time that a read may wait for the next bytes, from the variable that other tools read as well.
pub fn read_timeout() -> Duration {
    let seconds = variable("HF_HUB_DOWNLOAD_TIMEOUT").and_then(|text| text.parse::<u64>().ok());
    seconds.filter(|seconds| (1..=LONGEST_READ).contains(seconds)).map_or(READ, Duration::from_secs)
}

/// Returns the min bytes per second of a transfer; 0 for any speed.
///
/// Errors if the variable is not a number.
pub fn min_speed() -> Result<u64> {
    let Some(text) = variable("FLUX_DOWNLOAD_MIN_SPEED") else { return Ok(MIN_SPEED) };
    text.parse().map_err(|_| {
        Error::usage(format!("`{}` is not a number of bytes per second", shortened(&text, 200)))
            .at("FLUX_DOWNLOAD_MIN_SPEED")
            .hint(format!("unset it for the default of {MIN_SPEED}, or set it to 0 to allow any speed"))
    })
}
