//! The address at which clients reach the server: scheme, host and path. Reverse proxies may change it.

use std::net::IpAddr;
use std::str::FromStr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, header};

/// A network of IP addresses, as in `10.0.0.0/8`. A single address is a network, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    pub fn contains(&self, ip: IpAddr) -> bool {
        let (own, ip) = (number(self.address), number(ip.to_canonical()));
        own.1 == ip.1 && (self.bits == 0 || (own.0 ^ ip.0) >> (own.1 - self.bits) == 0)
    }
}

/// Returns an IP address as a number, with its number of bits.
fn number(ip: IpAddr) -> (u128, u8) {
    match ip {
        IpAddr::V4(ip) => (u32::from(ip).into(), 32),
        IpAddr::V6(ip) => (ip.into(), 128),
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected an address, or a network such as 172.16.0.0/12".to_string();
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address = address.parse::<IpAddr>().map_err(|_| wrong())?.to_canonical();
        let (_, all) = number(address);
        let bits = bits.map_or(Ok(all), str::parse).map_err(|_| wrong())?;
        if bits > all { Err(wrong()) } else { Ok(Self { address, bits }) }
    }
}

/// The value of `--public-url`: scheme, authority and path, without a trailing slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicUrl {
    /// The origin as browsers write it.
    pub origin: String,
    pub authority: Authority,
    pub path: String,
}

impl FromStr for PublicUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected an address such as https://example.com/flux".to_string();
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let scheme = uri.scheme_str().filter(|scheme| ["http", "https"].contains(scheme)).ok_or_else(wrong)?;
        let authority = uri.authority().filter(|name| !name.as_str().contains('@')).ok_or_else(wrong)?;
        let path = base_path(uri.path()).map_err(|_| wrong())?;
        if uri.query().is_some() {
            return Err(wrong());
        }
        let host = authority.as_str().to_ascii_lowercase();
        Ok(Self { origin: format!("{scheme}://{host}"), authority: authority.clone(), path })
    }
}

/// Parses `--base-path`. The result has a leading slash and no trailing one, or is empty at the root.
pub fn base_path(text: &str) -> Result<String, String> {
    let path = text.trim_end_matches('/');
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~/".contains(c);
    let is_path = path.is_empty() || path.starts_with('/');
    if is_path && path.chars().all(is_plain) && path.split('/').skip(1).all(|part| !["", ".", ".."].contains(&part)) {
        Ok(path.to_string())
    } else {
        Err("expected a path such as /flux".to_string())
    }
}

/// The address of the server from the point of view of a request's client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Address {
    /// The origin, as in `https://example.com`, if known.
    pub origin: Option<String>,
    /// The path prefix of all routes, empty at the root.
    pub prefix: String,
}

impl Address {
    /// Returns the URL of a route, or its path alone if the origin is unknown.
    pub fn url(&self, path: &str) -> String {
        format!("{}{}{path}", self.origin.as_deref().unwrap_or_default(), self.prefix)
    }
}

/// Returns the host name that a request addresses.
pub fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    headers.get(header::HOST).and_then(|host| host.to_str().ok()).or_else(|| uri.authority().map(Authority::as_str))
}

/// Returns the value set by the nearest proxy: the last value of the last header. Earlier values may come from the
/// client.
pub fn forwarded<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let last = headers.get_all(name).iter().next_back()?.to_str().ok()?;
    last.rsplit(',').next().map(str::trim).filter(|value| !value.is_empty())
}

/// Returns a path without double slashes, trailing slash and `prefix`, or `None` if nothing has to change.
pub fn normalized(path: &str, prefix: &str) -> Option<String> {
    let is_plain = !path.contains("//") && (path == "/" || !path.ends_with('/'));
    if is_plain && (prefix.is_empty() || !path.starts_with(prefix)) {
        return None;
    }
    let whole: String = path.split('/').filter(|part| !part.is_empty()).map(|part| format!("/{part}")).collect();
    let below = whole.strip_prefix(prefix).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let path_below = below.unwrap_or(&whole);
    Some(if path_below.is_empty() { "/".to_string() } else { path_below.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::config::Config;
    use crate::http::keys::Keys;

    fn address(config: &Config, is_trusted: bool, given: &[(&'static str, &str)]) -> String {
        let headers = given.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        config.address(is_trusted, &"/v1/models".parse().unwrap(), &headers.collect()).url("/v1/files/a")
    }

    #[test]
    fn an_address_is_that_of_the_client() {
        let config = Config::new(Vec::new(), Keys::none());
        let own = [("host", "127.0.0.1:7860")];
        assert_eq!(address(&config, false, &own), "http://127.0.0.1:7860/v1/files/a");
        let proxied = [
            ("host", "127.0.0.1:7860"),
            ("x-forwarded-host", "evil.example, flux.example"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-prefix", "/flux/"),
        ];
        assert_eq!(address(&config, true, &proxied), "https://flux.example/flux/v1/files/a");
        assert_eq!(address(&config, false, &proxied), "http://127.0.0.1:7860/v1/files/a");
        let odd = [("host", "a b"), ("x-forwarded-proto", "javascript"), ("x-forwarded-prefix", "//evil.example")];
        assert_eq!(address(&config, true, &odd), "/v1/files/a");
        let below = Config { base_path: "/flux".to_string(), ..Config::new(Vec::new(), Keys::none()) };
        assert_eq!(address(&below, false, &own), "http://127.0.0.1:7860/flux/v1/files/a");
        let public = Config { public_url: "https://Flux.example/a/".parse().ok(), ..below };
        assert_eq!(address(&public, true, &proxied), "https://flux.example/a/v1/files/a");
    }

    #[test]
    fn public_urls_and_paths_are_plain() {
        for wrong in ["flux.example", "ftp://x", "https://u@x", "https://x/?a", "https://x/a b", "", "https://x//a"] {
            assert!(wrong.parse::<PublicUrl>().is_err(), "{wrong}");
        }
        for wrong in ["flux", "/a//b", "/..", "/a?b", "//x", "/<"] {
            assert!(base_path(wrong).is_err(), "{wrong}");
        }
        assert_eq!([base_path("/").unwrap(), base_path("/a/b/").unwrap()], ["", "/a/b"]);
    }

    #[test]
    fn paths_lose_slashes_and_the_base_path() {
        for (path, prefix, expected) in [
            ("/v1/models", "", None),
            ("/", "", None),
            ("//v1///models/", "", Some("/v1/models")),
            ("/flux/v1/models", "/flux", Some("/v1/models")),
            ("/flux", "/flux", Some("/")),
            ("/flux/", "/flux", Some("/")),
            ("/flux.js", "/flux", Some("/flux.js")),
            ("/v1/models", "/flux", None),
            ("//", "", Some("/")),
        ] {
            assert_eq!(normalized(path, prefix).as_deref(), expected, "{path} below {prefix}");
        }
    }

    #[test]
    fn a_network_has_its_addresses() {
        let has = |network: &str, ip: &str| network.parse::<Network>().unwrap().contains(ip.parse().unwrap());
        assert!(has("10.0.0.1", "10.0.0.1") && has("10.0.0.1", "::ffff:10.0.0.1") && !has("10.0.0.1", "10.0.0.2"));
        assert!(has("172.16.0.0/12", "172.31.255.1") && !has("172.16.0.0/12", "172.32.0.1"));
        assert!(has("fd00::/8", "fd12::1") && !has("fd00::/8", "10.0.0.1") && has("0.0.0.0/0", "8.8.8.8"));
        for wrong in ["x", "10.0.0.0/33", "10.0.0.0/", "10.0.0/8", ""] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
