//! A websocket client that sends arbitrary bytes.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::serving::{Reply, Serving, parse_head};

/// Kinds of frames.
pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;
pub const PING: u8 = 9;
pub const PONG: u8 = 10;

/// An open socket.
#[derive(Debug)]
pub struct Socket(TcpStream);

impl Serving {
    /// Opens a socket; returns the response if the server refuses it.
    pub fn socket(&self, path: &str, head: &[&str]) -> Result<Socket, Reply> {
        let host = format!("Host: {}", self.address);
        let host = if head.iter().any(|line| line.starts_with("Host:")) { "" } else { &host };
        let lines: String = [host, "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
            .iter()
            .chain(["Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="].iter())
            .chain(head)
            .filter(|line| !line.is_empty())
            .map(|line| format!("{line}\r\n"))
            .collect();
        let mut stream = self.begin(format!("GET {path} HTTP/1.1\r\n{lines}\r\n").as_bytes());
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("an answer");
            head.push(byte[0]);
        }
        let (status, headers) = parse_head(&head);
        if status == 101 {
            return Ok(Socket(stream));
        }
        let length = headers.iter().find(|(name, _)| name == "content-length").and_then(|(_, text)| text.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        stream.read_exact(&mut body).expect("the body");
        Err(Reply { status, headers, body })
    }
}

impl Socket {
    /// Sends a frame.
    pub fn send(&mut self, kind: u8, bytes: &[u8]) {
        let mut frame = vec![0x80 | kind];
        match bytes.len() {
            length @ 0..=125 => frame.push(0x80 | length as u8),
            length @ 126..=65535 => {
                frame.push(0x80 | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            length => {
                frame.push(0x80 | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        // A mask of zeros leaves bytes unchanged.
        frame.extend([0; 4]);
        frame.extend(bytes);
        self.send_bytes(&frame);
    }

    /// Sends arbitrary bytes.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        // A server that closes does not read all of it.
        let _ = self.0.write_all(bytes);
    }

    /// Returns the next frame: its kind and content; `None` at the end.
    pub fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut read = |length: usize| {
            let mut bytes = vec![0; length];
            self.0.read_exact(&mut bytes).ok().map(|()| bytes)
        };
        let head = read(2)?;
        let length = match head[1] & 0x7f {
            126 => read(2)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)),
            127 => read(8)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)),
            length => usize::from(length),
        };
        Some((head[0] & 0x0f, read(length)?))
    }

    /// Returns the next message that is no ping: a text, or bytes.
    pub fn message(&mut self) -> Option<Result<Value, Vec<u8>>> {
        loop {
            match self.frame()? {
                (TEXT, text) => return Some(Ok(serde_json::from_slice(&text).expect("JSON"))),
                (BINARY, bytes) => return Some(Err(bytes)),
                (PING, bytes) => self.send(PONG, &bytes),
                (CLOSE, _) => return None,
                _ => {}
            }
        }
    }

    /// Returns all messages up to the one that ends a prompt.
    pub fn until_over(&mut self, prompt: &str) -> Vec<Result<Value, Vec<u8>>> {
        let mut messages = Vec::new();
        loop {
            let message = self.message().expect("it is not over yet");
            let is_last = message.as_ref().is_ok_and(|message| {
                let data = &message["data"];
                message["type"] == "executing" && data["node"].is_null() && data["prompt_id"] == prompt
            });
            messages.push(message);
            if is_last {
                return messages;
            }
        }
    }
}
