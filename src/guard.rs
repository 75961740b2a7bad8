//! Runs code of others that may panic on what a file or a prompt holds.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// What `work` returns, or the text of its panic, which is not printed.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    // A process has one hook. Panics elsewhere are printed as before.
    HOOK.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !GUARDED.get() {
                print(info);
            }
        }));
    });
    let outer = GUARDED.replace(true);
    // A value that a panic left half changed is not used again: loading drops it, encoding changes nothing.
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(outer);
    done.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        text.unwrap_or("it panicked").to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_its_text_and_the_next_work_runs() {
        assert_eq!(guarded(|| -> u8 { panic!("no {}", 1) }), Err("no 1".to_string()));
        assert_eq!(guarded(|| -> u8 { panic!("no") }), Err("no".to_string()));
        assert_eq!(guarded(|| 3), Ok(3));
        assert!(!GUARDED.get(), "panics elsewhere are printed");
    }
}
