//! HTTP to the language model. Its server is not trusted: answers are bounded in size and time, and redirects stay on
//! the server.

use std::io::{ErrorKind, Read};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use flux::error::{Error, Field, Result, escaped, shortened};
use flux::stage::CancelFlag;
use flux_runtime::address::{is_of, is_own, is_private, joined, origin};
use flux_runtime::certificates;
use serde_json::Value;
use ureq::http::{HeaderMap, Request, Uri};
use ureq::tls::TlsConfig;
use ureq::{Agent, AsSendBody};

/// Maximum bytes of an answer.
const MAX_ANSWER: u64 = 1 << 20;
/// Maximum number of redirects.
const MAX_REDIRECTS: usize = 3;
/// Number of further attempts if a server is busy.
const RETRIES: u32 = 2;
/// The interval between looks at the cancel flag.
const LOOK: Duration = Duration::from_millis(50);
/// Maximum characters of a server's error message.
const MAX_MESSAGE: usize = 300;
const CONNECT: Duration = Duration::from_secs(30);

/// A client of one server.
pub struct Client<'a> {
    pub url: &'a str,
    pub key: Option<&'a str>,
    /// Maximum time of each attempt.
    pub timeout: Duration,
    pub cancel: &'a CancelFlag,
}

/// An answer: the status and the body.
pub struct Answer {
    pub status: u16,
    pub text: String,
}

/// Errors if an address is none of a server, or leaves this machine without encryption.
pub fn check(url: &str, is_insecure_allowed: bool) -> Result<()> {
    let wrong = |what: String| Error::usage(what).for_field(Field::Upsample);
    let is_address = url.parse::<Uri>().is_ok_and(|uri| {
        let is_plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
        matches!(uri.scheme_str(), Some("http" | "https")) && is_plain && uri.query().is_none()
    });
    if !is_address || origin(url).is_none() {
        return Err(wrong(format!("`{}` is not the address of a language model", shortened(&escaped(url), 200)))
            .hint("use its base address, such as http://127.0.0.1:8080/v1"));
    }
    if !is_private(url) && !is_insecure_allowed {
        return Err(wrong("the language model is on another machine, and its address is not encrypted".to_string())
            .hint("use an address with https://, or allow this one with `--upsample-insecure`"));
    }
    Ok(())
}

impl Answer {
    /// Returns the JSON of a successful answer.
    ///
    /// Errors with the message of the server.
    pub fn json(&self) -> Result<Value> {
        let json = serde_json::from_str::<Value>(&self.text);
        if self.status == 200 {
            return json.map_err(|e| {
                Error::new(format!("the answer of the language model is not JSON: {e}"))
                    .hint("use the base address of an OpenAI API, such as http://127.0.0.1:8080/v1")
            });
        }
        let json = json.unwrap_or_default();
        let message = ["message", "detail", "error"].iter().find_map(|key| {
            let of_error = json["error"].get(*key).and_then(Value::as_str);
            of_error.or_else(|| json[*key].as_str())
        });
        let message = message.unwrap_or(&self.text).trim();
        let message = match message.is_empty() {
            true => String::new(),
            false => format!(": {}", shortened(&escaped(message), MAX_MESSAGE)),
        };
        let error =
            Error::new(format!("the server of the language model answers with status {}{message}", self.status));
        Err(match self.status {
            401 | 403 => error.hint("pass the key of the server with `--upsample-key-file`"),
            404 | 405 => error.hint("check the address, which ends with /v1 for most servers, and `--upsample-model`"),
            _ => error,
        })
    }
}

impl Client<'_> {
    /// Requests a path; with a body as POST.
    ///
    /// Errors if the server cannot be reached, is busy, or does not answer properly, and if cancelled.
    pub fn send(&self, path: &str, body: Option<&[u8]>) -> Result<Answer> {
        let address = format!("{}{path}", self.url.trim_end_matches('/'));
        let tls = TlsConfig::builder().root_certs(certificates::trusted()?).build();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(self.timeout))
            .tls_config(tls)
            .user_agent(concat!("flux/", env!("CARGO_PKG_VERSION")))
            .build();
        let agent = Agent::from(config);
        for attempt in 0.. {
            let (answer, headers) = self.unless_cancelled(&agent, || self.follow(&agent, &address, body))?;
            if !matches!(answer.status, 429 | 503) || attempt == RETRIES {
                return Ok(answer);
            }
            let asked = headers.get("retry-after").and_then(|seconds| seconds.to_str().ok()?.trim().parse().ok());
            let wait = asked.map_or(Duration::from_secs(1 << attempt), Duration::from_secs);
            if wait > self.timeout {
                let what = format!("the language model is busy, and requests to wait {} s", wait.as_secs());
                return Err(Error::new(what).hint("try again later, or wait longer with `--upsample-timeout`"));
            }
            self.sleep(wait)?;
        }
        unreachable!("the last attempt returns")
    }

    /// Sends a request, and follows redirects on the server itself.
    fn follow(&self, agent: &Agent, address: &str, body: Option<&[u8]>) -> Result<(Answer, HeaderMap)> {
        let mut address = address.to_string();
        for _ in 0..=MAX_REDIRECTS {
            let (answer, headers) = match body {
                Some(body) => self.once(agent, "POST", &address, body)?,
                None => self.once(agent, "GET", &address, ())?,
            };
            let target = headers.get("location").and_then(|target| target.to_str().ok());
            let Some(target) = target.filter(|_| matches!(answer.status, 301 | 302 | 303 | 307 | 308)) else {
                return Ok((answer, headers));
            };
            let next = joined(&address, target)?;
            if !is_of(&next, &address) {
                let what = "the server of the language model redirects to another server";
                return Err(Error::new(what).hint("use the address of that server, if you trust it"));
            }
            address = next;
        }
        Err(Error::new(format!("the server of the language model redirects more than {MAX_REDIRECTS} times")))
    }

    fn once(&self, agent: &Agent, method: &str, address: &str, body: impl AsSendBody) -> Result<(Answer, HeaderMap)> {
        let mut request = Request::builder().method(method).uri(address).header("accept", "application/json");
        if method == "POST" {
            request = request.header("content-type", "application/json");
        }
        if let Some(key) = self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request = request.body(body).map_err(|e| Error::new(format!("cannot request the language model: {e}")))?;
        let mut config = agent.configure_request(request);
        if is_own(address) {
            config = config.proxy(None);
        }
        let failed = |e: &dyn std::fmt::Display, is_late: bool| match is_late {
            true => Error::new(format!("the language model did not answer within {} s", self.timeout.as_secs_f64()))
                .hint("wait longer with `--upsample-timeout`"),
            false => Error::new(format!("cannot reach the language model: {e}"))
                .hint("check that its server runs, the address, and the proxy (HTTPS_PROXY)"),
        };
        let answer = agent.run(config.build()).map_err(|e| failed(&e, matches!(e, ureq::Error::Timeout(_))))?;
        let (parts, body) = answer.into_parts();
        let mut bytes = Vec::new();
        let read = body.into_reader().take(MAX_ANSWER + 1).read_to_end(&mut bytes);
        read.map_err(|e| failed(&e, e.kind() == ErrorKind::TimedOut))?;
        if bytes.len() as u64 > MAX_ANSWER {
            return Err(Error::new(format!(
                "the answer of the language model is longer than {} MiB",
                MAX_ANSWER >> 20
            )));
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok((Answer { status: parts.status.as_u16(), text }, parts.headers))
    }

    /// Runs work on the network, which ends early if the flag is set.
    fn unless_cancelled<T>(&self, agent: &Agent, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.cancel.check()?;
        let done = thread::scope(|scope| {
            let (end, ended) = channel::<()>();
            // Without the thread, the work ends at its timeout.
            let _ = thread::Builder::new().name("upsample".to_string()).spawn_scoped(scope, move || {
                while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                    if self.cancel.is_set() {
                        return agent.clone().shutdown();
                    }
                }
            });
            let done = work();
            drop(end);
            done
        });
        self.cancel.check().and(done)
    }

    fn sleep(&self, wait: Duration) -> Result<()> {
        let end = Instant::now() + wait;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            self.cancel.check()?;
            thread::sleep(left.min(LOOK));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_encrypted_or_of_this_machine() {
        for (url, insecure, is_fine) in [
            ("http://127.0.0.1:8080/v1", false, true),
            ("http://localhost/v1", false, true),
            ("https://api.openai.com/v1", false, true),
            ("http://10.0.0.5:8000/v1", false, false),
            ("http://10.0.0.5:8000/v1", true, true),
            ("http://127.0.0.1.evil.org/v1", false, false),
            ("ftp://127.0.0.1/v1", true, false),
            ("https://me@a.org/v1", true, false),
            ("https://a.org/v1?key=1", true, false),
            ("127.0.0.1:8080", true, false),
            ("", true, false),
        ] {
            assert_eq!(check(url, insecure).is_ok(), is_fine, "{url}");
        }
    }

    #[test]
    fn the_message_of_a_server_is_in_the_error() {
        for (status, text, words) in [
            (500, r#"{"error": {"message": "no memory", "code": 1}}"#, "500: no memory"),
            (404, r#"{"error": "no model"}"#, "404: no model"),
            (400, r#"{"detail": "bad"}"#, "400: bad"),
            (502, "<html>", "502: <html>"),
            (500, "", "status 500"),
            (200, "x", "not JSON"),
        ] {
            let error = Answer { status, text: text.to_string() }.json().unwrap_err();
            assert!(error.what().contains(words), "{error}");
        }
        let long = Answer { status: 400, text: "x".repeat(10_000) }.json().unwrap_err();
        assert!(long.what().len() < 500);
    }
}
