//! Addresses of servers: their origin, addresses of this machine, and targets of redirects.

use std::net::{IpAddr, ToSocketAddrs};

use flux_base::Result;
use flux_base::error::{Error, shortened};
use ureq::http::Uri;

/// Returns scheme, host and port of an address, without a port that the scheme implies.
pub fn origin(address: &str) -> Option<String> {
    let uri = address.parse::<Uri>().ok()?;
    let (scheme, host) = (uri.scheme_str()?.to_ascii_lowercase(), uri.host()?.to_ascii_lowercase());
    let implied = if scheme == "https" { 443 } else { 80 };
    let port = uri.port_u16().filter(|port| *port != implied).map_or(String::new(), |port| format!(":{port}"));
    (!host.is_empty()).then(|| format!("{scheme}://{host}{port}"))
}

/// Returns `true` if an address is on the server.
pub fn is_of(address: &str, endpoint: &str) -> bool {
    origin(address).is_some_and(|own| origin(endpoint) == Some(own))
}

/// Returns `true` if no other machine can read the traffic. Requests to this machine must not use a proxy.
pub fn is_private(address: &str) -> bool {
    address.starts_with("https://") || is_own(address)
}

/// Returns `true` if an address is on this machine.
pub fn is_own(address: &str) -> bool {
    let Some(host) = address.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_ascii_lowercase)) else {
        return false;
    };
    let host = host.trim_end_matches('.');
    if host == "localhost" || host.ends_with(".localhost") {
        return true;
    }
    let is_own = |ip: IpAddr| ip.to_canonical().is_loopback() || ip.is_unspecified();
    if let Ok(ip) = host.trim_start_matches('[').trim_end_matches(']').parse() {
        return is_own(ip);
    }
    // The resolver also reads numbers such as `127.1` as addresses, without a request to a name server.
    let is_number = |part: &str| {
        let digits = part.strip_prefix("0x").unwrap_or(part);
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) && part.starts_with(char::is_numeric)
    };
    host.split('.').all(is_number)
        && (host, 80).to_socket_addrs().is_ok_and(|mut found| found.all(|found| is_own(found.ip())))
}

/// Returns the target of a redirect.
///
/// Errors if the target is not an address, or not encrypted although the source is.
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
        let what = format!("the server redirects to `{}`, which is not an HTTP address", shortened(target, 200));
        return Err(Error::new(what));
    }
    if scheme == "https" && next.starts_with("http://") {
        let what = format!("the server redirects to `{}`, which is not encrypted", shortened(&next, 200));
        return Err(Error::new(what));
    }
    Ok(next)
}

/// Removes `.` and `..` from the path of an address, as servers expect.
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
        assert!(is_of("https://hub.org:443/x", "https://hub.org") && is_of("http://a:80", "http://A/b"));
        for own in ["LOCALHOST", "a.localhost", "127.8.9.1:8", "127.1", "0x7f000001", "[::1]:8", "[::ffff:127.0.0.1]"] {
            assert!(is_own(&format!("http://{own}/x")), "{own}");
        }
        for other in ["127.0.0.1.evil.org", "128.1", "[::2]", "127.0.0.1@evil.org", "beef.org", "1e100.net"] {
            assert!(!is_own(&format!("http://{other}/x")), "{other}");
        }
        assert!(is_private("https://a.org") && is_private("http://localhost:80/x") && is_private("http://127.0.0.1"));
        assert!(!is_private("http://localhost.evil.org") && !is_private("http://a.org"));
    }
}
