//! A panic is a defect of the program: it is told like other errors, with what to do about it.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook};
use std::sync::atomic::{AtomicBool, Ordering};

use flux::Error;

use crate::allocator;
use crate::progress::say;

/// The exit code of a program that ends by a defect of its own, as in the system's `sysexits.h`.
pub const EXIT_CODE: u8 = 70;

/// Whether any thread panicked.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// What `work` returns; `None` where it panicked, or another thread did meanwhile, which was told.
pub fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    set_hook(Box::new(tell));
    // Nothing that `work` changed is used after a panic.
    let done = catch_unwind(AssertUnwindSafe(work)).ok();
    done.filter(|_| !PANICKED.load(Ordering::Relaxed))
}

fn tell(info: &PanicHookInfo<'_>) {
    // Other threads may panic because the first one did.
    if PANICKED.swap(true, Ordering::Relaxed) {
        return;
    }
    // The standard library panics where a thread that begins gets no memory for its second stack.
    allocator::exit_if_out_of_memory();
    let payload = info.payload();
    let message =
        payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let message = message.unwrap_or("panic").split_whitespace().collect::<Vec<_>>().join(" ");
    let place = info.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
    let error = Error::new(format!("internal: {message}{place}")).hint(
        "this is a defect of flux: please report this line, the command, and what `flux --version --verbose` prints",
    );
    say(&format!("error: {error}"));
    // It is taken only where RUST_BACKTRACE asks for it.
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        say(&backtrace.to_string());
    }
}
