//! A model hub on localhost: its list of files, redirections, ranges and entity tags, with responses that a test can
//! change.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sha2::Digest;

use crate::requests::{self, Request};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// One request, as the server saw it.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub range: Option<String>,
    pub if_range: Option<String>,
    pub authorization: Option<String>,
}

/// A response before it is sent.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The length in the header, if it differs.
    pub length: Option<usize>,
    /// The connection ends after this many bytes of the body.
    pub cut: Option<usize>,
    /// The connection ends without a response.
    pub silent: bool,
    /// The delay before the response, and after each 64 KiB of it.
    pub delay: Duration,
    pub pause: Duration,
}

impl Reply {
    pub fn new(status: u16, headers: &[(&str, &str)], body: &str) -> Self {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Self { status, headers, body: body.as_bytes().to_vec(), ..Self::default() }
    }

    pub fn json(text: &str) -> Self {
        Self::new(200, &[("Content-Type", "application/json")], text)
    }

    pub fn set(&mut self, name: &str, value: &str) {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.headers.push((name.to_string(), value.to_string()));
    }
}

/// Changes a response; the number counts the requests of this method and path, from 0.
type Change = Box<dyn Fn(&Seen, usize, &mut Reply) + Send + Sync>;

/// The content of a hub.
pub struct Content {
    /// The repository's name; `*` matches any.
    pub repository: String,
    pub files: BTreeMap<String, Vec<u8>>,
    pub card: &'static str,
    /// Large files are redirected to another host.
    pub redirects: bool,
    /// Number of files in a page of the list.
    pub page: usize,
    /// 401 without a token, 403 with a different token.
    pub token: Option<&'static str>,
    /// `false` for a mirror: no list, no error codes, and checksums as entity tags.
    pub has_list: bool,
    /// `false` if the server ignores ranges.
    pub has_ranges: bool,
}

impl Content {
    /// A mirror of klein 4B without a list of files.
    pub fn mirror(files: BTreeMap<String, Vec<u8>>) -> Self {
        let repository = "black-forest-labs/FLUX.2-klein-4B".to_string();
        let (redirects, token) = (false, None);
        Self { repository, files, card: "{}", redirects, page: 0, token, has_list: false, has_ranges: true }
    }
}

/// Returns a function that returns `true` for its first calls.
pub fn first(calls: usize) -> impl Fn() -> bool + Send + Sync {
    let left = AtomicUsize::new(calls);
    move || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

struct State {
    content: Content,
    change: Change,
    seen: Mutex<Vec<Seen>>,
    counts: Mutex<BTreeMap<String, usize>>,
    port: u16,
}

/// Serves until the test process ends.
pub struct Hub(Arc<State>);

impl Hub {
    pub fn start(content: Content, change: impl Fn(&Seen, usize, &mut Reply) + Send + Sync + 'static) -> Self {
        let (listener, port) = requests::bind();
        let state = State { content, change: Box::new(change), seen: Mutex::default(), counts: Mutex::default(), port };
        let hub = Self(Arc::new(state));
        let state = Arc::clone(&hub.0);
        requests::serve(listener, move |request, stream| state.serve(&request, stream));
        hub
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.0.port)
    }

    /// Takes the requests since the last call.
    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.0.seen.lock().expect("no panic while answering"))
    }

    pub fn content(&self) -> &Content {
        &self.0.content
    }
}

impl State {
    fn serve(&self, request: &Request, stream: &mut TcpStream) -> std::io::Result<bool> {
        let [method, path] = request.target();
        let [range, if_range, authorization] = ["range", "if-range", "authorization"].map(|name| request.header(name));
        let seen = Seen { method, path, range, if_range, authorization };
        let count = {
            let mut counts = self.counts.lock().expect("no panic while answering");
            let count = counts.entry(format!("{} {}", seen.method, seen.path)).or_default();
            *count += 1;
            *count - 1
        };
        self.seen.lock().expect("no panic while answering").push(seen.clone());
        let mut reply = self.reply(&seen);
        if !self.content.has_list {
            reply.headers.retain(|(name, _)| name != "X-Error-Code");
        }
        (self.change)(&seen, count, &mut reply);
        send(stream, &seen, &reply)
    }

    fn reply(&self, seen: &Seen) -> Reply {
        let (path, query) = seen.path.split_once('?').unwrap_or((&seen.path, ""));
        let (on_cdn, path) = match path.strip_prefix("/cdn") {
            Some(path) => (true, path),
            None => (false, path),
        };
        if let (Some(token), false) = (self.content.token, on_cdn) {
            match &seen.authorization {
                None => return Reply::new(401, &[("X-Error-Code", "GatedRepo")], ""),
                Some(sent) if *sent != format!("Bearer {token}") => {
                    return Reply::new(403, &[("X-Error-Code", "GatedRepo")], "");
                }
                Some(_) => {}
            }
        }
        let repository = self.repository(path);
        let api = format!("/api/models/{repository}/");
        if let Some(rest) = path.strip_prefix(&api).filter(|_| self.content.has_list) {
            return match rest.split_once('/') {
                Some(("revision", "main" | COMMIT)) => {
                    let card = self.content.card;
                    Reply::json(&format!("{{\"id\": \"{repository}\", \"sha\": \"{COMMIT}\", \"cardData\": {card}}}"))
                }
                Some(("revision", _)) => Reply::new(404, &[("X-Error-Code", "RevisionNotFound")], ""),
                Some(("tree", COMMIT)) => self.list(path, query),
                _ => Reply::new(404, &[("X-Error-Code", "EntryNotFound")], ""),
            };
        }
        let file = [COMMIT, "main"].iter().find_map(|revision| {
            // The address of a mirror may have a path.
            let (_, file) = path.split_once(&format!("/{repository}/resolve/{revision}/"))?;
            self.content.files.get(file)
        });
        match file {
            Some(bytes) if self.content.redirects && bytes.len() > 1000 && !on_cdn => {
                let location = format!("http://localhost:{}/cdn{path}", self.port);
                let (size, tag) = (bytes.len().to_string(), format!("\"{}\"", sha256(bytes)));
                let headers = [
                    ("Location", location.as_str()),
                    ("X-Linked-Size", &size),
                    ("X-Linked-ETag", &tag),
                    ("ETag", "\"of-the-redirection\""),
                ];
                Reply::new(302, &headers, "")
            }
            Some(bytes) => self.content(bytes, seen),
            None => Reply::new(
                404,
                &[("X-Error-Code", if path.starts_with("/api") { "RepoNotFound" } else { "EntryNotFound" })],
                "",
            ),
        }
    }

    /// Returns the requested repository if all exist, else the only one.
    fn repository(&self, path: &str) -> String {
        let words: Vec<&str> = path.trim_start_matches("/api/models").split('/').collect();
        match words[..] {
            [_, owner, name, ..] if self.content.repository == "*" => format!("{owner}/{name}"),
            _ => self.content.repository.clone(),
        }
    }

    /// Returns a file, or the requested part of it.
    fn content(&self, bytes: &[u8], seen: &Seen) -> Reply {
        let tag = match self.content.has_list {
            true => format!("\"tag-{}\"", &sha256(bytes)[..8]),
            false if bytes.len() > 1000 => format!("\"{}\"", sha256(bytes)),
            false => format!("\"{}\"", git_name(bytes)),
        };
        let range = seen.range.as_ref().filter(|_| self.content.has_ranges);
        let start = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
        let start = start.filter(|_| seen.if_range.as_ref().is_none_or(|wanted| *wanted == tag));
        let mut reply = Reply { status: 200, body: bytes.to_vec(), ..Reply::default() };
        reply.set("ETag", &tag);
        match start {
            Some(start) if start < bytes.len() => {
                reply.status = 206;
                reply.body.drain(..start);
                reply.set("Content-Range", &format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len()));
            }
            Some(_) => reply = Reply::new(416, &[], ""),
            None => {}
        }
        reply
    }

    /// Returns a page of the list of files.
    fn list(&self, path: &str, query: &str) -> Reply {
        let start = query.split('&').find_map(|part| part.strip_prefix("cursor=")?.parse().ok()).unwrap_or(0);
        let entry = |(path, bytes): (&String, &Vec<u8>)| {
            let (size, oid) = (bytes.len(), git_name(bytes));
            let lfs = (size > 1000).then(|| format!(", \"lfs\": {{\"oid\": \"{}\", \"size\": {size}}}", sha256(bytes)));
            let path = serde_json::to_string(path).expect("a text");
            let lfs = lfs.unwrap_or_default();
            format!("{{\"type\": \"file\", \"path\": {path}, \"size\": {size}, \"oid\": \"{oid}\"{lfs}}}")
        };
        let entries: Vec<String> = self.content.files.iter().skip(start).take(self.content.page).map(entry).collect();
        let folder = "{\"type\": \"directory\", \"path\": \"vae\", \"size\": 0, \"oid\": \"x\"}";
        let mut reply =
            Reply::json(&format!("[{folder}{}{}]", if entries.is_empty() { "" } else { ", " }, entries.join(", ")));
        let next = start + self.content.page;
        if next < self.content.files.len() {
            let own = format!("http://127.0.0.1:{}", self.port);
            reply.set("Link", &format!("<{own}{path}?recursive=true&cursor={next}>; rel=\"next\""));
        }
        reply
    }
}

/// Sends a response. Returns `true` if the connection stays open.
fn send(stream: &mut TcpStream, seen: &Seen, reply: &Reply) -> std::io::Result<bool> {
    thread::sleep(reply.delay);
    if reply.silent {
        return Ok(false);
    }
    let mut head = format!("HTTP/1.1 {} X\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", reply.length.unwrap_or(reply.body.len())));
    stream.write_all(head.as_bytes())?;
    if seen.method == "HEAD" {
        return Ok(true);
    }
    let whole = reply.cut.is_none() && reply.length.is_none_or(|length| length == reply.body.len());
    for piece in reply.body[..reply.cut.unwrap_or(reply.body.len()).min(reply.body.len())].chunks(1 << 16) {
        stream.write_all(piece)?;
        thread::sleep(reply.pause);
    }
    if !whole {
        // The client reads the response before it sees the end of the connection.
        stream.shutdown(std::net::Shutdown::Write)?;
        let _ = stream.read(&mut [0]);
    }
    Ok(whole)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(&sha2::Sha256::digest(bytes))
}

/// Returns git's object name of a file's content.
pub fn git_name(bytes: &[u8]) -> String {
    let mut object = format!("blob {}\0", bytes.len()).into_bytes();
    object.extend(bytes);
    hex(&sha1::Sha1::digest(&object))
}
