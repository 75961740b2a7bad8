//! Hostile requests, chosen by a seed and a number.

use std::fmt::Write;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::serving::{form, request};

/// The bytes that a client sends over one connection.
pub struct Sent {
    pub bytes: Vec<u8>,
    /// `true` if the server must respond: the head is valid, and the length is right.
    pub is_whole: bool,
    /// `true` if the client leaves without waiting.
    pub goes: bool,
}

const JSON: &str = "Content-Type: application/json";
const FORM: &str = "Content-Type: multipart/form-data; boundary=XXX";
const PATHS: [&str; 32] = [
    "/",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/v1/models",
    "/v1/models/x",
    "/v1/models/a/b/%00",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/images/variations",
    "/v1/files/../../etc/passwd",
    "/v1/files/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "/v1/files/x.png",
    "/v1/jobs",
    "/v1/jobs?limit=-1",
    "/v1/jobs?limit=x",
    "/v1/jobs?status=%ff",
    "/v1/jobs/0",
    "/v1/jobs/0/events",
    "/v1/jobs/0/result",
    "/v1/jobs/0/images/18446744073709551616",
    "/v1/loras",
    "/v1/batches",
    "/v1/batches/b-0",
    "/mcp",
    "/sdapi/v1/txt2img",
    "/sdapi/v1/img2img",
    "/sdapi/v1/progress",
    "/sdapi/v1/options",
    "/sdapi/v1/png-info",
    "/sdapi/v1/interrupt",
];
const DRAWING: [&str; 5] =
    ["/v1/images/generations", "/v1/images/edits", "/v1/jobs", "/sdapi/v1/txt2img", "/sdapi/v1/img2img"];
const METHODS: [&str; 10] =
    ["GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT", "G\u{e9}T"];
const FIELDS: [&str; 34] = [
    "prompt", "model", "n", "size", "response_format", "output_format", "output_compression", "quality", "background",
    "stream", "partial_images", "user", "seed", "guidance", "negative_prompt", "loras", "strength", "priority",
    "deadline_s", "image", "mask", "recipe", "markup", "frame_count", "unknown", "width", "height", "cfg_scale",
    "batch_size", "n_iter", "init_images", "denoising_strength", "override_settings", "sampler_name",
];
const VALUES: [&str; 34] = [
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1",
    "2",
    "3",
    "0.5",
    "1e400",
    "-1e400",
    "18446744073709551616",
    "1e-320",
    "\"\"",
    "\"64x64\"",
    "\"0x0\"",
    "\"99999999x99999999\"",
    "\"64x\"",
    "\"-1x-1\"",
    "\"auto\"",
    "\"b64_json\"",
    "\"url\"",
    "\"png\"",
    "\"gif\"",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\"http://127.0.0.1/x\"",
    "\"data:image/png;base64,AAAA\"",
    "[]",
    "{}",
    "[[[[]]]]",
    "{\"name\":\"x\",\"weight\":1}",
    "[{\"name\":\"../../x\",\"weight\":\"y\"}]",
    "[\"AAAA\"]",
];
const HEADERS: [&str; 20] = [
    "Host: evil.example",
    "Host: a\r\nHost: b",
    "Content-Length: -1",
    "Content-Length: 99999999999999999999",
    "Content-Length: 5\r\nContent-Length: 6",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Expect: 100-continue",
    "Origin: null",
    "Sec-Fetch-Site: cross-site",
    "Authorization: Basic !!!!",
    "Authorization: Bearer ",
    "Idempotency-Key: same",
    "Last-Event-ID: 18446744073709551615",
    "x-stainless-read-timeout: -0",
    "x-stainless-read-timeout: NaN",
    "Accept: text/event-stream",
    "Content-Type: multipart/form-data",
    "X-Forwarded-For: ::::",
    "Range: bytes=0-",
];
const KINDS: usize = 13;

/// Returns the request of a number.
pub fn hostile(seed: u64, number: u64) -> Sent {
    let mut rng = Rng(StdRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number));
    let whole = |bytes| Sent { bytes, is_whole: true, goes: false };
    let part = |bytes| Sent { bytes, is_whole: false, goes: false };
    match rng.below(KINDS) {
        0 => part(rng.bytes(4096)),
        1 => part(rng.head_only()),
        2 => part(rng.odd_headers()),
        3 | 4 => {
            let (path, body) = (rng.pick(&DRAWING), rng.json());
            whole(request("POST", path, &[JSON], body.as_bytes()))
        }
        5 => {
            let (path, body) = (rng.pick(&DRAWING), rng.broken_json());
            whole(request("POST", path, &[JSON], &body))
        }
        6 => {
            let (path, body) = (rng.pick(&DRAWING[..3]), rng.form());
            whole(request("POST", path, &[FORM], &body))
        }
        7 => part(rng.chunks()),
        8 => part(rng.upgrade()),
        9 => part(rng.pipeline()),
        10 => {
            let body = rng.rpc();
            let accept = "Accept: application/json, text/event-stream";
            whole(request("POST", "/mcp", &[JSON, accept], body.as_bytes()))
        }
        11 => {
            let (path, body) = (rng.pick(&DRAWING), rng.json());
            let bytes = request("POST", path, &[JSON], body.as_bytes());
            part(rng.damaged(bytes))
        }
        _ => {
            let stream = if rng.one_of(2) { ",\"stream\":true,\"partial_images\":2" } else { "" };
            let body = format!("{{\"prompt\":\"x\",\"size\":\"64x64\",\"steps\":4{stream}}}");
            let bytes = request("POST", "/v1/images/generations", &[JSON], body.as_bytes());
            Sent { bytes, is_whole: false, goes: true }
        }
    }
}

struct Rng(StdRng);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end)
    }

    fn one_of(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let bytes = self.below(most);
        (0..bytes).map(|_| self.0.random()).collect()
    }

    fn head_only(&mut self) -> Vec<u8> {
        let (method, path) = (self.pick(&METHODS), self.pick(&PATHS));
        let version = self.pick(&["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9", "http/1.1", ""]);
        let long = "x".repeat(if self.one_of(8) { self.below(20_000) } else { 0 });
        let end = self.pick(&["\r\n\r\n", "\r\n", "\n\n", ""]);
        format!("{method} {path}{long} {version}\r\nHost: localhost{end}").into_bytes()
    }

    fn odd_headers(&mut self) -> Vec<u8> {
        let (method, path) = (self.pick(&METHODS), self.pick(&PATHS));
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
        let most = if self.one_of(8) { 200 } else { 6 };
        for number in 0..self.below(most) {
            let line = if self.one_of(3) {
                format!("x-{number}: {}", "y".repeat(self.below(900)))
            } else {
                self.pick(&HEADERS).into()
            };
            let _ = write!(head, "{line}\r\n");
        }
        [head.as_bytes(), b"\r\n", &self.bytes(64)].concat()
    }

    fn json(&mut self) -> String {
        // Most are refused after everything else was read: many such requests fit in the time of an image.
        let steps = self.pick(&["1", "-1", "0", "\"x\"", "1e400", "[]", "{}", "18446744073709551616", "-0.5", "true"]);
        let mut fields =
            vec![r#""prompt":"x""#.to_string(), r#""size":"64x64""#.to_string(), format!("\"steps\":{steps}")];
        for _ in 0..self.below(4) {
            fields.push(format!("\"{}\":{}", self.pick(&FIELDS), self.pick(&VALUES)));
        }
        if self.one_of(20) {
            fields.push(format!("\"negative_prompt\":\"{}\"", "ä".repeat(self.below(40_000))));
        }
        format!("{{{}}}", fields.join(","))
    }

    fn broken_json(&mut self) -> Vec<u8> {
        match self.below(4) {
            0 => "[".repeat(1 + self.below(100_000)).into_bytes(),
            1 => "{\"a\":".repeat(1 + self.below(20_000)).into_bytes(),
            2 => {
                let json = self.json().into_bytes();
                self.damaged(json)
            }
            _ => [&b"x"[..], &self.bytes(2000)].concat(),
        }
    }

    fn form(&mut self) -> Vec<u8> {
        let steps = self.pick(&["1", "-1", "0", "x", "", "1e9"]).as_bytes().to_vec();
        let mut parts: Vec<(String, Option<String>, Vec<u8>)> = vec![
            ("prompt".into(), None, b"x".to_vec()),
            ("size".into(), None, b"64x64".to_vec()),
            ("steps".into(), None, steps),
        ];
        for _ in 0..self.below(4) {
            let value = self.pick(&VALUES).trim_matches('"').as_bytes().to_vec();
            parts.push((self.pick(&FIELDS).into(), None, value));
        }
        for _ in 0..self.below(3) {
            let name = self.pick(&["image", "image[]", "mask", "file", "loras[][name]", "a\"b", ""]).to_string();
            parts.push((name, Some(self.pick(&["x.png", "../../x", "", "\u{0}"]).into()), self.picture()));
        }
        if self.one_of(30) {
            parts.extend((0..self.below(400)).map(|_| ("x".to_string(), None, Vec::new())));
        }
        let parts: Vec<_> = parts.iter().map(|(name, file, bytes)| (&**name, file.as_deref(), &**bytes)).collect();
        let body = form(&parts);
        if self.one_of(3) { self.damaged(body) } else { body }
    }

    /// Returns a file that claims to be an image.
    fn picture(&mut self) -> Vec<u8> {
        let good = super::png(64, 64, [9, 9, 9]);
        match self.below(5) {
            0 => good,
            1 => {
                // Its header claims gigapixels; the checksum is right.
                let side = [4096, 65_535, 1 << 30, u32::MAX][self.below(4)].to_be_bytes();
                let mut head = [&b"IHDR"[..], &side, &side, &[8, 2, 0, 0, 0]].concat();
                let sum = checksum(&head).to_be_bytes();
                let mut bomb = [&b"\x89PNG\r\n\x1a\n\0\0\0\r"[..], &std::mem::take(&mut head), &sum].concat();
                bomb.extend_from_slice(&good[33..]);
                bomb
            }
            2 => self.damaged(good),
            3 => [&b"\xff\xd8\xff\xe0"[..], &self.bytes(500)].concat(),
            _ => [&b"RIFF\xff\xff\xff\xffWEBPVP8L"[..], &self.bytes(500)].concat(),
        }
    }

    fn chunks(&mut self) -> Vec<u8> {
        let path = self.pick(&DRAWING);
        let mut bytes =
            format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nTransfer-Encoding: chunked\r\n\r\n")
                .into_bytes();
        for _ in 0..self.below(6) {
            let part = self.bytes(60);
            let length = match self.below(5) {
                0 => format!("{:x}", part.len() + 1),
                1 => "ffffffffffffffff".to_string(),
                2 => self.pick(&["-1", "", "0x10", "g", "1;ext=\"\r", " 1 "]).to_string(),
                _ => format!("{:x}", part.len()),
            };
            bytes.extend([length.as_bytes(), b"\r\n", &part, b"\r\n"].concat());
        }
        bytes.extend_from_slice(self.pick(&["0\r\n\r\n", "0\r\nX: y\r\n\r\n", "", "0\r\n"]).as_bytes());
        bytes
    }

    fn upgrade(&mut self) -> Vec<u8> {
        let path = self.pick(&PATHS);
        match self.below(3) {
            0 => format!(
                "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            )
            .into_bytes(),
            1 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(),
            // A client that speaks TLS.
            _ => [&b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03"[..], &self.bytes(500)].concat(),
        }
    }

    fn pipeline(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..1 + self.below(20) {
            let path = self.pick(&PATHS);
            bytes.extend(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes());
        }
        if self.one_of(2) {
            bytes.extend(self.bytes(200));
        }
        bytes
    }

    fn rpc(&mut self) -> String {
        let method = self.pick(&["initialize", "tools/list", "tools/call", "ping", "x", "notifications/cancelled"]);
        let params = self.pick(&[
            "{}",
            "[]",
            "null",
            r#"{"name":"generate_image","arguments":{"prompt":"x","size":"64x64","steps":-1}}"#,
            r#"{"name":"edit_image","arguments":{"images":["file:///etc/passwd"]}}"#,
            r#"{"name":7}"#,
            r#"{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}"#,
        ]);
        let id = self.pick(&["1", "null", "\"x\"", "-1", "1.5", "{}"]);
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}")
    }

    /// Changes, removes or repeats some bytes.
    fn damaged(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        for _ in 0..1 + self.below(8) {
            if bytes.is_empty() {
                break;
            }
            let place = self.below(bytes.len());
            match self.below(4) {
                0 => bytes[place] = self.0.random(),
                1 => drop(bytes.remove(place)),
                2 => bytes.truncate(place),
                _ => bytes.insert(place, self.0.random()),
            }
        }
        bytes
    }
}

/// Returns the checksum of a part of a PNG.
fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}
