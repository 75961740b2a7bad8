//! Server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use futures_util::stream;
use tokio::sync::mpsc;

use super::answer;
use super::pieces::Pieces;

/// How often a stream that has nothing to say says so, for proxies.
pub const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// What may be on its way to a client that does not read.
const AHEAD: usize = 16;

/// The end of a stream that events are put into.
pub struct Events(mpsc::Sender<Pieces>);

/// The client is gone.
pub struct Gone;

impl Events {
    /// An event, with the number that a client that comes again names.
    pub async fn send(&self, event: &str, id: Option<usize>, data: impl Into<Pieces>) -> Result<(), Gone> {
        let id = id.map_or_else(String::new, |id| format!("id: {id}\n"));
        let mut text = Pieces::from(format!("{id}event: {event}\ndata: "));
        text.append(data.into());
        text.push("\n\n".to_string());
        self.raw(text).await
    }

    /// A comment, which clients pass over.
    pub async fn comment(&self, text: &str) -> Result<(), Gone> {
        self.raw(format!(": {text}\n\n").into()).await
    }

    async fn raw(&self, text: Pieces) -> Result<(), Gone> {
        self.0.send(text).await.map_err(|_| Gone)
    }

    /// Whether the client is gone.
    pub async fn gone(&self) {
        self.0.closed().await;
    }
}

/// An answer of events, which `tell` puts in; the stream ends with it.
pub fn answer<F: Future<Output = ()> + Send + 'static>(tell: impl FnOnce(Events) -> F) -> Response {
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(tell(Events(sender)));
    let parts = stream::unfold((receiver, Pieces::default()), |(mut receiver, mut event)| async move {
        loop {
            if let Some(part) = event.next() {
                return Some((Ok::<_, Infallible>(part), (receiver, event)));
            }
            event = receiver.recv().await?;
        }
    });
    answer::with_body(Body::from_stream(parts), "text/event-stream; charset=utf-8")
}
