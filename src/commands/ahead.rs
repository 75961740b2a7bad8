//! Prompts that are encoded while they are typed, once the typing pauses: drawing them begins sooner.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use flux::stage::CancelFlag;

/// A pause of the typing.
const PAUSE: Duration = Duration::from_millis(300);

/// Encodes prompts on a thread of its own, until it is dropped.
pub struct Ahead {
    texts: Sender<String>,
    cancel: CancelFlag,
}

impl Ahead {
    /// `encode` is given a prompt, and should end soon once the flag is set.
    pub fn new(encode: impl Fn(String, &CancelFlag) + Send + 'static) -> Self {
        let (texts, typed) = channel();
        let cancel = CancelFlag::default();
        let flag = cancel.clone();
        // Without a thread nothing is encoded ahead.
        let _ = thread::Builder::new().name("ahead".to_string()).spawn(move || {
            while let Some(prompt) = after_a_pause(&typed) {
                encode(prompt, &flag);
            }
        });
        Self { texts, cancel }
    }

    /// The text is typed so far.
    pub fn typed(&self, prompt: String) {
        // A thread that is gone encodes nothing.
        let _ = self.texts.send(prompt);
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// The last text before a pause that is long enough; none at the end.
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
