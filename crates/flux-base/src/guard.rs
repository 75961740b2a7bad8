//! A guard for third-party code that may panic on the contents of a file or a prompt.
//!
//! The guard catches the panic, and sets no panic hook: the hook belongs to the program. A program's own hook can call
//! [`is_guarded`] to skip panics that become errors.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Returns `true` while this thread runs guarded work, whose panic becomes an error. For panic hooks.
pub fn is_guarded() -> bool {
    GUARDED.get()
}

/// Returns the result of `work`, or the text of its panic.
pub fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let outer = GUARDED.replace(true);
    // A value that a panic leaves half changed is not used again: loading drops it, encoding changes nothing.
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(outer);
    done.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        text.unwrap_or("a panic without a message").to_string()
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
        assert_eq!(guarded(|| guarded(|| ()).is_ok() && is_guarded()), Ok(true), "guards may be nested");
        assert!(!is_guarded(), "panics elsewhere are reported");
    }
}
