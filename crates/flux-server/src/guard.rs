//! Access rules: host names, origins, and keys. Also the headers that all responses share.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use futures_util::FutureExt;

use crate::App;
use crate::http::address;
use crate::http::client::Client;
use crate::http::config::Config;
use crate::http::error::{ApiError, Failure, Result, shown};
use crate::http::log::Line;
use crate::http::sockets::Peer;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
/// The path of files that responses link to.
const FILES: &str = "/v1/files/";
/// The prefix of a key among the subprotocols of a WebSocket.
const KEY: &str = "flux-key.";
const UNKNOWN_HOST: &str = "unknown_host";
/// Paths that need no key: liveness checks and the API description.
const FREE: [&str; 4] = ["/health", "/healthz", "/readyz", "/openapi.json"];

/// Applies the access rules to routes.
pub fn guarded(routes: Router<Arc<App>>, app: &Arc<App>) -> Router<Arc<App>> {
    routes.layer(middleware::from_fn_with_state(Arc::clone(app), guard))
}

async fn guard(
    State(app): State<Arc<App>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = crate::http::ids::new_id();
    let start = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    let route =
        request.extensions().get::<MatchedPath>().map_or_else(|| "none".to_string(), |path| path.as_str().to_string());
    let origin = request.headers().get(header::ORIGIN).cloned();
    let is_trusted = matches!(peer, Peer::Address(address) if app.config.trusts(address.ip()));
    let from = app.config.address(is_trusted, request.uri(), request.headers());
    request.extensions_mut().insert(from);
    let checked = check(&app.config, peer, &method, request.uri(), request.headers());
    let client = checked.as_ref().ok().map(|client| (client.key.as_ref().map(|key| &*key.name), &client.about));
    let mut line = Line::new(app.log, &id, peer, (method.clone(), &path), client);
    if let Err(error) = &checked
        && error.code == UNKNOWN_HOST
    {
        app.log.refused_host(&error.message);
    }
    let mut response = match checked {
        Ok(_) if method == Method::OPTIONS && origin.is_some() => StatusCode::NO_CONTENT.into_response(),
        Ok(client) => {
            request.extensions_mut().insert(client);
            let answered = std::panic::AssertUnwindSafe(next.run(request)).catch_unwind().await;
            answered.unwrap_or_else(|_| ApiError::internal("the server panicked").for_good().into_response())
        }
        Err(error) => error.into_response(),
    };
    if response.status().is_client_error() || response.status().is_server_error() {
        response = as_json(response);
    }
    app.metrics.answered(&route, response.status().as_u16(), start.elapsed());
    line.answered(response.status().as_u16(), response.extensions().get::<Failure>());
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // Keeps other sites from embedding responses, except files, whose names cannot be guessed.
    if app.config.cors.is_empty() && !path.starts_with(FILES) {
        headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    }
    if let Some(origin) = origin.filter(|origin| may_call(&app.config, origin)) {
        allow(headers, origin);
    }
    response
}

/// Converts an error worded by a library to the API's format, for example for a path that is not UTF-8.
fn as_json(response: Response) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json")) {
        return response;
    }
    let status = response.status();
    let what = status.canonical_reason().unwrap_or("the request failed").to_lowercase();
    ApiError::new(status, "invalid_request", what).into_response()
}

/// Returns `true` if pages of another origin may call the server.
fn may_call(config: &Config, origin: &HeaderValue) -> bool {
    config.cors.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes())
}

fn allow(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::VARY, HeaderValue::from_static("Origin"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
    let allowed = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID";
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(allowed));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("x-request-id, retry-after"));
}

/// Identifies the client.
///
/// Errors if the client has no access.
fn check(config: &Config, peer: Peer, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<Client> {
    let peer = match peer {
        Peer::Address(address) => address.ip(),
        Peer::User(user) => return check_user(config, user, headers),
    };
    let is_trusted = config.trusts(peer);
    check_host(config, is_trusted, uri, headers)?;
    let address = address(config, peer, headers);
    let is_free = FREE.contains(&uri.path()) || crate::page::is_part(uri.path()) || *method == Method::OPTIONS;
    if config.keys.are_needed() && !is_free {
        let key = given_key(headers).and_then(|text| config.keys.find(&text)).ok_or_else(|| {
            let message = "an API key is required: send it as `Authorization: Bearer KEY`";
            ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
        })?;
        check_origin(config, is_trusted, headers)?;
        return Ok(Client::from_key(key));
    }
    check_origin(config, is_trusted, headers)?;
    if !config.keys.are_needed() && !matches!(*method, Method::GET | Method::HEAD) {
        check_site(config, headers)?;
    }
    Ok(Client::at(address))
}

/// Identifies a local user connected over a Unix socket. No key is needed and any host name is accepted, since browsers
/// cannot connect to a socket file. Through a tunnel they can, but then they send an origin.
///
/// Errors if the user has no access, or a page of another origin sends the request.
fn check_user(config: &Config, user: u32, headers: &HeaderMap) -> Result<Client> {
    let is_own = user == 0 || user == rustix::process::geteuid().as_raw();
    if !is_own && !config.users.is_empty() && !config.users.contains(&user) {
        let message = "this user is not allowed: allow it with `--allow-user`";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden_user", message));
    }
    check_origin(config, false, headers)?;
    check_site(config, headers)?;
    Ok(Client { is_guest: !is_own, ..Client::named(Peer::User(user)) })
}

/// Errors if the host name is not one of the server's. This prevents DNS rebinding, where another site points its name
/// to this address.
///
/// A trusted proxy may send no name, or the name of its upstream or service. These have no dot, unlike names of sites.
fn check_host(config: &Config, is_trusted: bool, uri: &Uri, headers: &HeaderMap) -> Result<()> {
    let name = host_name(address::host(uri, headers).unwrap_or_default());
    let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let is_own = is_address || name == "localhost" || name.ends_with(".localhost");
    let is_upstream = is_trusted && !name.contains('.');
    let mut known =
        config.hosts.iter().map(String::as_str).chain(config.public_url.iter().map(|url| url.authority.host()));
    if is_own || is_upstream || known.any(|known| known.eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    let named = if name.is_empty() {
        "the request has no host name".to_string()
    } else {
        format!("the host name `{}` is not allowed", shown(name))
    };
    let message = format!(
        "{named}: start the server with `--allow-host NAME`, or behind a proxy with `--trust-proxy ADDRESS` (of the \
         proxy) or `--public-url https://NAME`, and let the proxy pass the name (nginx: `proxy_set_header Host $host;`)"
    );
    Err(ApiError::new(StatusCode::FORBIDDEN, UNKNOWN_HOST, message))
}

/// Returns a host without its port.
fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.chars().all(|c| c.is_ascii_digit()) && (!name.contains(':') || name.ends_with(']')) =>
        {
            name
        }
        _ => host,
    }
}

/// Errors if the request comes from a page of another origin. A trusted proxy reports the host name that the page used.
fn check_origin(config: &Config, is_trusted: bool, headers: &HeaderMap) -> Result<()> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let text = origin.to_str().unwrap_or_default();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let forwarded = address::forwarded(headers, "x-forwarded-host").filter(|_| is_trusted);
    let of_page = text.split_once("://").map(|(_, host)| host);
    let is_own = of_page.is_some() && (of_page == host || of_page == forwarded);
    let is_public = config.public_url.as_ref().is_some_and(|url| url.origin.eq_ignore_ascii_case(text));
    if is_own || is_public || may_call(config, origin) {
        return Ok(());
    }
    let message = "requests from pages of this origin are not allowed: allow them with `--cors ORIGIN`; if it is the \
                   origin of this server behind a proxy, set it with `--public-url`";
    Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden_origin", message))
}

/// Errors if the browser reports that the request comes from another site.
fn check_site(config: &Config, headers: &HeaderMap) -> Result<()> {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    let is_allowed = headers.get(header::ORIGIN).is_some_and(|origin| may_call(config, origin));
    match site {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) if is_allowed => Ok(()),
        Some(_) => {
            let message = "requests from pages of other sites are not allowed";
            Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden_origin", message))
        }
    }
}

/// Returns the key of `Authorization: Bearer KEY`, or the password of `Basic`. Browsers cannot set this header on
/// WebSockets, so there the key is one of the subprotocols: `flux-key.` and the key in base64.
fn given_key(headers: &HeaderMap) -> Option<String> {
    let protocols = headers.get(header::SEC_WEBSOCKET_PROTOCOL).and_then(|names| names.to_str().ok());
    if let Some(key) = protocols.and_then(|names| names.split(',').find_map(|name| name.trim().strip_prefix(KEY))) {
        return String::from_utf8(base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(key).ok()?).ok();
    }
    let (scheme, rest) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    match scheme.to_ascii_lowercase().as_str() {
        "bearer" => Some(rest.trim().to_string()),
        "basic" => {
            let text = base64::engine::general_purpose::STANDARD.decode(rest.trim()).ok()?;
            let text = String::from_utf8(text).ok()?;
            Some(text.split_once(':')?.1.to_string())
        }
        _ => None,
    }
}

/// Returns the address of the client.
fn address(config: &Config, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
    if !config.trusts(peer) {
        return peer;
    }
    // The last address is the one that the proxy itself saw. Some proxies write it into a header line of its own.
    let forwarded = headers.get_all("x-forwarded-for").iter().next_back().and_then(|text| text.to_str().ok());
    let forwarded = forwarded.and_then(|text| text.rsplit(',').next()?.trim().parse::<IpAddr>().ok());
    forwarded.map_or(peer, |address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::keys::Keys;

    fn config(keys: Keys) -> Config {
        Config {
            hosts: vec!["flux.example".to_string()],
            cors: vec!["https://friend.example".to_string()],
            trusted_proxies: vec!["10.0.0.1".parse().unwrap()],
            users: vec![1000],
            ..Config::new(Vec::new(), keys)
        }
    }

    fn asked(config: &Config, method: Method, path: &str, given: &[(&'static str, &str)]) -> Result<String> {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("127.0.0.1:7860"));
        for (name, value) in given {
            if *name == "host" {
                headers.remove(*name);
            }
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        let peer = Peer::Address("10.0.0.1:5".parse().unwrap());
        check(config, peer, &method, &path.parse().unwrap(), &headers).map(|client| client.name)
    }

    fn refused(config: &Config, given: &[(&'static str, &str)]) -> &'static str {
        asked(config, Method::POST, "/v1/jobs", given).err().map_or("", |error| error.code)
    }

    #[test]
    fn the_server_answers_to_its_own_names_alone() {
        let config = config(Keys::none());
        for host in
            ["localhost:1", "localhost", "127.0.0.1:7860", "[::1]:80", "[::1]", "flux.example", "FLUX.example:443"]
        {
            assert_eq!(refused(&config, &[("host", host)]), "", "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "flux.example.evil", "evil.example:7860"] {
            assert_eq!(refused(&config, &[("host", host)]), "unknown_host", "{host}");
        }
        // A trusted proxy sends the name of its upstream, or none.
        for host in ["", "upstream", "flux:7860"] {
            assert_eq!(refused(&config, &[("host", host)]), "", "{host}");
            let alone = Config { trusted_proxies: Vec::new(), ..self::config(Keys::none()) };
            assert_eq!(refused(&alone, &[("host", host)]), "unknown_host", "{host}");
        }
        let public = Config { public_url: "https://draw.example/flux".parse().ok(), ..config };
        assert_eq!(refused(&public, &[("host", "draw.example")]), "");
    }

    #[test]
    fn a_page_behind_a_proxy_may_ask() {
        let page = [("origin", "https://draw.example"), ("sec-fetch-site", "same-origin")];
        let refused = |config: &Config, more: &[(&'static str, &str)]| refused(config, &[&page[..], more].concat());
        let open = config(Keys::none());
        assert_eq!(refused(&open, &[]), "forbidden_origin", "the proxy sends its own name");
        assert_eq!(refused(&open, &[("x-forwarded-host", "draw.example")]), "");
        let alone = Config { trusted_proxies: Vec::new(), ..config(Keys::none()) };
        assert_eq!(refused(&alone, &[("x-forwarded-host", "draw.example")]), "forbidden_origin");
        let public = Config { public_url: "https://Draw.example/flux".parse().ok(), ..alone };
        assert_eq!(refused(&public, &[]), "");
    }

    #[test]
    fn pages_of_others_may_not_ask() {
        let config = config(Keys::none());
        assert_eq!(refused(&config, &[("origin", "http://127.0.0.1:7860"), ("sec-fetch-site", "same-origin")]), "");
        assert_eq!(refused(&config, &[("origin", "https://friend.example"), ("sec-fetch-site", "cross-site")]), "");
        assert_eq!(refused(&config, &[("origin", "https://evil.example")]), "forbidden_origin");
        assert_eq!(refused(&config, &[("origin", "null")]), "forbidden_origin");
        assert_eq!(refused(&config, &[("sec-fetch-site", "cross-site")]), "forbidden_origin", "a form of another site");
        assert_eq!(refused(&config, &[("sec-fetch-site", "same-site")]), "forbidden_origin");
    }

    #[test]
    fn a_key_comes_as_a_bearer_or_as_a_password() {
        let config = config(Keys::parse("secret,other").unwrap());
        let basic = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode("user:other"));
        for (given, name) in [("Bearer secret", "key-1"), ("bearer other", "key-2"), (&basic, "key-2")] {
            assert_eq!(asked(&config, Method::POST, "/v1/jobs", &[("authorization", given)]).unwrap(), name);
        }
        let named =
            |key: &str| format!("flux, flux-key.{}", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(key));
        let socket = |key: &str| asked(&config, Method::GET, "/v1/live", &[("sec-websocket-protocol", &named(key))]);
        assert_eq!(socket("other").unwrap(), "key-2");
        assert!(socket("wrong").is_err() && socket("").is_err());
        for given in ["Bearer wrong", "secret", "Bearer", "Basic !!", "Basic c2VjcmV0"] {
            assert_eq!(refused(&config, &[("authorization", given)]), "invalid_api_key", "{given}");
        }
        assert_eq!(refused(&config, &[]), "invalid_api_key");
        assert!(asked(&config, Method::GET, "/healthz", &[]).is_ok(), "the health check needs no key");
        assert!(asked(&config, Method::GET, "/metrics", &[]).is_err());
    }

    #[test]
    fn users_of_this_machine_need_no_key_and_have_their_own_names() {
        let config = config(Keys::parse("secret").unwrap());
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("anything"));
        let asked = |config: &Config, user: u32, headers: &HeaderMap| {
            let (path, peer) = ("/v1/jobs".parse().unwrap(), Peer::User(user));
            let client = check(config, peer, &Method::POST, &path, headers);
            client.map(|client| (client.max_priority(), client.name)).map_err(|error| error.code)
        };
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(asked(&config, own, &headers), Ok((flux::engine::Priority::High, format!("uid-{own}"))));
        assert_eq!(asked(&config, 1000, &headers), Ok((flux::engine::Priority::Normal, "uid-1000".to_string())));
        assert_eq!(asked(&config, 1001, &headers), Err("forbidden_user"));
        let open = Config { users: Vec::new(), ..config };
        assert_eq!(asked(&open, 1001, &headers), Ok((flux::engine::Priority::Normal, "uid-1001".to_string())));
        headers.insert(header::ORIGIN, HeaderValue::from_static("https://evil.example"));
        assert_eq!(asked(&open, 1001, &headers), Err("forbidden_origin"));
        headers.remove(header::ORIGIN);
        headers.insert("sec-fetch-site", HeaderValue::from_static("cross-site"));
        assert_eq!(asked(&open, 1001, &headers), Err("forbidden_origin"));
    }

    #[test]
    fn addresses_of_one_machine_share_what_they_may_ask_for_and_not_their_jobs() {
        let config = config(Keys::none());
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("localhost"));
        let asked = |address: &str| {
            let peer = Peer::Address((address.parse::<IpAddr>().unwrap(), 1).into());
            let client = check(&config, peer, &Method::GET, &"/v1/jobs".parse().unwrap(), &headers).unwrap();
            (client.name, client.share)
        };
        let own = |name: &str| (name.to_string(), "127.0.0.1".to_string());
        for address in ["127.0.0.1", "127.0.0.9", "::1"] {
            assert_eq!(asked(address), own(address));
        }
        assert_eq!(asked("2001:db8::5"), ("2001:db8::5".to_string(), "2001:db8::".to_string()));
    }

    #[test]
    fn a_proxy_that_is_trusted_says_who_asks() {
        let config = config(Keys::none());
        let asked = |given: &[(&'static str, &str)]| asked(&config, Method::GET, "/v1/jobs", given).unwrap();
        assert_eq!(asked(&[("x-forwarded-for", "6.6.6.6, 1.2.3.4")]), "1.2.3.4");
        assert_eq!(asked(&[("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "::ffff:1.2.3.4")]), "1.2.3.4");
        assert_eq!(asked(&[]), "10.0.0.1");
    }
}
