//! Exponential backoff with jitter.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(250);
const MAX: Duration = Duration::from_secs(10);

/// Increasing delays between attempts. The jitter keeps clients from retrying all at once.
#[derive(Debug, Clone, Copy)]
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Backoff {
    pub fn next(&mut self) -> Duration {
        let time = self.0;
        self.0 = (time * 2).min(MAX);
        time.mul_f64(rand::random_range(0.75..1.0))
    }

    pub async fn wait(&mut self) {
        tokio::time::sleep(self.next()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_bound() {
        let mut backoff = Backoff::default();
        let times: Vec<_> = (0..12).map(|_| backoff.next()).collect();
        assert!(times[0] <= FIRST && times[3] > times[0] && times.iter().all(|time| *time <= MAX));
        assert!(times[11] >= MAX.mul_f64(0.75));
    }
}
