//! Addresses: which server they are on, and where redirections lead.

use flux::Result;
use flux::error::{Error, shortened};
use ureq::http::Uri;

use super::remote::wrong_server;

/// Scheme, host and port of an address.
pub fn origin(address: &str) -> Option<String> {
    let uri = address.parse::<Uri>().ok()?;
    Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?).to_ascii_lowercase())
}

/// Whether an address is on the server.
pub fn is_of(address: &str, endpoint: &str) -> bool {
    origin(address).is_some_and(|own| origin(endpoint) == Some(own))
}

/// Whether nobody in between can read what is sent there, as long as no proxy is asked for what is on this machine.
pub fn is_private(address: &str) -> bool {
    address.starts_with("https://") || is_own(address)
}

/// Whether an address is on this machine.
pub fn is_own(address: &str) -> bool {
    let host = address.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_ascii_lowercase)).unwrap_or_default();
    matches!(host.as_str(), "localhost" | "127.0.0.1" | "[::1]")
}

/// Where a redirection leads.
///
/// Errors when that is no address, or one that is not encrypted where this one was.
pub fn joined(from: &str, target: &str) -> Result<String> {
    let scheme = from.split("://").next().unwrap_or("https");
    let next = if target.starts_with("//") {
        format!("{scheme}:{target}")
    } else if target.starts_with('/') {
        format!("{}{target}", origin(from).unwrap_or_default())
    } else if target.contains("://") {
        target.to_string()
    } else {
        let folder = from.split('?').next().unwrap_or(from).rsplit_once('/').map_or(from, |(folder, _)| folder);
        without_dots(&format!("{folder}/{target}"))
    };
    let is_address =
        origin(&next).is_some_and(|origin| origin.starts_with("http://") || origin.starts_with("https://"));
    if !is_address {
        let what = format!("the server sends us on to `{}`, which is no address", shortened(target, 200));
        return Err(Error::new(what).hint(wrong_server()));
    }
    if scheme == "https" && next.starts_with("http://") {
        let what = format!("the server sends us on to `{}`, which is not encrypted", shortened(&next, 200));
        return Err(Error::new(what).hint(wrong_server()));
    }
    Ok(next)
}

/// An address in which `.` and `..` are left out of the path, as servers expect it.
fn without_dots(address: &str) -> String {
    let (path, query) = address.split_once('?').map_or((address, None), |(path, query)| (path, Some(query)));
    let start = path.find("://").and_then(|scheme| Some(scheme + 3 + path[scheme + 3..].find('/')?));
    let (origin, path) = path.split_at(start.unwrap_or(path.len()));
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').skip(1) {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let query = query.map_or(String::new(), |query| format!("?{query}"));
    format!("{origin}/{}{query}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_lead_where_browsers_are_led() {
        let from = "https://hub.org:8443/a/b?c=/d";
        for (target, next) in [
            ("https://cdn.org/x", Some("https://cdn.org/x")),
            ("//cdn.org/x", Some("https://cdn.org/x")),
            ("/x?y", Some("https://hub.org:8443/x?y")),
            ("x", Some("https://hub.org:8443/a/x")),
            ("./../x/y?z=/../", Some("https://hub.org:8443/x/y?z=/../")),
            ("../../../x", Some("https://hub.org:8443/x")),
            ("http://hub.org/x", None),
            ("file:///etc/passwd", None),
            ("ftp://a/b", None),
            ("https://", None),
        ] {
            assert_eq!(joined(from, target).ok().as_deref(), next, "{target}");
        }
        assert_eq!(joined("http://a/b", "http://c/d").unwrap(), "http://c/d");
    }

    #[test]
    fn the_token_is_for_one_server_and_never_in_the_clear() {
        assert!(is_of("https://Hub.org/x", "https://hub.org"));
        for other in ["https://hub.org.evil.org/x", "http://hub.org/x", "https://hub.org:444/x", "https://cdn.hub.org/"]
        {
            assert!(!is_of(other, "https://hub.org"), "{other}");
        }
        assert!(is_private("https://a.org") && is_private("http://localhost:80/x") && is_private("http://127.0.0.1"));
        assert!(!is_private("http://localhost.evil.org") && !is_private("http://a.org"));
    }
}
