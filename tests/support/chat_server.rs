//! A stub of a language model with the API of OpenAI on localhost. It records requests and sends the answers of a test.

// Each test crate uses its own part of this module.
#![allow(dead_code)]

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::requests::{self, Request};

/// One request, as the server saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub line: String,
    pub authorization: Option<String>,
    pub body: String,
}

impl Seen {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: String,
    pub body: String,
    pub delay: Duration,
}

impl Answer {
    pub fn new(status: u16, headers: &str, body: impl Into<String>) -> Self {
        Self { status, headers: headers.to_string(), body: body.into(), delay: Duration::ZERO }
    }

    /// An answer of the language model.
    pub fn text(text: &str) -> Self {
        Self::ended(text, "stop")
    }

    /// An answer of the language model that ended for a reason.
    pub fn ended(text: &str, reason: &str) -> Self {
        let message = json!({"role": "assistant", "content": text});
        Self::new(200, "", json!({"choices": [{"message": message, "finish_reason": reason}]}).to_string())
    }

    pub fn after(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }
}

/// The answer to a request for text; the number counts these requests from 0.
type Answers = dyn Fn(&Seen, usize) -> Answer + Send + Sync;

struct State {
    answers: Box<Answers>,
    seen: Mutex<Vec<Seen>>,
    /// Requests in progress now, and at most.
    at_once: Mutex<[usize; 2]>,
}

/// Serves until the test process ends. Its folder is that of caches.
pub struct ChatServer {
    state: Arc<State>,
    port: u16,
    cache: tempfile::TempDir,
}

impl ChatServer {
    /// Starts a server with a model `stub`.
    pub fn start(answers: impl Fn(&Seen, usize) -> Answer + Send + Sync + 'static) -> Self {
        let (listener, port) = requests::bind();
        let state = State { answers: Box::new(answers), seen: Mutex::default(), at_once: Mutex::default() };
        let state = Arc::new(state);
        let own = Arc::clone(&state);
        requests::serve(listener, move |request, stream| own.answer(request, stream));
        Self { state, port, cache: tempfile::tempdir().expect("a temporary folder") }
    }

    /// Starts a server that always gives the same text.
    pub fn with_text(text: &'static str) -> Self {
        Self::start(move |_, _| Answer::text(text))
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }

    pub fn flag(&self) -> String {
        format!("--upsample={}", self.url())
    }

    /// Keeps a command away from the user's keys and caches.
    pub fn isolate<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env_remove("FLUX_UPSAMPLE_KEY").env_remove("OPENAI_API_KEY");
        command.env("XDG_CACHE_HOME", self.cache.path()).env("HF_HUB_CACHE", self.cache.path().join("hub"))
    }

    /// Takes the requests for text since the last call.
    pub fn take_seen(&self) -> Vec<Seen> {
        let seen = std::mem::take(&mut *self.state.seen.lock().expect("no panic while answering"));
        seen.into_iter().filter(|seen| seen.line.starts_with("POST ")).collect()
    }

    /// Returns the maximum number of requests at the same time.
    pub fn at_once(&self) -> usize {
        self.state.at_once.lock().expect("no panic while answering")[1]
    }
}

impl State {
    fn answer(&self, request: Request, stream: &mut TcpStream) -> std::io::Result<bool> {
        let authorization = request.header("authorization");
        let seen = Seen { line: request.line, authorization, body: String::from_utf8(request.body).expect("UTF-8") };
        let mut all = self.seen.lock().expect("no panic while answering");
        let number = all.iter().filter(|seen| seen.line.starts_with("POST ")).count();
        all.push(seen.clone());
        drop(all);
        let answer = match seen.line.starts_with("GET /v1/models ") {
            true => Answer::new(200, "", json!({"object": "list", "data": [{"id": "stub"}]}).to_string()),
            false => (self.answers)(&seen, number),
        };
        self.count(1);
        thread::sleep(answer.delay);
        self.count(-1);
        let Answer { status, headers, body, .. } = answer;
        let head =
            format!("HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        Ok(false)
    }

    fn count(&self, more: isize) {
        let mut at_once = self.at_once.lock().expect("no panic while answering");
        at_once[0] = at_once[0].wrapping_add_signed(more);
        at_once[1] = at_once[1].max(at_once[0]);
    }
}
