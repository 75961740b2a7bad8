//! The web page. Its files are embedded in the program.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

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
}

const PARTS: &[Part] = &[
    Part { path: "/", media_type: "text/html; charset=utf-8", bytes: include_bytes!("page/index.html") },
    Part { path: "/flux.css", media_type: "text/css; charset=utf-8", bytes: include_bytes!("page/flux.css") },
    Part { path: "/favicon.svg", media_type: "image/svg+xml", bytes: include_bytes!("page/favicon.svg") },
    Part { path: "/live", media_type: "text/html; charset=utf-8", bytes: include_bytes!("page/live.html") },
    Part { path: "/batches", media_type: "text/html; charset=utf-8", bytes: include_bytes!("page/batches.html") },
    Part { path: "/batches.css", media_type: "text/css; charset=utf-8", bytes: include_bytes!("page/batches.css") },
    Part { path: "/live.css", media_type: "text/css; charset=utf-8", bytes: include_bytes!("page/live.css") },
    script("/flux.js", include_bytes!("page/flux.js")),
    script("/page/api.js", include_bytes!("page/api.js")),
    script("/page/compare.js", include_bytes!("page/compare.js")),
    script("/page/dom.js", include_bytes!("page/dom.js")),
    script("/page/form.js", include_bytes!("page/form.js")),
    script("/page/gallery.js", include_bytes!("page/gallery.js")),
    script("/live.js", include_bytes!("page/live.js")),
    script("/batches.js", include_bytes!("page/batches.js")),
    script("/page/jobs.js", include_bytes!("page/jobs.js")),
    script("/page/frames.js", include_bytes!("page/frames.js")),
    script("/page/mask.js", include_bytes!("page/mask.js")),
    script("/page/recipe.js", include_bytes!("page/recipe.js")),
    script("/page/references.js", include_bytes!("page/references.js")),
    script("/page/sketch.js", include_bytes!("page/sketch.js")),
    script("/page/stage.js", include_bytes!("page/stage.js")),
    script("/page/store.js", include_bytes!("page/store.js")),
    script("/page/theme.js", include_bytes!("page/theme.js")),
];

const fn script(path: &'static str, bytes: &'static [u8]) -> Part {
    Part { path, media_type: "text/javascript; charset=utf-8", bytes }
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
        "/live" | "/batches" if ends => format!("..{path}"),
        _ => return None,
    };
    let mut response = StatusCode::PERMANENT_REDIRECT.into_response();
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_str(&place).ok()?);
    Some(response)
}

/// Returns `true` if a path belongs to the page, which needs no key.
pub fn is_part(path: &str) -> bool {
    PARTS.iter().any(|part| part.path == path)
}

/// Returns a file of the page, or `304 Not Modified` if the browser has it.
///
/// Errors if there is no such file.
pub fn part(path: &str, headers: &HeaderMap) -> Result<Response> {
    let part = PARTS.iter().find(|part| part.path == path);
    let part = part.ok_or_else(|| ApiError::not_found(format!("there is no `{}`", crate::http::error::shown(path))))?;
    let tag = format!("\"{}\"", &blake3::hash(part.bytes).to_hex()[..16]);
    let is_known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => answer::bytes(Bytes::from_static(part.bytes), part.media_type),
    };
    let headers = response.headers_mut();
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

    /// Returns the files that a document loads, directly or indirectly, including itself.
    fn loaded(document: &'static str) -> BTreeSet<&'static str> {
        let name = regex::Regex::new(r#"["'](?:\./)?(?:page/)?([a-z]+\.(?:js|css|svg))["']"#).unwrap();
        let mut all = BTreeSet::from([document]);
        let mut new = vec![document];
        while let Some(path) = new.pop() {
            let part = PARTS.iter().find(|part| part.path == path).unwrap();
            for found in name.captures_iter(std::str::from_utf8(part.bytes).unwrap()) {
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
    fn the_page_and_its_tabs_are_small_and_whole() {
        let documents = ["/", "/live", "/batches"].map(loaded);
        for parts in &documents {
            let bytes: usize = PARTS.iter().filter(|part| parts.contains(part.path)).map(|part| part.bytes.len()).sum();
            assert!(bytes < 100 << 10, "{bytes} bytes: {parts:?}");
        }
        let all: BTreeSet<_> = documents.into_iter().flatten().collect();
        assert_eq!(all.len(), PARTS.len(), "every part is loaded");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/page");
        assert_eq!(fs::read_dir(folder).unwrap().count(), PARTS.len(), "every file is served");
    }

    #[test]
    fn the_page_works_below_any_path() {
        let absolute = regex::Regex::new(r#"(?:(?:src|href|action)="/|url\(["']?/|from '/|import\(?'/)"#).unwrap();
        let fetched = regex::Regex::new(r#"(?:fetch|WebSocket)\(['"`]/"#).unwrap();
        for Part { path, bytes, .. } in PARTS {
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
        for document in ["/", "/live", "/batches"] {
            let part = PARTS.iter().find(|part| part.path == document).unwrap();
            assert!(
                std::str::from_utf8(part.bytes).unwrap().contains(r#"<p id="no-scripts" class="error" role="alert">"#),
                "{document}"
            );
        }
    }

    #[test]
    fn what_a_browser_has_is_not_sent_again() {
        let first = part("/", &HeaderMap::new()).unwrap();
        assert_eq!(first.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
        let known = HeaderMap::from_iter([(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone())]);
        assert_eq!(part("/", &known).unwrap().status(), StatusCode::NOT_MODIFIED);
        assert!(part("/page/none.js", &known).is_err() && part("/../Cargo.toml", &known).is_err());
    }
}
