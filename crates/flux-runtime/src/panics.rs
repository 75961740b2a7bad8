//! Reports of panics. A panic is a defect of the program, and is reported like other errors, with a hint.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flux_base::Error;
use flux_base::guard::is_guarded;
use parking_lot::Mutex;

use crate::allocator;
use crate::progress::say;

/// The exit code of a program that ends because of its own defect, as in `sysexits.h`.
pub const EXIT_CODE: u8 = 70;

/// The max number of panics that are reported within a period.
const MAX_REPORTS: u32 = 10;
const PERIOD: Duration = Duration::from_secs(60);

/// True once any thread has panicked.
static PANICKED: AtomicBool = AtomicBool::new(false);
/// True in a program that continues after a thread has panicked.
static SURVIVES: AtomicBool = AtomicBool::new(false);
static REPORTS: Mutex<Reports> = Mutex::new(Reports { since: None, reported: 0, left_out: 0 });

/// The panics of the current period.
struct Reports {
    since: Option<Instant>,
    reported: u32,
    left_out: u64,
}

impl Reports {
    /// Counts a panic. If it should be reported, returns the number of unreported panics before it.
    fn count(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= PERIOD) {
            (self.since, self.reported) = (Some(now), 0);
        }
        if self.reported == MAX_REPORTS {
            self.left_out += 1;
            return None;
        }
        self.reported += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Returns the result of `work`; `None` if `work` or another thread panicked meanwhile. Panics are reported.
pub fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    set_hook(Box::new(report));
    // Nothing that `work` changed is used after a panic.
    let done = catch_unwind(AssertUnwindSafe(work)).ok();
    done.filter(|_| SURVIVES.load(Ordering::Relaxed) || !PANICKED.load(Ordering::Relaxed))
}

/// Makes the panic of a thread end only the work of that thread, such as a request, without an effect on the exit code.
pub fn survive() {
    SURVIVES.store(true, Ordering::Relaxed);
}

fn report(info: &PanicHookInfo<'_>) {
    if is_guarded() {
        return;
    }
    PANICKED.store(true, Ordering::Relaxed);
    // The standard library panics if a new thread gets no memory for its alternate signal stack.
    allocator::exit_if_out_of_memory();
    let Some(left_out) = REPORTS.lock().count(Instant::now()) else { return };
    if left_out > 0 {
        say(&format!("error: internal: {left_out} more panics were not reported"));
    }
    let payload = info.payload();
    let message =
        payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let message = message.unwrap_or("panic").split_whitespace().collect::<Vec<_>>().join(" ");
    let place = info.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
    let error = Error::new(format!("internal: {message}{place}")).hint(
        "this is a bug in flux: please report this line, the command, and the output of `flux --version --verbose`",
    );
    say(&format!("error: {error}"));
    // A backtrace is captured only if RUST_BACKTRACE requests it.
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        say(&backtrace.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_panic_is_reported_within_a_bound() {
        let mut reports = Reports { since: None, reported: 0, left_out: 0 };
        let now = Instant::now();
        let first: Vec<_> = (0..15).map(|_| reports.count(now)).collect();
        assert_eq!(first, [[Some(0); 10].as_slice(), &[None; 5]].concat());
        assert_eq!(reports.count(now + PERIOD), Some(5));
        assert_eq!(reports.count(now + PERIOD), Some(0));
    }
}
