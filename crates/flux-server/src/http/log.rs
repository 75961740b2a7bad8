//! Logging of requests to stderr. Lines never contain keys, images or names of result files, since such a name gives
//! access to its file. Prompts are logged only with `--log-prompts`.

use std::fmt::Write;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::http::Method;
use flux::error::{escaped, shortened};
use parking_lot::Mutex;

use crate::http::error::Failure;
use crate::http::sockets::Peer;
use flux_runtime::progress::say;

/// The status of a request whose client disconnected before the response, as in nginx.
const CLIENT_LEFT: u16 = 499;
/// The min time between two lines about unknown host names.
const HOSTS_EVERY: Duration = Duration::from_secs(10);
/// The path of result files, whose names must not be logged.
const FILES: &str = "/v1/files/";

/// The log settings.
#[derive(Debug, Clone, Copy)]
pub struct Log {
    /// `true` to log each request.
    pub requests: bool,
    pub prompts: bool,
}

impl Log {
    /// Logs an accepted job.
    pub fn job(&self, id: &str, of: &str, prompt: &str) {
        if self.prompts {
            say(&format!("job {id} of {of}: {}", shortened(&escaped(prompt), 500)));
        }
    }

    /// Logs an unknown host name, and how to allow it. This is logged without `-v`, too, since only the operator can
    /// fix it, but at most every ten seconds.
    pub fn refused_host(&self, message: &str) {
        static LAST: Mutex<Option<Instant>> = Mutex::new(None);
        let mut last = LAST.lock();
        if last.is_none_or(|last| last.elapsed() >= HOSTS_EVERY) {
            *last = Some(Instant::now());
            say(&format!("note: rejected a request: {message}"));
        }
    }
}

/// The model and the size that a request asks for, as far as known.
#[derive(Debug, Default)]
pub struct About(OnceLock<[Option<String>; 2]>);

impl About {
    /// Sets both, unless they are set.
    pub fn set(&self, model: Option<String>, size: Option<String>) {
        let _ = self.0.set([model, size]);
    }

    /// Returns the model and the size.
    pub fn get(&self) -> [Option<&str>; 2] {
        self.0.get().map_or([None, None], |both| both.each_ref().map(Option::as_deref))
    }
}

/// The log line of a request. It is also written if the client disconnects.
pub struct Line {
    is_wanted: bool,
    start: Instant,
    /// The request ID, the peer, and the route.
    request: String,
    key: Option<String>,
    about: Option<Arc<About>>,
}

impl Line {
    /// Creates the line of a request that is not answered yet. `client` is the name of its key, and details of the
    /// request.
    pub fn new(
        log: Log,
        id: &str,
        peer: Peer,
        (method, path): (Method, &str),
        client: Option<(Option<&str>, &Arc<About>)>,
    ) -> Self {
        let path =
            if path.starts_with(FILES) { format!("{FILES}...") } else { shortened(&escaped(path), 200).into_owned() };
        Self {
            is_wanted: log.requests,
            start: Instant::now(),
            request: format!("{id} {peer} {method} {path}"),
            key: client.and_then(|(key, _)| key).map(str::to_string),
            about: client.map(|(_, about)| Arc::clone(about)),
        }
    }

    /// Writes the line, once.
    pub fn answered(&mut self, status: u16, failure: Option<&Failure>) {
        if std::mem::take(&mut self.is_wanted) {
            say(&self.text(status, failure));
        }
    }

    fn text(&self, status: u16, failure: Option<&Failure>) -> String {
        let mut text = format!("{} {status} {:.3} s", self.request, self.start.elapsed().as_secs_f64());
        if status < 400 {
            return text;
        }
        let [model, size] = self.about.as_ref().map_or([None, None], |about| about.get());
        let params = failure.map(|failure| failure.params.join(",")).filter(|params| !params.is_empty());
        let words = [
            ("code", failure.map(|failure| failure.code)),
            ("field", params.as_deref()),
            ("key", self.key.as_deref()),
            ("model", model),
            ("size", size),
        ];
        for (name, value) in words {
            if let Some(value) = value {
                // Writing to a string cannot fail.
                let _ = write!(text, " {name}={}", value.replace(char::is_whitespace, "_"));
            }
        }
        text
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.answered(CLIENT_LEFT, Some(&Failure { code: "client_left", params: Vec::new() }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_failure_says_what_was_wrong_with_what() {
        let about = Arc::new(About::default());
        about.set(Some("4b x".to_string()), Some("64x64".to_string()));
        let line = |path: &str| {
            let log = Log { requests: false, prompts: false };
            Line::new(log, "id", Peer::User(7), (Method::POST, path), Some((None, &about)))
        };
        let failure = Failure { code: "invalid_value", params: vec!["n".to_string(), "size".to_string()] };
        let text = line("/v1/jobs").text(400, Some(&failure));
        assert!(text.starts_with("id uid-7 POST /v1/jobs 400 0."), "{text}");
        assert!(text.ends_with(" s code=invalid_value field=n,size model=4b_x size=64x64"), "{text}");
        let text = line("/v1/files/0123.png").text(200, None);
        assert!(text.contains("/v1/files/... 200") && !text.contains("0123") && !text.contains("model"), "{text}");
    }
}
