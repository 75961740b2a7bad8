//! What a supervisor such as systemd hears of the server: that it is ready, that it ends, and that it lives. Without
//! one, where `NOTIFY_SOCKET` is not set, nothing is told.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// Tells that the server lives, as often as the supervisor wants to hear it.
pub struct Watchdog {
    /// Half of the time after which it would restart the server.
    every: Option<Duration>,
    told: Option<Instant>,
}

impl Watchdog {
    pub fn of_environment() -> Self {
        Self { every: sd_notify::watchdog_enabled().map(|time| time / 2), told: None }
    }

    /// Tells it where that is due and `lives` says so.
    pub fn tell(&mut self, lives: impl FnOnce() -> bool) {
        let is_due = |every| self.told.is_none_or(|told| told.elapsed() >= every);
        if self.every.is_some_and(is_due) && lives() {
            self.told = Some(Instant::now());
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
    // A supervisor that is gone is no reason to end.
    let _ = sd_notify::notify(&[state]);
}
