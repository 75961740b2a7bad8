//! Prompts that are encoded while they are typed, once typing pauses, so that generation starts sooner.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use flux::stage::CancelFlag;

/// The pause after which a prompt is encoded.
const PAUSE: Duration = Duration::from_millis(300);

/// Encodes prompts on its own thread until dropped.
pub struct Ahead {
    texts: Sender<String>,
    cancel: CancelFlag,
}

impl Ahead {
    /// Starts the thread. `encode` receives a prompt, and should return soon after the flag is set.
    pub fn new(encode: impl Fn(String, &CancelFlag) + Send + 'static) -> Self {
        let (texts, typed) = channel();
        let cancel = CancelFlag::default();
        let flag = cancel.clone();
        // If the thread cannot start, nothing is encoded ahead.
        let _ = thread::Builder::new().name("ahead".to_string()).spawn(move || {
            while let Some(prompt) = after_a_pause(&typed) {
                encode(prompt, &flag);
            }
        });
        Self { texts, cancel }
    }

    /// Passes on the text typed so far.
    pub fn typed(&self, prompt: String) {
        // Fails if the thread has ended, which is harmless.
        let _ = self.texts.send(prompt);
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// Waits for a pause of at least [`PAUSE`] and returns the last text before it. `None` at the end.
fn after_a_pause(typed: &Receiver<String>) -> Option<String> {
    let mut text = typed.recv().ok()?;
    loop {
        match typed.recv_timeout(PAUSE) {
            Ok(next) => text = next,
            Err(RecvTimeoutError::Timeout) if text.is_empty() => return after_a_pause(typed),
            Err(RecvTimeoutError::Timeout) => return Some(text),
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_was_typed_before_a_pause_is_encoded_once() {
        let (sender, encoded) = channel();
        let ahead = Ahead::new(move |prompt, _| sender.send(prompt).unwrap());
        ["a", "a c", "a ca", "a cat"].into_iter().for_each(|text| ahead.typed(text.to_string()));
        let start = Instant::now();
        assert_eq!(encoded.recv_timeout(Duration::from_secs(20)).unwrap(), "a cat");
        assert!(start.elapsed() >= PAUSE);
        ahead.typed(String::new());
        ahead.typed("a dog".to_string());
        drop(ahead);
        assert!(encoded.recv_timeout(Duration::from_secs(20)).is_err(), "the line was entered, or left");
    }
}
