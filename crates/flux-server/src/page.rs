//! The web page. Its files are embedded in the program.

use std::io::Write;
use std::sync::OnceLock;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::http::answer;
use crate::http::error::{ApiError, Result};

/// The content security policy: resources and connections of the page's own server only.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// An embedded file.
struct Part {
    path: &'static str,
    media_type: &'static str,
    bytes: &'static [u8],
    /// The file in gzip, once a browser asked for it.
    packed: OnceLock<Bytes>,
}

impl Part {
    fn packed(&self) -> Bytes {
        let pack = || {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            // A vector takes all bytes.
            let _ = encoder.write_all(self.bytes);
            encoder.finish().unwrap_or_default().into()
        };
        self.packed.get_or_init(pack).clone()
    }
}

static PARTS: [Part; 35] = [
    file("/", "text/html; charset=utf-8", include_bytes!("page/index.html")),
    file("/flux.css", "text/css; charset=utf-8", include_bytes!("page/flux.css")),
    file("/favicon.svg", "image/svg+xml", include_bytes!("page/favicon.svg")),
    script("/flux.js", include_bytes!("page/flux.js")),
    script("/page/actions.js", include_bytes!("page/actions.js")),
    script("/page/api.js", include_bytes!("page/api.js")),
    script("/page/ar.js", include_bytes!("page/ar.js")),
    script("/page/batches.js", include_bytes!("page/batches.js")),
    script("/page/boxes.js", include_bytes!("page/boxes.js")),
    script("/page/commands.js", include_bytes!("page/commands.js")),
    script("/page/compare.js", include_bytes!("page/compare.js")),
    script("/page/de.js", include_bytes!("page/de.js")),
    script("/page/dom.js", include_bytes!("page/dom.js")),
    script("/page/en.js", include_bytes!("page/en.js")),
    script("/page/extend.js", include_bytes!("page/extend.js")),
    script("/page/form.js", include_bytes!("page/form.js")),
    script("/page/frames.js", include_bytes!("page/frames.js")),
    script("/page/gallery.js", include_bytes!("page/gallery.js")),
    script("/page/jobs.js", include_bytes!("page/jobs.js")),
    script("/page/kept.js", include_bytes!("page/kept.js")),
    script("/page/keys.js", include_bytes!("page/keys.js")),
    script("/page/library.js", include_bytes!("page/library.js")),
    script("/page/live.js", include_bytes!("page/live.js")),
    script("/page/mask.js", include_bytes!("page/mask.js")),
    script("/page/models.js", include_bytes!("page/models.js")),
    script("/page/rail.js", include_bytes!("page/rail.js")),
    script("/page/recipe.js", include_bytes!("page/recipe.js")),
    script("/page/references.js", include_bytes!("page/references.js")),
    script("/page/samples.js", include_bytes!("page/samples.js")),
    script("/page/sketch.js", include_bytes!("page/sketch.js")),
    script("/page/stage.js", include_bytes!("page/stage.js")),
    script("/page/store.js", include_bytes!("page/store.js")),
    script("/page/theme.js", include_bytes!("page/theme.js")),
    script("/page/words.js", include_bytes!("page/words.js")),
    script("/page/zip.js", include_bytes!("page/zip.js")),
];

/// Paths of the document's tabs, in addition to its own.
const TABS: [&str; 3] = ["/gallery", "/live", "/batches"];

/// Returns the file at a path. Every tab is the same document.
fn find(path: &str) -> Option<&'static Part> {
    let path = if TABS.contains(&path) { "/" } else { path };
    PARTS.iter().find(|part| part.path == path)
}

const fn file(path: &'static str, media_type: &'static str, bytes: &'static [u8]) -> Part {
    Part { path, media_type, bytes, packed: OnceLock::new() }
}

const fn script(path: &'static str, bytes: &'static [u8]) -> Part {
    file(path, "text/javascript; charset=utf-8", bytes)
}

/// The path of a request before it was normalized.
#[derive(Clone)]
pub struct SentPath(pub String);

/// Redirects a browser if a trailing slash makes it resolve a document's relative links in another folder. The target
/// is relative, too, since a proxy may have stripped a prefix.
pub fn redirect(path: &str, SentPath(sent): &SentPath) -> Option<Response> {
    let ends = sent.ends_with('/');
    let place = match path {
        "/" if !ends => format!("{}/", sent.rsplit('/').next()?),
        "/gallery" | "/live" | "/batches" if ends => format!("..{path}"),
        _ => return None,
    };
    let mut response = StatusCode::PERMANENT_REDIRECT.into_response();
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_str(&place).ok()?);
    Some(response)
}

/// Returns `true` if a path belongs to the page, which needs no key.
pub fn is_part(path: &str) -> bool {
    find(path).is_some()
}

/// Returns a file of the page, or `304 Not Modified` if the browser has it.
///
/// Errors if there is no such file.
pub fn part(path: &str, headers: &HeaderMap) -> Result<Response> {
    let part =
        find(path).ok_or_else(|| ApiError::not_found(format!("there is no `{}`", crate::http::error::shown(path))))?;
    let tag = format!("W/\"{}\"", &blake3::hash(part.bytes).to_hex()[..16]);
    let is_known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|accepted| accepted.to_str().ok()).unwrap_or_default();
    let is_packed = !is_known && accepted.split(',').any(|name| name.trim() == "gzip");
    let mut response = match (is_known, is_packed) {
        (true, _) => StatusCode::NOT_MODIFIED.into_response(),
        (_, true) => answer::bytes(part.packed(), part.media_type),
        _ => answer::bytes(Bytes::from_static(part.bytes), part.media_type),
    };
    let headers = response.headers_mut();
    if is_packed {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Returns the files that the document loads, directly or indirectly, including itself.
    fn loaded() -> BTreeSet<&'static str> {
        let name = regex::Regex::new(r#"["'](?:\./)?(?:page/)?([a-z]+\.(?:js|css|svg))["']"#).unwrap();
        let mut all = BTreeSet::from(["/"]);
        let mut new = vec!["/"];
        while let Some(path) = new.pop() {
            for found in name.captures_iter(std::str::from_utf8(find(path).unwrap().bytes).unwrap()) {
                let named = PARTS.iter().find(|part| part.path.rsplit('/').next() == Some(&found[1]));
                let named = named.unwrap_or_else(|| panic!("{path}: {}", &found[1]));
                if all.insert(named.path) {
                    new.push(named.path);
                }
            }
        }
        all
    }

    #[test]
    fn the_page_is_small_and_whole() {
        let bytes: usize = PARTS.iter().map(|part| part.bytes.len()).sum();
        let packed: usize = PARTS.iter().map(|part| part.packed().len()).sum();
        assert!(bytes < 250_000 && packed < 90_000, "{bytes} bytes, {packed} in gzip");
        assert_eq!(loaded().len(), PARTS.len(), "every part is loaded");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/page");
        assert_eq!(fs::read_dir(folder).unwrap().count(), PARTS.len(), "every file is served");
    }

    /// Returns the names of the texts of a language.
    fn texts(path: &str) -> BTreeSet<String> {
        let name = regex::Regex::new(r"(?m)^\s+(\w+):").unwrap();
        let text = std::str::from_utf8(find(path).unwrap().bytes).unwrap();
        name.captures_iter(text).map(|found| found[1].to_string()).collect()
    }

    #[test]
    fn every_language_has_every_text() {
        let english = texts("/page/en.js");
        for path in ["/page/de.js", "/page/ar.js"] {
            assert_eq!(texts(path), english, "{path}");
        }
        let used = regex::Regex::new(r#"\bt\('(\w+)'|data-[tlp]="(\w+)""#).unwrap();
        for Part { path, bytes, .. } in &PARTS {
            for found in used.captures_iter(std::str::from_utf8(bytes).unwrap()) {
                let name = found.get(1).or(found.get(2)).unwrap().as_str();
                assert!(english.contains(name), "{path}: {name}");
            }
        }
    }

    #[test]
    fn the_page_works_below_any_path() {
        let absolute = regex::Regex::new(r#"(?:(?:src|href|action)="/|url\(["']?/|from '/|import\(?'/)"#).unwrap();
        let fetched = regex::Regex::new(r#"(?:fetch|WebSocket)\(['"`]/"#).unwrap();
        for Part { path, bytes, .. } in &PARTS {
            let text = std::str::from_utf8(bytes).unwrap();
            let found = absolute.find(text).or_else(|| fetched.find(text));
            assert!(found.is_none(), "{path}: {found:?}");
        }
        let place = |path: &str, sent: &str| {
            let response = redirect(path, &SentPath(sent.to_string()))?;
            Some(response.headers()[header::LOCATION].to_str().unwrap().to_string())
        };
        assert_eq!(place("/", "/a/flux").as_deref(), Some("flux/"));
        assert_eq!(place("/live", "/a/flux/live/").as_deref(), Some("../live"));
        assert_eq!(
            (place("/", "/flux/"), place("/live", "//live"), place("/v1/models", "/v1/models/")),
            (None, None, None)
        );
    }

    #[test]
    fn a_document_says_that_its_scripts_are_missing_until_they_run() {
        let text = std::str::from_utf8(find("/live").unwrap().bytes).unwrap();
        assert!(text.contains(r#"<p id="no-scripts" class="error" role="alert">"#));
    }

    #[test]
    fn what_a_browser_has_is_not_sent_again() {
        let first = part("/", &HeaderMap::new()).unwrap();
        assert_eq!(first.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
        let packs = HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static("br, gzip"))]);
        assert_eq!(part("/", &packs).unwrap().headers()[header::CONTENT_ENCODING], "gzip");
        let known = HeaderMap::from_iter([(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone())]);
        assert_eq!(part("/", &known).unwrap().status(), StatusCode::NOT_MODIFIED);
        assert!(part("/page/none.js", &known).is_err() && part("/../Cargo.toml", &known).is_err());
    }
}
