//! Notifications to a supervisor such as systemd: ready, stopping, and watchdog. Without `NOTIFY_SOCKET`, nothing is
//! sent.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// Sends watchdog notifications at the interval that the supervisor expects.
pub struct Watchdog {
    /// Half of the supervisor's timeout.
    every: Option<Duration>,
    notified: Option<Instant>,
}

impl Watchdog {
    pub fn from_environment() -> Self {
        Self { every: sd_notify::watchdog_enabled().map(|time| time / 2), notified: None }
    }

    /// Notifies the supervisor if that is due and `lives` returns `true`.
    pub fn notify(&mut self, lives: impl FnOnce() -> bool) {
        let is_due = |every| self.notified.is_none_or(|told| told.elapsed() >= every);
        if self.every.is_some_and(is_due) && lives() {
            self.notified = Some(Instant::now());
            notify(NotifyState::Watchdog);
        }
    }
}

pub fn is_ready() {
    notify(NotifyState::Ready);
}

pub fn ends() {
    notify(NotifyState::Stopping);
}

fn notify(state: NotifyState<'_>) {
    // A missing supervisor is no reason to stop.
    let _ = sd_notify::notify(&[state]);
}
