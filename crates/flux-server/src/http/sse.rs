//! Server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::response::Response;
use futures_util::stream;
use tokio::sync::mpsc;

use crate::http::answer;
use crate::http::pieces::Pieces;

/// The keep-alive interval of idle streams, for proxies.
pub const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Max buffered events of a client that does not read.
const AHEAD: usize = 16;

/// The sending end of an event stream.
pub struct Events(mpsc::Sender<Pieces>);

/// The client has disconnected.
pub struct Gone;

impl Events {
    /// Sends an event, with the ID from which a reconnecting client resumes.
    pub async fn send(&self, event: &str, id: Option<usize>, data: impl Into<Pieces>) -> Result<(), Gone> {
        let id = id.map_or_else(String::new, |id| format!("id: {id}\n"));
        let mut text = Pieces::from(format!("{id}event: {event}\ndata: "));
        text.append(data.into());
        text.push("\n\n".to_string());
        self.raw(text).await
    }

    /// Sends a comment, which clients ignore.
    pub async fn comment(&self, text: &str) -> Result<(), Gone> {
        self.raw(format!(": {text}\n\n").into()).await
    }

    async fn raw(&self, text: Pieces) -> Result<(), Gone> {
        self.0.send(text).await.map_err(|_| Gone)
    }

    /// Waits until the client has disconnected.
    pub async fn gone(&self) {
        self.0.closed().await;
    }
}

/// Returns a response with the events that `send_events` sends. The stream ends when `send_events` does.
pub fn answer<F: Future<Output = ()> + Send + 'static>(send_events: impl FnOnce(Events) -> F) -> Response {
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(send_events(Events(sender)));
    let parts = stream::unfold((receiver, Pieces::default()), |(mut receiver, mut event)| async move {
        loop {
            if let Some(part) = event.next() {
                return Some((Ok::<_, Infallible>(part), (receiver, event)));
            }
            event = receiver.recv().await?;
        }
    });
    let mut response = answer::with_body(Body::from_stream(parts), "text/event-stream; charset=utf-8");
    // Stops nginx from buffering events.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
