//! Streams with a write timeout, so that a response to a client that stops reading is not kept forever.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::http::activity::Activity;

/// A stream that fails if nothing can be written for `silence`. Unix sockets have no such timeout of their own.
pub struct Patient<S> {
    stream: S,
    silence: Duration,
    /// The state of the connection, which records writes.
    activity: Arc<Activity>,
    /// Fires if pending data was not accepted in time.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub fn new(stream: S, silence: Duration, activity: Arc<Activity>) -> Self {
        Self { stream, silence, activity, stalled: None }
    }

    /// Passes on the result of a write, or an error if it has been pending for too long.
    fn in_time<T>(&mut self, context: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.stalled = None;
            self.activity.write();
            return done;
        }
        let silence = self.silence;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(silence)));
        stalled.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, to)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.in_time(context, done)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.stream).poll_write_vectored(context, parts);
        this.in_time(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.stream).poll_flush(context);
        this.in_time(context, done)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.stream).poll_shutdown(context);
        this.in_time(context, done)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn whoever_does_not_read_is_not_waited_for() {
        let (stream, _silent) = duplex(8);
        let mut stream = Patient::new(stream, Duration::from_millis(20), Activity::new());
        let error = stream.write_all(&[7; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn whoever_reads_gets_all_of_it() {
        let (stream, mut reader) = duplex(8);
        let mut stream = Patient::new(stream, Duration::from_secs(60), Activity::new());
        let mut bytes = vec![0; 100];
        let (written, read) = tokio::join!(stream.write_all(&[7; 100]), reader.read_exact(&mut bytes));
        assert!(written.is_ok() && read.is_ok() && bytes == [7; 100]);
    }
}
