//! The timeout of silent WebSockets.

use std::time::Duration;

/// The timeout as a multiple of that of other connections.
const SILENCES: u32 = 4;

/// Returns `true` if a client that has not answered pings for this time counts as gone.
pub fn is_gone(silent: Duration, silence: Duration) -> bool {
    silent >= silence * SILENCES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_answers_no_ping_is_gone_after_a_while() {
        let silence = Duration::from_secs(30);
        assert!(!is_gone(Duration::from_secs(119), silence), "a few missed pings are tolerated");
        assert!(is_gone(Duration::from_secs(120), silence));
    }
}
