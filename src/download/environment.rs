//! What the environment says: the server, the token, how long to wait, and certificates.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flux::Result;
use flux::error::{Error, shortened};
use flux::files::read_text;
use flux::hub::Cache;
use ureq::http::Uri;
use ureq::tls::{Certificate, PemItem, RootCerts, parse_pem};

const HUB: &str = "https://huggingface.co";
/// The longest file of a token, and of certificates.
const TOKEN_BYTES: usize = 4096;
const CERTIFICATE_BYTES: usize = 16 << 20;
/// How long a read may wait for the next bytes.
const READ: Duration = Duration::from_secs(30);
const LONGEST_READ: u64 = 3600;

/// A variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    env::var_os(name).filter(|value| !value.is_empty()).map(|value| value.to_string_lossy().into_owned())
}

/// Whether the variable says yes, as the other tools read it.
fn is_set(name: &str) -> bool {
    variable(name).is_some_and(|value| matches!(value.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE"))
}

/// Whether the network is not to be used.
pub fn is_offline() -> bool {
    is_set("HF_HUB_OFFLINE")
}

/// The address of the server, without a slash at its end.
///
/// Errors when it is none.
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
            "HF_ENDPOINT is `{}`, expected http:// or https:// and a server",
            shortened(&named, 200)
        ))
        .hint(format!("leave it out for {HUB}"))),
    }
}

/// The user's token, and where it is from.
///
/// Errors when it has characters that no token has.
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
        return Err(Error::new("the token has characters that no token has")
            .at(place)
            .hint("is there a space or a line end in it? copy it again from your account's page of access tokens"));
    }
    Ok(Some(token.to_string()))
}

/// How long a read may wait for the next bytes, by the variable that the other tools read too.
pub fn read_timeout() -> Duration {
    let seconds = variable("HF_HUB_DOWNLOAD_TIMEOUT").and_then(|text| text.parse::<u64>().ok());
    seconds.filter(|seconds| (1..=LONGEST_READ).contains(seconds)).map_or(READ, Duration::from_secs)
}

/// The certificates that are trusted: those of the file that `SSL_CERT_FILE` names, else Mozilla's.
///
/// Errors when the file cannot be read or has none.
pub fn certificates() -> Result<RootCerts> {
    let Some(path) = variable("SSL_CERT_FILE").map(PathBuf::from) else { return Ok(RootCerts::WebPki) };
    certificates_in(&path).map_err(|e| e.at("SSL_CERT_FILE"))
}

fn certificates_in(path: &Path) -> Result<RootCerts> {
    let text = read_text(path, CERTIFICATE_BYTES)?;
    let items = parse_pem(text.as_bytes());
    let found: Vec<Certificate<'static>> = items
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if found.is_empty() {
        return Err(Error::new("the file has no certificate in PEM").at_path(path).hint("leave SSL_CERT_FILE out"));
    }
    Ok(RootCerts::new_with_certs(&found))
}
