//! The certificates of servers that the program trusts.

use std::env;
use std::path::Path;

use flux_base::Result;
use flux_base::error::Error;
use flux_files::read_text;
use ureq::tls::{Certificate, PemItem, RootCerts, parse_pem};

/// The max bytes of a certificate file.
const CERTIFICATE_BYTES: usize = 16 << 20;

/// Returns the trusted certificates: from the file that `SSL_CERT_FILE` names, else Mozilla's.
///
/// Errors if the file cannot be read or has no certificate.
pub fn trusted() -> Result<RootCerts> {
    let Some(path) = env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()) else { return Ok(RootCerts::WebPki) };
    certificates_in(Path::new(&path)).map_err(|e| e.at("SSL_CERT_FILE"))
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
        return Err(Error::new("the file contains no PEM certificate").at_path(path).hint("unset SSL_CERT_FILE"));
    }
    Ok(RootCerts::new_with_certs(&found))
}
