//! A small HTTP server on localhost. It serves files with sizes, checksums and ranges like a model hub, and with a
//! hub's faults.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The behaviour of the server.
#[derive(Clone, Default)]
pub struct Behaviour {
    /// 401 without a token, 403 with a different token.
    pub token: Option<String>,
    /// The first responses with content break off after this many bytes.
    pub broken_answers: usize,
    pub break_after: usize,
    /// Ranges are ignored, as in simple servers.
    pub no_ranges: bool,
    /// Files larger than 1000 bytes are redirected to another host, which must not receive the token.
    pub redirects: bool,
    /// Number of responses with damaged content.
    pub damaged_answers: usize,
    /// Number of GET requests that get 503.
    pub busy_answers: usize,
    /// Number of HEAD requests that get 503.
    pub busy_heads: usize,
    /// Number of connections that are closed without a response, after a HEAD.
    pub silent_heads: usize,
    /// 416 for every request with a range.
    pub refuses_ranges: bool,
    /// Extra header lines of responses to HEAD.
    pub head_lines: String,
    /// The delay before a GET is answered.
    pub delay: Duration,
}

/// One request, as the server saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub range: Option<String>,
    pub authorization: Option<String>,
}

struct State {
    files: HashMap<String, Vec<u8>>,
    behaviour: Mutex<Behaviour>,
    seen: Mutex<Vec<Seen>>,
    port: u16,
}

/// Serves until the test process ends.
pub struct Server(Arc<State>);

impl Server {
    /// Serves `files` by their path on the server, without the first slash.
    pub fn start(files: HashMap<String, Vec<u8>>, behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(State { files, behaviour: Mutex::new(behaviour), seen: Mutex::default(), port });
        let server = Self(Arc::clone(&state));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&state);
                // A client that does not wait for its response is no error of the test.
                thread::spawn(move || drop(state.answer(stream)));
            }
        });
        server
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.0.port)
    }

    /// Takes the requests since the last call.
    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.0.seen.lock().expect("no panic while answering"))
    }
}

impl State {
    fn answer(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let mut words = line.split_whitespace();
        let (method, path) =
            (words.next().unwrap_or_default().to_string(), words.next().unwrap_or_default().to_string());
        let mut headers = HashMap::new();
        loop {
            let mut header = String::new();
            if reader.read_line(&mut header)? <= 2 {
                break;
            }
            let (name, value) = header.split_once(':').unwrap_or_default();
            headers.insert(name.to_ascii_lowercase(), value.trim().to_string());
        }
        let range = headers.get("range").cloned();
        let seen = Seen {
            method: method.clone(),
            path: path.clone(),
            range: range.clone(),
            authorization: headers.get("authorization").cloned(),
        };
        self.seen.lock().expect("no panic while answering").push(seen.clone());
        self.respond(stream, &seen)
    }

    fn respond(&self, mut stream: TcpStream, seen: &Seen) -> std::io::Result<()> {
        if seen.method == "GET" {
            thread::sleep(self.behaviour.lock().expect("no panic while answering").delay);
        }
        let mut behaviour = self.behaviour.lock().expect("no panic while answering");
        let mut end =
            |status: &str, headers: &str| write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\n{headers}\r\n");
        let (on_other_host, path) = match seen.path.strip_prefix("/other-host/") {
            Some(path) => (true, path),
            None => (false, seen.path.trim_start_matches('/')),
        };
        if let (Some(token), false) = (&behaviour.token, on_other_host) {
            match &seen.authorization {
                None => return end("401 Unauthorized", "Content-Length: 0\r\n"),
                Some(sent) if *sent != format!("Bearer {token}") => {
                    return end("403 Forbidden", "Content-Length: 0\r\n");
                }
                Some(_) => {}
            }
        }
        let Some(content) = self.files.get(path) else { return end("404 Not Found", "Content-Length: 0\r\n") };
        if seen.method == "GET" && behaviour.busy_answers > 0 {
            behaviour.busy_answers -= 1;
            return end("503 Service Unavailable", "Content-Length: 0\r\n");
        }
        if seen.method == "HEAD" && behaviour.silent_heads > 0 {
            behaviour.silent_heads -= 1;
            return Ok(());
        }
        if seen.method == "HEAD" && behaviour.busy_heads > 0 {
            behaviour.busy_heads -= 1;
            return end("503 Service Unavailable", "Content-Length: 0\r\n");
        }
        if behaviour.refuses_ranges && seen.range.is_some() {
            return end("416 Range Not Satisfiable", "Content-Length: 0\r\n");
        }
        if behaviour.redirects && content.len() > 1000 && !on_other_host {
            let location = format!("http://localhost:{}/other-host/{path}", self.port);
            let linked = format!("X-Linked-Size: {}\r\nX-Linked-ETag: \"{}\"\r\n", content.len(), sha256(content));
            return end(
                "302 Found",
                &format!("Location: {location}\r\n{linked}ETag: \"of-the-redirection\"\r\nContent-Length: 0\r\n"),
            );
        }
        let start = match &seen.range {
            Some(range) if !behaviour.no_ranges => {
                range.trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap_or(0)
            }
            _ => 0,
        };
        let etag = if content.len() > 1000 { sha256(content) } else { git_name(content) };
        let mut answer = content[start..].to_vec();
        let status = if start > 0 { "206 Partial Content" } else { "200 OK" };
        let content_range = if start > 0 {
            format!("Content-Range: bytes {start}-{}/{}\r\n", content.len() - 1, content.len())
        } else {
            String::new()
        };
        let more = if seen.method == "HEAD" { behaviour.head_lines.as_str() } else { "" };
        end(status, &format!("ETag: \"{etag}\"\r\nContent-Length: {}\r\n{content_range}{more}", answer.len()))?;
        if seen.method == "HEAD" {
            return Ok(());
        }
        if behaviour.damaged_answers > 0 && answer.len() > 1000 {
            behaviour.damaged_answers -= 1;
            answer[500] ^= 1;
        }
        if behaviour.broken_answers > 0 && answer.len() > behaviour.break_after && answer.len() > 1000 {
            behaviour.broken_answers -= 1;
            answer.truncate(behaviour.break_after);
        }
        stream.write_all(&answer)
    }
}

fn sum(program: &str, bytes: &[u8]) -> String {
    let mut child =
        Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("coreutils are there");
    child.stdin.take().expect("a pipe").write_all(bytes).expect("the program reads");
    let mut text = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut text).expect("UTF-8");
    child.wait().expect("the program ends");
    text.split_whitespace().next().expect("a checksum").to_string()
}

pub fn sha256(bytes: &[u8]) -> String {
    sum("sha256sum", bytes)
}

/// Returns git's object name of a file's content.
fn git_name(bytes: &[u8]) -> String {
    let mut object = format!("blob {}\0", bytes.len()).into_bytes();
    object.extend(bytes);
    sum("sha1sum", &object)
}
