//! Who may ask: names of hosts, origins of pages, keys. And what every answer has.

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

use super::App;
use super::config::Config;
use super::error::{ApiError, Result};
use super::keys::Key;
use super::request::Priority;
use super::sockets::Peer;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
/// Where files are that answers name.
const FILES: &str = "/v1/files/";
/// What stands before a key among the protocols of a socket.
const KEY: &str = "flux-key.";
/// Paths that need no key: whether the server is there, and the page that asks for the key.
const FREE: [&str; 3] = ["/healthz", "/readyz", "/openapi.json"];

/// Who asks.
#[derive(Clone)]
pub struct Client {
    /// The name of the key, or where there are none, the address, or the number of the user of this machine.
    pub name: String,
    pub key: Option<Arc<Key>>,
    /// Whether it is another user of this machine, who is not before its owner.
    pub is_guest: bool,
}

impl Client {
    pub fn of_key(key: Arc<Key>) -> Self {
        Self { name: key.name.clone(), key: Some(key), is_guest: false }
    }

    /// One without a key.
    pub fn named(name: impl ToString) -> Self {
        Self { name: name.to_string(), key: None, is_guest: false }
    }

    /// The highest priority that it may ask for.
    pub fn most_priority(&self) -> Priority {
        let without = if self.is_guest { Priority::Normal } else { Priority::High };
        self.key.as_ref().map_or(without, |key| key.priority)
    }

    /// Errors when it asked for too many images lately.
    pub fn take(&self, images: usize) -> Result<()> {
        let Some(key) = &self.key else { return Ok(()) };
        key.rate.take(images as f64, Instant::now()).map_err(|wait| {
            ApiError::too_many("rate_limited", "the key asked for more images a minute than it may", wait)
        })
    }
}

/// Puts the rules in front of routes.
pub fn guarded(routes: Router<Arc<App>>, app: &Arc<App>) -> Router<Arc<App>> {
    routes.layer(middleware::from_fn_with_state(Arc::clone(app), guard))
}

async fn guard(
    State(app): State<Arc<App>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = super::ids::new_id();
    let start = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    let route =
        request.extensions().get::<MatchedPath>().map_or_else(|| "none".to_string(), |path| path.as_str().to_string());
    let origin = request.headers().get(header::ORIGIN).cloned();
    let mut response = match check(&app.config, peer, &method, request.uri(), request.headers()) {
        Ok(_) if method == Method::OPTIONS && origin.is_some() => StatusCode::NO_CONTENT.into_response(),
        Ok(client) => {
            request.extensions_mut().insert(client);
            let answered = std::panic::AssertUnwindSafe(next.run(request)).catch_unwind().await;
            answered
                .unwrap_or_else(|_| ApiError::internal("the request made the server panic").for_good().into_response())
        }
        Err(error) => error.into_response(),
    };
    if response.status().is_client_error() || response.status().is_server_error() {
        response = as_json(response);
    }
    app.metrics.answered(&route, response.status().as_u16(), start.elapsed());
    app.log.request(&id, peer, &method, &path, response.status().as_u16(), start.elapsed());
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // Pages of others show nothing of it either, but for files whose names nobody guesses.
    if app.config.cors.is_empty() && !path.starts_with(FILES) {
        headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    }
    if let Some(origin) = origin.filter(|origin| may_call(&app.config, origin)) {
        allow(headers, origin);
    }
    response
}

/// An error that a library words, such as of a path that is no UTF-8, as clients read errors.
fn as_json(response: Response) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json")) {
        return response;
    }
    let status = response.status();
    let what = status.canonical_reason().unwrap_or("the request failed").to_lowercase();
    ApiError::new(status, "invalid_request", what).into_response()
}

/// Whether pages of another origin may call.
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

/// Who asks.
///
/// Errors when the client may not.
fn check(config: &Config, peer: Peer, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<Client> {
    let peer = match peer {
        Peer::Address(address) => address.ip(),
        Peer::User(user) => return check_user(config, user, headers),
    };
    check_host(config, uri, headers)?;
    let address = address(config, peer, headers);
    let is_free = FREE.contains(&uri.path()) || super::page::is_part(uri.path()) || *method == Method::OPTIONS;
    if config.keys.are_needed() && !is_free {
        let key = given_key(headers).and_then(|text| config.keys.find(&text)).ok_or_else(|| {
            let message = "a key is needed: send it as `Authorization: Bearer KEY`";
            ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
        })?;
        check_origin(config, headers)?;
        return Ok(Client::of_key(key));
    }
    check_origin(config, headers)?;
    if !config.keys.are_needed() && !matches!(*method, Method::GET | Method::HEAD) {
        check_site(config, headers)?;
    }
    Ok(Client::named(address))
}

/// A user of this machine, who came by the file of a socket: no key is asked for, and the server may have any name,
/// since no browser gets there by itself. One that comes through a tunnel says which page asks.
///
/// Errors when the user is none of those who may, or a page of another origin asks.
fn check_user(config: &Config, user: u32, headers: &HeaderMap) -> Result<Client> {
    let is_own = user == 0 || user == rustix::process::geteuid().as_raw();
    if !is_own && !config.users.is_empty() && !config.users.contains(&user) {
        let message = "this user may not ask: `--allow-user` names those who may";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden_user", message));
    }
    check_origin(config, headers)?;
    check_site(config, headers)?;
    Ok(Client { is_guest: !is_own, ..Client::named(Peer::User(user)) })
}

/// Errors when the server is called by a name that is not its own: a page of someone else may have given its name this
/// address.
fn check_host(config: &Config, uri: &Uri, headers: &HeaderMap) -> Result<()> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).or_else(|| uri.host()).unwrap_or_default();
    let name = host_name(host);
    let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let is_known = is_address || name == "localhost" || name.ends_with(".localhost");
    if is_known || config.hosts.iter().any(|known| known.eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    let message = "the server is not called by this name: `--host NAME` makes it known";
    Err(ApiError::new(StatusCode::FORBIDDEN, "unknown_host", message))
}

/// A host without its port.
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

/// Errors when a page of another origin asks.
fn check_origin(config: &Config, headers: &HeaderMap) -> Result<()> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let own = origin.to_str().ok().and_then(|origin| origin.split_once("://")).is_some_and(|(_, own)| own == host);
    if own || may_call(config, origin) {
        return Ok(());
    }
    let message = "pages of this origin may not call the server: `--cors ORIGIN` lets them";
    Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden_origin", message))
}

/// Errors when a browser says that a page of another site asks.
fn check_site(config: &Config, headers: &HeaderMap) -> Result<()> {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    let is_allowed = headers.get(header::ORIGIN).is_some_and(|origin| may_call(config, origin));
    match site {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) if is_allowed => Ok(()),
        Some(_) => {
            let message = "pages of other sites may not ask for work";
            Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden_origin", message))
        }
    }
}

/// The key of `Authorization: Bearer KEY`, or the password of `Basic`. Sockets of browsers send no such header: there
/// it is among the protocols that they name, as `flux-key.` and the key in base64.
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

/// Where a request comes from.
fn address(config: &Config, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
    if config.trusted_proxy != Some(peer) {
        return peer;
    }
    // The last one is what the proxy itself saw; some proxies write it into a line of its own.
    let forwarded = headers.get_all("x-forwarded-for").iter().next_back().and_then(|text| text.to_str().ok());
    let forwarded = forwarded.and_then(|text| text.rsplit(',').next()?.trim().parse::<IpAddr>().ok());
    forwarded.map_or(peer, |address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::keys::Keys;

    fn config(keys: Keys) -> Config {
        Config {
            hosts: vec!["flux.example".to_string()],
            cors: vec!["https://friend.example".to_string()],
            trusted_proxy: Some("10.0.0.1".parse().unwrap()),
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
        for host in ["evil.example", "localhost.evil.example", "flux.example.evil", "", "evil.example:7860"] {
            assert_eq!(refused(&config, &[("host", host)]), "unknown_host", "{host}");
        }
    }

    #[test]
    fn pages_of_others_may_not_ask() {
        let config = config(Keys::none());
        assert_eq!(refused(&config, &[("origin", "http://127.0.0.1:7860"), ("sec-fetch-site", "same-origin")]), "");
        assert_eq!(refused(&config, &[("origin", "https://friend.example"), ("sec-fetch-site", "cross-site")]), "");
        assert_eq!(refused(&config, &[("origin", "https://evil.example")]), "forbidden_origin");
        assert_eq!(refused(&config, &[("origin", "null")]), "forbidden_origin");
        assert_eq!(refused(&config, &[("sec-fetch-site", "cross-site")]), "forbidden_origin", "a form of another page");
        assert_eq!(refused(&config, &[("sec-fetch-site", "same-site")]), "forbidden_origin");
    }

    #[test]
    fn a_key_comes_as_a_bearer_or_as_a_password() {
        let config = config(Keys::of_environment("secret,other").unwrap());
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
        assert!(asked(&config, Method::GET, "/healthz", &[]).is_ok(), "whether it lives needs no key");
        assert!(asked(&config, Method::GET, "/metrics", &[]).is_err());
    }

    #[test]
    fn users_of_this_machine_need_no_key_and_have_their_own_names() {
        let config = config(Keys::of_environment("secret").unwrap());
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("anything"));
        let asked = |config: &Config, user: u32, headers: &HeaderMap| {
            let (path, peer) = ("/v1/jobs".parse().unwrap(), Peer::User(user));
            let client = check(config, peer, &Method::POST, &path, headers);
            client.map(|client| (client.most_priority(), client.name)).map_err(|error| error.code)
        };
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(asked(&config, own, &headers), Ok((Priority::High, format!("uid-{own}"))));
        assert_eq!(asked(&config, 1000, &headers), Ok((Priority::Normal, "uid-1000".to_string())));
        assert_eq!(asked(&config, 1001, &headers), Err("forbidden_user"));
        let open = Config { users: Vec::new(), ..config };
        assert_eq!(asked(&open, 1001, &headers), Ok((Priority::Normal, "uid-1001".to_string())));
        headers.insert(header::ORIGIN, HeaderValue::from_static("https://evil.example"));
        assert_eq!(asked(&open, 1001, &headers), Err("forbidden_origin"));
        headers.remove(header::ORIGIN);
        headers.insert("sec-fetch-site", HeaderValue::from_static("cross-site"));
        assert_eq!(asked(&open, 1001, &headers), Err("forbidden_origin"));
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
