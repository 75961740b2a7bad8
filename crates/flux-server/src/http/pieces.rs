//! JSON with files in base64, encoded in pieces as it is sent. So a response with a PNG of 3 MB is never held in memory
//! as a whole, and its 4 MB of base64 are neither copied nor escaped.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::HttpBody;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use serde_json::Value;

/// Bytes of a file per piece. A multiple of 3, so that only the last piece is padded.
const AT_ONCE: usize = 96 << 10;
/// Digits of a file's index.
const DIGITS: usize = 8;

/// The files in a JSON value.
pub struct Files {
    /// The prefix of placeholders. It is random, so that no text of a client contains it.
    mark: String,
    files: Vec<Bytes>,
}

/// A JSON text in pieces.
#[derive(Debug, Default)]
pub struct Pieces(VecDeque<Piece>);

#[derive(Debug)]
enum Piece {
    Text(Bytes),
    /// A file to encode as base64.
    File(Bytes),
}

impl Files {
    pub fn new() -> Self {
        Self { mark: crate::http::ids::new_id(), files: Vec::new() }
    }

    /// Adds a file. Returns the placeholder for its base64.
    pub fn base64(&mut self, file: &Bytes) -> Value {
        self.files.push(file.clone());
        format!("{}{:0DIGITS$x}", self.mark, self.files.len() - 1).into()
    }

    /// Returns the text of a value, with the placeholders replaced by files.
    pub fn json(&self, value: &Value) -> Pieces {
        let text = value.to_string();
        let mut parts = text.split(&*self.mark);
        let mut pieces = Pieces::default();
        pieces.push(parts.next().unwrap_or_default().to_string());
        for part in parts {
            let (place, rest) = part.split_at_checked(DIGITS).unwrap_or((part, ""));
            let file = usize::from_str_radix(place, 16).ok().and_then(|place| self.files.get(place));
            pieces.0.extend(file.map(|file| Piece::File(file.clone())));
            pieces.push(rest.to_string());
        }
        pieces
    }
}

impl Pieces {
    /// Adds a text.
    pub fn push(&mut self, text: String) {
        if !text.is_empty() {
            self.0.push_back(Piece::Text(text.into()));
        }
    }

    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Returns the number of bytes left.
    fn bytes(&self) -> u64 {
        let bytes = |piece: &Piece| match piece {
            Piece::Text(text) => text.len() as u64,
            Piece::File(file) => 4 * (file.len() as u64).div_ceil(3),
        };
        self.0.iter().map(bytes).sum()
    }
}

impl From<Value> for Pieces {
    fn from(value: Value) -> Self {
        value.to_string().into()
    }
}

impl From<String> for Pieces {
    fn from(text: String) -> Self {
        let mut pieces = Self::default();
        pieces.push(text);
        pieces
    }
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        match self.0.front_mut()? {
            Piece::File(file) if file.len() > AT_ONCE => Some(STANDARD.encode(file.split_to(AT_ONCE)).into()),
            Piece::File(_) | Piece::Text(_) => self.0.pop_front().map(|piece| match piece {
                Piece::Text(text) => text,
                Piece::File(file) => STANDARD.encode(file).into(),
            }),
        }
    }
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.get_mut().next().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_text_is_that_of_a_value_with_all_files_in_it() {
        for bytes in [0, 1, 2, 3, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE + 2] {
            let file: Bytes = (0..bytes).map(|byte| (byte * 7) as u8).collect::<Vec<_>>().into();
            let mut files = Files::new();
            let value = |first: Value, second: Value| json!({"z": [first, "x\"\n"], "a": {"b64_json": second}});
            let marked = value(files.base64(&file), files.base64(&Bytes::from_static(b"second")));
            let pieces = files.json(&marked);
            let exact = HttpBody::size_hint(&pieces).exact();
            let text = pieces.collect::<Vec<_>>().concat();
            assert_eq!(exact, Some(text.len() as u64));
            let whole = value(STANDARD.encode(&file).into(), STANDARD.encode("second").into());
            assert!(text == whole.to_string().into_bytes(), "{bytes}");
        }
    }

    #[test]
    fn no_piece_is_much_larger_than_the_others() {
        let mut files = Files::new();
        let value = json!([files.base64(&vec![7; 10 * AT_ONCE].into())]);
        assert!(files.json(&value).all(|piece| piece.len() <= AT_ONCE / 3 * 4));
    }
}
