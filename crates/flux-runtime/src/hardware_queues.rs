//! The queues between the program and a GPU, which the driver creates when it opens the GPU.

use std::env;
use std::ffi::OsStr;
use std::fs;

const VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// Makes the driver create one queue for kernels instead of 8, and as many for copies, unless the environment sets the
/// number. Opening and closing a GPU then takes some 0.07 s less. Streams share the queue, in the order in which their
/// work is enqueued. No work in the queue waits for later work, as long as no kernel waits for another GPU.
///
/// Call this before there are other threads, which might read the environment at the same time. It does nothing if
/// there are any, or if the system does not report them.
#[allow(unsafe_code)]
pub fn make_one() {
    if is_wanted(env::var_os(VARIABLE).as_deref(), threads()) {
        // SAFETY: there is no other thread that reads or writes the environment.
        unsafe { env::set_var(VARIABLE, "1") };
    }
}

fn is_wanted(value: Option<&OsStr>, threads: Option<usize>) -> bool {
    value.is_none_or(OsStr::is_empty) && threads == Some(1)
}

/// Returns the number of threads of the program, if the system reports it.
fn threads() -> Option<usize> {
    fs::read_dir("/proc/self/task").map(Iterator::count).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_says_counts_and_other_threads_are_left_alone() {
        assert!(is_wanted(None, Some(1)) && is_wanted(Some(OsStr::new("")), Some(1)));
        assert!(!is_wanted(Some(OsStr::new("8")), Some(1)));
        assert!(!is_wanted(None, Some(2)) && !is_wanted(None, None));
        let (before, counted) = (env::var_os(VARIABLE), std::thread::spawn(threads).join().unwrap());
        assert!(counted.is_none_or(|threads| threads > 1));
        std::thread::spawn(make_one).join().unwrap();
        assert_eq!(env::var_os(VARIABLE), before);
    }
}
