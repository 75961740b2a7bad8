//! Tracking of whether a connection waits for its client or for the server. A connection that waits for its client can
//! be evicted to make room for others, and has a deadline for its next request.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::HttpBody;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The state of a connection. See the [module](self).
pub struct Activity {
    waits: Mutex<Waits>,
    evicted: Notify,
}

#[derive(Debug, Clone, Copy)]
enum Waits {
    /// Waits for the next request, from its first byte to the end of its head.
    Request(Instant),
    /// Waits for more of a body.
    Body(Instant),
    /// Waits for the server, which is answering or has taken over the socket.
    Server,
}

impl Activity {
    /// Creates the state of a new connection.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { waits: Mutex::new(Waits::Request(Instant::now())), evicted: Notify::new() })
    }

    /// Returns the time since which the connection waits for its client.
    pub fn idle_since(&self) -> Option<Instant> {
        match *self.waits.lock() {
            Waits::Request(since) | Waits::Body(since) => Some(since),
            Waits::Server => None,
        }
    }

    /// Ends the connection.
    pub fn evict(&self) {
        self.evicted.notify_one();
    }

    /// Returns when the connection was evicted, or its client sent no request for `silence`.
    pub async fn ends(&self, silence: Duration) {
        let is_silent = async {
            loop {
                let since = match *self.waits.lock() {
                    Waits::Request(since) => since,
                    _ => Instant::now(),
                };
                let left = silence.saturating_sub(since.elapsed());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left).await;
            }
        };
        tokio::select! {
            () = is_silent => {}
            () = self.evicted.notified() => {}
        }
    }

    /// Records that the head of a request has arrived.
    pub fn begin_answer(&self) {
        *self.waits.lock() = Waits::Server;
    }

    /// Records that a response has ended.
    pub fn end_answer(&self) {
        *self.waits.lock() = Waits::Request(Instant::now());
    }

    /// Records that bytes were written, for example the buffered rest of a finished response.
    pub fn write(&self) {
        if let Waits::Request(since) = &mut *self.waits.lock() {
            *since = Instant::now();
        }
    }

    fn read_body(&self, waits: bool) {
        let mut now = self.waits.lock();
        *now = match (*now, waits) {
            (Waits::Server, true) => Waits::Body(Instant::now()),
            (Waits::Body(_), false) => Waits::Server,
            (other, _) => other,
        };
    }
}

/// The body of a request. While a read is pending, the connection waits for its client.
pub struct Received<B> {
    pub body: B,
    pub activity: Arc<Activity>,
}

impl<B: HttpBody + Unpin> HttpBody for Received<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(context);
        this.activity.read_body(polled.is_pending());
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for Received<B> {
    fn drop(&mut self) {
        self.activity.read_body(false);
    }
}
