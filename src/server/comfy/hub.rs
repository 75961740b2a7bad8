//! Who hears of what: sockets of clients, by the names that they gave themselves.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};

/// What a socket that does not read may leave unread.
const MOST_UNREAD: usize = 256;
/// Above so many, previews are left out.
const MOST_BEFORE_PREVIEWS: usize = 8;

/// What a client hears.
#[derive(Debug, Clone)]
pub enum Frame {
    Text(String),
    /// An image: 1 is a JPEG, 2 a PNG.
    Image(u32, Bytes),
}

/// See the module.
#[derive(Default)]
pub struct Hub(Mutex<State>);

#[derive(Default)]
struct State {
    sockets: Vec<Socket>,
    opened: u64,
    closed: u64,
    is_closed: bool,
}

struct Socket {
    number: u64,
    owner: String,
    client_id: String,
    sender: Sender<Frame>,
}

impl Hub {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new socket; one of the same name and owner hears nothing more. Returns its number, for [`Hub::close`].
    pub fn open(&self, owner: &str, client_id: &str) -> (u64, Receiver<Frame>) {
        let (sender, receiver) = channel(MOST_UNREAD);
        let mut state = self.state();
        state.opened += 1;
        let number = state.opened;
        state.sockets.retain(|socket| socket.owner != owner || socket.client_id != client_id);
        if !state.is_closed {
            let (owner, client_id) = (owner.to_string(), client_id.to_string());
            state.sockets.push(Socket { number, owner, client_id, sender });
        }
        (number, receiver)
    }

    /// One that is over.
    pub fn close(&self, number: u64) {
        let mut state = self.state();
        state.closed += 1;
        state.sockets.retain(|socket| socket.number != number);
    }

    /// Whether one is not over.
    pub fn are_open(&self) -> bool {
        let state = self.state();
        state.opened > state.closed
    }

    /// Lets all sockets end, once they sent what they heard.
    pub fn close_all(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.sockets.clear();
    }

    /// Whether anybody of this name hears.
    pub fn hears(&self, owner: &str, client_id: &str) -> bool {
        self.state().sockets.iter().any(|socket| socket.owner == owner && socket.client_id == client_id)
    }

    /// Tells the socket of a name, or all of an owner.
    pub fn tell(&self, owner: &str, client_id: Option<&str>, frame: &Frame) {
        let is_told =
            |socket: &Socket| socket.owner == owner && client_id.is_none_or(|client_id| socket.client_id == client_id);
        // One that does not read what it hears is closed.
        self.state().sockets.retain(|socket| {
            !is_told(socket) || !matches!(socket.sender.try_send(frame.clone()), Err(TrySendError::Full(_)))
        });
    }

    /// [`Hub::tell`] what may be left out.
    pub fn show(&self, owner: &str, client_id: &str, frame: &Frame) {
        let state = self.state();
        let sockets = state.sockets.iter().filter(|socket| socket.owner == owner && socket.client_id == client_id);
        for socket in sockets.filter(|socket| MOST_UNREAD - socket.sender.capacity() < MOST_BEFORE_PREVIEWS) {
            // One that is gone is closed soon.
            let _ = socket.sender.try_send(frame.clone());
        }
    }
}

/// A message as these clients read it.
pub fn message(kind: &str, data: &Value) -> Frame {
    Frame::Text(serde_json::json!({"type": kind, "data": data}).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(receiver: &mut Receiver<Frame>) -> Option<String> {
        match receiver.try_recv() {
            Ok(Frame::Text(text)) => Some(text),
            _ => None,
        }
    }

    #[test]
    fn each_hears_what_is_its_own() {
        let hub = Hub::default();
        let (_, mut first) = hub.open("a", "x");
        let (number, mut second) = hub.open("a", "y");
        let (_, mut other) = hub.open("b", "x");
        hub.tell("a", Some("x"), &Frame::Text("1".to_string()));
        hub.tell("a", None, &Frame::Text("2".to_string()));
        assert_eq!([text(&mut first), text(&mut first)], [Some("1".to_string()), Some("2".to_string())]);
        assert_eq!((text(&mut second), text(&mut other)), (Some("2".to_string()), None));
        hub.close(number);
        assert!(!hub.hears("a", "y") && hub.hears("a", "x") && hub.hears("b", "x"));
        let (_, mut again) = hub.open("a", "x");
        hub.tell("a", Some("x"), &Frame::Text("3".to_string()));
        assert_eq!((text(&mut first), text(&mut again)), (None, Some("3".to_string())), "it was replaced");
        hub.close_all();
        hub.open("a", "z");
        assert!(!hub.hears("a", "x") && !hub.hears("a", "z"));
    }

    #[test]
    fn one_that_does_not_read_misses_previews_and_is_closed() {
        let hub = Hub::default();
        let (_, mut slow) = hub.open("a", "x");
        for _ in 0..100 {
            hub.show("a", "x", &Frame::Image(1, Bytes::new()));
        }
        assert_eq!(std::iter::from_fn(|| slow.try_recv().ok()).count(), MOST_BEFORE_PREVIEWS);
        for _ in 0..=MOST_UNREAD {
            hub.tell("a", Some("x"), &Frame::Text(String::new()));
        }
        assert!(!hub.hears("a", "x"));
    }
}
