//! Room for the bodies of requests: together they take so many bytes of memory and no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::error::{ApiError, Result};

/// After which time a client may find room.
const SOON: Duration = Duration::from_secs(2);

/// See the module.
pub struct Room {
    used: AtomicUsize,
    most: usize,
}

/// The bytes that one request holds, until this is dropped.
pub struct Held {
    room: Arc<Room>,
    bytes: AtomicUsize,
}

impl Room {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), most })
    }

    /// No bytes yet.
    pub fn hold(self: &Arc<Self>) -> Held {
        Held { room: Arc::clone(self), bytes: AtomicUsize::new(0) }
    }
}

impl Held {
    /// Errors when there is no room for so many bytes more.
    pub fn add(&self, bytes: usize) -> Result<()> {
        let used = self.room.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if used > self.room.most {
            return Err(ApiError::too_many("queue_full", "too many bodies are being sent", SOON));
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.used.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_makes_room() {
        let room = Room::new(10);
        let (first, second) = (room.hold(), room.hold());
        first.add(6).unwrap();
        assert_eq!(second.add(5).unwrap_err().code, "queue_full");
        drop(second);
        room.hold().add(4).unwrap();
        drop(first);
        room.hold().add(10).unwrap();
    }
}
