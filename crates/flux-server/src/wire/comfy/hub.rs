//! Event distribution: the WebSockets of clients, by client ID.

use parking_lot::Mutex;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};

/// Max queued frames of a socket.
const MAX_UNREAD: usize = 256;
/// The number of queued frames from which previews are dropped.
const MAX_BEFORE_PREVIEWS: usize = 8;

/// A message to a client.
#[derive(Debug, Clone)]
pub enum Frame {
    Text(String),
    /// An image. Format 1 is JPEG, 2 is PNG.
    Image(u32, Bytes),
}

/// The open sockets. See the [module](self).
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
    /// Adds a socket, which replaces an older one with the same owner and client ID. Returns its number for
    /// [`Hub::close`].
    pub fn open(&self, owner: &str, client_id: &str) -> (u64, Receiver<Frame>) {
        let (sender, receiver) = channel(MAX_UNREAD);
        let mut state = self.0.lock();
        state.opened += 1;
        let number = state.opened;
        state.sockets.retain(|socket| socket.owner != owner || socket.client_id != client_id);
        if !state.is_closed {
            let (owner, client_id) = (owner.to_string(), client_id.to_string());
            state.sockets.push(Socket { number, owner, client_id, sender });
        }
        (number, receiver)
    }

    /// Removes a socket that has ended.
    pub fn close(&self, number: u64) {
        let mut state = self.0.lock();
        state.closed += 1;
        state.sockets.retain(|socket| socket.number != number);
    }

    /// Returns `true` if any socket has not ended.
    pub fn are_open(&self) -> bool {
        let state = self.0.lock();
        state.opened > state.closed
    }

    /// Lets all sockets end after sending their queued frames.
    pub fn close_all(&self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        state.sockets.clear();
    }

    /// Returns `true` if this client ID has a socket.
    pub fn has_socket(&self, owner: &str, client_id: &str) -> bool {
        self.0.lock().sockets.iter().any(|socket| socket.owner == owner && socket.client_id == client_id)
    }

    /// Sends a frame to the socket of a client ID, or to all sockets of an owner.
    pub fn send(&self, owner: &str, client_id: Option<&str>, frame: &Frame) {
        let is_told =
            |socket: &Socket| socket.owner == owner && client_id.is_none_or(|client_id| socket.client_id == client_id);
        // Sockets with a full queue are closed, since their clients do not read.
        self.0.lock().sockets.retain(|socket| {
            !is_told(socket) || !matches!(socket.sender.try_send(frame.clone()), Err(TrySendError::Full(_)))
        });
    }

    /// As [`Hub::send`], for frames that may be dropped.
    pub fn show(&self, owner: &str, client_id: &str, frame: &Frame) {
        let state = self.0.lock();
        let sockets = state.sockets.iter().filter(|socket| socket.owner == owner && socket.client_id == client_id);
        for socket in sockets.filter(|socket| MAX_UNREAD - socket.sender.capacity() < MAX_BEFORE_PREVIEWS) {
            // Fails if the client is gone, and its socket is closed soon.
            let _ = socket.sender.try_send(frame.clone());
        }
    }
}

/// Returns a message in the format of these clients.
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
        hub.send("a", Some("x"), &Frame::Text("1".to_string()));
        hub.send("a", None, &Frame::Text("2".to_string()));
        assert_eq!([text(&mut first), text(&mut first)], [Some("1".to_string()), Some("2".to_string())]);
        assert_eq!((text(&mut second), text(&mut other)), (Some("2".to_string()), None));
        hub.close(number);
        assert!(!hub.has_socket("a", "y") && hub.has_socket("a", "x") && hub.has_socket("b", "x"));
        let (_, mut again) = hub.open("a", "x");
        hub.send("a", Some("x"), &Frame::Text("3".to_string()));
        assert_eq!((text(&mut first), text(&mut again)), (None, Some("3".to_string())), "the first was replaced");
        hub.close_all();
        hub.open("a", "z");
        assert!(!hub.has_socket("a", "x") && !hub.has_socket("a", "z"));
    }

    #[test]
    fn one_that_does_not_read_misses_previews_and_is_closed() {
        let hub = Hub::default();
        let (_, mut slow) = hub.open("a", "x");
        for _ in 0..100 {
            hub.show("a", "x", &Frame::Image(1, Bytes::new()));
        }
        assert_eq!(std::iter::from_fn(|| slow.try_recv().ok()).count(), MAX_BEFORE_PREVIEWS);
        for _ in 0..=MAX_UNREAD {
            hub.send("a", Some("x"), &Frame::Text(String::new()));
        }
        assert!(!hub.has_socket("a", "x"));
    }
}
