//! Client of an image server. The server is not trusted: answers are bounded, addresses in them are ignored, and only
//! complete images of the requested format are accepted.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use flux::input;
use flux::output::ImageFormat;
use flux::stage::{CancelFlag, Progress, Stage};
use flux::{Error, Result};
use serde_json::Value;
use ureq::http::{Response, header};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::{Agent, Body, RequestBuilder};

use super::super::unix_transport::UnixConnector;
use super::Form;
use flux_runtime::address;
use flux_runtime::progress::Console;

/// The variable with the key.
const KEY_VARIABLE: &str = "FLUX_API_KEY";
/// The variable with the seconds without progress before a job is given up, and its default.
const TIMEOUT_VARIABLE: &str = "FLUX_SERVER_TIMEOUT";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3600);
/// The prefix of the path of a Unix socket.
const SOCKET: &str = "unix:";
/// Maximum time without data. A server sends something every 10 seconds.
const SILENCE: Duration = Duration::from_secs(60);
/// Maximum time until the header of an answer, and until the complete body of a short answer.
const ANSWER: Duration = Duration::from_secs(300);
/// Maximum time for an image file.
const FILE: Duration = Duration::from_secs(1800);
/// Maximum time for a request to cancel a job.
const CANCEL: Duration = Duration::from_secs(5);
const MAX_REDIRECTS: usize = 5;
/// Maximum size of a JSON answer and of a line of an event stream, in bytes.
const MAX_JSON_BYTES: u64 = 1 << 20;
/// Maximum number of lines of an event stream: keep-alives of ten days.
const MAX_LINES: usize = 100_000;
/// Maximum size of an event stream, in bytes.
const MAX_EVENT_BYTES: u64 = 64 << 20;
/// Maximum number of printed notes of a job, and maximum length of a job id.
const MAX_NOTES: usize = 32;
const MAX_ID: usize = 128;

type Answer = std::result::Result<Response<Body>, ureq::Error>;

/// A connection to a server.
pub struct Server<'a> {
    /// The address as given by the user.
    place: &'a str,
    url: &'a str,
    agent: Agent,
    key: Option<String>,
    /// Maximum time without progress.
    timeout: Duration,
}

/// A job on the server.
pub struct Job {
    /// The path of the job on the server.
    path: String,
    pub size: String,
    pub steps: u64,
    pub model: String,
    pub notes: Vec<String>,
}

impl<'a> Server<'a> {
    /// Creates a client. Errors when the timeout in the environment is not a number of seconds.
    pub fn new(url: &'a str) -> Result<Self> {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .timeout_per_write(Some(SILENCE))
            .timeout_recv_response(Some(ANSWER));
        let key = env::var(KEY_VARIABLE).ok().filter(|key| !key.is_empty());
        let timeout = timeout()?;
        Ok(match url.strip_prefix(SOCKET) {
            Some(path) => {
                let (connector, resolver) = (UnixConnector(path.into()), DefaultResolver::default());
                let agent = Agent::with_parts(config.proxy(None).build(), connector, resolver);
                // The connector ignores the address.
                Self { place: url, url: "http://127.0.0.1", agent, key, timeout }
            }
            None => {
                // A proxy would see the prompts and the key of a server on this machine.
                let config = if address::is_own(url) { config.proxy(None) } else { config };
                Self { place: url, url: url.trim_end_matches('/'), agent: config.build().into(), key, timeout }
            }
        })
    }

    /// Prints a note if a key is sent in the clear to another machine.
    pub fn note_exposed_key(&self, console: &mut Console) {
        if self.key.is_some() && !address::is_private(self.url) {
            let place = self.place;
            console.note(&format!("the key is sent to {place} unencrypted: use https://, or unset {KEY_VARIABLE}"));
        }
    }

    fn error(&self, what: impl Into<String>) -> Error {
        Error::new(what).at(self.place)
    }

    /// Sends a request to a path on the server. Redirections to the same scheme, host and port are followed.
    ///
    /// Errors when the server does not answer, refuses the request, or redirects elsewhere.
    fn send(&self, path: &str, send: impl Fn(&str) -> Answer) -> Result<Response<Body>> {
        let mut address = format!("{}{path}", self.url);
        for _ in 0..MAX_REDIRECTS {
            let answer = send(&address).map_err(|e| {
                self.error(format!("the server does not answer: {e}")).hint("check that `flux serve` is running there")
            })?;
            if !matches!(answer.status().as_u16(), 301 | 302 | 307 | 308) {
                return self.expect_success(answer);
            }
            let target = answer.headers().get(header::LOCATION).and_then(|target| target.to_str().ok());
            let next = target.and_then(|target| address::joined(&address, target).ok());
            let elsewhere = || {
                self.error(format!("the server redirects to `{}`, which is not followed", target.unwrap_or_default()))
                    .hint("if that is the server, pass its address to `--server`")
            };
            address = next.filter(|next| address::is_of(next, self.url)).ok_or_else(elsewhere)?;
        }
        Err(self.error(format!("the server redirects more than {MAX_REDIRECTS} times")))
    }

    /// Errors with the message of an error answer.
    fn expect_success(&self, answer: Response<Body>) -> Result<Response<Body>> {
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status().as_u16();
        let body = answer.into_body().into_with_config().limit(MAX_JSON_BYTES).read_to_string().unwrap_or_default();
        let body: Value = serde_json::from_str(&body).unwrap_or_default();
        let message = body["error"]["message"]
            .as_str()
            .map_or_else(|| format!("the server returned status {status}"), str::to_string);
        let error = if (400..500).contains(&status) { Error::usage(message) } else { Error::new(message) };
        let error = error.at(self.place);
        Err(match status {
            401 => error.hint(format!("set {KEY_VARIABLE} to the key")),
            429 | 503 => error.hint("try again later"),
            _ => error,
        })
    }

    fn with_key<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.key {
            Some(key) => request.header(header::AUTHORIZATION, format!("Bearer {key}")),
            None => request,
        }
    }

    /// Gets a path, with a time limit for its body.
    fn get(&self, path: &str, time: Option<Duration>) -> Result<Response<Body>> {
        self.send(path, |address| {
            self.with_key(self.agent.get(address)).config().timeout_recv_body(time).build().call()
        })
    }

    /// Starts a job.
    ///
    /// Errors when the server refuses it, or the answer is not a job.
    pub fn submit(&self, form: &Form) -> Result<Job> {
        let kind = format!("multipart/form-data; boundary={}", form.boundary);
        let answer = self.send("/v1/jobs", |address| {
            let request = self.with_key(self.agent.post(address)).header(header::CONTENT_TYPE, &kind);
            request.config().timeout_recv_body(Some(ANSWER)).build().send(&form.bytes[..])
        })?;
        let json = answer.into_body().into_with_config().limit(MAX_JSON_BYTES).read_json::<Value>();
        let no_job = |e: &str| {
            self.error(format!("the server's answer is not a job: {e}"))
                .hint("check that the address is that of `flux serve`")
        };
        let json = json.map_err(|e| no_job(&e.to_string()))?;
        // Only the id is used: addresses in the answer could lead to another server.
        let is_id = |id: &&str| {
            (1..=MAX_ID).contains(&id.len())
                && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        let id = json["id"].as_str().filter(is_id).ok_or_else(|| no_job("it has no id"))?;
        let notes = json["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Ok(Job {
            path: format!("/v1/jobs/{id}"),
            size: text(&json, "size"),
            steps: json["steps"].as_u64().unwrap_or_default(),
            model: text(&json, "model"),
            notes: notes.take(MAX_NOTES).map(str::to_string).collect(),
        })
    }

    /// Cancels a job. Failures are ignored: the server drops the job by itself.
    fn cancel(&self, job: &Job) {
        let _ = self.send(&job.path, |address| {
            self.with_key(self.agent.delete(address)).config().timeout_global(Some(CANCEL)).build().call()
        });
    }

    /// Waits for a job and shows its progress. Cancels the job on errors, since no other client waits for it.
    ///
    /// Errors when the job fails or is cancelled, makes no progress for too long, or the event stream is broken or too
    /// long.
    pub fn follow(&self, job: &Job, console: &mut Console, cancel: &CancelFlag) -> Result<()> {
        self.read_events(job, console, cancel).inspect_err(|_| self.cancel(job))?;
        console.finish();
        Ok(())
    }

    fn read_events(&self, job: &Job, console: &mut Console, cancel: &CancelFlag) -> Result<()> {
        let broken = |what: &str| self.error(format!("cannot read the events of the job: {what}"));
        let body = self.get(&format!("{}/events", job.path), None)?.into_body();
        let mut events = BufReader::new(body.into_with_config().limit(MAX_EVENT_BYTES).reader());
        let (mut since, mut last) = (Instant::now(), Value::Null);
        let mut line = Vec::new();
        for _ in 0..MAX_LINES {
            cancel.check()?;
            if since.elapsed() > self.timeout {
                let seconds = self.timeout.as_secs();
                return Err(self
                    .error(format!("the job has made no progress for {seconds} s"))
                    .hint(format!("set {TIMEOUT_VARIABLE} to another number of seconds")));
            }
            line.clear();
            let read = events.by_ref().take(MAX_JSON_BYTES).read_until(b'\n', &mut line);
            read.map_err(|e| broken(&e.to_string()))?;
            if line.last() != Some(&b'\n') {
                return Err(broken(if line.is_empty() { "they ended before the job" } else { "a line is too long" }));
            }
            let Some(event) = line.strip_prefix(b"data: ") else { continue };
            let event: Value = serde_json::from_slice(event).map_err(|e| broken(&e.to_string()))?;
            match event["type"].as_str().unwrap_or_default() {
                "queued" if event["position"].as_u64().is_some_and(|position| position > 0) => {
                    console.info(&format!("{} images are ahead of it in the queue", event["position"]));
                }
                "step" => {
                    let [done, total] = ["step", "steps"].map(|key| event[key].as_u64().unwrap_or_default());
                    console.progress(Progress { stage: Stage::Denoise, done, total });
                }
                "done" => return Ok(()),
                "failed" => return Err(self.error(text(&event["error"], "message"))),
                "cancelled" => return Err(self.error("the job was cancelled on the server")),
                _ => {}
            }
            let state = ["type", "position", "image", "step"].map(|key| event[key].clone()).to_vec().into();
            if last != state {
                (since, last) = (Instant::now(), state);
            }
        }
        Err(broken("there are too many"))
    }

    /// Downloads the file of an image.
    ///
    /// Errors when the download fails, or is not a complete image of the format.
    pub fn image(&self, job: &Job, image: usize, format: ImageFormat) -> Result<Vec<u8>> {
        let answer = self.get(&format!("{}/images/{image}", job.path), Some(FILE))?;
        let file = input::read_stream(answer.into_body().into_reader()).map_err(|e| e.at(self.place))?;
        let expected = format.name();
        let other = |what: &str| {
            self.error(format!("the server did not send image {image} as {expected}: {what}"))
                .hint("check that the address is that of `flux serve`")
        };
        if ImageFormat::from_magic(&file) != Some(format) {
            return Err(other(if file.is_empty() { "the body is empty" } else { "the body has another format" }));
        }
        input::read_bytes(&file).map_err(|e| other(e.what()))?;
        Ok(file)
    }
}

/// Returns the maximum time without progress from the environment, or its default.
fn timeout() -> Result<Duration> {
    let Some(text) = env::var(TIMEOUT_VARIABLE).ok().filter(|text| !text.is_empty()) else {
        return Ok(DEFAULT_TIMEOUT);
    };
    let seconds = text.parse::<u32>().ok().filter(|seconds| *seconds > 0);
    seconds.map(|seconds| Duration::from_secs(seconds.into())).ok_or_else(|| {
        Error::usage(format!("`{text}` is not a number of seconds"))
            .at(TIMEOUT_VARIABLE)
            .hint(format!("unset it to use {} seconds", DEFAULT_TIMEOUT.as_secs()))
    })
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_string()
}
