//! How long a socket may say nothing.

use std::time::Duration;

/// A client that says nothing for so many times the silence of other connections is gone.
const SILENCES: u32 = 4;

/// Whether a client that answers no ping for so long is gone.
pub fn is_gone(silent: Duration, silence: Duration) -> bool {
    silent >= silence * SILENCES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_answers_no_ping_is_gone_after_a_while() {
        let silence = Duration::from_secs(30);
        assert!(!is_gone(Duration::from_secs(119), silence), "it misses some");
        assert!(is_gone(Duration::from_secs(120), silence));
    }
}
