//! A running `flux serve`, and a client that sends arbitrary bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::program::flux;

/// Maximum wait of a test.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server of the built-in model on the CPU. It is killed when it is dropped.
pub struct Serving {
    child: Child,
    pub address: SocketAddr,
    lines: Mutex<Receiver<String>>,
    said: Vec<String>,
}

/// An HTTP response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// Header names are in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// Returns the status code and type of an error, and the field that it names.
    pub fn error(&self) -> (u16, String, String) {
        let error = &self.json()["error"];
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_string();
        (self.status, text("code"), text("param"))
    }

    /// Returns the events of a stream: names and data.
    pub fn events(&self) -> Vec<(String, Value)> {
        let text = String::from_utf8(self.body.clone()).expect("UTF-8");
        let event = |part: &str| {
            let line = |name: &str| part.lines().find_map(|line| line.strip_prefix(name));
            Some((line("event: ")?.to_string(), serde_json::from_str(line("data: ")?).expect("JSON")))
        };
        text.split("\n\n").filter_map(event).collect()
    }
}

impl Serving {
    /// Starts a server, and waits until it accepts requests.
    pub fn start(flags: &[&str]) -> Self {
        let mut serving = Self::from_command(flux().args(["--device", "cpu"]), flags);
        serving.hears("ready after");
        serving
    }

    /// Starts a server with `command`, and waits until it listens.
    pub fn from_command(command: &mut Command, flags: &[&str]) -> Self {
        let mut command_line = Command::new(command.get_program());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => command_line.env(name, value),
                None => command_line.env_remove(name),
            };
        }
        command_line.env_remove("FLUX_API_KEYS").env("RAYON_NUM_THREADS", "1");
        command_line.args(["serve", "--listen", "127.0.0.1:0"]).args(command.get_args()).args(flags);
        let mut child = command_line.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the program starts");
        let (sender, lines) = channel();
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut serving =
            Self { child, address: ([127, 0, 0, 1], 0).into(), lines: Mutex::new(lines), said: Vec::new() };
        let line = serving.hears("listening on ");
        let address = line.rsplit("://").next().expect("an address");
        serving.address = address.parse().expect("an address");
        serving
    }

    /// Returns the next line on stderr that contains `text`.
    pub fn hears(&mut self, text: &str) -> String {
        let start = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(start.elapsed());
            let line = self.lines.get_mut().expect("no panic").recv_timeout(left);
            let line = line.unwrap_or_else(|e| panic!("{e} before `{text}`: {:?}", self.said));
            self.said.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Returns all output on stderr so far.
    pub fn said(&mut self) -> String {
        self.said.extend(self.lines.get_mut().expect("no panic").try_iter());
        self.said.join("\n")
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: &str) {
        crate::program::signal(&self.child, signal);
    }

    /// Waits for the server's end and all of its output, and returns its exit code.
    pub fn end(&mut self) -> Option<i32> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                let lines = self.lines.get_mut().expect("no panic");
                self.said.extend(std::iter::from_fn(|| lines.recv_timeout(PATIENCE).ok()));
                return status.code();
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("it does not end: {}", self.said());
    }

    /// Begins a request; the rest may be written to the stream, and the response read from it.
    pub fn begin(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        // A server that refuses the request may not read all of it.
        let _ = stream.write_all(bytes);
        stream
    }

    /// Sends bytes as a request, and reads the response to its end.
    pub fn send(&self, bytes: &[u8]) -> Reply {
        read_reply(self.begin(bytes))
    }

    /// Sends a request with a method, a path, header lines and a body.
    pub fn ask(&self, method: &str, path: &str, head: &[&str], body: &[u8]) -> Reply {
        self.send(&request(method, path, head, body))
    }

    pub fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.ask("POST", path, &["Content-Type: application/json"], body.to_string().as_bytes())
    }

    /// Posts a form.
    pub fn form(&self, path: &str, parts: &[Part<'_>]) -> Reply {
        self.ask("POST", path, &["Content-Type: multipart/form-data; boundary=XXX"], &form(parts))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A part of a form: its name, its file name if it is a file, and its content.
pub type Part<'a> = (&'a str, Option<&'a str>, &'a [u8]);

/// The body of a form with the boundary `XXX`.
pub fn form(parts: &[Part<'_>]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, file, bytes) in parts {
        let file = file.map_or_else(String::new, |file| format!("; filename=\"{file}\""));
        body.extend(format!("--XXX\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n").as_bytes());
        body.extend_from_slice(bytes);
        body.extend(b"\r\n");
    }
    body.extend(b"--XXX--\r\n");
    body
}

/// Returns the bytes of a request that closes the connection.
pub fn request(method: &str, path: &str, head: &[&str], body: &[u8]) -> Vec<u8> {
    let has_host = head.iter().any(|line| line.to_lowercase().starts_with("host:"));
    let host = if has_host { "" } else { "Host: localhost\r\n" };
    let lines: String = head.iter().map(|line| format!("{line}\r\n")).collect();
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let head = format!("{method} {path} HTTP/1.1\r\n{host}{lines}{length}Connection: close\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// Reads a response to its end.
pub fn read_reply(mut stream: TcpStream) -> Reply {
    let mut bytes = Vec::new();
    // A server that refuses a body may close before all of it is sent.
    let _ = stream.read_to_end(&mut bytes);
    reply(&bytes)
}

/// Parses a response.
pub fn reply(bytes: &[u8]) -> Reply {
    let end = bytes.windows(4).position(|part| part == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(bytes)));
    let (status, headers) = parse_head(&bytes[..end]);
    let body = bytes[end + 4..].to_vec();
    let is_chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    Reply { status, headers, body: if is_chunked { without_chunks(&body) } else { body } }
}

/// Parses the head of a response: its status, and the headers with names in lower case.
pub fn parse_head(head: &[u8]) -> (u16, Vec<(String, String)>) {
    let mut lines = std::str::from_utf8(head).expect("a head in ASCII").lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
    let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_string()));
    (status, lines.filter_map(header).collect())
}

fn without_chunks(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|part| part == b"\r\n") {
        let length = std::str::from_utf8(&rest[..end]).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
        let Some(length) = length.filter(|length| *length > 0 && end + 2 + length <= rest.len()) else { break };
        body.extend_from_slice(&rest[end + 2..end + 2 + length]);
        rest = rest.get(end + 4 + length..).unwrap_or_default();
    }
    body
}
